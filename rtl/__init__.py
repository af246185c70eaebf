"""The machine as circuits (Amaranth), Verilog emission and the benches that check it."""
