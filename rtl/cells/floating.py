"""Floating point in circuits: products of short formats and fp32 sums, rounded to nearest even, without subnormals.

A subnormal fp32 number counts as a zero of its sign, as operand and as result; every NaN is 0x7FC00000. These are the
numbers of ``arch.floats``, bit for bit.

An operand of any format travels as the leading bits of its fp32 number (`widened`): sign, eight bits of exponent, and
as many bits of fraction as its format has. All formats with a shorter exponent have their subnormal numbers there as
normal ones, so that what multiplies them knows no other kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed

from siliconloom.arch.datatype import FloatLayout

BITS = 32
FRACTION = 23
EXPONENT = 8
BIAS = 127
NAN = 0x7FC00000
GUARD = 3
"""Bits below the last place that rounding looks at: guard, round, sticky."""
SIGNIFICAND = FRACTION + 1 + GUARD
STAGES = (1, 2, 4, 8, 16)
"""Places of a shifter's stages."""
ALIGNED, ADDED, NORMALISED, ORDERED, ROUNDED = range(5)
"""Where a sum may be cut by registers.

After the smaller number was shifted, after the addition, before rounding, and before all of it, behind the choice of
which number is the smaller one; after rounding, before what is out of range is told.
"""
SUM_CUTS = {1: (), 2: (ADDED,), 4: (ORDERED, ADDED, NORMALISED)}
"""Where it is cut in a unit whose additions have so many stages."""
DIVIDED = (ADDED, ORDERED, NORMALISED, ROUNDED)
"""Where a sum or a product is cut by some registers, the first place first: of a product before and after its sum."""

Cut = Callable[[int, list[Value]], list[Value]]
"""Puts registers, or nothing, into all that passes one of the places where a sum may be cut."""


def uncut(place: int, values: list[Value]) -> list[Value]:
    """No registers."""
    return values


def widened(m: Module, name: str, value: Value, layout: FloatLayout) -> Value:
    """A number of ``layout`` as the leading bits of its fp32 number: exact, its subnormal numbers included."""
    fraction_bits = layout.fraction_bits
    if not layout.keeps_subnormals:
        return value
    fraction, field, sign = value[:fraction_bits], value[fraction_bits:-1], value[-1]
    exponent = Signal(EXPONENT, name=f"{name}_exponent")
    wide = Signal(fraction_bits, name=f"{name}_fraction")
    m.d.comb += [exponent.eq(field + (BIAS - layout.bias)), wide.eq(fraction)]
    with m.If(field == 0):
        m.d.comb += [exponent.eq(0), wide.eq(0)]
        for top in range(fraction_bits):  # the highest bit that is set becomes the leading one
            with m.If(fraction[top] & ~fraction[top + 1 :].any()):
                places = fraction_bits - top
                m.d.comb += [exponent.eq(1 - layout.bias + BIAS - places), wide.eq(fraction << places)]
    if layout.nans:
        with m.Elif(field.all()):
            if layout.infinities:
                m.d.comb += exponent.eq((1 << EXPONENT) - 1)
            else:
                with m.If(fraction.all()):
                    m.d.comb += exponent.eq((1 << EXPONENT) - 1)
    return Cat(wide, exponent, sign)


class ProductParts(NamedTuple):
    """All of a product but its significand: the sum of the exponents with both biases, and its kind."""

    exponent: Value
    sign: Value
    zero: Value
    infinite: Value
    nan: Value


def product_parts(a: Value, b: Value, fraction: int) -> ProductParts:
    """What two operands of `widened` say of their product beside the product of their significands."""
    fields = [x[fraction : fraction + EXPONENT] for x in (a, b)]
    zero = ~fields[0].any() | ~fields[1].any()
    huge = [field.all() for field in fields]
    nan = (huge[0] & a[:fraction].any()) | (huge[1] & b[:fraction].any()) | ((huge[0] | huge[1]) & zero)
    return ProductParts(fields[0] + fields[1], a[-1] ^ b[-1], zero, huge[0] | huge[1], nan)


def float_product(m: Module, name: str, parts: ProductParts, significand: Value, fraction: int) -> Signal:
    """A product in fp32, exact but for overflow (infinity) and results below the smallest normal number (zero).

    Parameters
    ----------
    m, name
        Where the signals go, and what their names begin with.
    parts
        Of the operands, see `product_parts`.
    significand
        Product of their significands, the leading ones included: 2 x (fraction + 1) bits, made elsewhere so that a
        multiplier can be shared.
    fraction
        Bits of an operand's fraction, at most 11.
    """
    top = 2 * fraction + 1
    exponent = Signal(signed(11), name=f"{name}_exponent")
    bits = Signal(FRACTION, name=f"{name}_fraction")
    m.d.comb += [
        exponent.eq(parts.exponent + significand[top] - BIAS),
        bits.eq(
            Mux(
                significand[top],
                Cat(Const(0, FRACTION - top), significand[:top]),
                Cat(Const(0, FRACTION - top + 1), significand[: top - 1]),
            )
        ),
    ]
    return _packed(m, name, parts.sign, exponent, bits, zero=parts.zero, infinite=parts.infinite, nan=parts.nan)


