"""Lines of an instruction's operands: how wide they are, and how they are read and written within whole ones."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.layout import padded
from siliconloom.arch.vector import INDEX_BYTES
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.narrow import enables, line_mask, repeated, shifted
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.kept import line_of, written_bytes, written_one
from siliconloom.rtl.npu.vector.slots import Slot
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


class LineMasks(NamedTuple):
    """Widths of the lines of an instruction, see `rtl.npu.narrow`: of its columns, its rows, and what k counts.

    Those of a ``line`` are at most as wide as the unit, those of a ``row`` as `arch.layout.row_unit`.
    """

    line_columns: Signal
    line_rows: Signal
    line_weights: Signal
    row_columns: Signal
    row_rows: Signal
    row_weights: Signal


def line_masks(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> LineMasks:
    """Widths of lines of the instruction that is offered."""
    new, lanes, row = what.new, unit.geometry.lanes, unit.geometry.row_unit
    made = {
        f"{kind}_{name}": line_mask(m, f"{kind}_{name}", new[size], line, new.narrow)
        for kind, line in (("line", lanes), ("row", row))
        for name, size in (("columns", "n"), ("rows", "m"), ("weights", "k"))
    }
    return LineMasks(**made)


def read_lines(m: Module, unit: VectorUnitCircuit) -> None:
    """What was read, from the beginning of its line on: a narrow one lies within a whole one."""
    bits = log2(unit.geometry.vector_line)
    for port, line in ((unit.first, unit.first_line), (unit.second, unit.second_line)):
        begins = Signal(bits, name=f"{line.name}_asked")
        m.d.sync += begins.eq(port.address[:bits])
        begins, data = unit.arrived(m, f"{line.name}_begins", begins), unit.arrived(m, f"{line.name}_read", port.data)
        m.d.comb += line.eq(shifted(m, unit, f"{line.name}_shift", data, begins))


def parts_mask(unit: VectorUnitCircuit, narrow: Value) -> Value:
    """The mask of lines in which the parts of an index lie."""
    bits = unit.wide
    least = min(INDEX_BYTES // unit.geometry.element, unit.geometry.lanes) - 1
    return Mux(narrow, Const(least, bits), ~Const(0, bits))


def index_pitches(unit: VectorUnitCircuit) -> tuple[int, int]:
    """Elements from row to row of the parts of indices: of narrow results, and of others."""
    parts, row = INDEX_BYTES // unit.geometry.element, unit.geometry.row_unit
    return padded(parts, min(parts, row)), padded(parts, row)


def write_line(m: Module, unit: VectorUnitCircuit, values: list[Value]) -> None:
    """The line that is written; a narrow one stands wherever it may lie in a whole one."""
    line = Cat(*repeated(values, unit.line_mask))
    m.d.comb += unit.write.data.eq(line_of(m, unit, values, line))


def write_results(m: Module, unit: VectorUnitCircuit, end: Slot, element: Value) -> None:
    """Where the lanes' line is written, or the one ``element`` of it whose bytes these are."""
    m.d.comb += unit.write.address.eq(end.target)
    with m.If(end.result):
        line = enables(end.target, unit.line_mask, unit.geometry.element)
        m.d.comb += unit.write.enable.eq(written_bytes(m, unit, end.target, line))
    with m.Elif(end.byte):
        m.d.comb += unit.write.enable.eq(written_one(m, unit, end.target, end.taken, element))


__all__ = ["LineMasks", "index_pitches", "line_masks", "parts_mask", "read_lines", "write_line", "write_results"]
