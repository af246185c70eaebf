"""Circuits of the vector functions in floating point: every module registers its own, see `rtl.npu.float_ways`."""
