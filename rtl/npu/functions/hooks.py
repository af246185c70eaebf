"""Hooks that several ways share: where they do, the lane has one branch for all of them."""

from siliconloom.rtl.npu.ways import when

by_scalar = when(by=lambda stage: stage.shift)
"""The first product is divided by the scalars' power of two."""
