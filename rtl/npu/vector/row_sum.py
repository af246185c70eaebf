"""The sum over a row in floating point, where an addition takes several cycles: one of blocks that come one a cycle."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.rtl.cells.float_functions import lowered
from siliconloom.rtl.cells.floating import SUM_CUTS, float_sum
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.depth import cut_at, delayed

FALL_BITS = 6
"""Bits of by how many places a sum is lowered."""


class RowSum(Circuit):
    """Sums of rows in as many partial sums as an addition has stages, put together when the row is over.

    In each cycle a block is added to what the addition ends with, which began with the block so many ahead of it. The
    sums that the row ends with are put together by a tree, which may take another row's a cycle later: at first those
    that are half of their number apart, which they are whatever block comes last. What is computed is
    `sim.golden.float_functions.row_sums`.

    Members
    -------
    i : In
        The block's sum.
    opens : In
        The block is its row's first one.
    before : In
        What the first block is added to.
    fall : In
        By how many places the sum that the block is added to is lowered, where sums are.
    late_falls : In
        So many for each partial sum but the last block's, the stages of an addition later.
    o : Out
        The sum of the row that the block ends, one cycle and `arch.timing.sum_cycles` later.
    """

    def __init__(self, library: Library, stages: int, *, lowers: bool) -> None:
        self.stages, self.lowers = stages, lowers
        falls = {"fall": In(FALL_BITS), "late_falls": In(FALL_BITS * (stages - 1))}
        ports = {"i": In(32), "opens": In(1), "before": In(32), **(falls if lowers else {}), "o": Out(32)}
        super().__init__(library, library.name("row_sum", "lowered" if lowers else "plain"), ports)

    def elaborate(self, platform: object) -> Module:
        m, stages = self.module(), self.stages
        timing.confirm("MOST_SUM_STAGES", additions=max(SUM_CUTS))
        opened: list[Value] = [self.opens]
        for cycle in range(1, 2 * stages - 1):
            opened.append(delayed(m, f"opened_{cycle}", opened[-1], 1))
        sum_of_block = Signal(32, name="partial")
        older = Mux(Cat(*opened[:stages]).any(), Mux(self.opens, self.before, 0), sum_of_block)
        if self.lowers:
            older = lowered(older, self.fall)
        m.d.sync += sum_of_block.eq(float_sum(m, "block", older, self.i, cut_at(m, "block", SUM_CUTS[stages])))
        left: list[Value] = [delayed(m, "left_0", sum_of_block, 1)]
        for place in range(1, stages):
            earlier = delayed(m, f"partial_{place}", sum_of_block, place)
            if self.lowers:
                earlier = lowered(earlier, self.late_falls.word_select(place - 1, FALL_BITS))
            is_there = ~Cat(*opened[stages : stages + place]).any()
            left.append(delayed(m, f"left_{place}", Mux(is_there, earlier, Const(0, 32)), 1))
        while half := len(left) // 2:
            pairs, left = list(zip(left[:half], left[half:], strict=True)), []
            for place, (a, b) in enumerate(pairs):
                name = f"tree_{half}_{place}"
                left.append(delayed(m, name, float_sum(m, f"sum_{name}", a, b, cut_at(m, name, SUM_CUTS[stages])), 1))
        m.d.comb += self.o.eq(left[0])
        return m


__all__ = ["FALL_BITS", "RowSum"]
