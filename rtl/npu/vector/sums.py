"""Sums as the vector unit reads them: blocks of its columns lie over panels of the array's."""

from __future__ import annotations

from math import gcd
from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.rtl.npu.bytes import WindowSelect
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, log2
from siliconloom.rtl.npu.vector.phases import BlockPlace
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def ask_sums(m: Module, unit: VectorUnitCircuit, wanted: Value, line: Signal, entry: Any, place: BlockPlace) -> None:
    """Reads of the lines of sums in which a block's columns lie: one panel's, and those of the panels after it."""
    cols, wanted_columns = (
        unit.geometry.array.cols,
        Mux(place.block_last, entry.n - place.column, unit.geometry.lanes),
    )
    asked, lines = [wanted], [line]
    for number in range(1, unit.geometry.lines_of_block):
        asked.append(wanted & ((place.offset + wanted_columns)[:SIZE_BITS] > number * cols))
        lines.append((line + entry.m * number)[:LOCAL_BITS])
    m.d.comb += [unit.sums.enable.eq(Cat(*asked)), unit.sums.line.eq(Cat(*lines))]


def sums_of(m: Module, unit: VectorUnitCircuit, place: BlockPlace) -> Value:
    """The sums of a block's columns, of all that their lines have."""
    cols, lanes = unit.geometry.array.cols, unit.geometry.lanes
    if lanes % cols == 0:
        return unit.sums.data
    step, width = gcd(cols, lanes), 8 * unit.geometry.lines_of_block * unit.geometry.results
    select = unit.library.make(WindowSelect, width, 32 * lanes, 32 * step)
    offset = Signal.like(place.offset, name="offset_read")
    m.d.sync += offset.eq(place.offset)
    return unit.place(m, select, "sums_select", word=unit.sums.data, first=offset[log2(step) :]).o


__all__ = ["ask_sums", "sums_of"]
