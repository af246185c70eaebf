"""Measured GPUs: not built yet."""
