"""Tasks on streams and nodes, and machines that fail: time above single chips."""
