"""The vector unit of a tile that computes in floating point: lines of short elements, fp32 between the multipliers.

Phases and addresses are those of `rtl.npu.vector`, and so is every cycle. A line of parameters has an element for each
lane: where elements have two bytes, fp32 numbers take half as many lines, and the others are not used. What is computed
is `sim.golden.floating`, bit for bit. There is no function of whole rows yet.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError
from siliconloom.arch.vector import BUILT_IN_FLOATS, VectorFunction
from siliconloom.rtl.cells.floating import float_multiply, float_sum, narrowed, widened
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import Geometry, log2
from siliconloom.rtl.npu.vector import LAST_STAGE, Arriving, BlockPlace, Slot, VectorConditions, VectorUnitCircuit

WAYS = {
    "requantize": {VectorFunction.REQUANTIZE},
    "add": {VectorFunction.ADD},
    "product": {VectorFunction.MULTIPLY},
    "relu": {VectorFunction.RELU},
    "rope": {VectorFunction.ROPE},
}
"""What a lane does while a bit is set, and the functions that it makes."""
PASSED = {VectorFunction.COPY, VectorFunction.KV_APPEND, VectorFunction.TRANSPOSE}
"""Functions for which a lane passes its operand on bit by bit, with no way set."""
ONE, MINUS_ZERO = Const(0x3F800000, 32), Const(1 << 31, 32)
"""What changes no number that is multiplied by it, or that it is added to."""


class FloatLane(Circuit):
    """One column in floating point; stage ``i`` is what happens ``i`` cycles after the operand's address went out.

    Members
    -------
    kind : In
        A bit per way of `WAYS`, in their order.
    a, b, sum : In
        Stage 1: the operands, of the tile's format, and the accumulator's sum.
    pair, cosine, sine, negative : In
        Stage 1: the operand's neighbour, the angle of the rotation as fp32 numbers, and its direction.
    m0, m1 : In
        Scalars.
    plane, plane_data, swap : In
        A part of a column's parameters and its place, one-hot; make the parts taken since the last swap valid.
    keep_9 : In
        The column is one of the row's.
    result : Out
        Stage 10, in the tile's format.
    """

    STAGES = 10
    """Cycles from an operand's address to its result."""

    def __init__(self, library: Library, dtype: DataType) -> None:
        self.dtype, self.planes = dtype, planes_of(dtype)
        ports = {
            "kind": In(len(WAYS)),
            "a": In(dtype.bits),
            "b": In(dtype.bits),
            "sum": In(32),
            "pair": In(dtype.bits),
            "cosine": In(32),
            "sine": In(32),
            "negative": In(1),
            "m0": In(32),
            "m1": In(32),
            "plane": In(self.planes),
            "plane_data": In(dtype.bits),
            "swap": In(1),
            "keep_9": In(1),
            "result": Out(dtype.bits),
        }
        super().__init__(library, library.name("lane"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        is_ = {name: self.kind[place] for place, name in enumerate(WAYS)}
        bias, multiplier = self._column(m)
        a, b, word = (Signal(32, name=f"{name}_2") for name in ("a", "b", "word"))
        pair, cosine, sine = (Signal(32, name=f"{name}_2") for name in ("pair", "cosine", "sine"))
        turned = self._wide(m, "pair", self.pair)
        m.d.sync += [
            a.eq(Mux(self.kind.any(), self._wide(m, "a", self.a), self.a)),
            b.eq(self._wide(m, "b", self.b)),
            word.eq(self.sum),
        ]
        m.d.sync += [pair.eq(Cat(turned[:-1], turned[-1] ^ self.negative)), cosine.eq(self.cosine), sine.eq(self.sine)]

        # stage 2: what is multiplied and added; 3: the product; 4: the sum
        x, factor, other, scale = (Signal(32, name=f"{name}_3") for name in ("x", "factor", "other", "scale"))
        passes = Signal()
        m.d.comb += passes.eq(~self.kind.any())
        negative = a[-1] & ~(a[23:31].all() & a[:23].any())
        m.d.sync += [
            x.eq(Mux(is_["requantize"], word, Mux(is_["relu"] & negative, 0, a))),
            factor.eq(ONE),
            other.eq(MINUS_ZERO),
            scale.eq(Mux(is_["rope"], sine, self.m1)),
        ]
        with m.If(is_["requantize"]):
            m.d.sync += [factor.eq(multiplier), other.eq(bias)]
        with m.Elif(is_["add"]):
            m.d.sync += [factor.eq(self.m0), other.eq(b)]
        with m.Elif(is_["product"]):
            m.d.sync += factor.eq(b)
        with m.Elif(is_["rope"]):
            m.d.sync += [factor.eq(cosine), other.eq(pair)]
        product, addend, value = Signal(32, name="product_4"), Signal(32, name="addend_4"), Signal(32, name="value_5")
        second = float_multiply(m, "second", other, scale)
        m.d.sync += [
            product.eq(Mux(passes, x, float_multiply(m, "first", x, factor))),
            addend.eq(Mux(is_["add"] | is_["rope"], second, other)),
            value.eq(Mux(passes, product, float_sum(m, "total", product, addend))),
        ]
        for stage in (6, 7, 8):
            later = Signal(32, name=f"value_{stage}")
            m.d.sync += later.eq(value)
            value = later

        # stage 8: the second product; 9: rounding to an element
        scaled, result = Signal(32, name="scaled_9"), Signal(self.dtype.bits, name="result_10")
        m.d.sync += scaled.eq(Mux(is_["product"], float_multiply(m, "late", value, self.m0), value))
        element = Mux(passes, scaled[: self.dtype.bits], narrowed(m, "element", scaled, self.dtype.layout))
        m.d.sync += result.eq(Mux(self.keep_9, element, 0))
        m.d.comb += self.result.eq(result)
        return m

    def _wide(self, m: Module, name: str, value: Value) -> Value:
        """The fp32 number of an element."""
        found = widened(m, f"{name}_1", value, self.dtype.layout)
        return Cat(Const(0, 32 - len(found)), found)

    def _column(self, m: Module) -> tuple[Signal, Signal]:
        """Parameters: parts gather in one set while the other is in use."""
        gathered = [Signal(self.dtype.bits, name=f"gathered_{i}") for i in range(self.planes)]
        planes = [Signal(self.dtype.bits, name=f"plane_{i}") for i in range(self.planes)]
        for place, (register, active) in enumerate(zip(gathered, planes, strict=True)):
            now = Signal(self.dtype.bits, name=f"now_{place}")
            m.d.comb += now.eq(Mux(self.plane[place], self.plane_data, register))
            m.d.sync += register.eq(now)
            with m.If(self.swap):  # with the last line, which may have a part of the multiplier
                m.d.sync += active.eq(now)
        return Cat(*planes[: self.planes // 2]), Cat(*planes[self.planes // 2 :])


def planes_of(dtype: DataType) -> int:
    """Lines of parameters of a column that mean something: parts of its bias, and of its multiplier."""
    return 2 * 32 // dtype.bits


class FloatVectorUnit(VectorUnitCircuit):
    """As `VectorUnitCircuit`, in floating point; raises `LoomError` for a function that no way of the lane makes."""

    def __init__(self, library: Library, geometry: Geometry) -> None:
        missing = set(BUILT_IN_FLOATS).difference(PASSED, *WAYS.values())
        if missing:
            raise LoomError(f"no circuit in floating point is there for the vector function {min(missing)}")
        super().__init__(library, geometry)
        self.planes = planes_of(geometry.dtype)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("VECTOR_START", address=1)
        entry = Signal(VECTOR_ENTRY, name="instruction")
        m.d.comb += self.taken.eq(self.instruction.valid & self.instruction.ready)
        what = VectorConditions(m, entry, self.instruction.payload, WAYS, set(BUILT_IN_FLOATS))
        phase, place, slots = self._control(m, what)
        self._float_lanes(m, what, place, slots, self._parameters(m, what, phase))
        self._results(m, slots[LAST_STAGE])
        return m

    def _float_lanes(
        self, m: Module, what: VectorConditions, place: BlockPlace, slots: list[Slot], arriving: Arriving
    ) -> None:
        """The lanes, one per column, and the line that they write."""
        count, kind = self.geometry.lanes, self.library.make(FloatLane, self.geometry.dtype)
        bits = self.geometry.dtype.bits
        ways = Cat(*(what.is_[name] for name in what.ways))
        transposes, sums = what.is_["transpose"], self._sums(m, place)
        one, kept = Signal(bits), Signal(count, name="kept_1")
        m.d.comb += [
            one.eq(self.first.data.word_select(slots[1].beat[: self._wide], bits)),
            kept.eq(Cat(*((slots[1].used > lane) | transposes for lane in range(count)))),
        ]
        before = Signal(bits * count, name="second_before")
        m.d.sync += before.eq(self.second.data)
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
                a=Mux(transposes, one, self.first.data[bits * lane : bits * (lane + 1)]),
                b=self.second.data[bits * lane : bits * (lane + 1)],
                sum=sums[32 * lane : 32 * lane + 32],
                pair=self.first.data[bits * (lane ^ 1) : bits * ((lane ^ 1) + 1)],
                cosine=self._angle(before, lane & ~1),
                sine=self._angle(before, lane | 1),
                negative=1 - lane % 2,
                m0=arriving.m0,
                m1=arriving.m1,
                plane=arriving.planes,
                plane_data=self.second.data[bits * lane : bits * (lane + 1)],
                swap=arriving.swap,
                keep_9=kept[lane],
            ).result
            for lane in range(count)
        ]
        m.d.comb += self.write.data.eq(Cat(*results))

    def _angle(self, before: Signal, lane: int) -> Value:
        """The number whose parts a lane has in the line before this one, and in this one."""
        bits = self.geometry.dtype.bits
        low, high = (line[bits * lane : bits * (lane + 1)] for line in (before, self.second.data))
        return Cat(Const(0, 32 - 2 * bits), low, high)

    def _write_element(self, end: Slot) -> Any:
        """Enable the bytes of one element of a line."""
        size = self.geometry.element
        return self.write.enable.eq(Const((1 << size) - 1, size) << (end.lane << log2(size)))

    def _scalars(self, m: Module, held: Signal) -> tuple[Value, Value, Value]:
        """Two multipliers in fp32."""
        return held[:32], held[32:64], Const(0, 6)


__all__ = ["FloatLane", "FloatVectorUnit"]
