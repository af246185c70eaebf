"""Circuits of the vector functions: every module registers its own, see `rtl.npu.ways`."""
