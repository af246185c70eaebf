"""Floating point in circuits: bf16 products and fp32 sums, rounded to nearest even, without subnormal numbers.

A subnormal operand counts as a zero of its sign and a subnormal result becomes one; every NaN is 0x7FC00000. These are
the numbers of ``sim.golden.pim``, bit for bit.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed

BITS = 32
FRACTION = 23
BIAS = 127
NAN = 0x7FC00000
GUARD = 3
"""Bits below the last place that rounding looks at: guard, round, sticky."""
SIGNIFICAND = FRACTION + 1 + GUARD
STAGES = (1, 2, 4, 8, 16)
"""Places of a shifter's stages."""


def bf16_product(m: Module, name: str, a: Value, b: Value, significand: Value) -> Signal:
    """The product of two bf16 numbers in fp32, exact but for overflow (infinity) and subnormal results (zero).

    Parameters
    ----------
    m, name
        Where the signals go, and what their names begin with.
    a, b
        The operands, 16 bits each.
    significand
        Product of their significands, the leading ones included: 16 bits, made elsewhere so that a multiplier can be
        shared.
    """
    sign = a[15] ^ b[15]
    zero = ~a[7:15].any() | ~b[7:15].any()
    huge = [x[7:15].all() for x in (a, b)]
    nan = (huge[0] & a[:7].any()) | (huge[1] & b[:7].any()) | ((huge[0] | huge[1]) & zero)
    exponent = Signal(signed(11), name=f"{name}_exponent")
    fraction = Signal(FRACTION, name=f"{name}_fraction")
    m.d.comb += [
        exponent.eq(a[7:15] + b[7:15] + significand[15] - BIAS),
        fraction.eq(Mux(significand[15], Cat(Const(0, 8), significand[:15]), Cat(Const(0, 9), significand[:14]))),
    ]
    return _packed(m, name, sign, exponent, fraction, zero=zero, infinite=huge[0] | huge[1], nan=nan)


def float_sum(m: Module, name: str, a: Value, b: Value) -> Signal:
    """The sum of two fp32 numbers, rounded once to the nearest, halves to even."""
    big, small = Signal(BITS, name=f"{name}_big"), Signal(BITS, name=f"{name}_small")
    swap = Signal(name=f"{name}_swap")
    m.d.comb += [swap.eq(a[:31] < b[:31]), big.eq(Mux(swap, b, a)), small.eq(Mux(swap, a, b))]
    subtract = big[31] ^ small[31]
    huge = big[23:31].all()
    nan = huge & (big[:23].any() | (small[23:31].all() & subtract))

    high, low = Signal(SIGNIFICAND, name=f"{name}_high"), Signal(SIGNIFICAND, name=f"{name}_low")
    for significand, x in ((high, big), (low, small)):
        m.d.comb += significand.eq(Mux(x[23:31].any(), Cat(Const(0, GUARD), x[:23], Const(1, 1)), 0))
    distance = Signal(8, name=f"{name}_distance")
    m.d.comb += distance.eq(big[23:31] - small[23:31])
    aligned = _aligned(m, name, low, distance)
    total = Signal(SIGNIFICAND + 1, name=f"{name}_total")
    addend = Signal(SIGNIFICAND + 1, name=f"{name}_addend")
    m.d.comb += [addend.eq(Cat(aligned, 0) ^ subtract.replicate(SIGNIFICAND + 1)), total.eq(high + addend + subtract)]

    moved, leading = _normalised(m, name, total[:SIGNIFICAND])
    normal = Signal(SIGNIFICAND, name=f"{name}_normal")
    carry = total[SIGNIFICAND]
    m.d.comb += normal.eq(Mux(carry, Cat(total[0] | total[1], total[2:]), moved))
    kept = normal[GUARD:-1]
    up = normal[GUARD - 1] & (normal[: GUARD - 1].any() | kept[0])
    rounded = Signal(FRACTION + 1, name=f"{name}_rounded")
    exponent = Signal(signed(11), name=f"{name}_exponent")
    m.d.comb += [rounded.eq(kept + up), exponent.eq(big[23:31] + rounded[FRACTION] + carry - Mux(carry, 0, leading))]
    sign = Mux(total.any(), big[31], big[31] & small[31])
    return _packed(m, name, sign, exponent, rounded[:FRACTION], zero=~total.any(), infinite=huge, nan=nan)


def _aligned(m: Module, name: str, value: Value, distance: Value) -> Value:
    """``value`` shifted right by ``distance``; its lowest bit gathers what falls out."""
    for stage, places in enumerate(STAGES):
        shifted = Signal(SIGNIFICAND, name=f"{name}_right_{places}")
        lost = value[: places + 1].any()
        m.d.comb += shifted.eq(Mux(distance[stage], Cat(lost, value[places + 1 :], Const(0, places)), value))
        value = shifted
    aligned = Signal(SIGNIFICAND, name=f"{name}_aligned")
    m.d.comb += aligned.eq(Mux(distance[len(STAGES) :].any(), value.any(), value))
    return aligned


def _normalised(m: Module, name: str, value: Value) -> tuple[Value, Value]:
    """``value`` shifted left until its top bit is set, or by 31 if it is zero, and the number of places."""
    counts = []
    for places in reversed(STAGES):
        empty, shifted = Signal(name=f"{name}_empty_{places}"), Signal(SIGNIFICAND, name=f"{name}_left_{places}")
        m.d.comb += [
            empty.eq(~value[SIGNIFICAND - places :].any()),
            shifted.eq(Mux(empty, Cat(Const(0, places), value[: SIGNIFICAND - places]), value)),
        ]
        value = shifted
        counts.append(empty)
    return value, Cat(*reversed(counts))


def _packed(
    m: Module, name: str, sign: Value, exponent: Value, fraction: Value, *, zero: Value, infinite: Value, nan: Value
) -> Signal:
    """A number in fp32 from its parts; ``exponent`` is biased and may be out of range."""
    value = Signal(BITS, name=name)
    m.d.comb += value.eq(Cat(fraction, exponent[:8], sign))
    with m.If(nan):
        m.d.comb += value.eq(NAN)
    with m.Elif(infinite | (~zero & (exponent >= 255))):
        m.d.comb += value.eq(Cat(Const(0, FRACTION), Const(255, 8), sign))
    with m.Elif(zero | (exponent <= 0)):
        m.d.comb += value.eq(Cat(Const(0, BITS - 1), sign))
    return value
