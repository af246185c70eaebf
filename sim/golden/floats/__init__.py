"""What vector functions of whole rows, activations and choices compute in floating point: registered by its modules."""
