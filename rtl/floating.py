"""Floating point in circuits: bf16 products and fp32 sums, rounded to nearest even, without subnormal numbers.

A subnormal operand counts as a zero of its sign and a subnormal result becomes one; every NaN is 0x7FC00000. These are
the numbers of ``sim.golden_pim``, bit for bit.
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
    distance, places = Signal(8, name=f"{name}_distance"), Signal(5, name=f"{name}_places")
    m.d.comb += [
        distance.eq(big[23:31] - small[23:31]),
        places.eq(Mux(distance >= SIGNIFICAND, SIGNIFICAND, distance[:5])),
    ]
    wide = Signal(2 * SIGNIFICAND, name=f"{name}_wide")
    m.d.comb += wide.eq(Cat(Const(0, SIGNIFICAND), low) >> places)
    aligned = Cat(wide[SIGNIFICAND] | wide[:SIGNIFICAND].any(), wide[SIGNIFICAND + 1 :])
    total = Signal(SIGNIFICAND + 1, name=f"{name}_total")
    m.d.comb += total.eq(Mux(subtract, high - aligned, high + aligned))

    leading = Signal(5, name=f"{name}_leading")
    for place in range(SIGNIFICAND):
        with m.If(total[place]):
            m.d.comb += leading.eq(SIGNIFICAND - 1 - place)
    normal = Signal(SIGNIFICAND, name=f"{name}_normal")
    carry = total[SIGNIFICAND]
    m.d.comb += normal.eq(
        Mux(carry, Cat(total[0] | total[1], total[2:]), (total[:SIGNIFICAND] << leading)[:SIGNIFICAND])
    )
    kept = normal[GUARD:-1]
    up = normal[GUARD - 1] & (normal[: GUARD - 1].any() | kept[0])
    rounded = Signal(FRACTION + 1, name=f"{name}_rounded")
    exponent = Signal(signed(11), name=f"{name}_exponent")
    m.d.comb += [
        rounded.eq(kept + up),
        exponent.eq(big[23:31] + rounded[FRACTION] + carry - Mux(carry, 0, leading)),
    ]
    sign = Mux(total.any(), big[31], big[31] & small[31])
    return _packed(
        m, name, sign, exponent, rounded[:FRACTION], zero=~total.any(), infinite=huge, nan=nan
    )  # fmt: skip


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
