"""A workload on one chip: tilings, divisions of the buffers, placement in memory, and the Program."""
