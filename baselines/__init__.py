"""Measured GPUs: tables with provenance, what operations must at least cost, the measuring harness."""
