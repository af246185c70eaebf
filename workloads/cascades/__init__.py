"""Cascades of extended Einsums: text, values, passes, live footprints, least traffic."""
