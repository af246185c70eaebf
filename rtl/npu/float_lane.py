"""One lane of the vector unit in floating point: the arithmetic on one column, with its parameters.

What its stages do depends on the ways that hold (`rtl.npu.float_ways`). Circuits that only row functions and
activations use stand here: powers of two, and sigmoids.
"""

from __future__ import annotations

import itertools
from collections import Counter
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
from siliconloom.rtl.cells.floating import (
    ADDED,
    ALIGNED,
    EXPONENT,
    NORMALISED,
    ORDERED,
    ROUNDED,
    SUM_CUTS,
    Cut,
    float_multiply,
    float_sum,
    narrowed,
    widened,
)
from siliconloom.rtl.cells.floating import DIVIDED as PARTED
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.choice import order_of
from siliconloom.rtl.npu.depth import SUM, Depth, Division, cut_at, delayed, dividing
from siliconloom.rtl.npu.float_ways import MINUS_ZERO, UNIT, FloatHook, FloatStage, float_ways
from siliconloom.rtl.npu.lane import NEED_BITS, chain
from siliconloom.rtl.npu.scaled import scaled_code

STATE = {"scale": 32, "offset": 32, "total": 32}
"""What a row function keeps of a row between its passes.

Norms: n * r, sum * r; softmax: the reciprocal of the total, the peak, the total.
"""


DIVIDED: tuple[Division, ...] = (
    *(("lane", stage) for stage in (7, 9, 3, 2, 8, 0)),
    *(("row", stage) for stage in (2, 3, 1, 4, 5)),
    *(("lane", stage) for stage in (7, 6, 5, 9, 7, 3, 8)),
    *(("row", stage) for stage in (2, 3, 1, 4, 5)),
    *(("lane", stage) for stage in (7, 6, 5, 9, 3, 8, 2, 7)),
    *(("row", stage) for stage in (2, 3, 1, 4, 5)),
    *(("lane", stage) for stage in (6, 5, 9, 7, 2, 8, 7, 3, 7, 9, 8, 7)),
    *(("row", stage) for stage in (2, 3, 1, 4, 5, 4, 1, 5)),
    ("lane", 5),
    ("lane", 6),
)
"""Stages that are divided where there are cycles for it, the longest one first, and again what is left of them."""

SIGMOID: tuple[Any, ...] = (
    "between",
    ("quotient", ADDED),
    ("sum", ADDED),
    ("quotient", ORDERED),
    ("sum", ORDERED),
    ("quotient", NORMALISED),
    ("sum", NORMALISED),
    ("quotient", ALIGNED),
    ("quotient", ROUNDED),
    ("sum", ROUNDED),
)
"""Where registers divide stage 7, in the order in which there are some: between one more and its reciprocal, or in one.
"""

INVERTED = (*PARTED, ALIGNED)
"""Where registers divide a reciprocal, or that of a root, in their order."""


