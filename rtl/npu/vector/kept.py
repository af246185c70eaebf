"""Results that are kept in a format of fewer bits than elements: how they lie, and what writes them.

Rows and lines of such results have as many values as those of elements have, each of the shorter format. So whatever
moves an address by bytes of elements moves it by as many times fewer, and a line of them stands in a part of a line of
the unit, which is written alone. `unit.kept` has a signal for each format, which is set while the instruction under way
keeps its results in it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from amaranth import Cat, Const, Module, Mux
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import CODES
from siliconloom.rtl.npu.decoding import any_of
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.narrow import begins_within, enables, repeated
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.turned import turned_bytes

if TYPE_CHECKING:
    from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def parts(unit: VectorUnitCircuit, dtype: DataType) -> int:
    """Values of a format in as many bytes as an element has."""
    return unit.geometry.dtype.bits // dtype.bits


def tell_kept(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> None:
    """Drive the signals of the formats."""
    for dtype, holds in unit.kept.items():
        m.d.comb += holds.eq(what.entry.weights == CODES.index(dtype))


def shorter(m: Module, unit: VectorUnitCircuit, size: Value | int) -> Value | int:
    """Bytes of so many of elements, of the results as they are kept."""
    found = size
    for dtype, holds in unit.kept.items():
        found = Mux(holds, size >> log2(parts(unit, dtype)), found)
    return found


def refuses_kept(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> Value:
    """Whether there is no circuit that keeps results as the instruction that is offered says."""
    new = what.new
    known = [new.weights == CODES.index(dtype) for dtype in unit.kept]
    if not known:
        return new.weights != 0
    able = any_of(what.built(lambda spec: spec.keeps), new)
    return (new.weights != 0) & ~(able & reduce(or_, known))


def within_kept(m: Module, unit: VectorUnitCircuit, new: Any, mask: Value, elements: Value) -> Value:
    """Whether the results of the instruction that is offered begin within a line; ``elements``: of elements."""
    found = elements
    for dtype in unit.kept:
        own = begins_within(new.c, mask, dtype.bits // 8)
        found = Mux(new.weights == CODES.index(dtype), own, found)
    return found


def line_of(m: Module, unit: VectorUnitCircuit, values: list[Value], line: Value) -> Value:
    """The line that is written: one of elements, or as often as it has room what is kept of them, in their low bits."""
    for dtype, holds in unit.kept.items():
        short = Cat(*repeated([value[: dtype.bits] for value in values], unit.line_mask))
        line = Mux(holds, Cat(*[short] * parts(unit, dtype)), line)
    return line


def written_bytes(m: Module, unit: VectorUnitCircuit, target: Value, elements: Value) -> Value:
    """Which bytes of a line are those of the results that begin at an address; ``elements``: those of elements."""
    found = elements
    for dtype, holds in unit.kept.items():
        mask = Cat(unit.line_mask, Const(0, log2(parts(unit, dtype))))
        found = Mux(holds, enables(target, mask, dtype.bits // 8), found)
    return found


def written_one(m: Module, unit: VectorUnitCircuit, target: Value, taken: Value, element: Value) -> Value:
    """Bytes of the one value that stands at an address, or of as many as are ``taken``; ``element``: of one element."""
    several = unit.geometry.transpose_rows > 1
    found = turned_bytes(unit, target, taken, unit.geometry.element) if several else element
    for dtype, holds in unit.kept.items():
        size = dtype.bits // 8
        within = target[log2(size) : log2(unit.geometry.vector_line)]
        one = Const((1 << size) - 1, size) << (within << log2(size))
        found = Mux(holds, turned_bytes(unit, target, taken, size) if several else one, found)
    return found


__all__ = ["line_of", "parts", "refuses_kept", "shorter", "tell_kept", "within_kept", "written_bytes", "written_one"]
