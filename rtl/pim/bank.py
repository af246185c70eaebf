"""The bank-side multiply-accumulate unit: lanes, adder tree, accumulators."""

from __future__ import annotations

from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed
from amaranth.lib.wiring import In, Out

from siliconloom.arch.datatype import DataType
from siliconloom.arch.pim import ACCUMULATE_STAGES, MULTIPLY_STAGES
from siliconloom.rtl.cells.floating import float_product, float_sum, product_parts
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.pim.geometry import PimGeometry, width

RESULT_BITS = 32
LANE_BITS = 16
BF16_FRACTION = DataType.BF16.layout.fraction_bits


def _formats(geometry: PimGeometry) -> tuple[bool, bool]:
    """Whether a tile multiplies bf16, and int8."""
    return DataType.BF16 in geometry.tile.operands, DataType.INT8 in geometry.tile.operands


class BankLane(Circuit):
    """One 16-bit multiplier that also makes two int8 products.

    Members
    -------
    integer : In(1)
        Int8, not bf16.
    a, b : In(16)
        Operands: one bf16 number, or two int8 numbers.
    product : Out(32)
        Registered: fp32, or two products of 16 bits.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        ports = {"integer": In(1), "a": In(LANE_BITS), "b": In(LANE_BITS), "product": Out(RESULT_BITS)}
        super().__init__(library, geometry.name(library, "lane"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        floats, integers = _formats(self.geometry)
        # bf16's significands and the lower int8 numbers share one multiplier
        x, y = (Signal(signed(9), name=name) for name in ("x", "y"))
        for factor, operand in ((x, self.a), (y, self.b)):
            significand = Cat(operand[:7], 1, 0).as_signed()
            low = operand[:8].as_signed()
            m.d.comb += factor.eq(
                Mux(self.integer, low, significand) if floats and integers else low if integers else significand
            )
        low, high = Signal(signed(18)), Signal(signed(16))
        m.d.comb += low.eq(x * y)
        product = Signal(RESULT_BITS, reset_less=True)
        pair = Cat(low[:16], high)
        if integers:
            m.d.comb += high.eq(self.a[8:].as_signed() * self.b[8:].as_signed())
        if floats:
            parts = product_parts(self.a, self.b, BF16_FRACTION)
            number = float_product(m, "number", parts, low[:16], BF16_FRACTION)
            m.d.sync += product.eq(Mux(self.integer, pair, number) if integers else number)
        else:
            m.d.sync += product.eq(pair)
        m.d.comb += self.product.eq(product)
        return m


class TreeNode(Circuit):
    """The sum of two sums.

    Members
    -------
    integer : In(1)
        Int32 that wraps, not fp32.
    a, b : In(32)
        Operands.
    sum : Out(32)
        Registered.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        ports = {"integer": In(1), "a": In(RESULT_BITS), "b": In(RESULT_BITS), "sum": Out(RESULT_BITS)}
        super().__init__(library, geometry.name(library, "tree_node"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        total = Signal(RESULT_BITS, reset_less=True)
        m.d.sync += total.eq(_sum(m, self.geometry, self.integer, self.a, self.b))
        m.d.comb += self.sum.eq(total)
        return m


def _sum(m: Module, geometry: PimGeometry, integer: Value, a: Value, b: Value) -> Signal:
    floats, integers = _formats(geometry)
    total = Signal(RESULT_BITS, name="total_sum")
    whole = (a + b)[:RESULT_BITS]
    if not floats:
        m.d.comb += total.eq(whole)
        return total
    number = float_sum(m, "number", a, b)
    m.d.comb += total.eq(Mux(integer, whole, number) if integers else number)
    return total


class BankUnit(Circuit):
    """Lanes and accumulators of one bank.

    Members
    -------
    valid : In(1)
        A burst arrives: the first beat of a dot product. It takes ``arch.pim.PimTile.beats`` cycles.
    column, vector : In
        The burst of the bank's open row, and of the global buffer.
    segment : In
        The accumulator.
    first : In(1)
        It begins at zero.
    integer : In(1)
        Int8, not bf16.
    pick : In
        Segments to be read: ``picked`` of them, from this multiple of their number on.
    results : Out
        Those accumulators, the first in the low bits; zeros where there is none.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        g = geometry
        ports = {
            "valid": In(1),
            "column": In(g.burst_bits),
            "vector": In(g.burst_bits),
            "segment": In(g.segment_bits),
            "first": In(1),
            "integer": In(1),
            "pick": In(pick_bits(g)),
            "results": Out(RESULT_BITS * g.picked),
        }
        super().__init__(library, geometry.name(library, "bank_unit"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g, tile = self.geometry, self.geometry.tile
        valid, integer, first, segment, column, vector = self._beats(m)
        lanes = [
            self.place(
                m,
                self.library.make(BankLane, g),
                f"lane_{i}",
                integer=integer,
                a=column[LANE_BITS * i :][:LANE_BITS],
                b=vector[LANE_BITS * i :][:LANE_BITS],
            ).product
            for i in range(g.used_lanes)
        ]
        controls: list[Any] = [valid, integer, first, segment]
        sums: list[Any] = lanes
        controls = _stage(m, controls, "product")
        for level in range(tile.tree_levels):
            if level == 0:  # two int8 products of a lane; a bf16 product waits
                sums = [_paired(m, f"pair_{i}", controls[1], value) for i, value in enumerate(sums)]
            else:
                sums = [
                    self.place(
                        m,
                        self.library.make(TreeNode, g),
                        f"node_{level}_{i}",
                        integer=controls[1],
                        a=sums[2 * i],
                        b=sums[2 * i + 1],
                    ).sum
                    for i in range(len(sums) // 2)
                ]
            controls = _stage(m, controls, f"level_{level}")
        (total,) = sums
        assert MULTIPLY_STAGES == ACCUMULATE_STAGES == 1
        self._accumulate(m, controls, total)
        return m

    def _beats(self, m: Module) -> tuple[Any, ...]:
        """The operands of one beat, registered, and what goes with them."""
        g, beats = self.geometry, self.geometry.tile.beats
        column, vector = (Signal(g.burst_bits, name=f"{name}_now", reset_less=True) for name in ("column", "vector"))
        integer, first, segment = Signal(), Signal(), Signal(g.segment_bits)
        valid = Signal()
        with m.If(self.valid):
            m.d.sync += [
                column.eq(self.column),
                vector.eq(self.vector),
                integer.eq(self.integer),
                first.eq(self.first),
                segment.eq(self.segment),
            ]
        if beats == 1:
            m.d.sync += valid.eq(self.valid)
        else:
            left = Signal(range(beats))
            beat = LANE_BITS * g.used_lanes
            m.d.sync += valid.eq(self.valid | left.any())
            with m.If(self.valid):
                m.d.sync += left.eq(beats - 1)
            with m.Elif(left.any()):
                m.d.sync += [left.eq(left - 1), first.eq(0), column.eq(column >> beat), vector.eq(vector >> beat)]
        return valid, integer, first, segment, column, vector

    def _accumulate(self, m: Module, controls: list[Any], total: Value) -> None:
        g = self.geometry
        valid, integer, first, segment = controls
        sums = Array(Signal(RESULT_BITS, name=f"accumulator_{i}") for i in range(g.tile.accumulators))
        before = Signal(RESULT_BITS)
        m.d.comb += before.eq(Mux(first, 0, sums[segment]))
        with m.If(valid):
            m.d.sync += sums[segment].eq(_sum(m, g, integer, before, total))
        padding = -g.tile.accumulators % g.picked
        words = [*sums, *[Const(0, RESULT_BITS)] * padding]
        groups = Array(Cat(*words[i : i + g.picked]) for i in range(0, len(words), g.picked))
        m.d.comb += self.results.eq(groups[self.pick])


def pick_bits(geometry: PimGeometry) -> int:
    """Bits that choose the segments of a burst of results."""
    return width(-(-geometry.tile.accumulators // geometry.picked))


def _stage(m: Module, controls: list[Any], name: str) -> list[Any]:
    parts = ("valid", "integer", "first", "segment")
    registers = [Signal(len(value), name=f"{name}_{part}") for value, part in zip(controls, parts, strict=True)]
    m.d.sync += [register.eq(value) for register, value in zip(registers, controls, strict=True)]
    return list(registers)


def _paired(m: Module, name: str, integer: Value, value: Value) -> Signal:
    register = Signal(RESULT_BITS, name=name, reset_less=True)
    both = value[:16].as_signed() + value[16:].as_signed()
    m.d.sync += register.eq(Mux(integer, both, value.as_signed()))
    return register
