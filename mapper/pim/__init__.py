"""A workload in memory that computes: layouts of operands, and what is worth doing there."""
