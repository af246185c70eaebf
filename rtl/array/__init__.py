"""Systolic arrays: elements, rows and grids of them, and the tile that streams operands through."""
