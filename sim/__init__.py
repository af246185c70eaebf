"""The machine in time: unit timing, the event engine, energy, traces, results."""
