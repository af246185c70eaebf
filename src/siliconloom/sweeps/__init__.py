"""Design-space exploration: points of a sweep, chosen, evaluated side by side, kept, and compared."""
