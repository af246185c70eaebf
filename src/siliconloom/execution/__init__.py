"""The values of a whole model: its graph in float64 and in integers, and the program of ``loom sim`` on its memory."""
