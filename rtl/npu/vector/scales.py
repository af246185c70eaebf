"""Exponents that results of the vector unit share where they are kept with scales (`arch.scaled`).

The largest of every C values of a line is found while the line passes the lanes, in the stages behind the one in which
it arrives, and is there when the lanes round. Of rows that are transposed each line is looked at as it arrives; where
several are held, their exponents are, too, a stage before they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.rtl.cells.floating import EXPONENT, widened
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.slots import Slot

if TYPE_CHECKING:
    from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit

ARRIVES, ROUNDS = 1, 9
"""Stages in which a line arrives at the lanes, and in which these round its results."""


def shared_exponents(m: Module, unit: VectorUnitCircuit, what: VectorConditions, slots: list[Slot]) -> list[Value]:
    """The exponent that each lane's result shares, in the stage in which it is rounded."""
    geometry, cols, lanes = unit.geometry, unit.geometry.array.cols, unit.geometry.lanes
    values: list[Value] = []
    for lane in range(lanes):
        own = Signal(EXPONENT, name=f"exponent_{lane}")
        element = unit.first_line[geometry.dtype.bits * lane : geometry.dtype.bits * (lane + 1)]
        wide = widened(m, f"exponent_of_{lane}", element, geometry.dtype.layout)
        m.d.comb += own.eq(Mux(slots[ARRIVES].used > lane, wide[-1 - EXPONENT : -1], 0))
        values.append(own)
    levels = log2(cols)
    for level in range(levels):
        values = _larger(m, level, values)
        if level in ((levels - 1) // 2, levels - 1):
            values = _later(m, f"top_{level}", values)
    held = len({(levels - 1) // 2, levels - 1} & {*range(levels)})
    for cycle in range(unit.depth.at(ROUNDS) - unit.depth.at(ARRIVES) - held):
        values = _later(m, f"tops_{cycle}", values)
    return _of_lanes(m, unit, what, slots[ROUNDS], values)


def _of_lanes(m: Module, unit: VectorUnitCircuit, what: VectorConditions, slot: Slot, tops: list[Value]) -> list[Value]:
    """Of each lane, from those of the line that arrived with its slot."""
    lanes, cols, together = unit.geometry.lanes, unit.geometry.array.cols, unit.geometry.transpose_rows
    block, line = slot.beat[log2(cols) : unit.wide], Cat(*tops)
    rows = [line]
    if together > 1:
        place = Signal(range(together), name="tops_place")
        held = Array(Signal(EXPONENT * len(tops), name=f"tops_of_row_{row}") for row in range(together))
        with m.If(slot.held):
            m.d.sync += [place.eq(place + 1), held[place].eq(line)]
        with m.Else():
            m.d.sync += place.eq(0)
        rows = list(held)
    turned = [_part(m, f"turned_top_{number}", row, block) for number, row in enumerate(rows)]
    found: list[Value] = []
    for lane in range(lanes):
        found.append(Signal(EXPONENT, name=f"shared_{lane}"))
        own = Mux(what.is_["transpose"], turned[lane % len(turned)], tops[lane // cols])
        m.d.comb += found[-1].eq(own)
    return found


def _part(m: Module, name: str, line: Value, block: Value) -> Signal:
    """The exponent of a block of columns."""
    made = Signal(EXPONENT, name=name)
    m.d.comb += made.eq(line.word_select(block, EXPONENT) if len(block) else line[:EXPONENT])
    return made


def _larger(m: Module, level: int, values: Sequence[Value]) -> list[Value]:
    """The larger of neighbours."""
    made: list[Value] = []
    for place, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True)):
        made.append(Signal(EXPONENT, name=f"larger_{level}_{place}"))
        m.d.comb += made[-1].eq(Mux(a > b, a, b))
    return made


def _later(m: Module, name: str, values: Sequence[Value]) -> list[Value]:
    """A stage later."""
    made = [Signal(EXPONENT, name=f"{name}_{place}") for place in range(len(values))]
    m.d.sync += [register.eq(value) for register, value in zip(made, values, strict=True)]
    return list(made)


__all__ = ["shared_exponents"]
