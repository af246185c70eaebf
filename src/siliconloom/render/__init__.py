"""Results as text: tables, charts, HTML pages, traces, files."""
