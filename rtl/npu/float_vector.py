"""The vector unit of a tile that computes in floating point: lines of bf16 elements, fp32 between the multipliers.

Phases, addresses and parameters are those of `rtl.npu.vector`, and so is every cycle. An element has two bytes, and
each byte of a parameter is one, so that no function takes more lines. What is computed is `sim.golden.floating`, bit
for bit. There is no function of whole rows yet.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import BUILT_IN_FLOATS, VectorFunction
from siliconloom.rtl.cells.floating import float_multiply, float_sum, to_bf16
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import SIZE_BITS
from siliconloom.rtl.npu.vector import LAST_STAGE, Arriving, BlockPlace, Slot, VectorConditions, VectorUnitCircuit

WAYS = {
    "requantize": {VectorFunction.REQUANTIZE},
    "add": {VectorFunction.ADD},
    "product": {VectorFunction.MULTIPLY},
    "relu": {VectorFunction.RELU},
}
"""What a lane does while a bit is set, and the functions that it makes; with none of them it passes its operand on."""
PLANES = 4
"""Lines of parameters of a column that mean something: halves of the bias, and of the multiplier."""
ONE, MINUS_ZERO = Const(0x3F800000, 32), Const(1 << 31, 32)
"""What changes no number that is multiplied by it, or that it is added to."""


class FloatLane(Circuit):
    """One column in floating point; stage ``i`` is what happens ``i`` cycles after the operand's address went out.

    Members
    -------
    kind : In
        A bit per way of `WAYS`, in their order.
    a, b, sum : In
        Stage 1: the operands, and the accumulator's sum.
    m0, m1 : In
        Scalars.
    plane, plane_data, swap : In
        Half of a column's parameter and its place, one-hot; make the halves taken since the last swap valid.
    keep_9 : In
        The column is one of the row's.
    result : Out(16)
        Stage 10.
    """

    STAGES = 10
    """Cycles from an operand's address to its result."""

    def __init__(self, library: Library) -> None:
        ports = {
            "kind": In(len(WAYS)),
            "a": In(16),
            "b": In(16),
            "sum": In(32),
            "m0": In(32),
            "m1": In(32),
            "plane": In(PLANES),
            "plane_data": In(16),
            "swap": In(1),
            "keep_9": In(1),
            "result": Out(16),
        }
        super().__init__(library, library.name("lane"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        is_ = {name: self.kind[place] for place, name in enumerate(WAYS)}
        bias, multiplier = self._column(m)
        a, b, word = Signal(16, name="a_2"), Signal(16, name="b_2"), Signal(32)
        m.d.sync += [a.eq(self.a), b.eq(self.b), word.eq(self.sum)]

        # stage 2: what is multiplied and added; 3: the product; 4: the sum
        x, factor, other = (Signal(32, name=f"{name}_3") for name in ("x", "factor", "other"))
        negative = a[-1] & ~(a[7:15].all() & a[:7].any())
        m.d.sync += [
            x.eq(Mux(is_["requantize"], word, Mux(is_["relu"] & negative, 0, Cat(Const(0, 16), a)))),
            factor.eq(ONE),
            other.eq(MINUS_ZERO),
        ]
        with m.If(is_["requantize"]):
            m.d.sync += [factor.eq(multiplier), other.eq(bias)]
        with m.Elif(is_["add"]):
            m.d.sync += [factor.eq(self.m0), other.eq(Cat(Const(0, 16), b))]
        with m.Elif(is_["product"]):
            m.d.sync += factor.eq(Cat(Const(0, 16), b))
        product, addend, value = Signal(32, name="product_4"), Signal(32, name="addend_4"), Signal(32, name="value_5")
        second = float_multiply(m, "second", other, self.m1)
        m.d.sync += [
            product.eq(float_multiply(m, "first", x, factor)),
            addend.eq(Mux(is_["add"], second, other)),
            value.eq(float_sum(m, "total", product, addend)),
        ]
        for stage in (6, 7, 8):
            later = Signal(32, name=f"value_{stage}")
            m.d.sync += later.eq(value)
            value = later

        # stage 8: the second product; 9: rounding to an element
        scaled, result = Signal(32, name="scaled_9"), Signal(16, name="result_10")
        m.d.sync += scaled.eq(Mux(is_["product"], float_multiply(m, "late", value, self.m0), value))
        m.d.sync += result.eq(Mux(self.keep_9, to_bf16(m, "element", scaled), 0))
        m.d.comb += self.result.eq(result)
        return m

    def _column(self, m: Module) -> tuple[Signal, Signal]:
        """Parameters: halves gather in one set while the other is in use."""
        gathered = [Signal(16, name=f"gathered_{i}") for i in range(PLANES)]
        planes = [Signal(16, name=f"plane_{i}") for i in range(PLANES)]
        for place, register in enumerate(gathered):
            with m.If(self.plane[place]):
                m.d.sync += register.eq(self.plane_data)
        with m.If(self.swap):
            m.d.sync += [active.eq(register) for active, register in zip(planes, gathered, strict=True)]
        return Cat(*planes[:2]), Cat(*planes[2:])


class FloatVectorUnit(VectorUnitCircuit):
    """As `VectorUnitCircuit`, in bf16."""

    planes = PLANES

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        assert self.geometry.dtype is DataType.BF16
        timing.confirm("VECTOR_START", address=1)
        entry = Signal(VECTOR_ENTRY, name="instruction")
        m.d.comb += self.taken.eq(self.instruction.valid & self.instruction.ready)
        what = VectorConditions(m, entry, self.instruction.payload, WAYS, set(BUILT_IN_FLOATS))
        by_row = self._refuse(m, what)
        phase, place = self._phases(m, what)
        addresses = self._addresses(m, what, phase, place)
        self._advance(m, what, phase, place, addresses)
        self._drain(m, what, phase, place, addresses)
        self._begin(m, what, phase, place, addresses, by_row)
        slots = self._slots(m, what, phase, place, addresses)
        column = Signal(SIZE_BITS, name="column_1")
        m.d.sync += column.eq(place.column)
        self._float_lanes(m, what, place, slots, self._parameters(m, what, phase))
        self._results(m, slots[LAST_STAGE])
        return m

    def _float_lanes(
        self, m: Module, what: VectorConditions, place: BlockPlace, slots: list[Slot], arriving: Arriving
    ) -> None:
        """The lanes, one per column, and the line that they write."""
        count, kind = self.geometry.lanes, self.library.make(FloatLane)
        ways = Cat(*(what.is_[name] for name in what.ways))
        transposes, sums = what.is_["transpose"], self._sums(m, place)
        one, kept = Signal(16), Signal(count, name="kept_1")
        m.d.comb += [
            one.eq(self.first.data.word_select(slots[1].beat[: self._wide], 16)),
            kept.eq(Cat(*((slots[1].used > lane) | transposes for lane in range(count)))),
        ]
        for stage in range(2, LAST_STAGE):
            later = Signal(count, name=f"kept_{stage}")
            m.d.sync += later.eq(kept)
            kept = later
        results = [
            self.place(
                m,
                kind,
                f"lane_{lane}",
                kind=ways,
                a=Mux(transposes, one, self.first.data[16 * lane : 16 * lane + 16]),
                b=self.second.data[16 * lane : 16 * lane + 16],
                sum=sums[32 * lane : 32 * lane + 32],
                m0=arriving.m0,
                m1=arriving.m1,
                plane=arriving.planes,
                plane_data=self.second.data[16 * lane : 16 * lane + 16],
                swap=arriving.swap,
                keep_9=kept[lane],
            ).result
            for lane in range(count)
        ]
        m.d.comb += self.write.data.eq(Cat(*results))

    def _write_element(self, end: Slot) -> Any:
        """Enable both bytes of one element of a line."""
        return self.write.enable.eq(Const(3, 2) << (end.lane << 1))


__all__ = ["FloatLane", "FloatVectorUnit"]
