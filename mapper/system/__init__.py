"""A model on many chips: parts, stages, pipeline schedules, memory, and the search for the best plan."""
