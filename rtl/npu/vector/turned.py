"""Rows that are transposed: what the lanes get of them, and which bytes of a line are written.

One row at a time, its elements go to all lanes one after the other, and each is written by itself. Where several rows
are transposed together (`transpose_rows`, T of them) they are first held; then lane l gets an element of row l mod T,
and the T elements of a column, which adjoin in the result, are written at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.rtl.npu.geometry import log2

if TYPE_CHECKING:
    from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def turned_elements(m: Module, unit: VectorUnitCircuit, beat: Value, held: Value, bits: int) -> list[Value]:
    """What each lane gets, in the stage in which lines arrive: elements of so many bits, of column ``beat``.

    A line that arrives is one of the rows that are ``held``.
    """
    lanes, together = unit.geometry.lanes, unit.geometry.transpose_rows
    column = beat[: unit.wide]
    if together == 1:
        one = Signal(bits, name="one")
        m.d.comb += one.eq(unit.first_line.word_select(column, bits))
        return [one] * lanes
    place = Signal(range(together), name="held_place")
    rows = Array(Signal(lanes * bits, name=f"held_{row}") for row in range(together))
    with m.If(held):
        m.d.sync += [place.eq(place + 1), rows[place].eq(unit.first_line)]
    with m.Else():
        m.d.sync += place.eq(0)
    elements = [Signal(bits, name=f"one_{row}") for row in range(together)]
    m.d.comb += [element.eq(row.word_select(column, bits)) for element, row in zip(elements, rows, strict=True)]
    return [elements[lane % together] for lane in range(lanes)]


def turned_bytes(unit: VectorUnitCircuit, target: Value, taken: Value, size: int) -> Value:
    """Bytes of what one column has of as many rows as are ``taken`` together: elements of ``size`` bytes each."""
    together, line = unit.geometry.transpose_rows, unit.geometry.vector_line
    rows = Cat(*(Mux(taken > row, Const((1 << size) - 1, size), Const(0, size)) for row in range(together)))
    return (rows << target[: log2(line)])[:line]


__all__ = ["turned_bytes", "turned_elements"]
