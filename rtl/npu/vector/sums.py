"""Sums as the vector unit reads them: blocks of its columns lie over panels of the array's."""

from __future__ import annotations

from math import gcd
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.layout import is_power
from siliconloom.rtl.npu.bytes import WindowSelect
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, log2
from siliconloom.rtl.npu.narrow import apart, row_offset
from siliconloom.rtl.npu.vector.phases import BlockPlace
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def ask_sums(m: Module, unit: VectorUnitCircuit, wanted: Value, line: Signal, entry: Any, place: BlockPlace) -> None:
    """Reads of the lines of sums in which a block's columns lie: one panel's, and those of the panels after it.

    The panel begins at part ``line`` of a line; of the last panel lines may be split.
    """
    cols, wanted_columns = (
        unit.geometry.array.cols,
        Mux(place.block_last, entry.n - place.column, unit.geometry.lanes),
    )
    bits, columns = unit.geometry.part_bits, log2(cols)
    asked, lines, parts = list[Value](), list[Value](), list[Value]()
    for number in range(unit.geometry.lines_of_block):
        asked.append(wanted & ((place.offset + wanted_columns)[:SIZE_BITS] > number * cols) if number else wanted)
        panel, row = line + Cat(Const(0, bits), entry.m * number), place.row
        if bits:
            last = ((place.column >> columns) | number) == (entry.n - 1)[:SIZE_BITS] >> columns
            row = row_offset(row, Mux(last, entry.split, 0), bits)
        at = Signal(LOCAL_BITS, name=f"sums_at_{number}")
        m.d.comb += at.eq(panel + row)
        lines.append(Cat(at[bits:], Const(0, bits)))
        parts.append(at[:bits])
    m.d.comb += [unit.sums.enable.eq(Cat(*asked)), unit.sums.line.eq(Cat(*lines))]
    if bits:
        m.d.sync += unit.sums_parts.eq(Cat(*parts))


def sums_within(m: Module, unit: VectorUnitCircuit, new: Any) -> tuple[Value, Value]:
    """Whether sums that are offered begin within a line, and whether lines that are split are too short for them."""
    bits, low, columns = unit.geometry.part_bits, log2(unit.geometry.part), log2(unit.geometry.array.cols)
    if not bits:
        whole = is_power(unit.geometry.array.cols)
        return new.a[:low].any(), Const(0, 1) if whole else new.split != 0
    told, last = apart(new.split, bits), (new.n - 1)[:SIZE_BITS]
    inner = Mux(last[columns:].any(), ~Const(0, bits), ~told)
    return new.a[:low].any() | (new.a[low : low + bits] & inner).any(), (last[columns - bits : columns] & told).any()


def whole_lines(m: Module, unit: VectorUnitCircuit) -> Value:
    """What was read, of every line from the part on that was meant."""
    bits, size = unit.geometry.part_bits, 8 * unit.geometry.results
    data = unit.arrived(m, "sums_read", unit.sums.data)
    if not bits:
        return data
    asked = unit.arrived(m, "sums_parts_1", unit.sums_parts)
    found = list[Value]()
    for number in range(unit.geometry.lines_of_block):
        line = data[number * size : (number + 1) * size]
        parts = [line[at : at + (size >> bits)] for at in range(0, size, size >> bits)]
        for bit in reversed(range(bits)):
            # what begins there has no more parts
            first = asked[number * bits + bit]
            parts = [Mux(first, parts[at + (1 << bit)], parts[at]) for at in range(1 << bit)] + parts[1 << bit :]
        found += parts
    # a signal, so that the choices are made once, and not again for every lane's part of them
    whole = Signal(len(unit.sums.data), name="sums_from_part")
    m.d.comb += whole.eq(Cat(*found))
    return whole


def sums_of(m: Module, unit: VectorUnitCircuit, place: BlockPlace) -> Value:
    """The sums of a block's columns, of all that their lines have."""
    cols, lanes = unit.geometry.array.cols, unit.geometry.lanes
    whole = whole_lines(m, unit)
    if lanes % cols == 0:
        return whole
    step, width = gcd(cols, lanes), 8 * unit.geometry.lines_of_block * unit.geometry.results
    select = unit.library.make(WindowSelect, width, 32 * lanes, 32 * step)
    offset = unit.later(m, "offset_read", place.offset, 0)
    return unit.place(m, select, "sums_select", word=whole, first=offset[log2(step) :]).o


__all__ = ["ask_sums", "sums_of", "sums_within", "whole_lines"]
