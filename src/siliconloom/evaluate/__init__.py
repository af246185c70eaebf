"""What machines take for workloads: results as data, from descriptions, graphs and plans."""
