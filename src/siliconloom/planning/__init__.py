"""Models over many chips: what a way to split them costs in time and memory, and the search for the best one."""
