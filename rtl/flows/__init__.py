"""What goes with the Verilog into other people's tools: project files, constraints, benches, an FPGA top, synthesis."""
