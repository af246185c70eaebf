"""Lines of narrow operands in circuits: how wide they are, and how they are read out of whole lines and put into them.

A line is told by a *mask*: its width, a power of two, less one. See `arch.layout.line_values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.layout import is_power
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.bytes import ByteShift
from siliconloom.rtl.npu.geometry import log2


def line_mask(m: Module, name: str, size: Value, line: int, narrow: Value) -> Signal:
    """Width less one of the lines that ``size`` values lie in; all ones where that is a whole ``line``."""
    bits = (line - 1).bit_length()
    mask = Signal(bits, name=f"{name}_mask")
    last = Signal(bits, name=f"{name}_last")
    m.d.comb += last.eq(size[:bits] - 1)
    above = ~narrow | fills(size, bits)
    m.d.comb += mask.eq(Cat(last[bit:].any() | above for bit in range(bits)))
    return mask


def fills(size: Value, bits: int) -> Value:
    """Whether so many values are more than 2^``bits``, or none: what a size less one says, without a carry."""
    return size[bits + 1 :].any() | (size[bits] & size[:bits].any()) | ~size.any()


def widened_mask(mask: Value, least: int) -> Value:
    """The mask of lines that have at least so many values, a power of two."""
    bits = log2(least)
    return Cat(Const(least - 1, bits), mask[bits:]) if bits else mask


def line_width(mask: Value, line: int) -> Value:
    """Values of a line."""
    if is_power(line):
        return mask + 1
    return Mux(mask.all(), line, mask + 1)


def row_pitch(size: Value, mask: Signal, unit: int) -> Value:
    """Values from row to row, of which there are some: lines of a unit, or one narrow line."""
    bits = log2(unit)
    return Mux(fills(size, bits), (size[bits:] + size[:bits].any()) << bits, mask + 1)


def begins_within(address: Value, mask: Value, element: int) -> Value:
    """Whether an address lies within a line of values of so many bytes."""
    low = log2(element)
    return address[:low].any() | (address[low : low + len(mask)] & mask).any()


def apart(split: Value, bits: int) -> Value:
    """Which bits of a place among 2^``bits`` parts of a line of sums tell apart lines that are split so."""
    return Cat(split >= bits - bit for bit in range(bits))


def row_offset(row: Value, split: Value, bits: int) -> Value:
    """Parts of a line, of which there are 2^``bits``, from the first row of a panel to another; rows are split so."""
    offset = Cat(Const(0, bits), row)
    for step in range(bits):
        offset = Mux(split > step, offset >> 1, offset)
    return offset


def shifted(m: Module, unit: Circuit, name: str, word: Value, first: Value) -> Value:
    """A word from byte ``first`` on, filled up with zeros; ``name`` is that of the circuit in the unit that does it."""
    if not len(first):
        return word
    shift = unit.library.make(ByteShift, len(word) // 8)
    return cast(Value, unit.place(m, shift, name, word=word, first=first).o)


def spread(m: Module, name: str, word: Value, mask: Value, rows: int, line: int, bits: int) -> Signal:
    """So many rows of values, which lie in narrow lines one after the other, at the places of whole lines.

    Where a line has no values there are zeros.
    """
    made = Signal(rows * line * bits, name=name)
    if not len(mask):
        m.d.comb += made.eq(word)
        return made
    with m.Switch(mask):
        for low in range(len(mask)):
            width = 1 << low
            with m.Case(width - 1):
                parts = (word[row * width * bits : (row + 1) * width * bits] for row in range(rows))
                m.d.comb += made.eq(Cat(*(Cat(part, Const(0, (line - width) * bits)) for part in parts)))
        with m.Default():
            m.d.comb += made.eq(word[: len(made)])
    return made


def repeated(values: Sequence[Value], mask: Value) -> list[Value]:
    """Values of a line, of a narrow one again and again: as many as a whole line has."""
    made = list(values[:1])
    for bit in range(len(mask)):
        half = 1 << bit
        made += [Mux(mask[bit], values[place], made[place - half]) for place in range(half, 2 * half)]
    return made


def enables(first: Value, mask: Signal, element: int) -> Value:
    """A bit for each byte of a whole line: set for those of the line that begins at byte ``first``."""
    low, count = log2(element), 1 << len(mask)
    held = [
        ~((Const(place, max(len(mask), 1)) ^ first[low : low + len(mask)]) & ~mask).any() if len(mask) else Const(1, 1)
        for place in range(count)
    ]
    return Cat(*(bit.replicate(element) for bit in held))


__all__ = [
    "apart",
    "begins_within",
    "enables",
    "fills",
    "line_mask",
    "line_width",
    "repeated",
    "row_offset",
    "row_pitch",
    "shifted",
    "spread",
    "widened_mask",
]
