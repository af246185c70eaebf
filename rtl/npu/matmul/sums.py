"""Where an array's sums go: to lines of the accumulator, or to parts of one where those of a last panel are split."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux
from amaranth.hdl import Value

from siliconloom.rtl.npu.matmul.unit import MatmulUnitCircuit
from siliconloom.rtl.npu.narrow import apart, row_offset


def panel_lines(unit: MatmulUnitCircuit, rows: Value) -> Value:
    """Parts of lines that a panel of so many rows takes, none of which is split."""
    return Cat(Const(0, unit.geometry.part_bits), rows)


def place_sums(m: Module, unit: MatmulUnitCircuit, panel: Value, row: Value, last: Value, split: Value) -> list[Any]:
    """The line, and the parts of it, of a row of a panel that begins at part ``panel``; only the last one is split."""
    bits = unit.geometry.part_bits
    if not bits:
        return [unit.sums.line.eq(panel + row)]
    taken = Mux(last, split, 0)
    place = panel + row_offset(row, taken, bits)
    return [unit.sums.line.eq(place >> bits), unit.sums.part.eq(place[:bits]), unit.sums.apart.eq(apart(taken, bits))]


__all__ = ["panel_lines", "place_sums"]
