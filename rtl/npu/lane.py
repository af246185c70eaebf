"""One lane of the vector unit: the arithmetic on one column, with its parameters and its table."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out
from msgspec.structs import replace

from siliconloom.arch.numerics import CLOSING_BITS, EXP2, EXP2_BITS, FALL, RECIPROCALS, ROOTS
from siliconloom.arch.vector import COLUMN_LINES, TABLE_BYTES, TOTAL_BITS
from siliconloom.rtl.cells.arithmetic import Held, Integers
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.cells.table import entry
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.depth import Depth, Division, delayed
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.ways import FACTOR_BITS, Branch, Hook, Stage, lane_ways

BYTE = Integers(8)
"""Operands and results."""
WIDE = Integers(24)
"""Values between the two multipliers."""
NEED_BITS = 17
"""Bits of an exponent rounded up to an integer."""
DIVIDED: tuple[Division, ...] = (
    ("lane", 8),
    ("lane", 3),
    ("row", 5),
    ("row", 3),
    ("lane", 4),
    ("lane", 7),
    ("row", 1),
    ("row", 4),
    ("lane", 2),
    ("lane", 9),
    ("lane", 0),
    ("lane", 5),
)
"""Stages that are divided where there are cycles for it, the longest one first."""
PLANES = 7
"""Lines of parameters of a column that mean something: four of the bias, two of the multiplier, the shift."""
STATE = {"scale": 32, "offset": 40, "places": 6}
"""What a row function keeps of a row between its passes.

Norms: n * r, sum * r and the places to shift by; softmax: the scale, the peak, and the places. Where a softmax has no
use for the upper bits of the first two they hold the total, see `state_of_softmax`.
"""
SCALE_BITS = FACTOR_BITS - 1
"""Bits of the scale of a softmax, which has no sign."""


def state_of_softmax(scale: Value, peak: Value, total: Value) -> tuple[Value, Value]:
    """The first two parts of the state of a row of a softmax, with its total behind scale and peak."""
    low = STATE["scale"] - SCALE_BITS
    return Cat(scale[:SCALE_BITS], total[:low]), Cat(peak[:NEED_BITS], total[low:])


def total_in(scale: Value, offset: Value) -> Value:
    """The total in the first two parts of such a state."""
    return Cat(scale[SCALE_BITS:], offset[NEED_BITS:])[:TOTAL_BITS]


class Column(NamedTuple):
    """Parameters of a lane's column: 32, 16 and 6 bits, of which the first two are signed."""

    bias: Value
    multiplier: Value
    shift: Value


