"""One description of an AI accelerator: Verilog, a cycle simulator, and the proof that the two agree."""

__version__ = "0.1.0"
