"""The chip simulator: the event engine, its kernel, jumps over what repeats, memory levels, energy."""
