"""What the sequencer hands to the units: instructions with their addresses and conditions resolved."""

from __future__ import annotations

from amaranth.lib import data

from siliconloom.rtl.npu.geometry import LOCAL_BITS, MASK_BITS, MEMORY_BITS, SIZE_BITS

SYNC = {"barrier": 1, "wait": MASK_BITS, "release": MASK_BITS, "post": MASK_BITS, "number": SIZE_BITS}
"""Carried by every instruction; ``number`` is its place in the program."""

TRANSFER_ENTRY = data.StructLayout(
    {
        **SYNC,
        "m": SIZE_BITS,
        "n": SIZE_BITS,
        "pitch": MEMORY_BITS,
        "local_pitch": LOCAL_BITS,
        "memory": MEMORY_BITS,
        "local": LOCAL_BITS,
    }
)
MATMUL_ENTRY = data.StructLayout(
    {
        **SYNC,
        "m": SIZE_BITS,
        "n": SIZE_BITS,
        "k": SIZE_BITS,
        "a": LOCAL_BITS,
        "b": LOCAL_BITS,
        "c": LOCAL_BITS,
        "add": 1,
    }
)
VECTOR_ENTRY = data.StructLayout(
    {
        **SYNC,
        "function": 6,
        "m": SIZE_BITS,
        "n": SIZE_BITS,
        "k": SIZE_BITS,
        "a": LOCAL_BITS,
        "b": LOCAL_BITS,
        "c": LOCAL_BITS,
        "d": LOCAL_BITS,
    }
)
