"""Arithmetic that circuits are written in terms of: `mul`, `add`, `mac`, `clip` and `zero`.

The array's elements and the vector unit's lanes call nothing else for their numbers, so another number format is
another class with these members.
"""

from __future__ import annotations

from amaranth import Const, Mux
from amaranth.hdl import Shape, Value, signed
from msgspec import Struct

SUM_BITS = 32


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
        """``value`` saturated to an operand."""
        most, least = (1 << (self.bits - 1)) - 1, -(1 << (self.bits - 1))
        return Mux(value > most, most, Mux(value < least, least, value))[: self.bits]


def half_even(value: Value, places: Value) -> Value:
    """A signed value over a power of two of up to 2^63, rounded to the nearest, halves to even."""
    wide = value.as_signed()
    extended = (wide + Const(0, signed(64)))[:64]
    floor = wide >> places
    rest = extended & ((1 << places) - 1)[:64]
    half = ((1 << places) >> 1)[:64]
    up = (places != 0) & ((rest > half) | ((rest == half) & floor[0]))
    return floor + up
