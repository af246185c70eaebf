"""Control of the array inside an NPU tile: what is read, in which order, and where the sums go.

Layouts in local memory (`arch.layout`), for C[m,n] = A[m,k] B[k,n] on an array of R rows and C columns that loads p
rows a beat:

- weight stationary: A row by row, each row filled up to whole units of the tile (`arch.layout.row_unit`) or d bytes
  from the one before; B in the order of its folds (panels of C columns outermost, then blocks of R rows), each fold
  as lines of p x C, filled with zeros; sums as panels of m lines of C.
- input stationary: the same with A and B, m and n exchanged: B transposed row by row, A transposed in folds, sums
  transposed.
  Of a narrow instruction the last panel, and rows of less than a unit, lie in narrow lines (`arch.layout.line_values`).
- output stationary: A as blocks of R rows, each k lines of R (a column of the block), or its transpose row by row, d
  bytes from one to the next; B as panels of C columns, each k lines of C; sums as panels of m lines of C. Of a narrow
  instruction the last block and the last panel lie in narrow lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.entries import MATMUL_ENTRY
from siliconloom.rtl.npu.geometry import Geometry
from siliconloom.rtl.npu.interfaces import local_read, sums_write
from siliconloom.rtl.npu.weights import packed_reads


class MatmulOperands(NamedTuple):
    """An instruction, and the addresses of what is loaded, which stays in a stationary array, and of what moves.

    ``outer`` is the size that has a panel per C of it, ``beats`` the one that has a beat each, and a line of sums.
    ``slot`` is the one that what moves is in.
    """

    entry: Any
    stays: Value
    moves: Value
    outer: Value
    beats: Value
    slot: Value


class MatmulUnitCircuit(Circuit):
    """Runs matmul instructions back to back on the array, the next one's operands loading behind the present one.

    Members
    -------
    instruction : In(stream.Signature(MATMUL_ENTRY))
        Instructions.
    read, done : Out(1)
        Pulses: the last operands enter the array; the last sums are being written.
    beats : Out(1)
        A beat of the moving operand is being read (as many cycles as the array is busy).
    loaded, moving : Out(local_read)
        Scratchpad reads of what stays in the array, or of B (output stationary), and of what moves.
    sums : Out(sums_write)
        To the accumulator.
    illegal : Out(1)
        Pulse at issue: sums of too many rows are to be rescaled, or weights have a format that the array does not.
    misaligned : Out(1)
        Pulse at issue: an operand whose lines are a power of two does not begin with one.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        ports = {
            "instruction": In(stream.Signature(MATMUL_ENTRY)),
            "read": Out(1),
            "done": Out(1),
            "loaded": Out(local_read(geometry.stationary)),
            "moving": Out(local_read(geometry.moving)),
            "beats": Out(1),
            "sums": Out(sums_write(geometry)),
            "illegal": Out(1),
            "misaligned": Out(1),
        }
        super().__init__(library, library.name("matmul"), ports, reset=True)
        self.taken = Signal()
        self.packed = packed_reads(geometry)


def operands_of(unit: MatmulUnitCircuit) -> MatmulOperands:
    """The instruction in front, and which of its operands stays and which moves."""
    entry = unit.instruction.payload
    if unit.geometry.array.dataflow == "input_stationary":
        return MatmulOperands(entry, stays=entry.a, moves=entry.b, outer=entry.m, beats=entry.n, slot=entry.b_slot)
    return MatmulOperands(entry, stays=entry.b, moves=entry.a, outer=entry.n, beats=entry.m, slot=entry.a_slot)


__all__ = ["MatmulOperands", "MatmulUnitCircuit", "operands_of"]
