"""From workload to Program: tiling, lowering, lower bounds."""
