"""Functions of fp32 numbers by tables, in circuits: powers of two, reciprocals, reciprocal square roots.

Tables are those of `arch.numerics`, linear in between; numbers those of `rtl.cells.floating`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed
from amaranth.lib.wiring import In, Out

from siliconloom.arch.numerics import EXP2, EXP2_ONE, LOG2_BITS, RECIPROCALS, ROOTS
from siliconloom.rtl.cells.floating import (
    ADDED,
    ALIGNED,
    BIAS,
    BITS,
    DIVIDED,
    EXPONENT,
    FRACTION,
    NAN,
    NORMALISED,
    ORDERED,
    ROUNDED,
    Cut,
    float_sum,
    uncut,
)
from siliconloom.rtl.cells.table import entry
from siliconloom.rtl.library import Circuit, Library

FIXED_BITS = 32
"""Bits of the exponent of a power, `LOG2_BITS` of them behind the point."""


def is_nan(value: Value) -> Value:
    """Whether a number is none."""
    return value[FRACTION:-1].all() & value[:FRACTION].any()


def float_fixed(m: Module, name: str, value: Value, cut: Cut = uncut) -> Signal:
    """A number in 1/2^16, signed, halves away from zero, saturated; no number is the least one.

    ``cut`` is called behind the shift (`ADDED`), and with how far it goes (`ORDERED`).
    """
    field, places = value[FRACTION:-1], Signal(EXPONENT, name=f"{name}_places")
    top = BIAS + FIXED_BITS - 1 - LOG2_BITS
    twice, size = Signal(FIXED_BITS, name=f"{name}_twice"), Signal(FIXED_BITS, name=f"{name}_size")
    found = Signal(signed(FIXED_BITS), name=name)
    m.d.comb += places.eq(top - 1 - field)
    kinds: list[Value] = [is_nan(value) | ((field >= top) & value[-1]), field >= top, value[-1]]
    by, fraction, *kinds = cut(ORDERED, [places, value[:FRACTION], *kinds])
    m.d.comb += twice.eq(Mux(by > FIXED_BITS, 0, Cat(Const(0, FIXED_BITS - FRACTION - 1), fraction, 1) >> by))
    shifted, least, most, negative = cut(ADDED, [twice, *kinds])
    m.d.comb += size.eq((shifted + 1) >> 1)
    with m.If(least):
        m.d.comb += found.eq(-(1 << (FIXED_BITS - 1)))
    with m.Elif(most):
        m.d.comb += found.eq((1 << (FIXED_BITS - 1)) - 1)
    with m.Else():
        m.d.comb += found.eq(Mux(negative, -size, size))
    return found


def float_power(m: Module, name: str, exponent: Value, peak: Value, nan: Value, cut: Cut = uncut) -> Signal:
    """2^(exponent / 2^16 - peak), of two signed numbers; NaN where ``nan`` is set.

    ``cut`` is called before the table (`ORDERED`), behind it (`ADDED`), and with the value between (`NORMALISED`).
    """
    below = Signal(signed(FIXED_BITS + 2), name=f"{name}_below")
    m.d.comb += below.eq((peak.as_signed() << LOG2_BITS) - exponent.as_signed())
    last = 1 << (EXP2_ONE - 1)
    width = EXP2_ONE + 1
    under, nan = cut(ORDERED, [below, nan])
    found = entry(m, f"{name}_entry", _with_steps([*EXP2, last], width), under[8:16], width + 7)
    found, rest, whole, nan = cut(ADDED, [found, under[:8], under[LOG2_BITS:], nan])
    value, field = Signal(FRACTION + 1, name=f"{name}_value"), Signal(signed(20), name=f"{name}_field")
    m.d.comb += value.eq((found[:width] << 8) - found[width:] * rest)
    between, whole, nan = cut(NORMALISED, [value, whole, nan])
    one = between[FRACTION]  # of a whole exponent only
    m.d.comb += field.eq(BIAS - 1 + one - whole.as_signed())
    return _positive(m, name, field, Mux(one, 0, between << 1)[:FRACTION], zero=Const(0, 1), nan=nan)


def lowered(value: Value, places: Value) -> Value:
    """A number over 2^``places``: exact, a zero of its sign below the smallest normal number."""
    field = value[FRACTION:-1]
    smaller = Cat(value[:FRACTION], (field - places)[:EXPONENT], value[-1])
    return Mux(field.all(), value, Mux(field > places, smaller, Cat(Const(0, BITS - 1), value[-1])))


def float_reciprocal(m: Module, name: str, value: Value, cut: Cut = uncut) -> Signal:
    """1 / x of a positive number; 0 of zero and of infinity.

    ``cut`` is called behind the table (`ORDERED`), in and behind the line between its entries (`ALIGNED`, `ADDED`),
    before rounding (`NORMALISED`), and behind it (`ROUNDED`).
    """
    found = entry(m, f"{name}_entry", _with_steps(_values(RECIPROCALS), 16), Cat(value[16:FRACTION], 1), 25)
    field = value[FRACTION:-1]
    zero, nan = field.all() | ~field.any(), is_nan(value)
    found, low, field, zero, nan = cut(ORDERED, [found, value[:16], field, zero, nan])
    quotient, closed = Signal(33, name=f"{name}_quotient"), Signal(33, name=f"{name}_closed")
    rounded = Signal(FRACTION + 2, name=f"{name}_rounded")
    exponent = Signal(signed(11), name=f"{name}_exponent")
    start, fall, field, zero, nan = cut(ALIGNED, [found[:16], found[16:] * low, field, zero, nan])
    m.d.comb += quotient.eq((start << 16) - fall)
    line, field, zero, nan = cut(ADDED, [quotient, field, zero, nan])
    # the table's are 127 times too large, and should be 128 times
    m.d.comb += closed.eq(line + (line >> 7) + (line >> 14) + (line >> 21))
    whole, field, zero, nan = cut(NORMALISED, [closed, field, zero, nan])
    m.d.comb += [rounded.eq((whole + 128) >> 8), exponent.eq(2 * BIAS - 1 - field + rounded[FRACTION + 1])]
    last, fraction, zero, nan = cut(ROUNDED, [exponent, rounded[:FRACTION], zero, nan])
    return _positive(m, name, last.as_signed(), fraction, zero=zero, nan=nan)


def float_root(m: Module, name: str, value: Value, cut: Cut = uncut) -> Signal:
    """1 / sqrt(x) of a positive number; 0 of any other, and NaN of what is no finite number.

    ``cut`` is called as by `float_reciprocal`.
    """
    field, wide = value[FRACTION:-1], Signal(FRACTION + 3, name=f"{name}_wide")
    significand = Cat(value[:FRACTION], 1)
    m.d.comb += wide.eq(Mux(field[0], significand << 1, significand << 2))
    found = entry(m, f"{name}_entry", _with_steps(_values(ROOTS), 17), wide[18:], 27)
    zero, nan = value[-1] | ~field.any(), field.all()
    found, low, field, zero, nan = cut(ORDERED, [found, wide[:18], field, zero, nan])
    root, rounded = Signal(35, name=f"{name}_root"), Signal(FRACTION + 2, name=f"{name}_rounded")
    exponent = Signal(signed(11), name=f"{name}_exponent")
    start, fall, field, zero, nan = cut(ALIGNED, [found[:17], found[17:] * low, field, zero, nan])
    m.d.comb += root.eq((start << 18) - fall)
    line, field, zero, nan = cut(ADDED, [root, field, zero, nan])
    m.d.comb += rounded.eq((line + 512) >> 10)
    whole, field, zero, nan = cut(NORMALISED, [rounded, field, zero, nan])
    m.d.comb += exponent.eq(BIAS - 1 + 64 - ((field + 1) >> 1) + whole[FRACTION + 1])
    last, fraction, zero, nan = cut(ROUNDED, [exponent, whole[:FRACTION], zero, nan])
    return _positive(m, name, last.as_signed(), fraction, zero=zero, nan=nan)


def float_count(m: Module, name: str, value: Value) -> Signal:
    """A whole number of few bits, without sign, as a floating-point number: exact."""
    found = Signal(BITS, name=name)
    for top in range(len(value)):  # the highest bit that is set becomes the leading one
        with m.If(value[top] & ~value[top + 1 :].any()):
            m.d.comb += found.eq(Cat(Const(0, FRACTION - top), value[:top], Const(BIAS + top, EXPONENT)))
    return found


class FloatSum(Circuit):
    """The sum of two fp32 numbers, `rtl.cells.floating.float_sum`, for circuits that have many.

    Parameters
    ----------
    registers
        That divide it.

    Members
    -------
    a, b : In(32)
        The numbers.
    o : Out(32)
        Their sum, in the same cycle, or as many later as there are registers.
    """

    def __init__(self, library: Library, registers: int = 0) -> None:
        self.registers = registers
        name = library.name("float_sum", str(registers)) if registers else library.name("float_sum")
        super().__init__(library, name, {"a": In(BITS), "b": In(BITS), "o": Out(BITS)})

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        unused_clock = Signal(name="unused")
        m.d.comb += [unused_clock.eq(self.clk), self.o.eq(float_sum(m, "sum", self.a, self.b, self._cut(m)))]
        return m

    def _cut(self, m: Module) -> Cut:
        def cut(place: int, values: list[Value]) -> list[Value]:
            if place not in DIVIDED[: self.registers]:
                return values
            held = [Signal(each.shape(), name=f"held_{place}_{number}") for number, each in enumerate(values)]
            m.d.sync += [register.eq(each) for register, each in zip(held, values, strict=True)]
            return list(held)

        return cut


def tree_level(m: Module, unit: Circuit, name: str, values: list[Value], registers: int = 0) -> list[Value]:
    """Sums of adjacent pairs, each by a circuit of its own in ``unit``, so many registers in each."""
    kind = unit.library.make(FloatSum, registers) if registers else unit.library.make(FloatSum)
    pairs = zip(values[::2], values[1::2], strict=True)
    return [unit.place(m, kind, f"{name}_{place}", a=a, b=b).o for place, (a, b) in enumerate(pairs)]


def _values(table: Mapping[int, int]) -> list[int]:
    return [table.get(i, 0) for i in range(257)]


def _with_steps(values: Sequence[int], width: int) -> list[int]:
    """Each entry but the last, and above its bits by how much the next one is smaller."""
    steps = [max(a - b, 0) for a, b in pairwise(values)]
    return [value | step << width for value, step in zip(values, steps, strict=False)]


def _positive(m: Module, name: str, exponent: Value, fraction: Value, *, zero: Value, nan: Value) -> Signal:
    """A positive number from its parts; ``exponent`` is biased and may be out of range."""
    value = Signal(BITS, name=name)
    with m.If(nan):
        m.d.comb += value.eq(NAN)
    with m.Elif(zero | (exponent < 1)):
        m.d.comb += value.eq(0)
    with m.Elif(exponent > 2 * BIAS):
        m.d.comb += value.eq(((1 << EXPONENT) - 1) << FRACTION)
    with m.Else():
        m.d.comb += value.eq(Cat(fraction, exponent[:EXPONENT]))
    return value


__all__ = [
    "FIXED_BITS",
    "FloatSum",
    "float_count",
    "float_fixed",
    "float_power",
    "float_reciprocal",
    "float_root",
    "is_nan",
    "lowered",
    "tree_level",
]
