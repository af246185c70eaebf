"""What open tools make of a design: cells and gates by Yosys, frequencies by nextpnr."""
