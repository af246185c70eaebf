"""What the sequencer hands to the units: instructions with their addresses and conditions resolved."""

from __future__ import annotations

from typing import Any

from amaranth.lib import data

from siliconloom.arch.isa import Unit
from siliconloom.arch.opcodes import OPCODE_BITS, built_units
from siliconloom.arch.opcodes import Unit as UnitCode
from siliconloom.arch.vector import FUNCTION_BITS, SPLIT_BITS
from siliconloom.arch.word import CODE_BITS, GROUP_BITS
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MASK_BITS, MEMORY_BITS, SIZE_BITS

SYNC = {"barrier": 1, "wait": MASK_BITS, "release": MASK_BITS, "post": MASK_BITS, "number": SIZE_BITS}
"""Carried by every instruction; ``number`` is its place in the program."""
WIDTHS = {
    **dict.fromkeys(("m", "n", "k"), SIZE_BITS),
    **dict.fromkeys(("pitch", "memory"), MEMORY_BITS),
    **dict.fromkeys(("local_pitch", "local", "a", "b", "c", "d"), LOCAL_BITS),
    "function": FUNCTION_BITS,
    **dict.fromkeys(("add", "rescale", "narrow", "a_slot", "b_slot", "c_slot", "indexed"), 1),
    "weights": CODE_BITS,
    "group": GROUP_BITS,
    "split": SPLIT_BITS,
    "opcode": OPCODE_BITS,
}
"""Bits of what a unit's queue may hold of an instruction, see `arch.opcodes.UnitSpec.entry`."""


def entry_layout(unit: UnitCode) -> data.StructLayout:
    """What the queue of ``unit`` holds."""
    return data.StructLayout({**SYNC, **{name: WIDTHS[name] for name in unit.spec.entry}})


def queues(tile: Any) -> dict[str, data.StructLayout]:
    """Units of a tile with a queue, in the order of their codes, and what their queues hold.

    ``tile`` is a description or a `Geometry`, of which `arch.opcodes.built_units` asks what there is.
    """
    return {unit.spec.name: entry_layout(unit) for unit in built_units(tile)}


LOAD_ENTRY, TRANSFER_ENTRY = entry_layout(Unit.LOAD), entry_layout(Unit.STORE)
MATMUL_ENTRY, VECTOR_ENTRY = entry_layout(Unit.MATMUL), entry_layout(Unit.VECTOR)
