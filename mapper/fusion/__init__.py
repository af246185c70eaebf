"""Which tasks of a cascade run one after the other, and which as a pipeline, under an on-chip budget."""
