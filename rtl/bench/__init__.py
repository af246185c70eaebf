"""Benches that run generated Verilog and compare it with golden numerics and with a predicted schedule."""
