"""RTL against models: work for the benches, and the comparison of what comes out."""
