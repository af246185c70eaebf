"""Circuits of the units: every module registers its own, see `rtl.npu.circuits`."""
