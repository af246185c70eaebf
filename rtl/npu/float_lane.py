"""One lane of the vector unit in floating point: the arithmetic on one column, with its parameters.

What its stages do depends on the ways that hold (`rtl.npu.float_ways`). Circuits that only row functions and
activations use stand here: powers of two, and sigmoids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out
from msgspec.structs import replace

from siliconloom.arch.datatype import CACHE_SCALED, DataType
from siliconloom.arch.numerics import LOG2_BITS
from siliconloom.arch.vector import COLUMN_LINES
from siliconloom.rtl.cells.float_functions import (
    FIXED_BITS,
    float_count,
    float_fixed,
    float_power,
    float_reciprocal,
    float_root,
    is_nan,
)
from siliconloom.rtl.cells.floating import EXPONENT, SUM_CUTS, float_multiply, float_sum, narrowed, widened
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.choice import order_of
from siliconloom.rtl.npu.depth import SUM, Depth, Division, cut_at, delayed
from siliconloom.rtl.npu.float_ways import MINUS_ZERO, UNIT, FloatHook, FloatStage, float_ways
from siliconloom.rtl.npu.lane import NEED_BITS, chain
from siliconloom.rtl.npu.scaled import scaled_code

STATE = {"scale": 32, "offset": 32, "total": 32}
"""What a row function keeps of a row between its passes.