def float_multiply(m: Module, name: str, a: Value, b: Value, cut: Cut = uncut) -> Signal:
    """The product of two fp32 numbers, rounded once to the nearest, halves to even; see `float_product` for others.

    ``cut`` is called with all that passes between the products of halves and their sum (`ORDERED`), behind that
    (`ADDED`), before rounding (`NORMALISED`), and behind that (`ROUNDED`).
    """
    significand = Signal(2 * FRACTION + 2, name=f"{name}_significand")
    left, right = Cat(a[:FRACTION], 1), Cat(b[:FRACTION], 1)
    half, parts = len(left) // 2, list[Value](product_parts(a, b, FRACTION))
    # of a square the products of unlike halves are the same, which is made once: tools would have to find it out
    pairs = [(left[:half], right[:half]), (left[half:], right[half:]), (left[:half], right[half:])]
    pairs += [] if a is b else [(left[half:], right[:half])]
    limbs = [*(x * y for x, y in pairs), *parts]
    held = cut(ORDERED, limbs)
    if held is limbs:
        m.d.comb += significand.eq(left * right)
    else:
        low, high, *crossed = held[: len(pairs)]
        parts = held[len(pairs) :]
        m.d.comb += significand.eq(Cat(low, high) + (crossed[0] << half) + (crossed[-1] << half))
    significand, *parts = cut(ADDED, [significand, *parts])
    exponent_sum, sign, zero, infinite, nan = parts
    carry = significand[-1]
    kept, rest = Signal(FRACTION, name=f"{name}_kept"), Signal(FRACTION + 1, name=f"{name}_rest")
    rounded = Signal(FRACTION + 1, name=f"{name}_rounded")
    exponent = Signal(signed(11), name=f"{name}_exponent")
    m.d.comb += [
        kept.eq(Mux(carry, significand[FRACTION + 1 : -1], significand[FRACTION:-2])),
        rest.eq(Mux(carry, significand[: FRACTION + 1], Cat(Const(0, 1), significand[:FRACTION]))),
    ]
    up = rest[-1] & (rest[:-1].any() | kept[0])
    normal, up, carry, exponent_sum, sign, zero, infinite, nan = cut(
        NORMALISED, [kept, up, carry, exponent_sum, sign, zero, infinite, nan]
    )
    m.d.comb += [rounded.eq(normal + up), exponent.eq(exponent_sum + carry + rounded[-1] - BIAS)]
    last, fraction, sign, zero, infinite, nan = cut(ROUNDED, [exponent, rounded[:FRACTION], sign, zero, infinite, nan])
    return _packed(m, name, sign, last.as_signed(), fraction, zero=zero, infinite=infinite, nan=nan)


def narrowed(m: Module, name: str, value: Value, layout: FloatLayout) -> Signal:
    """The number of ``layout`` nearest to an fp32 number, as `arch.floats.narrowed` has it: halves to even."""
    if layout.fraction_bits == FRACTION:
        return _canonical(m, name, value)
    if not layout.keeps_subnormals:
        return _to_bf16(m, name, value)
    fraction_bits, width = layout.fraction_bits, 1 + layout.exponent_bits + layout.fraction_bits
    field, some = value[FRACTION:-1], value[FRACTION:-1].any()
    low = BIAS + 1 - layout.bias
    """Exponent of the smallest normal number, as fp32 counts it."""
    below, places = Signal(EXPONENT + 1, name=f"{name}_below"), Signal(range(fraction_bits + 3), name=f"{name}_places")
    shifted = Signal(FRACTION + 2, name=f"{name}_shifted")
    significand = Cat(value[:FRACTION], some)
    m.d.comb += [
        below.eq(Mux(field < low, low - field, 0)),
        places.eq(Mux(below > fraction_bits + 2, fraction_bits + 2, below)),
        # what falls out at the low end is gathered in one bit
        shifted.eq(Cat((significand & ((1 << places) - 1)[: FRACTION + 1]).any(), significand >> places)),
    ]
    drop = FRACTION - fraction_bits + 1
    kept = shifted[drop:]
    up = shifted[drop - 1] & (shifted[: drop - 1].any() | kept[0])
    exponent, rounded = Signal(EXPONENT, name=f"{name}_field"), Signal(width + 4, name=f"{name}_rounded")
    top = ((1 << layout.exponent_bits) - 1) << fraction_bits
    infinity = top if layout.infinities else top | ((1 << fraction_bits) - 1)
    quiet = top | (1 << (fraction_bits - 1)) if layout.infinities else infinity
    found = Signal(width, name=name)
    m.d.comb += [
        exponent.eq(Mux(field < low, 0, field - low)),
        # a carry out of the fraction raises the exponent
        rounded.eq(Cat(Const(0, fraction_bits), exponent) + kept + up),
    ]
    with m.If(field.all() & value[:FRACTION].any()):
        m.d.comb += found.eq(quiet)
    with m.Elif(field.all() | (rounded > infinity)):
        m.d.comb += found.eq(Cat(Const(infinity, width - 1), value[-1]))
    with m.Else():
        m.d.comb += found.eq(Cat(rounded[: width - 1], value[-1]))
    return found


