"""The vector unit: one block of C elements a cycle, for everything that is not a matrix product.

An int8 operand lies row by row, each row ceil(n / C) lines of C bytes; sums lie as panels of m lines of C words, as
the array leaves them. Results are int8, saturated, zero beyond column n. Halves round to even. Parameters lie at ``d``
as `arch.vector.Parameters` says.

What the functions are is registered in `arch.vector`, and listed in ``docs/npu.md``; how a lane computes each, in
`rtl.npu.ways`. The unit asks a function's spec what it reads, in what order, and where results go.

With ``k`` = 2, softmax masks: row r sees columns up to b + r. A row function first reduces, row by row; `RowScalars`
turns what it finds of a row into the row's state, which the second pass, block by block, reads. Functions of one pass
stream block by block: blocks of columns outermost, rows within.

A function that chooses has rounds ahead of its passes, in which values go through the lanes as they are, and
`rtl.npu.choice` finds one element of every row. One that weighs takes a beat for each of the k rows that it adds: a
row of the first operand, and a byte of the second for all lanes; a result leaves with the last of them. One that
indexes has one round, and a pass over the four bytes of what was found.
"""

from __future__ import annotations

from amaranth import Module, Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.depth import Depth, Division, delayed
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, local_write, rises_write, sums_read


class VectorUnitCircuit(Circuit):
    """Runs one vector instruction at a time: what the units of integers and of floating point have in common.

    Members
    -------
    instruction : In(stream.Signature(VECTOR_ENTRY))
        Instructions.
    done : Out(1)
        Pulse: operands have been read and results stand in the scratchpad from the next cycle on.
    working : Out(1)
        An instruction is under way.
    first, second : Out(local_read)
        Scratchpad reads.
    sums : Out(sums_read)
        Accumulator read.
    write : Out(local_write)
        Scratchpad write.
    rises : Out(rises_write)
        By how much the peaks of rows that are carried have risen.
    illegal : Out(1)
        Pulse at issue: the function has no circuit, a size is zero, or one is too large for the function.
    misaligned : Out(1)
        Pulse at issue: an operand does not begin with a line.
    """

    planes: int
    """Lines of a block's parameters that mean something."""
    divided: tuple[Division, ...] = ()
    """Stages that registers divide where there are cycles for them, in the order in which they are."""
    stages: tuple[int, int]
    """Stages of a lane, and from the sums over a row to its state."""

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        self.depth = Depth.of(self.divided, geometry.vector_latency, *self.stages, geometry.sum_stages)
        ports = {
            "instruction": In(stream.Signature(VECTOR_ENTRY)),
            "done": Out(1),
            "working": Out(1),
            "first": Out(local_read(geometry.vector_line)),
            "second": Out(local_read(geometry.vector_line)),
            "sums": Out(sums_read(geometry, geometry.lines_of_block)),
            "write": Out(local_write(geometry.vector_line)),
            "rises": Out(rises_write()),
            "illegal": Out(1),
            "misaligned": Out(1),
        }
        super().__init__(library, library.name("vector"), ports, reset=True)
        self.taken = Signal()
        line = 8 * geometry.vector_line
        self.first_line, self.second_line = Signal(line, name="first_line"), Signal(line, name="second_line")
        self.sums_parts = Signal(geometry.lines_of_block * geometry.part_bits, name="sums_parts")
        self.line_mask = Signal(self.wide, name="line_mask")
        self.kept = {dtype: Signal(name=f"kept_{dtype.value}") for dtype in geometry.array.cache}
        self.scales: list[Value] = []
        """Of each lane the scale of its result, in the stage in which that is written."""
        self.pairs = Signal(name="pairs")
        """Columns that are transposed are written two by two."""

    def later(self, m: Module, name: str, value: Value, stage: int) -> Value:
        """What a stage has, a stage later; its last register has the name."""
        return delayed(m, name, value, self.depth.at(stage + 1) - self.depth.at(stage))

    def arrived(self, m: Module, name: str, value: Value) -> Value:
        """What is there a cycle after its address, in stage 1: registers behind the memories hold it."""
        return delayed(m, name, value, self.depth.lane[0])

    @property
    def wide(self) -> int:
        """Binary logarithm of the number of lanes."""
        return log2(self.geometry.lanes)


__all__ = ["VectorUnitCircuit"]