Norms: n * r, sum * r; softmax: the reciprocal of the total, the peak, the total.
"""


DIVIDED: tuple[Division, ...] = (("lane", 7), ("lane", 9), ("lane", 3), ("lane", 2), ("lane", 8), ("lane", 0))
"""Stages that are divided where there are cycles for it, the longest one first."""


class FloatLane(Circuit):
    """One column in floating point, in stages as `Lane` has them.

    Members
    -------
    kind : In
        A bit per way, in their order.
    a, b, sum : In
        Stage 1: the operands, of the tile's format, and the accumulator's sum.
    pair, cosine, sine, negative : In
        Stage 1: the operand's neighbour, the angle of the rotation as fp32 numbers, and its direction.
    reduce : In
        The operand of stage 2 is summed over its row; it has no result.
    adds_4 : In
        Stage 4: the product is added to what the lane had there before.
    m0, m1 : In
        Scalars.
    plane, plane_data, swap : In
        A part of a column's parameters and its place, one-hot; make the parts taken since the last swap valid.
    scale, offset, peak, late_scale : In
        State of the row: for stage 2, 3, 6 and 8.
    keep_5, keep_7, keep_9 : In
        The column is one of the row's, and is not masked.
    kept : In
        A bit per format that results may be kept in, where there are some: it is rounded to that.
    scale_9 : In(8)
        The exponent that the result's line shares, where results may be kept with scales.
    need, key : Out
        Stage 5: the exponent, rounded up; the operand's place in the order of its format.
    part, first : Out
        Stage 7: what is summed over the row: a power or a square; a value.
    result : Out
        Stage 10, in the tile's format, or in its low bits in the one that it is kept in.
    """

    STAGES = 10
    """From an operand's address to its result: cycles, where no register divides one."""

    def __init__(self, library: Library, dtype: DataType, depth: Depth, cache: tuple[DataType, ...] = ()) -> None:
        self.dtype, self.planes, self.ways, self.cache = dtype, planes_of(dtype), float_ways(), cache
        self.depth = depth
        ports = {
            "kind": In(len(self.ways)),
            "a": In(dtype.bits),
            "b": In(dtype.bits),
            "sum": In(32),
            "pair": In(dtype.bits),
            "cosine": In(32),
            "sine": In(32),
            "negative": In(1),
            "reduce": In(1),
            "adds_4": In(1),
            "m0": In(32),
            "m1": In(32),
            "plane": In(self.planes),
            "plane_data": In(dtype.bits),
            "swap": In(1),
            "scale": In(32),
            "offset": In(32),
            "peak": In(NEED_BITS),
            "late_scale": In(32),
            "keep_5": In(1),
            "keep_7": In(1),
            "keep_9": In(1),
            **({"kept": In(len(cache))} if cache else {}),
            **({"scale_9": In(EXPONENT)} if any(dtype in CACHE_SCALED for dtype in cache) else {}),
            "need": Out(NEED_BITS),
            "key": Out(dtype.bits),
            "part": Out(32),
            "first": Out(32),
            "result": Out(dtype.bits),
        }
        super().__init__(library, library.name("lane"), ports)
        self.passes = Signal()

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        is_ = {way.name: self.kind[place] for place, way in enumerate(self.ways)}
        (bias, multiplier), late = self._columns(m)
        operand = self._operand(m)
        value, gate = self._first_products(m, is_, operand, bias, multiplier)
        power = self._power(m, is_, value)
        self._second_product(m, is_, operand, value, gate, power, *late)
        return m

    def _held(self, m: Module, stage: int) -> Callable[[Value], Value]:
        """Puts a value behind the registers that divide a stage."""
        return lambda value: delayed(m, f"held_{stage}", value, self.depth.lane[stage])

    def _later(self, m: Module, name: str, value: Value, stage: int) -> Value:
        """What a stage has, in the next one; its last register has the name."""
        return delayed(m, name, value, 1 + self.depth.lane[stage])

    def _operand(self, m: Module) -> dict[int, Value]:
        """The operand as an fp32 number, by the stage; as it is where no way holds, and to the end."""
        m.d.comb += self.passes.eq(~self.kind.any() & ~self.kept.any() if self.cache else ~self.kind.any())
        operand: dict[int, Value] = {1: Mux(self.passes, self.a, self._wide(m, "a", self.a))}
        raw: Value = self.a
        for stage in range(2, 10):
            operand[stage] = self._later(m, f"a_{stage}", operand[stage - 1], stage - 1)
        for stage in range(2, 6):
            raw = self._later(m, f"raw_{stage}", raw, stage - 1)
        m.d.comb += [self.key.eq(order_of(raw, self.dtype)), self.first.eq(Mux(self.keep_7, operand[7], 0))]
        return operand

    def _assign(
        self, m: Module, domain: Any, hook: str, is_: dict[str, Value], stage: FloatStage, targets: dict[str, Signal]
    ) -> None:
        """What the first way that holds, of those that have this hook, assigns; ways that share it have one branch."""
        holding: dict[FloatHook, Value] = {}
        for way in self.ways:
            found: FloatHook | None = getattr(way, hook)
            if found is not None:
                holding[found] = holding[found] | is_[way.name] if found in holding else is_[way.name]
        chain(m, domain, [(holds, found(m, stage)) for found, holds in holding.items()], targets)

    def _first_products(
        self, m: Module, is_: dict[str, Value], operand: dict[int, Value], bias: Value, multiplier: Value
    ) -> tuple[list[Value], list[Value]]:
        """Stage 2: what is multiplied and added; 3: products; 4: the sum. Returns it, and a gate's factor, by stage."""
        b, word, pair, cosine, sine = (Signal(32, name=f"{name}_2") for name in ("b", "word", "pair", "cosine", "sine"))
        turned, reduces = self._wide(m, "pair", self.pair), Signal()
        m.d.sync += [b.eq(self._wide(m, "b", self.b)), word.eq(self.sum), cosine.eq(self.cosine), sine.eq(self.sine)]
        m.d.sync += [pair.eq(Cat(turned[:-1], turned[-1] ^ self.negative)), reduces.eq(self.reduce)]
        more = {"cosine": cosine, "sine": sine, "neighbour": pair, "reduce": self.reduce, "row_scale": self.scale}
        held = self._held(m, 2)
        stage = FloatStage(operand[2], b, word, self.m0, self.m1, bias, multiplier, more, held)
        targets = {name: Signal(32, name=f"{name}_3") for name in ("x", "factor", "other", "scale")}
        x, factor, other, scale = targets.values()
        m.d.sync += [x.eq(held(operand[2])), factor.eq(UNIT), other.eq(held(b)), scale.eq(self.m1)]
        self._assign(m, m.d.sync, "multiply", is_, stage, targets)

        product, addend, value = Signal(32, name="product_4"), Signal(32, name="addend_4"), Signal(32, name="value_5")
        reduces_3 = self._held(m, 2)(reduces)
        stage = replace(stage, a=operand[3], more={"reduce": reduces_3, "offset": self.offset}, held=self._held(m, 3))
        second, gate = float_multiply(m, "second", other, scale, stage.cut), [Signal(32, name="gate_4")]
        m.d.sync += [addend.eq(MINUS_ZERO), gate[0].eq(second)]
        m.d.sync += product.eq(Mux(self.passes, stage.held(x), float_multiply(m, "first", x, factor, stage.cut)))
        stage = replace(stage, value=second)
        self._assign(m, m.d.sync, "add", is_, stage, {"addend": addend})
        added = Mux(self.adds_4, value, addend)
        total = float_sum(m, "total", product, added, cut_at(m, "total", SUM_CUTS[self.depth.sum_stages]))
        m.d.sync += value.eq(Mux(self.passes, self._held(m, SUM)(product), total))
        values: list[Value] = [value]
        for number in (6, 7, 8):
            values.append(self._later(m, f"value_{number}", values[-1], number - 1))
        gates: list[Value] = [*gate]
        for number in (5, 6, 7, 8, 9):
            gates.append(self._later(m, f"gate_{number}", gates[-1], number - 1))
        return values, gates

    def _power(self, m: Module, is_: dict[str, Value], values: list[Value]) -> Signal:
        """Stage 5: the value as an exponent; 6: the power, which is returned in stage 7."""
        exponent, nan, power = Signal(FIXED_BITS, name="exponent_6"), Signal(name="nan_6"), Signal(32, name="power_7")
        fixed = float_fixed(m, "fixed", values[0])
        up = Signal(FIXED_BITS + 1)
        m.d.comb += [
            up.eq(fixed + ((1 << LOG2_BITS) - 1)),
            self.need.eq(Mux(self.keep_5, up[LOG2_BITS:], Const(-(1 << 15), NEED_BITS))),
        ]
        m.d.sync += [exponent.eq(fixed), nan.eq(is_nan(values[0]))]
        peak = Mux(is_["softmax"], self.peak, 0)
        m.d.sync += power.eq(float_power(m, "power", exponent, peak, nan))
        m.d.comb += self.part.eq(Mux(self.keep_7, Mux(is_["softmax"], power, values[2]), 0))
        return power

    def _second_product(
        self,
        m: Module,
        is_: dict[str, Value],
        operand: dict[int, Value],
        values: list[Value],
        gate: list[Value],
        power: Signal,
        bias: Value,
        multiplier: Value,
    ) -> None:
        """Stage 7: a sigmoid; 8: the second product; 9: what comes behind it, rounded to an element."""
        sigmoid, scaled = Signal(32, name="sigmoid_8"), Signal(32, name="scaled_9")
        total, power_8 = self._held(m, 7)(float_sum(m, "more", power, UNIT)), self._later(m, "power_8", power, 7)
        m.d.sync += sigmoid.eq(float_reciprocal(m, "quotient", total))
        x, factor = Signal(32, name="late"), Signal(32, name="late_factor")
        m.d.comb += [x.eq(values[3]), factor.eq(UNIT)]
        more = {"power": power_8, "sigmoid": sigmoid, "row_scale": self.late_scale}
        # what is chosen comes before the multiplier, which the registers divide
        stage = FloatStage(operand[8], MINUS_ZERO, values[3], self.m0, self.m1, bias, multiplier, more)
        self._assign(m, m.d.comb, "late", is_, stage, {"x": x, "factor": factor})
        divided = replace(stage, held=self._held(m, 8))
        last = float_multiply(m, "late_product", x, factor, divided.cut)
        m.d.sync += scaled.eq(Mux(self.passes, divided.held(x), last))
        closed, result = Signal(32, name="closed"), Signal(self.dtype.bits, name="result_10")
        closing = replace(stage, a=operand[9], value=scaled, more={"gate": gate[-1]}, held=self._held(m, 9))
        m.d.comb += closed.eq(closing.held(scaled))
        self._assign(m, m.d.comb, "close", is_, closing, {"closed": closed})
        element: Value = Mux(self.passes, closed[: self.dtype.bits], narrowed(m, "element", closed, self.dtype.layout))
        for place, dtype in enumerate(self.cache):
            if dtype in CACHE_SCALED:
                kept: Value = scaled_code(m, dtype, closed, closing.held(self.scale_9))
            else:
                kept = narrowed(m, f"kept_{dtype.value}", closed, dtype.layout)
            element = Mux(self.kept[place], kept, element)
        m.d.sync += result.eq(Mux(closing.held(self.keep_9), element, 0))
        m.d.comb += self.result.eq(result)

    def _wide(self, m: Module, name: str, value: Value) -> Value:
        """The fp32 number of an element."""
        found = widened(m, f"{name}_1", value, self.dtype.layout)
        return Cat(Const(0, 32 - len(found)), found)

    def _columns(self, m: Module) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """Parameters: parts gather in one set while the other is in use; and those of the last product and sum.

        The next block's come into use when the last slot of the one before has left stage 9, which reads them last;
        where registers make that later these two have a set of their own, which follows.
        """
        gathered = [Signal(self.dtype.bits, name=f"gathered_{i}") for i in range(self.planes)]
        planes = [Signal(self.dtype.bits, name=f"plane_{i}") for i in range(self.planes)]
        for place, (register, active) in enumerate(zip(gathered, planes, strict=True)):
            now = Signal(self.dtype.bits, name=f"now_{place}")
            m.d.comb += now.eq(Mux(self.plane[place], self.plane_data, register))
            m.d.sync += register.eq(now)
            with m.If(self.swap):  # with the last line, which may have a part of the multiplier
                m.d.sync += active.eq(now)
        late = planes
        if cycles := self.depth.late(self.STAGES - 1, COLUMN_LINES):
            late = [Signal(self.dtype.bits, name=f"late_plane_{i}") for i in range(self.planes)]
            with m.If(delayed(m, "late_swap", self.swap, cycles)):
                m.d.sync += [later.eq(active) for later, active in zip(late, planes, strict=True)]
        half = self.planes // 2
        (bias, multiplier), (late_bias, late_multiplier) = (
            (Cat(*each[:half]), Cat(*each[half:])) for each in (planes, late)
        )
        return (bias, multiplier), (late_bias, late_multiplier)


