"""Names of the library's traces of requests, read without loading any of them."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "library"
SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


def trace_names() -> list[str]:
    """Names of the library's traces."""
    return sorted(path.name.partition(".")[0] for path in LIBRARY.iterdir() if path.name.endswith(SUFFIXES))


__all__ = ["LIBRARY", "SUFFIXES", "trace_names"]
