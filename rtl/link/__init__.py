"""The chip-to-chip link and the ring collectives over it, as circuits."""
