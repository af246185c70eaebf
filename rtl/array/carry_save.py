"""Sums that are kept as two numbers: elements without an adder, and the edge where their sums are resolved.

A product of whole numbers is made of one row for every digit of its operand A, and a sum of rows is compressed by full
adders, three bits of one weight at a time, to two numbers whose sum it is: no carry runs through an element. After
"Exploring the Performance Improvement of Tensor Processing Engines through Transformation in the Bit-weight Dimension
of MACs" (HPCA 2025), whose OPT1 is `CarrySaveArithmetic`, OPT2 `CompressorArithmetic` and OPT3 `DigitArithmetic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out
from msgspec import Struct

from siliconloom.arch.array import RESOLVED_BITS
from siliconloom.arch.digits import place_bits
from siliconloom.rtl.array.arithmetic import IntegerArithmetic
from siliconloom.rtl.library import Circuit, Library

Columns = list[list[Value]]
"""Bits to be added up, by the power of two that each counts."""


class Row(Struct, frozen=True):
    """A number in two's complement among those of a sum, and ``one`` more.

    Parameters
    ----------
    bits
        It, but for its sign.
    sign
        Its highest bit, which counts negative.
    one
        A bit that counts as the lowest of ``bits``: makes the negative number of a complement.
    at
        The power of two by which the lowest bit counts.
    """

    bits: Value
    sign: Value
    one: Value
    at: int = 0


class Pair(Struct, frozen=True):
    """A number as the sum of two, less 2^width where ``sign`` is set; the second may be shorter than the first."""

    first: Value
    second: Value
    sign: Value


def compressed(m: Module, name: str, columns: Columns, most: int = 2) -> Columns:
    """The same sum, modulo the power of two behind the last column, with two bits in a column at most.

    Layers of full adders, and of half adders where three rows have two bits in a column: so the number of rows falls by
    a third with every layer, and no layer waits for a carry of its own.
    """
    layer = 0
    while (height := max(map(len, columns))) > most:
        made: Columns = [[] for _ in columns]
        for first in range(0, height - height % 3, 3):
            three = [[*bits[first : first + 3], *[Const(0, 1)] * 3][:3] for bits in columns]
            x, y, z = (Cat(*row) for row in zip(*three, strict=True))
            label = f"{name}_{layer}_{first // 3}"
            kept, carried = Signal(len(x), name=f"{label}_sum"), Signal(len(x) - 1, name=f"{label}_carry")
            m.d.comb += [kept.eq(x ^ y ^ z), carried.eq(((x & y) | (x & z) | (y & z))[:-1])]
            for place, bits in enumerate(columns):
                there = len(bits[first : first + 3])
                if there:
                    made[place].append(kept[place])
                if there > 1 and place + 1 < len(columns):
                    made[place + 1].append(carried[place])
        for place, bits in enumerate(columns):
            made[place] += bits[height - height % 3 :]
        columns, layer = made, layer + 1
    return columns


def numbers_of(columns: Columns) -> tuple[Value, Value]:
    """The two numbers that columns of up to two bits are."""
    full = [[*bits, Const(0, 1), Const(0, 1)][:2] for bits in columns]
    return Cat(*(bits[0] for bits in full)), Cat(*(bits[1] for bits in full))


def state_of(columns: Columns) -> Value:
    """The two numbers of columns of which the first has one bit."""
    assert len(columns[0]) == 1
    first, second = numbers_of(columns)
    return Cat(first, second[1:])


def pair_of(m: Module, name: str, rows: Sequence[Row], width: int) -> Pair:
    """The sum of ``rows``, which must be between -2^width and 2^width.

    Signs count as their complements, less a constant: so all is positive, 2^width too large, and of the two numbers
    found no more than one has the bit above the ``width`` lowest; where none has, the sum is negative.
    """
    if len(rows) == 1 and rows[0].at == 0:
        (row,) = rows
        spread = Cat(row.bits, row.sign.replicate(width - len(row.bits)))
        return Pair(spread, row.one, row.sign)
    columns: Columns = [[] for _ in range(width + 1)]
    constant = 1 << width
    for row in rows:
        for place, bit in enumerate([*row.bits, ~row.sign]):
            columns[row.at + place].append(bit)
        columns[row.at].append(row.one)
        constant -= 1 << row.at + len(row.bits)
    for place in range(width + 1):
        if constant >> place & 1:
            columns[place].append(Const(1, 1))
    first, second = numbers_of(compressed(m, name, columns))
    return Pair(first[:width], second[:width], ~(first[width] | second[width]))


def accumulated(m: Module, name: str, state: Value, pair: Pair, width: int) -> Value:
    """A state of ``width`` bits and the pair added to it, again as a state; wraps.

    A state is a number and, from its second bit on, another: 2 width - 1 bits.
    """
    columns: Columns = []
    for place in range(width):
        bits = [state[place]] + ([state[width + place - 1]] if place else [])
        bits += [number[place] for number in (pair.first, pair.second) if place < len(number)]
        columns.append(bits + ([pair.sign] if place >= len(pair.first) else []))
    return state_of(compressed(m, name, columns))


class CarryResolver(Circuit):
    """Sums of pairs of numbers, `RESOLVED_BITS` of them a cycle, from the lowest on.

    Parameters
    ----------
    width
        Of a sum.

    Members
    -------
    en : In(1)
        Advance.
    i : In
        A state as `accumulated` has it.
    o : Out
        The sum, a cycle later for each part of it.
    """

    def __init__(self, library: Library, width: int) -> None:
        self.width = width
        ports = {"en": In(1), "i": In(2 * width - 1), "o": Out(width)}
        super().__init__(library, library.name("resolver", width), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        first: Value = self.i[: self.width]
        second: Value = Cat(Const(0, 1), self.i[self.width :])
        done: Value = Const(0, 0)
        carry: Value = Const(0, 1)
        for number, at in enumerate(range(0, self.width, RESOLVED_BITS)):
            count = min(RESOLVED_BITS, self.width - at)
            part = Signal(count + 1, name=f"part_{number}")
            m.d.comb += part.eq(first[:count] + second[:count] + carry)
            parts = {"done": Cat(done, part[:count]), "first": first[count:], "second": second[count:]}
            kept = {each: Signal(len(value), name=f"{each}_{number}", reset_less=True) for each, value in parts.items()}
            carry = Signal(name=f"carry_{number}", reset_less=True)
            with m.If(self.en):
                m.d.sync += [carry.eq(part[count]), *(kept[each].eq(value) for each, value in parts.items())]
            done, first, second = kept["done"], kept["first"], kept["second"]
        m.d.comb += self.o.eq(done)
        return m


class WeightCompressor(Circuit):
    """One state of several, each of which counts four times as much as the one before; a cycle later.

    Parameters
    ----------
    width, digits
        Of a sum, and how many states there are: the width of each is two less than that of the one before.

    Members
    -------
    en : In(1)
        Advance.
    i : In
        The states side by side, each as `accumulated` has it.
    o : Out
        A state of ``width``.
    """

    def __init__(self, library: Library, width: int, digits: int) -> None:
        self.width, self.digits = width, digits
        ports = {"en": In(1), "i": In(weighted_bits(width, digits)), "o": Out(2 * width - 1)}
        super().__init__(library, library.name("weights", f"{width}x{digits}"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        columns: Columns = [[] for _ in range(self.width)]
        at = 0
        for digit in range(self.digits):
            own = self.width - 2 * digit
            for place in range(own):
                columns[2 * digit + place].append(self.i[at + place])
                if place:
                    columns[2 * digit + place].append(self.i[at + own + place - 1])
            at += 2 * own - 1
        state = Signal(2 * self.width - 1, reset_less=True)
        with m.If(self.en):
            m.d.sync += state.eq(state_of(compressed(m, "weights", columns)))
        m.d.comb += self.o.eq(state)
        return m


def weighted_bits(width: int, digits: int) -> int:
    """Bits of the states of sums by weight, for sums of ``width`` bits."""
    return sum(2 * (width - 2 * digit) - 1 for digit in range(digits))


@dataclass(frozen=True)
class CarrySaveArithmetic(IntegerArithmetic):
    """A sum is two numbers, a product the rows of its digits (Booth's, of radix four) compressed to two."""

    @property
    def state_bits(self) -> int:
        return 2 * self.sum_bits - 1

    @property
    def digits(self) -> int:
        """Digits of an operand."""
        return self.bits // 2

    @property
    def product_bits(self) -> int:
        """Width of the numbers that the sum of an element's products is."""
        return 2 * self.bits - 1 + (self.depth - 1).bit_length()

    @property
    def summed_rows(self) -> int:
        """Rows whose sum is one pair of numbers."""
        return self.depth * self.digits

    def pair(self, bits: Value) -> Pair:
        """The pair that lies in ``bits`` as `product` has it; of one row the second number is a bit."""
        first, second = self.product_bits, self.product_bits if self.summed_rows > 1 else 1
        return Pair(bits[:first], bits[first : first + second], bits[first + second])

    def product(self, m: Module, en: Signal, a: Signal, b: Signal) -> Value:
        """The pair of the sum of products, as bits side by side: both numbers, and the sign."""
        pair = pair_of(m, "rows", self.rows(m, a, b), self.product_bits)
        return self.later(m, en, "product", Cat(pair.first, pair.second, pair.sign))

    def added(self, m: Module, en: Signal, total: Value, product: Value) -> Value:
        before = Signal(self.state_bits, name="before")
        m.d.comb += before.eq(total)
        return accumulated(m, "sum", before, self.pair(product), self.sum_bits)

    def rows(self, m: Module, a: Signal, b: Signal) -> list[Row]:
        """One row for every digit of every product."""
        return [
            row
            for lane, (left, right) in enumerate(self.operands(a, b))
            for row in booth_rows(m, f"lane_{lane}", left, right)
        ]

    def later(self, m: Module, en: Signal, name: str, value: Value) -> Signal:
        """A value ``multiply_stages`` enabled cycles later, without a reset."""
        found = Signal(len(value), name=name)
        m.d.comb += found.eq(value)
        for stage in range(self.multiply_stages):
            register = Signal(len(value), name=f"{name}_{stage + 1}", reset_less=True)
            with m.If(en):
                m.d.sync += register.eq(found)
            found = register
        return found

    def resolved(self, parent: Circuit, m: Module, en: Signal, states: Value, lanes: int) -> Value:
        resolver = parent.library.make(CarryResolver, self.sum_bits)
        parts = [states[lane * self.state_bits : (lane + 1) * self.state_bits] for lane in range(lanes)]
        parts = [self.gathered(parent, m, en, part, lane) for lane, part in enumerate(parts)]
        return Cat(*(parent.place(m, resolver, f"resolver_{n}", en=en, i=part).o for n, part in enumerate(parts)))

    def gathered(self, parent: Circuit, m: Module, en: Signal, state: Value, lane: int) -> Value:
        """The two numbers of a sum, of its state inside the array."""
        return state


@dataclass(frozen=True)
class CompressorArithmetic(CarrySaveArithmetic):
    """Rows of the same digit, of all an element's products, are summed by themselves; weights come where sums leave."""

    @property
    def state_bits(self) -> int:
        return weighted_bits(self.sum_bits, self.digits)

    @property
    def summed_rows(self) -> int:
        return self.depth

    @property
    def product_bits(self) -> int:
        """Width of the numbers that the sum of the rows of one digit is."""
        return self.bits + 1 + (self.depth - 1).bit_length()

    def product(self, m: Module, en: Signal, a: Signal, b: Signal) -> Value:
        """A pair for every digit, side by side."""
        rows, made = self.rows(m, a, b), list[Value]()
        for digit in range(self.digits):
            same = [Row(row.bits, row.sign, row.one) for row in rows if row.at == 2 * digit]
            pair = pair_of(m, f"rows_{digit}", same, self.product_bits)
            made += [pair.first, pair.second, pair.sign]
        return self.later(m, en, "product", Cat(*made))

    def added(self, m: Module, en: Signal, total: Value, product: Value) -> Value:
        made, at, each = list[Value](), 0, len(product) // self.digits
        before = Signal(self.state_bits, name="before")
        m.d.comb += before.eq(total)
        for digit in range(self.digits):
            width = self.sum_bits - 2 * digit
            pair = self.pair(product[digit * each : (digit + 1) * each])
            made.append(accumulated(m, f"sum_{digit}", before[at : at + 2 * width - 1], pair, width))
            at += 2 * width - 1
        return Cat(*made)

    def gathered(self, parent: Circuit, m: Module, en: Signal, state: Value, lane: int) -> Value:
        kind = parent.library.make(WeightCompressor, self.sum_bits, self.digits)
        return parent.place(m, kind, f"weights_{lane}", en=en, i=state).o


@dataclass(frozen=True)
class DigitArithmetic(CarrySaveArithmetic):
    """A product takes a cycle for each digit of A that is not zero; what comes from the left is such a digit.

    Its code, from the low bit on: whether it is one, whether it is two, whether it is negative, its place.
    """

    @property
    def code_bits(self) -> int:
        """Width of a digit's code."""
        return 3 + place_bits(self.bits)

    @property
    def a_bits(self) -> int:
        return self.depth * self.code_bits

    @property
    def summed_rows(self) -> int:
        return self.depth

    def rows(self, m: Module, a: Signal, b: Signal) -> list[Row]:
        made = []
        for lane in range(self.depth):
            code = a[lane * self.code_bits : (lane + 1) * self.code_bits]
            operand = b[lane * self.bits : (lane + 1) * self.bits]
            once = _multiple(m, f"lane_{lane}_once", operand, code[0], code[1])
            shifted = Signal(2 * self.bits - 1, name=f"lane_{lane}_shifted")
            places = [
                Cat(Const(0, 2 * place), once, once[-1].replicate(self.bits - 2 - 2 * place))
                for place in range(self.digits)
            ]
            m.d.comb += shifted.eq(_chosen(code[3:], places) ^ code[2].replicate(len(shifted)))
            made.append(Row(shifted[:-1], shifted[-1], code[2]))
        return made


def booth_rows(m: Module, name: str, a: Value, b: Value) -> list[Row]:
    """Rows of a * b, one for two bits of ``a`` and the one below them: -2, -1, 0, 1 or 2 times ``b``."""
    made = []
    for place in range(0, len(a), 2):
        below = a[place - 1] if place else Const(0, 1)
        low, high = a[place], a[place + 1]
        two = (high & ~low & ~below) | (~high & low & below)
        row = Signal(len(b) + 1, name=f"{name}_row_{place // 2}")
        once = _multiple(m, f"{name}_once_{place // 2}", b, low ^ below, two)
        m.d.comb += row.eq(once ^ high.replicate(len(row)))
        made.append(Row(row[:-1], row[-1], high, place))
    return made


def _multiple(m: Module, name: str, value: Value, one: Value, two: Value) -> Signal:
    """Nothing, the value, or twice the value, a bit longer."""
    found, bits = Signal(len(value) + 1, name=name), len(value) + 1
    plain = Cat(value, value[-1])
    m.d.comb += found.eq((plain & one.replicate(bits)) | (Cat(Const(0, 1), value) & two.replicate(bits)))
    return found


def _chosen(select: Value, values: Sequence[Value]) -> Value:
    """One of as many values as ``select`` has, or fewer."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return Mux(select[half.bit_length() - 1], _chosen(select, values[half:]), _chosen(select, values[:half]))


__all__ = ["CarrySaveArithmetic", "CompressorArithmetic", "DigitArithmetic", "compressed"]