def _canonical(m: Module, name: str, value: Value) -> Signal:
    """An fp32 number with its subnormal ones made zeros of their sign, and every NaN 0x7FC00000."""
    found = Signal(BITS, name=name)
    nan = value[FRACTION:-1].all() & value[:FRACTION].any()
    some = value[FRACTION:-1].any()
    m.d.comb += found.eq(Mux(nan, NAN, Mux(some, value, Cat(Const(0, BITS - 1), value[-1]))))
    return found


def _to_bf16(m: Module, name: str, value: Value) -> Signal:
    """As `narrowed`, of the format that has the exponent of fp32; every NaN is 0x7FC0."""
    low = BITS // 2
    rounded = Signal(low, name=name)
    up = value[low - 1] & (value[: low - 1].any() | value[low])
    nan = value[FRACTION:-1].all() & value[:FRACTION].any()
    m.d.comb += rounded.eq(
        Mux(nan, NAN >> low, Mux(value[FRACTION:-1].any(), value[low:] + up, Cat(Const(0, low - 1), value[-1])))
    )
    return rounded


def float_sum(m: Module, name: str, a: Value, b: Value, cut: Cut = uncut) -> Signal:
    """The sum of two fp32 numbers, rounded once to the nearest, halves to even.

    ``cut`` is called at each of the places where registers may stand, with all that passes there.
    """
    big, small = Signal(BITS, name=f"{name}_big"), Signal(BITS, name=f"{name}_small")
    swap = Signal(name=f"{name}_swap")
    m.d.comb += [swap.eq(a[:31] < b[:31]), big.eq(Mux(swap, b, a)), small.eq(Mux(swap, a, b))]
    big, small = cut(ORDERED, [big, small])
    subtract = big[31] ^ small[31]
    huge = big[23:31].all()
    nan = huge & (big[:23].any() | (small[23:31].all() & subtract))

    high, low = Signal(SIGNIFICAND, name=f"{name}_high"), Signal(SIGNIFICAND, name=f"{name}_low")
    for significand, x in ((high, big), (low, small)):
        m.d.comb += significand.eq(Mux(x[23:31].any(), Cat(Const(0, GUARD), x[:23], Const(1, 1)), 0))
    distance = Signal(8, name=f"{name}_distance")
    m.d.comb += distance.eq(big[23:31] - small[23:31])
    aligned = _aligned(m, name, low, distance)
    kinds = [big[23:31], Cat(big[31], small[31], huge, nan)]
    high, aligned, *kinds = cut(ALIGNED, [high, aligned, *kinds])

    total = Signal(SIGNIFICAND + 1, name=f"{name}_total")
    addend = Signal(SIGNIFICAND + 1, name=f"{name}_addend")
    apart = Signal(name=f"{name}_apart")
    m.d.comb += [
        apart.eq(kinds[1][0] ^ kinds[1][1]),
        addend.eq(Mux(apart, ~Cat(aligned, Const(0, 1)), aligned)),
        total.eq(high + addend + apart),
    ]
    total, *kinds = cut(ADDED, [total, *kinds])

    moved, leading = _normalised(m, name, total[:SIGNIFICAND])
    normal = Signal(SIGNIFICAND, name=f"{name}_normal")
    carry = total[SIGNIFICAND]
    m.d.comb += normal.eq(Mux(carry, Cat(total[0] | total[1], total[2:]), moved))
    shift = Cat(Mux(carry, 0, leading), carry, total.any())
    normal, shift, top, kind = cut(NORMALISED, [normal, shift, *kinds])

    kept = normal[GUARD:-1]
    up = normal[GUARD - 1] & (normal[: GUARD - 1].any() | kept[0])
    rounded = Signal(FRACTION + 1, name=f"{name}_rounded")
    exponent = Signal(signed(11), name=f"{name}_exponent")
    leading, carry, some = shift[: len(STAGES)], shift[len(STAGES)], shift[-1]
    m.d.comb += [rounded.eq(kept + up), exponent.eq(top + rounded[FRACTION] + carry - leading)]
    sign = Mux(some, kind[0], kind[0] & kind[1])
    last, fraction, sign, zero, infinite, nan = cut(
        ROUNDED, [exponent, rounded[:FRACTION], sign, ~some, kind[2], kind[3]]
    )
    return _packed(m, name, sign, last.as_signed(), fraction, zero=zero, infinite=infinite, nan=nan)


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
    below, above = (
        exponent[-1] | ~exponent.any(),
        ~exponent[-1] & (exponent[EXPONENT:-1].any() | exponent[:EXPONENT].all()),
    )
    m.d.comb += value.eq(Cat(fraction, exponent[:EXPONENT], sign))
    with m.If(nan):
        m.d.comb += value.eq(NAN)
    with m.Elif(infinite | (~zero & above)):
        m.d.comb += value.eq(Cat(Const(0, FRACTION), Const(255, 8), sign))
    with m.Elif(zero | below):
        m.d.comb += value.eq(Cat(Const(0, BITS - 1), sign))
    return value
