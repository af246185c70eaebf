"""Designs as parts of other people's systems: what ``loom rtl --flow`` writes beside the Verilog."""
