"""The instruction word: its fields, in which bits they are, and what codes stand in them.

Every instruction is one 2048-bit little-endian word. All words share a header; what follows is the *transfer* format
(load, store, send, receive: one address in main memory, one in local memory), the *gather* format (the same and the
local address of indices) or the *compute* format (matmul, vector, pim: four local addresses). The tables ``HEADER``,
``TRANSFER``, ``GATHER`` and ``COMPUTE`` are the only definition of the bit layout: encoder, decoder and the
RTL decoder are built from them.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.datatype import MX_ELEMENTS, DataType
from siliconloom.arch.opcodes import OPCODE_BITS, UNIT_BITS, Format, Opcode
from siliconloom.arch.vector import FUNCTION_BITS, SPLIT_BITS

LEVELS = 6
"""Deepest nesting of hardware loops."""
SEMAPHORES = 24
WORD_BITS = 2048
WORD_BYTES = WORD_BITS // 8
LOCAL_BITS = 28
"""Bits of a local byte address."""
LOCAL_BYTES = 1 << LOCAL_BITS
"""Bytes of a scratchpad, or of an accumulator, that such an address reaches."""
DTYPES = tuple(DataType)
CODES: tuple[DataType | None, ...] = (
    None,
    DataType.INT4,
    DataType.INT8,
    DataType.BF16,
    DataType.FP16,
    *MX_ELEMENTS,
    DataType.INT16,
)
"""Formats of packed weights by their code in a word; the first: weights are as the other operand."""
CODE_BITS = 4
GROUP_BITS = 4
"""Bits of the power of two that the rows of a group of packed weights are."""
UNGROUPED = (1 << GROUP_BITS) - 1
"""What the field of a group says of whole numbers that have no scales, and of keys that have some (`arch.scaled`)."""
BY_ROWS = UNGROUPED - 1
"""What it says of values, whose scales are those of rows: groups of packed weights are smaller than 2^14 rows."""


class BitField(Struct, frozen=True):
    """A field of the instruction word."""

    name: str
    width: int
    signed: bool = False


def _address(name: str, base: int, stride: int, local: bool) -> list[BitField]:
    fields = [BitField(f"{name}.base", base)]
    fields += [BitField(f"{name}.stride{level}", stride, signed=True) for level in range(LEVELS)]
    if local:
        fields += [BitField(f"{name}.slot", base), BitField(f"{name}.parity", LEVELS), BitField(f"{name}.odd", 1)]
    return fields


HEADER: tuple[BitField, ...] = (
    BitField("opcode", OPCODE_BITS),
    BitField("unit", UNIT_BITS),
    BitField("dtype", 4),
    BitField("function", FUNCTION_BITS),
    BitField("wait", SEMAPHORES),
    BitField("release", SEMAPHORES),
    BitField("post", SEMAPHORES),
    BitField("first_wait", SEMAPHORES),
    BitField("last_post", SEMAPHORES),
    BitField("first", LEVELS),
    BitField("last", LEVELS),
    BitField("accumulate", 1),
    BitField("overwrite", LEVELS),
    BitField("m", 24),
    BitField("n", 24),
    BitField("k", 24),
)
TRANSFER: tuple[BitField, ...] = (
    BitField("pitch", 40),
    BitField("local_pitch", 28),
    *_address("memory", 48, 40, local=False),
    *_address("a", 28, 28, local=True),
)
GATHER: tuple[BitField, ...] = (*TRANSFER, *_address("b", 28, 28, local=True))
COMPUTE: tuple[BitField, ...] = (
    *_address("a", 28, 28, local=True),
    *_address("b", 28, 28, local=True),
    *_address("c", 28, 28, local=True),
    *_address("d", 28, 28, local=True),
    BitField("rescale", 1),
    BitField("weights", CODE_BITS),
    BitField("group", GROUP_BITS),
    BitField("narrow", 1),
    BitField("split", SPLIT_BITS),
)
LAYOUTS = {
    Format.HEADER: HEADER,
    Format.TRANSFER: HEADER + TRANSFER,
    Format.GATHER: HEADER + GATHER,
    Format.COMPUTE: HEADER + COMPUTE,
}
"""Fields of a word by its format, from bit 0 up."""
READ_BITS = max(sum(each.width for each in fields) for fields in LAYOUTS.values())
"""Bits of a word, from bit 0 up, in which fields lie; a tile fetches the others and drops them."""
STORED_GRAIN = 64
"""Bits that share a write enable in a program memory whose port is at least as wide."""


def stored_grain(port_bytes: int) -> int:
    """Bits that share a write enable in the program memory of a tile whose ports bring so many bytes a beat."""
    return min(STORED_GRAIN, 8 * port_bytes)


def stored_bits(port_bytes: int) -> int:
    """Bits of a word that such a program memory holds: those that are read, and what fills up the last grain."""
    grain = stored_grain(port_bytes)
    return -(-READ_BITS // grain) * grain


def word_layout(opcode: Opcode) -> tuple[BitField, ...]:
    """Fields of an instruction's word, from bit 0 up."""
    return LAYOUTS[opcode.spec.format]


__all__ = [
    "BY_ROWS",
    "BitField",
    "CODES",
    "CODE_BITS",
    "COMPUTE",
    "DTYPES",
    "GATHER",
    "GROUP_BITS",
    "HEADER",
    "LAYOUTS",
    "LEVELS",
    "LOCAL_BITS",
    "LOCAL_BYTES",
    "READ_BITS",
    "SEMAPHORES",
    "TRANSFER",
    "UNGROUPED",
    "WORD_BITS",
    "WORD_BYTES",
    "stored_bits",
    "stored_grain",
    "word_layout",
]
