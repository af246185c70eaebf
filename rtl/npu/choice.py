"""The largest elements of rows, one after the other: what `arch.vector` calls choosing.

Elements of a row are in an order: the larger value first, of equal ones the lower column. A *round* goes through every
row once and finds, of those that stand behind the one that the round before has found, the first. So after k rounds the
k largest of a row are those that do not stand behind what was found last.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch.vector import INDEX_LIMIT, ROW_LIMIT
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.geometry import MOST_LANES, log2

PLACE_BITS = log2(MOST_LANES)
KEY_BITS = 9 + PLACE_BITS
"""Bits of a `key`."""
INDEX_BITS = log2(INDEX_LIMIT)
"""Bits of a column."""
NONE = -(1 << KEY_BITS - 1)
"""The key of an element that does not count: below that of any other."""


def key(value: Value, lane: int) -> Value:
    """An element of a block as a number: of two elements the one that comes first in the order has the larger."""
    return Cat(Const(MOST_LANES - 1 - lane, PLACE_BITS), value.as_signed()[:8], value[7]).as_signed()


class Choice(Circuit):
    """Keeps of every row the element that was found last.

    Members
    -------
    row : In
        Stage 0: the row of a slot.
    line, column : In
        Stage 1: the elements of a slot, and the column of the first one.
    behind : Out
        Stage 1: of each lane, its element stands behind the one that was found last.
    index : Out
        Stage 1: the column of the one that was found last.
    reduces, opens, key : In
        Stage 6: a slot of a round, the first of its row; the largest key of its elements.
    closes, closed_row : In
        Stage 7: a slot of a round is the last of its row; the row.
    """

    def __init__(self, library: Library, lanes: int) -> None:
        self.lanes = lanes
        ports = {
            "row": In(log2(ROW_LIMIT)),
            "line": In(8 * lanes),
            "column": In(INDEX_BITS),
            "behind": Out(lanes),
            "index": Out(INDEX_BITS),
            "reduces": In(1),
            "opens": In(1),
            "key": In(KEY_BITS),
            "closes": In(1),
            "closed_row": In(log2(ROW_LIMIT)),
        }
        super().__init__(library, library.name("choice"), ports)

    def elaborate(self, platform: object) -> Module:
        m, wide = self.module(), log2(self.lanes)
        value, block, index = Signal(signed(9)), Signal(INDEX_BITS - wide), Signal(INDEX_BITS)
        found = self.place(
            m,
            self.library.make(SramWrapper, 8 + INDEX_BITS, ROW_LIMIT),
            "found",
            ren=1,
            raddr=self.row,
            wen=self.closes,
            waddr=self.closed_row,
            wdata=Cat(index, value[:8]),
        ).rdata
        self._compare(m, found)
        here, offered = Signal(INDEX_BITS - wide), Signal(signed(9))
        m.d.comb += [here.eq(Mux(self.opens, 0, block)), offered.eq(self.key[PLACE_BITS:].as_signed())]
        with m.If(self.reduces):
            m.d.sync += block.eq(here + 1)
            with m.If(self.opens | (offered > value)):
                m.d.sync += [value.eq(offered), index.eq(Cat(~self.key[:wide], here))]
        return m

    def _compare(self, m: Module, found: Value) -> None:
        """What stands behind: a smaller value, or an equal one in a higher column."""
        wide = log2(self.lanes)
        last, column = found[INDEX_BITS:].as_signed(), found[:INDEX_BITS]
        for lane in range(self.lanes):
            value = self.line[8 * lane : 8 * lane + 8].as_signed()
            higher = Cat(Const(lane, wide), self.column[wide:]) > column
            m.d.comb += self.behind[lane].eq((value < last) | ((value == last) & higher))
        m.d.comb += self.index.eq(column)


__all__ = ["INDEX_BITS", "KEY_BITS", "NONE", "PLACE_BITS", "Choice", "key"]