def fixed_cycles(depth: Depth) -> int:
    """Of the registers that divide stage 5 those before the exponent that is compared over the lanes."""
    return min(depth.lane[5], 2)


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

    def _divided(self, m: Module, stage: FloatStage, number: int, cycles: int) -> FloatStage:
        """A stage of which so many registers divide what hooks do."""
        name = f"held_{number}"
        return replace(stage, held=lambda value: delayed(m, name, value, cycles), cut=dividing(m, name, PARTED, cycles))

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
        raw = delayed(m, "raw_fixed", raw, fixed_cycles(self.depth))
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
        # of an element, where it is one, the low bits are none
        low = 32 - 1 - EXPONENT - self.dtype.layout.fraction_bits
        own = Cat(Const(0, low), operand[2][low:])
        stage = FloatStage(own, b, word, self.m0, self.m1, bias, multiplier, more)
        stage = self._divided(m, stage, 2, self.depth.lane[2])
        targets = {name: Signal(32, name=f"{name}_3") for name in ("x", "factor", "other", "scale")}
        x, factor, other, scale = targets.values()
        m.d.sync += [x.eq(held(operand[2])), factor.eq(UNIT), other.eq(held(b)), scale.eq(self.m1)]
        self._assign(m, m.d.sync, "multiply", is_, stage, targets)

        product, addend, value = Signal(32, name="product_4"), Signal(32, name="addend_4"), Signal(32, name="value_5")
        reduces_3 = self._held(m, 2)(reduces)
        stage = replace(stage, a=operand[3], more={"reduce": reduces_3, "offset": self.offset})
        stage = self._divided(m, stage, 3, self.depth.lane[3])
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
        ahead, places = fixed_cycles(self.depth), (ADDED, ORDERED, NORMALISED)
        behind = self.depth.lane[5] - ahead
        fixed = float_fixed(m, "fixed", values[0], dividing(m, "fixed", (ADDED, ORDERED), ahead))
        up, keep = Signal(FIXED_BITS + 1), delayed(m, "keep_fixed", self.keep_5, ahead)
        m.d.comb += [
            up.eq(fixed + ((1 << LOG2_BITS) - 1)),
            self.need.eq(Mux(keep, up[LOG2_BITS:], Const(-(1 << 15), NEED_BITS))),
        ]
        m.d.sync += [
            exponent.eq(delayed(m, "fixed_held", fixed, behind)),
            nan.eq(delayed(m, "nan_held", is_nan(values[0]), self.depth.lane[5])),
        ]
        # of more registers than a power has places for one stands behind the peak, which is found in this stage
        first = min(max(self.depth.lane[6] - len(places), 0), 1)
        inside = dividing(m, "power", places, self.depth.lane[6] - first)
        known = {"exponent": exponent, "peak": Mux(is_["softmax"], self.peak, 0), "nan": nan}
        exponent, peak, nan = (delayed(m, f"{name}_below", value, first) for name, value in known.items())
        m.d.sync += power.eq(float_power(m, "power", exponent, peak, nan, inside))
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
        spent = Counter(SIGMOID[: self.depth.lane[7]])
        spent["between"] += self.depth.lane[7] - spent.total()
        places = {part: [place for place in INVERTED if spent[part, place]] for part in ("sum", "quotient")}
        summed = float_sum(m, "more", power, UNIT, cut_at(m, "more", places["sum"]))
        total, power_8 = delayed(m, "held_7", summed, spent["between"]), self._later(m, "power_8", power, 7)
        m.d.sync += sigmoid.eq(float_reciprocal(m, "quotient", total, cut_at(m, "quotient", places["quotient"])))
        x, factor = Signal(32, name="late"), Signal(32, name="late_factor")
        m.d.comb += [x.eq(values[3]), factor.eq(UNIT)]
        more = {"power": power_8, "sigmoid": sigmoid, "row_scale": self.late_scale}
        # what is chosen comes before the multiplier, which the registers divide
        stage = FloatStage(operand[8], MINUS_ZERO, values[3], self.m0, self.m1, bias, multiplier, more)
        self._assign(m, m.d.comb, "late", is_, stage, {"x": x, "factor": factor})
        before = min(max(self.depth.lane[8] - 2, 0), 1)  # of several registers one stands behind what is chosen
        divided = self._divided(m, stage, 8, self.depth.lane[8] - before)
        late = delayed(m, "late_held", x, before), delayed(m, "late_factor_held", factor, before)
        last = float_multiply(m, "late_product", *late, divided.cut)
        m.d.sync += scaled.eq(Mux(self.passes, divided.held(late[0]), last))
        closed, result = Signal(32, name="closed"), Signal(self.dtype.bits, name="result_10")
        closing = replace(stage, a=operand[9], value=scaled, more={"gate": gate[-1]})
        behind = int(self.depth.lane[9] > 1)  # of several registers one stands before what is rounded to an element
        closing = self._divided(m, closing, 9, self.depth.lane[9] - behind)
        m.d.comb += closed.eq(closing.held(scaled))
        self._assign(m, m.d.comb, "close", is_, closing, {"closed": closed})
        closed, closing = delayed(m, "closed_held", closed, behind), replace(closing, held=self._held(m, 9))
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
        where registers make that later these two have sets of their own, which follow.
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
        copies = self.depth.copies(self.STAGES - 1, COLUMN_LINES)
        for place, cycles in enumerate(copies):
            before, ends = late, place == len(copies) - 1
            names = (f"late_plane_{i}" if ends else f"late_plane_{place}_{i}" for i in range(self.planes))
            late = [Signal(self.dtype.bits, name=name) for name in names]
            with m.If(delayed(m, "late_swap" if ends else f"late_swap_{place}", self.swap, cycles)):
                m.d.sync += [later.eq(active) for later, active in zip(late, before, strict=True)]
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
    """Cycles from the sums over a row to its state, where no register divides one."""

    def __init__(self, library: Library, depth: Depth) -> None:
        self.depth, self.numbers = depth, itertools.count()
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
            cycles = 1 + self.depth.row[stage - 1]
            firsts.append(delayed(m, f"first_{stage}", firsts[-1], cycles))
            peaks.append(delayed(m, f"peak_{stage}", peaks[-1], cycles))
            totals.append(delayed(m, f"total_{stage}", totals[-1], cycles))
        count, counts, added = Signal(32), Signal(32), Signal(32)
        m.d.sync += [
            count.eq(float_count(m, "columns", self.count)),
            # these do not change while an instruction's rows come: the first one's state is made long after
            counts.eq(float_multiply(m, "columns_squared", count, count, self._cut(m, "columns_squared", 1))),
            added.eq(float_multiply(m, "least", counts, Cat(Const(0, 16), self.epsilon), self._cut(m, "least", 1))),
        ]
        squared, many, spread, more, root = (Signal(32, name=n) for n in ("squared", "many", "spread", "more", "root"))
        scale, offset, total = Signal(32), Signal(32), Signal(32)
        less = Cat(squared[:-1], ~squared[-1])
        of_first, of_second, of_columns = (self._ahead(m, 1, value) for value in (first, self.second, count))
        m.d.sync += [
            squared.eq(float_multiply(m, "square_of_sum", of_first, of_first, self._cut(m, "square", 1))),
            many.eq(float_multiply(m, "sum_of_squares", of_second, of_columns, self._cut(m, "many", 1))),
            spread.eq(float_sum(m, "difference", many, less, self._cut(m, "difference", 2))),
            more.eq(float_sum(m, "raised", spread, added, self._cut(m, "raised", 3))),
        ]
        inverse = float_reciprocal(m, "quotient", totals[3], self._cut(m, "quotient", 4, INVERTED))
        of_root = float_root(m, "square_root", more, self._cut(m, "root", 4, INVERTED))
        last = delayed(m, "root_held", root, self.depth.row[4])
        roots = [self._ahead(m, 5, root) for _ in range(2)]
        columns, sum_of_row = self._ahead(m, 5, count), self._ahead(m, 5, firsts[-1])
        by_count = float_multiply(m, "by_count", roots[0], columns, self._cut(m, "by_count", 5))
        by_sum = float_multiply(m, "by_sum", sum_of_row, roots[1], self._cut(m, "by_sum", 5))
        peak, sums = (delayed(m, f"{n}_held", each[-1], self.depth.row[4]) for n, each in (("p", peaks), ("t", totals)))
        m.d.sync += [
            root.eq(Mux(self.softmax, inverse, of_root)),
            scale.eq(Mux(self.softmax, last, by_count)),
            offset.eq(Mux(self.softmax, peak, by_sum)),
            total.eq(sums),
        ]
        m.d.comb += self.state.eq(Cat(scale, offset, total))
        return m

    def _cut(self, m: Module, name: str, stage: int, places: tuple[int, ...] = PARTED) -> Cut:
        """Registers that divide a stage, in what it computes: all that do not stand ahead of it."""
        return dividing(m, f"{name}_cut", places, self.depth.row[stage - 1] - self._registers_ahead(stage))

    def _ahead(self, m: Module, stage: int, value: Value) -> Value:
        """A factor of a product, behind the registers that stand ahead of it: it drives less."""
        return delayed(m, f"factor_{stage}_{next(self.numbers)}", value, self._registers_ahead(stage))

    def _registers_ahead(self, stage: int) -> int:
        """Of a stage's registers those that are more than a product has places for."""
        return max(self.depth.row[stage - 1] - len(PARTED), 0) if stage in (1, 5) else 0


__all__ = ["STATE", "FloatLane", "FloatRowScalars", "planes_of"]
