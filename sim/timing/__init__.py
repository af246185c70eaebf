"""Closed-form durations of the units, equal to the generated RTL's."""
