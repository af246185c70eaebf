"""The array's unit: what it refuses, and the control that its dataflow needs."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux
from amaranth.hdl import Value

from siliconloom.arch import timing
from siliconloom.arch.layout import is_power
from siliconloom.arch.vector import ROW_LIMIT
from siliconloom.rtl.array.tile import OutputTile, StationaryTile
from siliconloom.rtl.cells.plumbing import RegisterSlice
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.matmul.output_stationary import output_stationary
from siliconloom.rtl.npu.matmul.stationary import stationary
from siliconloom.rtl.npu.matmul.unit import MatmulOperands, MatmulUnitCircuit, operands_of
from siliconloom.rtl.npu.narrow import apart, begins_within, line_mask


class MatmulControl(MatmulUnitCircuit):
    """The unit with the array that the tile has, whichever operand stays in it."""

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        operands = operands_of(self)
        odd = [within_line(m, self, operands), *inside(m, self, operands)]
        m.d.comb += [
            self.taken.eq(self.instruction.valid & self.instruction.ready),
            self.beats.eq(self.moving.enable),
            self.misaligned.eq(self.taken & Cat(*odd).any()),
            self.illegal.eq(
                self.taken & ((operands.entry.rescale & (operands.beats > ROW_LIMIT)) | refused(self, operands.entry))
            ),
        ]
        timing.confirm(
            "OPERAND_LATENCY",
            address=1,
            scratchpad=SramWrapper.LATENCY,
            buffer=Queue.LATENCY,
            register_slice=RegisterSlice.LATENCY,
        )
        timing.confirm("LOADER_GAP", count_of_waiting_tiles=1)
        kind = OutputTile if self.geometry.array.dataflow == "output_stationary" else StationaryTile
        elements = {"elements": self.geometry.dtype} if self.geometry.shares else {}
        tile = self.library.make(kind, self.geometry.array, self.library.name("array"), **elements)
        if self.geometry.array.dataflow == "output_stationary":
            output_stationary(m, self, tile)
        else:
            stationary(m, self, tile)
        return m


def within_line(m: Module, unit: MatmulUnitCircuit, operands: MatmulOperands) -> Value:
    """Whether sums begin within a line, a whole one where there is more than one panel."""
    geometry, entry = unit.geometry, operands.entry
    bits, low = geometry.part_bits, log2(geometry.part)
    many = operands.outer > geometry.array.cols
    inner = Mux(many, ~Const(0, bits), ~apart(entry.split, bits)) if bits else Const(0, 1)
    return entry.c[:low].any() | (entry.c[low : low + len(inner)] & inner).any()


def inside(m: Module, unit: MatmulUnitCircuit, operands: MatmulOperands) -> list[Value]:
    """Operands, and the pitch, that lie within a line: of those whose whole lines are powers of two."""
    geometry, entry = unit.geometry, operands.entry
    array, element = geometry.array, geometry.element
    across = operands.beats if array.dataflow == "output_stationary" else entry.k
    loads = geometry.stationary // (element * array.cols)
    found: list[Value] = []
    if is_power(geometry.stationary):
        mask = line_mask(m, "stays", operands.outer, array.cols, entry.narrow)
        found.append(begins_within(operands.stays, mask, element * loads) & (entry.weights == 0))
        if unit.packed is not None:
            found += unit.packed.odd(entry, operands.stays, mask)
    if is_power(geometry.moving):
        mask = line_mask(m, "moves", across, array.rows, entry.narrow)
        found += [begins_within(address, mask, element) for address in (operands.moves, entry.d)]
    return found


def refused(unit: MatmulUnitCircuit, entry: Any) -> Value:
    """Whether the array has no circuit for how an instruction's weights are packed, or its sums are split."""
    packed = entry.weights != 0 if unit.packed is None else unit.packed.refuses(entry)
    return packed | (Const(0, 1) if is_power(unit.geometry.array.cols) else entry.split != 0)


__all__ = ["MatmulControl"]