def planes_of(dtype: DataType) -> int:
    """Lines of parameters of a column that mean something: parts of its bias, and of its multiplier."""
    return 2 * 32 // dtype.bits


class FloatRowScalars(Circuit):
    """From the sums over a row to the row's state in floating point, five cycles later.

    Members
    -------
    softmax, centred : In(1)
        Which function: softmax, or a norm that takes the mean away.
    count, epsilon : In
        Columns of the row; what is added to its mean square, in bf16. They stay as they are for an instruction.
    first, second, peak : In
        Sum of the values; of the squares or powers; exponent that counts as zero.
    state : Out
        See `STATE`.
    """

    STAGES = 5
    """Cycles from the sums over a row to its state."""

    def __init__(self, library: Library) -> None:
        ports = {
            "softmax": In(1),
            "centred": In(1),
            "count": In(16),
            "epsilon": In(16),
            "first": In(32),
            "second": In(32),
            "peak": In(NEED_BITS),
            "state": Out(sum(STATE.values())),
        }
        super().__init__(library, library.name("row"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        first = Signal(32, name="first_0")
        m.d.comb += first.eq(Mux(self.centred, self.first, 0))
        firsts, peaks, totals = [first], [self.peak], [self.second]
        for stage in range(1, self.STAGES):
            later, higher = Signal(32, name=f"first_{stage}"), Signal(NEED_BITS, name=f"peak_{stage}")
            total = Signal(32, name=f"total_{stage}")
            m.d.sync += [later.eq(firsts[-1]), higher.eq(peaks[-1]), total.eq(totals[-1])]
            firsts.append(later)
            peaks.append(higher)
            totals.append(total)
        count, counts, added = Signal(32), Signal(32), Signal(32)
        m.d.sync += [
            count.eq(float_count(m, "columns", self.count)),
            counts.eq(float_multiply(m, "columns_squared", count, count)),
            added.eq(float_multiply(m, "least", counts, Cat(Const(0, 16), self.epsilon))),
        ]
        squared, many, spread, more, root = (Signal(32, name=n) for n in ("squared", "many", "spread", "more", "root"))
        scale, offset, total = Signal(32), Signal(32), Signal(32)
        m.d.sync += [
            squared.eq(float_multiply(m, "square_of_sum", first, first)),
            many.eq(float_multiply(m, "sum_of_squares", self.second, count)),
            spread.eq(float_sum(m, "difference", many, Cat(squared[:-1], ~squared[-1]))),
            more.eq(float_sum(m, "raised", spread, added)),
            root.eq(Mux(self.softmax, float_reciprocal(m, "quotient", totals[3]), float_root(m, "square_root", more))),
            scale.eq(Mux(self.softmax, root, float_multiply(m, "by_count", root, count))),
            offset.eq(Mux(self.softmax, peaks[-1], float_multiply(m, "by_sum", firsts[-1], root))),
            total.eq(totals[-1]),
        ]
        m.d.comb += self.state.eq(Cat(scale, offset, total))
        return m


__all__ = ["STATE", "FloatLane", "FloatRowScalars", "planes_of"]
