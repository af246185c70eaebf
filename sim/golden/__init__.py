"""What programs compute, in NumPy: the values that circuits must leave behind."""
