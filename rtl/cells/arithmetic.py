"""Arithmetic that circuits are written in terms of: `mul`, `add`, `mac`, `clip` and `zero`.

The array's elements and the vector unit's lanes call nothing else for their numbers, so another number format is
another class with these members.
"""

from __future__ import annotations

from collections.abc import Callable

from amaranth import Cat, Const, Mux
from amaranth.hdl import Shape, Value, signed
from msgspec import Struct

from siliconloom.arch.array import SUM_BITS

NEAR = 1
"""The longer one of the short shifts of a rounded value, as a power of two: they, and its rounding, come last."""
Held = Callable[[list[Value]], list[Value]]
"""Of values the same ones, at once or behind registers."""


class Integers(Struct, frozen=True):
    """Two's-complement operands of ``bits`` bits and sums that wrap.

    Parameters
    ----------
    bits
        Width of an operand.
    sum_bits
        Width of a sum.
    """

    bits: int
    sum_bits: int = SUM_BITS

    @property
    def operand(self) -> Shape:
        return signed(self.bits)

    @property
    def product(self) -> Shape:
        return signed(2 * self.bits)

    @property
    def sum(self) -> Shape:
        return signed(self.sum_bits)

    @property
    def zero(self) -> Const:
        """The neutral element of a sum."""
        return Const(0, self.sum_bits)

    def mul(self, a: Value, b: Value) -> Value:
        """A * b, exact."""
        return a.as_signed() * b.as_signed()

    def mac(self, total: Value, a: Value, b: Value) -> Value:
        """The product added to a total, exact; assigning it to a sum wraps."""
        return total.as_signed() + self.mul(a, b)

    def add(self, total: Value, product: Value) -> Value:
        """The next sum, from one and a product of a sum's width; it wraps."""
        return (total + product.as_unsigned())[: self.sum_bits]

    def clip(self, value: Value) -> Value:
        """``value`` saturated to an operand: it is one where all its upper bits are its sign."""
        wide = value.as_signed()
        if len(wide) <= self.bits:
            return (wide + self.zero.as_signed())[: self.bits]
        sign, upper = wide[-1], wide[self.bits - 1 :]
        fits = upper.all() | ~upper.any()
        return Mux(fits, wide[: self.bits], Cat((~sign).replicate(self.bits - 1), sign))

    def rounded(self, value: Value, places: Value, between: Held = list) -> Value:
        """``value`` over 2^``places``, rounded to the nearest, halves to even, and saturated to an operand.

        What goes from the long shifts to the short ones goes through ``between``, which may have registers for it.

        A shifter whose every level keeps the bits that may still get into the operand, and one below them, the half.
        Bits that it drops above tell that the operand saturates; those below, that there is more than the half. The
        value is shifted without its sign (a negative one as its complement), so that only zeros come in, and the long
        shifts come first, so that what they drop is told while the others shift.
        """
        wide = value.as_signed()
        sign = wide[-1]
        shifted: Value = Cat(sign, wide[:-1] ^ sign.replicate(len(wide) - 1))
        over, below = Const(0, 1), Const(0, 1)
        for level in reversed(range(len(places))):
            if level == NEAR:
                shifted, sign, over, below, places = between([shifted, sign, over, below, places[: level + 1]])
            by = 1 << level
            kept, moved = self.bits + by - 1, shifted[by:]
            over = over | Mux(places[level], moved[kept:].any(), shifted[kept:].any())
            below = below | (places[level] & (shifted[:by] ^ sign.replicate(len(shifted[:by]))).any())
            shifted = Mux(places[level], moved[:kept], shifted[:kept])[: min(kept, len(shifted))]
        half = shifted[0] ^ sign
        floor = shifted[1 : self.bits]
        floor = Cat(floor ^ sign.replicate(len(floor)), sign.replicate(self.bits - len(floor)))
        up = half & (below | floor[0])
        most = up & ~sign & floor[:-1].all()
        return Mux(over | most, Cat((~sign).replicate(self.bits - 1), sign), floor + up)[: self.bits]


def one_less(count: Value) -> Value:
    """A count less one; not as a difference, of which and of one more Yosys makes one adder where either is chosen."""
    return ~(~count + 1)[: len(count)]


def stepped(count: Value, up: Value, down: Value) -> Value:
    """A count after one more, one less, or both: all are there before it is known which it is."""
    return Mux(up, Mux(down, count, (count + 1)[: len(count)]), Mux(down, one_less(count), count))
