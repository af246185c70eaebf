"""The largest elements of rows, one after the other: what `arch.vector` calls choosing.

Elements of a row are in an order: the larger value first, of equal ones the lower column. In floating point NaN comes
before all numbers, and zeros of both signs are equal. A *round* goes through every row once and finds, of those that
stand behind the one that the round before has found, the first. So after k rounds the k largest of a row are those that
do not stand behind what was found last.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import INDEX_LIMIT, ROW_LIMIT
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.depth import delayed
from siliconloom.rtl.npu.geometry import MOST_LANES, log2

PLACE_BITS = log2(MOST_LANES)
INDEX_BITS = log2(INDEX_LIMIT)
"""Bits of a column."""


def key_bits(dtype: DataType) -> int:
    """Bits of a `key` of elements of a format."""
    return dtype.bits + 1 + PLACE_BITS


def none(dtype: DataType) -> int:
    """The key of an element that does not count: below that of any other."""
    return -(1 << key_bits(dtype) - 1)


def order_of(value: Value, dtype: DataType) -> Value:
    """An element as an integer of as many bits, the larger the earlier it comes."""
    if dtype.is_integer:
        return value.as_signed()
    layout, size = dtype.layout, value[:-1]
    fraction, field = value[: layout.fraction_bits], value[layout.fraction_bits : -1]
    nan = size.all() if not layout.infinities else field.all() & fraction.any()
    some = size if layout.keeps_subnormals else Mux(field.any(), size, 0)
    signed_size = Mux(nan, (1 << (dtype.bits - 1)) - 1, Mux(value[-1], -some, some))
    return signed_size[: dtype.bits].as_signed()


def key(order: Value, lane: int) -> Value:
    """An element of a block, from its `order_of`, as a number: of two the one that comes first has the larger."""
    return Cat(Const(MOST_LANES - 1 - lane, PLACE_BITS), order, order[-1]).as_signed()


class Choice(Circuit):
    """Keeps of every row the element that was found last; so many registers stand behind its memory.

    Members
    -------
    reads, row : In
        Stage 0: there is a slot; its row.
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

    def __init__(self, library: Library, lanes: int, dtype: DataType, registers: int = 0) -> None:
        self.lanes, self.dtype, self.registers = lanes, dtype, registers
        ports = {
            "reads": In(1),
            "row": In(log2(ROW_LIMIT)),
            "line": In(dtype.bits * lanes),
            "column": In(INDEX_BITS),
            "behind": Out(lanes),
            "index": Out(INDEX_BITS),
            "reduces": In(1),
            "opens": In(1),
            "key": In(key_bits(dtype)),
            "closes": In(1),
            "closed_row": In(log2(ROW_LIMIT)),
        }
        super().__init__(library, library.name("choice"), ports)

    def elaborate(self, platform: object) -> Module:
        m, wide, bits = self.module(), log2(self.lanes), self.dtype.bits
        value, block, index = Signal(signed(bits + 1)), Signal(INDEX_BITS - wide), Signal(INDEX_BITS)
        found = self.place(
            m,
            self.library.make(SramWrapper, bits + INDEX_BITS, ROW_LIMIT),
            "found",
            ren=self.reads,
            raddr=self.row,
            wen=self.closes,
            waddr=self.closed_row,
            wdata=Cat(index, value[:bits]),
        ).rdata
        self._compare(m, delayed(m, "found_read", found, self.registers))
        here, offered = Signal(INDEX_BITS - wide), Signal(signed(bits + 1))
        m.d.comb += [here.eq(Mux(self.opens, 0, block)), offered.eq(self.key[PLACE_BITS:].as_signed())]
        with m.If(self.reduces):
            m.d.sync += block.eq(here + 1)
            with m.If(self.opens | (offered > value)):
                m.d.sync += [value.eq(offered), index.eq(Cat(~self.key[:wide], here))]
        return m

    def _compare(self, m: Module, found: Value) -> None:
        """What stands behind: a smaller value, or an equal one in a higher column."""
        wide, bits = log2(self.lanes), self.dtype.bits
        last, column = found[INDEX_BITS:].as_signed(), found[:INDEX_BITS]
        for lane in range(self.lanes):
            value = order_of(self.line[bits * lane : bits * (lane + 1)], self.dtype)
            higher = Cat(Const(lane, wide), self.column[wide:]) > column
            m.d.comb += self.behind[lane].eq((value < last) | ((value == last) & higher))
        m.d.comb += self.index.eq(column)


__all__ = ["INDEX_BITS", "PLACE_BITS", "Choice", "key", "key_bits", "none", "order_of"]