class Lane(Circuit):
    """Ten stages; stage ``i`` is what happens `Depth.at` of it after the operand's address went out.

    That is ``i`` cycles where no register divides a stage. What comes from outside comes at the beginning of a stage.

    What they do depends on the ways that hold (`rtl.npu.ways`); the circuits that only row functions use, and the
    product of neighbours, stand here.

    Members
    -------
    kind : In
        A bit per way, in their order.
    reduce : In
        The operand of stage 2 is summed over its row; it has no result.
    a, pair, b, cosine, sine, negative, sum : In
        Stage 1: the operand, its neighbour, the second operand, the angle of the rotation, its direction, the
        accumulator's sum.
    m0, m1, shift : In
        Scalars.
    plane, plane_data, swap : In
        A byte of the column's parameters and its place, one-hot; make the bytes taken since the last swap valid.
    table_write, table_line, table_data : In
        A line of the table.
    scale, offset, places : In
        State of the row: for stage 2, 3 and 4.
    keep_5, keep_7, keep_9 : In
        The column is one of the row's, and is not masked.
    adds_7 : In
        Stage 7: the value is added to the one before it.
    peak : In
        Stage 7: the exponent that counts as zero.
    late_scale, late_places : In
        State of the row: for stage 7 and 9.
    need, value : Out
        Stage 5: the exponent, rounded up; the value's lower bits.
    part, first : Out
        Stage 8: what is summed over the row: a power or a square; a value.
    result : Out(8)
        Stage 10.
    """

    STAGES = 10
    """Cycles from an operand's address to its result."""

    def __init__(self, library: Library, lanes: int, depth: Depth) -> None:
        self.lanes, self.ways, self.depth = lanes, lane_ways(), depth
        lines = max(TABLE_BYTES // lanes, 2)
        ports = {
            "kind": In(len(self.ways)),
            "reduce": In(1),
            "a": In(8),
            "pair": In(8),
            "b": In(8),
            "cosine": In(16),
            "sine": In(16),
            "negative": In(1),
            "sum": In(32),
            "m0": In(16),
            "m1": In(16),
            "shift": In(6),
            "plane": In(PLANES),
            "plane_data": In(8),
            "swap": In(1),
            "table_write": In(1),
            "table_line": In(log2(lines)),
            "table_data": In(8 * lanes),
            "scale": In(STATE["scale"]),
            "offset": In(STATE["offset"]),
            "places": In(6),
            "keep_5": In(1),
            "keep_7": In(1),
            "keep_9": In(1),
            "adds_7": In(1),
            "peak": In(NEED_BITS),
            "late_scale": In(STATE["scale"]),
            "late_places": In(6),
            "need": Out(NEED_BITS),
            "value": Out(8),
            "part": Out(16),
            "first": Out(9),
            "result": Out(8),
        }
        super().__init__(library, library.name("lane"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        is_ = {way.name: self.kind[place] for place, way in enumerate(self.ways)}
        column, late = self._columns(m)
        stage = self._look_up(m, is_, column)
        wide = self._first_product(m, is_, stage)
        passed = self._power(m, is_, wide)
        late_stage = replace(stage, bias=late.bias, multiplier=late.multiplier, column_shift=late.shift)
        self._second_product(m, is_, late_stage, passed)
        return m

    def _held(self, m: Module, stage: int, name: str, *values: Value) -> list[Value]:
        """Values behind the registers that divide a stage."""
        return [delayed(m, f"{name}_{i}_{stage}", value, self.depth.lane[stage]) for i, value in enumerate(values)]

    def _columns(self, m: Module) -> tuple[Column, Column]:
        """Parameters: bytes gather in one set while the other is in use; and those of the second product.

        Where registers make that later than the next block's parameters come it has a set of its own, which follows.
        """
        gathered = [Signal(8, name=f"gathered_{i}") for i in range(PLANES)]
        planes = [Signal(8, name=f"plane_{i}") for i in range(PLANES)]
        for place, register in enumerate(gathered):
            with m.If(self.plane[place]):
                m.d.sync += register.eq(self.plane_data)
        with m.If(self.swap):
            m.d.sync += [active.eq(register) for active, register in zip(planes, gathered, strict=True)]
        late_planes = planes
        if cycles := self.depth.late(self.STAGES - 1, COLUMN_LINES):
            late_planes = [Signal(8, name=f"late_plane_{i}") for i in range(PLANES)]
            with m.If(delayed(m, "late_swap", self.swap, cycles)):
                m.d.sync += [later.eq(active) for later, active in zip(late_planes, planes, strict=True)]
        early, late = (
            Column(Cat(*each[:4]).as_signed(), Cat(*each[4:6]).as_signed(), each[6][:6])
            for each in (planes, late_planes)
        )
        return early, late

    def _look_up(self, m: Module, is_: dict[str, Value], column: Column) -> Stage:
        """Stage 1: the table is read; returns what there is to multiply in stage 2, and what the other hooks read."""
        index, inside = log2(self.lanes), Signal(max(log2(self.lanes), 1))
        depth = max(TABLE_BYTES // self.lanes, 2)
        line = self.place(
            m,
            self.library.make(SramWrapper, 8 * self.lanes, depth),
            "table",
            ren=~self.table_write,  # lines of a table come ahead of what is looked up
            raddr=self.a[index:],
            wen=self.table_write,
            waddr=self.table_line,
            wdata=self.table_data,
        ).rdata
        a, pair, b = (Signal(8, name=f"{name}_2") for name in ("a", "pair", "b"))
        cosine, sine = (Signal(16, name=f"{name}_2") for name in ("cosine", "sine"))
        word = Signal(32)
        m.d.sync += [
            a.eq(self.a),
            pair.eq(self.pair),
            b.eq(self.b),
            cosine.eq(self.cosine),
            sine.eq(self.sine),
            word.eq(self.sum),
            inside.eq(self.a[:index] if index else 0),
        ]
        value, turned, scales = Signal(8), Signal(signed(25)), Signal()
        biased = Signal(signed(32))
        m.d.comb += [
            value.eq(a),
            turned.eq(BYTE.mul(pair, sine)),
            scales.eq(is_["norm"] & ~self.reduce),
            biased.eq(Mux(is_["requantize"], column.bias, BYTE.zero)),
        ]
        return Stage(
            a=a,
            b=b,
            value=value,
            looked_up=line.word_select(inside, 8),
            m0=self.m0,
            m1=self.m1,
            shift=self.shift,
            bias=column.bias,
            multiplier=column.multiplier,
            column_shift=column.shift,
            more={
                "softmax": is_["softmax"],
                "word": word,
                "biased": biased,
                "scales": scales,
                "row_scale": self.scale,
                "row_places": self.places,
                "cosine": cosine,
                "neighbour": turned,
                "late_scale": self.late_scale[: FACTOR_BITS - 1],
                "late_places": self.late_places,
            },
        )

    def _divided(self, m: Module, stage: Stage) -> Stage:
        """What stage 2 multiplies, behind the registers that divide it."""
        names = ("word", "scales", "row_scale", "cosine", "neighbour")
        a, b, value, *more = self._held(
            m, 2, "operand", stage.a, stage.b, stage.value, *(stage.more[name] for name in names)
        )
        held = dict(zip(names, more, strict=True))
        turned = held["neighbour"]
        held["neighbour"] = Mux(self.negative, -turned, turned)
        return replace(stage, a=a, b=b, value=value, more=stage.more | held)

    def _branches(self, hook: str, is_: dict[str, Value], stage: Stage) -> list[Branch]:
        """Of the ways that have this hook, in their order; ways that share it share its branches."""
        holding: dict[Hook, Value] = {}
        for way in self.ways:
            found: Hook | None = getattr(way, hook)
            if found is not None:
                holding[found] = holding[found] | is_[way.name] if found in holding else is_[way.name]
        return [branch for found, holds in holding.items() for branch in found(stage, holds)]

    def _first_product(self, m: Module, is_: dict[str, Value], stage: Stage) -> Signal:
        """Stage 2: what to multiply; 3: the first product; 4: rounding to 24 bits, which are returned."""
        total, factor, other, product = (
            Signal(signed(33)),
            Signal(signed(FACTOR_BITS)),
            Signal(signed(25)),
            Signal(signed(51)),
        )
        for condition, assigned in reversed(self._branches("operand", is_, stage)):
            with m.If(condition):
                m.d.comb += stage.value.eq(assigned["value"])
        chosen = self._divided(m, stage)
        m.d.sync += [total.eq(chosen.value.as_signed()), factor.eq(1), other.eq(0)]
        targets = {"total": total, "factor": factor, "other": other}
        chain(m, m.d.sync, self._branches("multiply", is_, chosen), targets)
        moved, scaled = Signal(signed(41)), Signal()
        m.d.comb += moved.eq(Mux(scaled, ~self.offset.as_signed(), other))  # less the offset: the one that is missing
        m.d.sync += [scaled.eq(chosen.more["scales"]), product.eq(self._product(m, 3, moved, total, factor, scaled))]
        by, wide = Signal(6), Signal(signed(24), name="value_5")
        held = delayed(m, "held", scaled, 1 + self.depth.lane[3])
        rounding = [*self._branches("places", is_, stage), (held, {"by": self.places})]
        chain(m, m.d.comb, rounding, {"by": by})
        m.d.sync += wide.eq(WIDE.rounded(product, by, self._between(m, 4)))
        return wide

    def _product(self, m: Module, stage: int, addend: Value, value: Value, factor: Value, one: Value) -> Value:
        """Value * factor + addend + one; where registers divide the stage, of limbs of the value that they hold."""
        if not self.depth.lane[stage]:
            return BYTE.mac(addend, value, factor) + one
        low = len(value) // 2
        first, second, added, more = self._held(
            m, stage, "product", value[:low] * factor, value[low:].as_signed() * factor, addend, one
        )
        return added + first + (second << low) + more

    def _between(self, m: Module, stage: int) -> Held:
        """What holds values between the levels of a shift, where registers divide the stage."""
        return lambda values: self._held(m, stage, "shifted", *values)

    def _power(self, m: Module, is_: dict[str, Value], wide: Signal) -> Signal:
        """Stage 5: the exponent as an integer; 6; 7: the power; returns what stage 8 multiplies."""
        up = Signal(signed(25))
        m.d.comb += [
            up.eq(wide + ((1 << EXP2_BITS) - 1)),
            self.value.eq(wide[:8]),
            self.need.eq(Mux(self.keep_5, up[EXP2_BITS:], Const(-(1 << 15), signed(NEED_BITS)))),
        ]
        wide_7, below = delayed(m, "wide_7", wide, self.depth.at(7) - self.depth.at(5)), Signal(26)
        m.d.comb += below.eq((self.peak.as_signed() << EXP2_BITS) - wide_7)
        mantissa, power, twice = Signal(16), Signal(16), Signal(17)
        found, nothing, by, value, keep, adds = self._held(
            m,
            7,
            "power",
            entry(m, "powers", EXP2, below[:EXP2_BITS], 16),
            below[EXP2_BITS + 5 :].any(),
            below[EXP2_BITS : EXP2_BITS + 5],
            wide_7,
            self.keep_7,
            self.adds_7,
        )
        m.d.comb += [
            mantissa.eq(found),
            twice.eq(Mux(nothing, 0, Cat(Const(0, 1), mantissa) >> by)),
            power.eq((twice + 1) >> 1),
        ]
        passed = Signal(signed(24), name="value_8")
        with m.If(~keep):
            m.d.sync += passed.eq(0)
        with m.Elif(is_["softmax"]):
            m.d.sync += passed.eq(power)
        with m.Elif(adds):
            m.d.sync += passed.eq(passed + value)
        with m.Else():
            m.d.sync += passed.eq(value)
        m.d.comb += [self.part.eq(Mux(is_["softmax"], passed[:16], passed[:15])), self.first.eq(passed[15:])]
        return passed

    def _second_product(self, m: Module, is_: dict[str, Value], stage: Stage, passed: Signal) -> None:
        """Stage 7: what to multiply by; 8: the second product; 9: rounding to 8 bits."""
        scale, addend, again = Signal(signed(FACTOR_BITS)), Signal(signed(32)), Signal(signed(42))
        chosen, added = Signal.like(scale), Signal.like(addend)
        m.d.comb += chosen.eq(1)
        chain(m, m.d.comb, self._branches("scale", is_, stage), {"scale": chosen, "addend": added})
        m.d.comb += [
            scale.eq(delayed(m, "scale_8", chosen, 1 + self.depth.lane[7])),
            addend.eq(delayed(m, "addend_8", added, 1 + self.depth.lane[7])),
        ]
        m.d.sync += again.eq(self._product(m, 8, addend, passed, scale, Const(0, 1)))
        late = Signal(6)
        chain(m, m.d.comb, self._branches("late", is_, stage), {"late": late})
        result = Signal(8)
        rounded = BYTE.rounded(again, late, self._between(m, 9))
        m.d.sync += result.eq(Mux(delayed(m, "kept_9", self.keep_9, self.depth.lane[9]), rounded, 0))
        m.d.comb += self.result.eq(result)


def chain(m: Module, domain: Any, branches: list[Branch], targets: dict[str, Signal]) -> None:
    """Assign what the first branch whose condition holds assigns."""
    for number, (condition, assigned) in enumerate(branches):
        with m.Elif(condition) if number else m.If(condition):
            domain += [targets[name].eq(value) for name, value in assigned.items()]


def total_of(values: list[Value], between: Held = list) -> Value:
    """Sum of values, as a tree, whose middle level goes through ``between``."""
    level, middle = 0, max(log2(len(values)) // 2, 1)
    while len(values) > 1:
        level, pairs = level + 1, [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
        if level == middle:
            values = between(values)
    return values[0]


class Largest(Circuit):
    """The largest of signed numbers, as a tree, with so many registers in its middle.

    Members
    -------
    i : In
        The numbers, side by side.
    o : Out
        The largest.
    """

    def __init__(self, library: Library, count: int, bits: int = NEED_BITS, registers: int = 0) -> None:
        self.count, self.bits, self.registers = count, bits, registers
        ports = {"i": In(count * bits), "o": Out(bits)}
        super().__init__(library, library.name("largest"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        unused_clock = Signal(name="unused")
        m.d.comb += unused_clock.eq(self.clk)
        bits = self.bits
        values = [self.i[bits * n : bits * (n + 1)].as_signed() for n in range(self.count)]
        level, middle = 0, max(log2(self.count) // 2, 1)
        while len(values) > 1:
            level, pairs = level + 1, list(zip(values[::2], values[1::2], strict=True))
            values = []
            for place, (a, b) in enumerate(pairs):
                larger = Signal(signed(bits), name=f"level_{level}_{place}")
                m.d.comb += larger.eq(Mux(a > b, a, b))
                held = self.registers if level == middle else 0
                values.append(delayed(m, f"held_{place}", larger, held))
        m.d.comb += self.o.eq(values[0])
        return m


class RowScalars(Circuit):
    """From the sums over a row to the row's state, five stages later.

    Members
    -------
    softmax, online, centred : In(1)
        Which function: softmax, one that carries its rows, or a norm that takes the mean away.
    count : In
        Columns of the row.
    first, second, peak : In
        Sum of the values; of the squares or powers; exponent that counts as zero.
    state : Out
        See `STATE`.
    """

    STAGES = 5
    """From the sums over a row to its state: cycles, where no register divides one."""

    def __init__(self, library: Library, depth: Depth) -> None:
        self.depth = depth
        ports = {
            "softmax": In(1),
            "online": In(1),
            "centred": In(1),
            "count": In(16),
            "first": In(24),
            "second": In(TOTAL_BITS),
            "peak": In(NEED_BITS),
            "state": Out(sum(STATE.values())),
        }
        super().__init__(library, library.name("row"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        mean = Signal(signed(24), name="first_0")
        m.d.comb += mean.eq(Mux(self.centred, self.first.as_signed(), 0))
        firsts, peaks, totals = [mean], [self.peak], [self.second]
        for stage in range(1, self.STAGES):
            cycles = 1 + self.depth.row[stage - 1]
            firsts.append(delayed(m, f"first_{stage}", firsts[-1], cycles))
            peaks.append(delayed(m, f"peak_{stage}", peaks[-1], cycles))
            totals.append(delayed(m, f"total_{stage}", totals[-1], cycles))
        spread = self._spread(m)
        mantissa, places, some = self._normalized(m, spread)
        factor, places_4 = self._looked_up(m, mantissa, places, some)
        scale, offset, places_5 = Signal(STATE["scale"]), Signal(STATE["offset"]), Signal(6)
        # what is divided in the end is in 1/128, the table's reciprocals in 1/127
        closing = factor + (factor >> CLOSING_BITS) + (factor >> 2 * CLOSING_BITS)
        by, chosen, last, peak, total, left = self._held(
            m, 5, "closing", factor, Mux(self.online, closing, factor), firsts[-1], peaks[-1], totals[-1], places_4
        )
        kept = state_of_softmax(chosen, peak, total)
        m.d.sync += [
            scale.eq(Mux(self.softmax, kept[0], by * self.count)),
            places_5.eq(left),
            offset.eq(Mux(self.softmax, kept[1], by * last)),
        ]
        m.d.comb += self.state.eq(Cat(scale, offset, places_5))
        return m

    def _held(self, m: Module, stage: int, name: str, *values: Value) -> list[Value]:
        """Values behind the registers that divide a stage."""
        return [delayed(m, f"{name}_{i}_{stage}", value, self.depth.row[stage - 1]) for i, value in enumerate(values)]

    def _spread(self, m: Module) -> Signal:
        """Stage 1: products; 2: what is left of them, n^2 times the variance, or the total of a softmax."""
        # limbs of the product with the count, which are added in the next cycle; where there is none nothing is squared
        squared, low, high, spread = Signal(47), Signal(max(TOTAL_BITS, 32)), Signal(32), Signal(47)
        half, first = len(self.first) // 2, self.first.as_signed()
        upper, lower = first[half:].as_signed(), first[:half]
        if self.depth.row[0]:
            limbs = [self.second[at : at + 16] * self.count[by : by + 8] for at in (0, 16) for by in (0, 8)]
            *squares, total, softmax, least, lifted, most, raised = self._held(
                m, 1, "parts", upper * upper, upper * lower, lower * lower, self.second, self.softmax, *limbs
            )
            square = (squares[0] << 2 * half) + (squares[1] << half + 1) + squares[2]
            products = Mux(softmax, total, least + (lifted << 8)), Mux(softmax, 0, most + (raised << 8))
        else:
            square = first * first
            products = (
                Mux(self.softmax, self.second, self.second[:16] * self.count),
                Mux(self.softmax, 0, self.second[16:32] * self.count),
            )
        m.d.sync += [squared.eq(Mux(self.centred, square, 0)), low.eq(products[0]), high.eq(products[1])]
        total, taken = self._held(m, 2, "spread", low + Cat(Const(0, 16), high), squared)
        m.d.sync += spread.eq((total - taken)[:47])
        return spread

    def _normalized(self, m: Module, spread: Signal) -> tuple[Signal, Signal, Signal]:
        """Stage 3: 16 bits from the first one on, the places that they were shifted by, and whether there is anything.

        A shifter whose every level tells a bit of the first one's place. Of what a root is taken of the places are
        even, so that the first bit may be the second one.
        """
        bits, levels = 16, len(spread).bit_length()
        above = Const(0, (1 << levels) - len(spread))
        taken: Value = Cat(Const(0, bits - 1), spread, above)
        some: Value = spread != 0
        found: list[Value] = []
        for level in reversed(range(levels)):
            if level == levels // 2 - 1:
                taken, some, *found = self._held(m, 3, "normalized", taken, some, *found)
            by = 1 << level
            upper = taken[-by:].any()
            found.append(upper)
            stays = upper if level else upper | ~self.softmax
            kept = bits + by - 1
            taken = Mux(stays, taken[by:], taken[:-by])[:kept]
        mantissa, top, places, anything = Signal(bits), Signal(levels), Signal(6), Signal()
        m.d.comb += top.eq(Cat(*reversed(found)))
        m.d.sync += [
            mantissa.eq(taken),
            places.eq(Mux(self.online, top - FALL, Mux(self.softmax, top + 9, (top >> 1) + 8))),
            anything.eq(some),
        ]
        return mantissa, places, anything

    def _looked_up(self, m: Module, mantissa: Signal, places: Signal, some: Signal) -> tuple[Signal, Signal]:
        """Stage 4: a reciprocal, or one of a root, from the line between two entries of a table; and the places."""
        base, step, places_4 = Signal(17), Signal(10), Signal(6)
        base_4, fall, factor = Signal(17), Signal(18), Signal(17)
        index = mantissa[8:]
        for name, table, chosen in (("reciprocals", RECIPROCALS, self.softmax), ("roots", ROOTS, ~self.softmax)):
            values = [table.get(i, 0) for i in range(257)]
            steps = [values[i] - values[i + 1] if i in table else 0 for i in range(256)]
            both = [value | change << 17 for value, change in zip(values, steps, strict=False)]
            found = entry(m, name, both, index, 27)
            with m.If(chosen):
                m.d.comb += Cat(base, step).eq(found)
        start, slope, below, there, left = self._held(m, 4, "looked_up", base, step, mantissa[:8], some, places)
        m.d.sync += [base_4.eq(Mux(there, start, 0)), fall.eq(Mux(there, slope * below, 0)), places_4.eq(left)]
        # less the rounded fall / 256: the half is the carry of the subtraction that is there anyway
        m.d.comb += factor.eq((Cat(Const(1, 1), base_4) + Cat(~fall[7], ~Cat(fall[8:], Const(0, 7))))[1:18])
        return factor, places_4
