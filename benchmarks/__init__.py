"""Measurements of speed and size, beside peers in the same run. Not tests."""
