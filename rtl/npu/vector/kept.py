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

from siliconloom.arch.datatype import CACHE_SCALED, DataType
from siliconloom.arch.word import CODES
from siliconloom.rtl.npu.decoding import any_of
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.narrow import begins_within, enables, repeated
from siliconloom.rtl.npu.scaled import with_scales
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.turned import turned_bytes

if TYPE_CHECKING:
    from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def tell_kept(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> None:
    """Drive the signals of the formats."""
    for dtype, holds in unit.kept.items():
        m.d.comb += holds.eq(what.entry.weights == CODES.index(dtype))
    if DataType.INT4 in unit.kept:
        m.d.comb += unit.pairs.eq(unit.kept[DataType.INT4] & what.is_["transpose"])


def sizes(unit: VectorUnitCircuit) -> list[tuple[Value, int]]:
    """Bytes of a result in each format, with its scale where it has one, and whether it is in that."""
    found: list[tuple[Value, int]] = []
    for dtype, holds in unit.kept.items():
        found.append((holds, own_bytes(dtype)))
        if dtype is DataType.INT4:
            found.append((unit.pairs, 2))
    return found


def own_bytes(dtype: DataType) -> int:
    """Bytes of a result: of int8 with its scale, of int4 in neighbours' pairs one for both."""
    return {DataType.INT8: 2, DataType.INT4: 1}.get(dtype, dtype.bits // 8)


def shorter(m: Module, unit: VectorUnitCircuit, size: Value | int) -> Value | int:
    """Bytes of so many of elements, of the results as they are kept."""
    found = size
    for holds, count in sizes(unit):
        found = Mux(holds, size >> log2(unit.geometry.element // count), found)
    return found


def turned_steps(unit: VectorUnitCircuit, what: VectorConditions, row: Value | int, block: Value) -> tuple[Any, Any]:
    """Bytes from row to row, and from block to block, of results; where they are transposed and have scales their own.

    A position is one byte in the lines of its columns there, and pairs of these are half as many lines.
    """
    if not unit.geometry.array.cache_scaled:
        return row, block
    scaled = reduce(or_, (unit.kept[dtype] for dtype in unit.geometry.array.cache_scaled)) & what.is_["transpose"]
    return Mux(scaled, unit.geometry.transpose_rows, row), Mux(unit.pairs, block >> 1, block)


def refuses_kept(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> Value:
    """Whether there is no circuit that keeps results as the instruction that is offered says."""
    new = what.new
    known = [new.weights == CODES.index(dtype) for dtype in unit.kept]
    if not known:
        return new.weights != 0
    able = any_of(what.built(lambda spec: spec.keeps), new)
    refused = (new.weights != 0) & ~(able & reduce(or_, known))
    scaled = [new.weights == CODES.index(dtype) for dtype in unit.geometry.array.cache_scaled]
    if scaled:
        transposes = any_of(what.built(lambda spec: spec.transposes), new)
        refused = refused | (reduce(or_, scaled) & transposes & (new.m > unit.geometry.lanes))
        refused = refused | ((new.weights == CODES.index(DataType.INT4)) & new.n[0])
    return refused


def within_kept(m: Module, unit: VectorUnitCircuit, what: VectorConditions, mask: Value, elements: Value) -> Value:
    """Whether the results of the instruction that is offered begin within a line; ``elements``: of elements."""
    found, new = elements, what.new
    for dtype in unit.kept:
        own = begins_within(new.c, mask, own_bytes(dtype))
        if dtype is DataType.INT4:
            transposes = any_of(what.built(lambda spec: spec.transposes), new)
            own = Mux(transposes, begins_within(new.c, mask, 2), own)
        found = Mux(new.weights == CODES.index(dtype), own, found)
    return found


def line_of(m: Module, unit: VectorUnitCircuit, values: list[Value], line: Value) -> Value:
    """The line that is written: one of elements, or as often as it has room what is kept of them, in their low bits."""
    for dtype, holds in unit.kept.items():
        if dtype in CACHE_SCALED:
            short = with_scales(m, unit, dtype, values)
        else:
            one = Cat(*repeated([value[: dtype.bits] for value in values], unit.line_mask))
            short = Cat(*[one] * (unit.geometry.dtype.bits // dtype.bits))
        line = Mux(holds, short, line)
    return line


def written_bytes(m: Module, unit: VectorUnitCircuit, target: Value, elements: Value) -> Value:
    """Which bytes of a line are those of the results that begin at an address; ``elements``: those of elements."""
    found = elements
    for dtype, holds in unit.kept.items():
        size = own_bytes(dtype)
        mask = Cat(unit.line_mask, Const(0, log2(unit.geometry.element // size)))
        found = Mux(holds, enables(target, mask, size), found)
    return found


def written_one(m: Module, unit: VectorUnitCircuit, target: Value, taken: Value, element: Value) -> Value:
    """Bytes of the one value that stands at an address, or of as many as are ``taken``; ``element``: of one element."""
    several = unit.geometry.transpose_rows > 1
    found = turned_bytes(unit, target, taken, unit.geometry.element) if several else element
    for dtype, holds in unit.kept.items():
        size = max(dtype.bits // 8, 1)
        within = target[log2(size) : log2(unit.geometry.vector_line)]
        one = Const((1 << size) - 1, size) << (within << log2(size))
        one = turned_bytes(unit, target, taken, size) if several else one
        if dtype in CACHE_SCALED:  # and scales behind the line
            one = one | (one << unit.line_mask + 1)[: unit.geometry.vector_line]
        found = Mux(holds, one, found)
    return found


__all__ = [
    "line_of",
    "refuses_kept",
    "shorter",
    "tell_kept",
    "turned_steps",
    "within_kept",
    "written_bytes",
    "written_one",
]
