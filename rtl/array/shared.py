"""Elements in fp32 at the edge of an array in whole numbers: codes that share an exponent, and sums of their products.

The numbers are those of `arch.shared`, bit for bit. Elements become codes in the cycle in which a beat enters, and sums
become fp32 in the one in which they leave: there is no register on the way, so no cycle is more.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed
from amaranth.lib.wiring import In, Out

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.shared import CODE_FORMATS, CodeFormat
from siliconloom.rtl.array.elements import arithmetic_of
from siliconloom.rtl.array.weights import weight_marks
from siliconloom.rtl.cells.floating import BIAS, BITS, EXPONENT, FRACTION, NAN
from siliconloom.rtl.library import Circuit, Library

LEVEL = EXPONENT + 1
"""Bits of the exponent of a row of what moves: two exponents added up."""


def shared_marks(array: SystolicArray) -> dict[str, int]:
    """What a beat of the operand that stays says of itself, with widths: its kind, and rows and columns that are used.

    Its kind is that of a beat of packed weights, where an array has such, or whether it has codes.
    """
    own = weight_marks(array) or (
        {"coded": 1} | ({"rows": array.load_rows.bit_length()} if array.load_rows > 1 else {})
    )
    return own | {"columns": array.cols.bit_length()}


def field_of(word: Value) -> Value:
    """The exponent of an fp32 number, as it counts it."""
    return word[FRACTION:-1]


def largest(m: Module, name: str, values: Sequence[Value]) -> Value:
    """The largest of whole numbers without sign, as a tree."""
    level = 0
    while len(values) > 1:
        level, made = level + 1, list[Value]()
        for place, (a, b) in enumerate(zip(values[::2], values[1::2], strict=False)):
            larger = Signal(len(a), name=f"{name}_{level}_{place}")
            m.d.comb += larger.eq(Mux(a > b, a, b))
            made.append(larger)
        values = made + list(values[len(values) // 2 * 2 :])
    return values[0]


def code_format(array: SystolicArray) -> CodeFormat:
    """The format of the codes of an array whose operands share exponents."""
    return CODE_FORMATS[arithmetic_of(array).dtype]


class SharedCode(Circuit):
    """The code of an element, without a register.

    Parameters
    ----------
    form
        Of the code.

    Members
    -------
    i : In(32)
        The element, in fp32.
    below : In
        Places by which its exponent is below that of its block.
    o : Out
        The code, in two's complement.
    """

    def __init__(self, library: Library, form: CodeFormat) -> None:
        self.form = form
        super().__init__(library, library.name("code"), {"i": In(BITS), "below": In(LEVEL), "o": Out(form.bits)})

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        bits, most, furthest = self.form.bits, self.form.most, self.form.furthest
        low = FRACTION - self.form.places
        shifted = Signal(FRACTION + 1 + furthest, name="shifted")
        size, rounded = Signal(bits, name="size"), Signal(bits, name="rounded")
        none = ~field_of(self.i).any() | (self.below >= furthest)
        m.d.comb += [
            shifted.eq(Cat(Const(0, furthest), self.i[:FRACTION], 1) >> self.below[: furthest.bit_length()]),
            size.eq(shifted[furthest + low :]),
            rounded.eq(size + (shifted[furthest + low - 1] & (shifted[: furthest + low - 1].any() | size[0]))),
        ]
        code = Signal(bits, name="magnitude")
        m.d.comb += code.eq(Mux(none, 0, Mux(rounded > most, most, rounded)))
        m.d.comb += self.o.eq(Mux(self.i[-1], -code, code))
        return m


class StayingCodes(Circuit):
    """Codes of a beat of the operand that stays, and the exponents of its rows.

    Members
    -------
    data, codes : In
        Elements, or codes.
    coded : In(1)
        It has codes.
    rows, columns : In
        Rows of the beat that are used, where it has more than one, and columns of the panel; others are zeros.
    o : Out
        Codes, row by row.
    tops : Out
        Exponents of the rows.
    """

    def __init__(self, library: Library, array: SystolicArray) -> None:
        self.array, self.form = array, code_format(array)
        count, bits = array.load_rows * array.cols, self.form.bits
        marks = {name: width for name, width in shared_marks(array).items() if name in ("rows", "columns")}
        ports = {"data": In(BITS * count), "codes": In(bits * count), "coded": In(1)}
        ports |= {name: In(width) for name, width in marks.items()}
        ports |= {"o": Out(bits * count), "tops": Out(EXPONENT * array.load_rows)}
        super().__init__(library, library.name("staying"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        cols, bits, kind = self.array.cols, self.form.bits, self.library.make(SharedCode, self.form)
        codes, tops = list[Value](), list[Value]()
        for row in range(self.array.load_rows):
            used = row < self.rows if self.array.load_rows > 1 else Const(1, 1)
            places = range(row * cols, (row + 1) * cols)
            words = [
                Mux(place % cols < self.columns, self.data[BITS * place : BITS * (place + 1)], 0) for place in places
            ]
            top = largest(m, f"top_{row}", [field_of(word) for word in words])
            for place, word in zip(places, words, strict=True):
                made = self.place(m, kind, f"code_{place}", i=word, below=(top - field_of(word))[:EXPONENT]).o
                own = self.codes[bits * place : bits * (place + 1)]
                codes.append(Mux(self.coded, own, made))
            tops.append(Mux(used, Mux(self.coded, self.form.unit, top), 0))
        m.d.comb += [self.o.eq(Cat(*codes)), self.tops.eq(Cat(*(top[:EXPONENT] for top in tops)))]
        return m


class MovingCodes(Circuit):
    """Codes of a beat of the operand that moves.

    Members
    -------
    data : In
        Elements; zeros of rows that a fold does not use.
    tops : In
        Exponents of the rows of the fold that they meet.
    o : Out
        Codes.
    level : Out
        The exponent of their products.
    odd : Out(1)
        Sums of the products are no numbers.
    """

    def __init__(self, library: Library, rows: int, form: CodeFormat) -> None:
        self.rows, self.form = rows, form
        ports = {"data": In(BITS * rows), "tops": In(EXPONENT * rows), "o": Out(form.bits * rows)}
        super().__init__(library, library.name("moving"), ports | {"level": Out(LEVEL), "odd": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        words = [self.data[BITS * row : BITS * (row + 1)] for row in range(self.rows)]
        tops = [self.tops[EXPONENT * row : EXPONENT * (row + 1)] for row in range(self.rows)]
        levels = [Signal(LEVEL, name=f"level_{row}") for row in range(self.rows)]
        for level, word, top in zip(levels, words, tops, strict=True):
            m.d.comb += level.eq(Mux(field_of(word).any() & top.any(), field_of(word) + top, 0))
        most = largest(m, "largest", levels)
        kind, codes = self.library.make(SharedCode, self.form), []
        for row, (word, level) in enumerate(zip(words, levels, strict=True)):
            below = Signal(LEVEL, name=f"below_{row}")
            m.d.comb += below.eq(Mux(level.any(), most - level, self.form.furthest))
            codes.append(self.place(m, kind, f"code_{row}", i=word, below=below).o)
        odd = Cat(*(field_of(word).all() | top.all() for word, top in zip(words, tops, strict=True))).any()
        m.d.comb += [self.o.eq(Cat(*codes)), self.level.eq(most), self.odd.eq(odd)]
        return m


class SharedSum(Circuit):
    """A sum of products of codes as an fp32 number, rounded to the nearest, halves to even, without a register.

    Parameters
    ----------
    bits
        Of the sum.
    form
        Of the codes.

    Members
    -------
    i : In
        The sum, in two's complement: of `CodeFormat.sum_bits` and a sign.
    level, odd : In
        Of the row that has moved, see `MovingCodes`.
    o : Out(32)
        The number.
    """

    def __init__(self, library: Library, bits: int, form: CodeFormat) -> None:
        self.form = form
        ports = {"i": In(bits), "level": In(LEVEL), "odd": In(1), "o": Out(BITS)}
        super().__init__(library, library.name("shared_sum"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        bits, shift = max(self.form.sum_bits, FRACTION + 1), self.form.shift
        negative, size = self.i[-1], Signal(bits, name="size")
        exponent, fraction = Signal(signed(LEVEL + 2), name="exponent"), Signal(FRACTION, name="fraction")
        m.d.comb += size.eq(Mux(negative, -self.i, self.i))
        leading: Value = fraction
        if bits > FRACTION + 1:
            leading = Signal(bits - 1, name="leading")
        for top in range(bits):  # the highest bit that is set becomes the leading one
            with m.If(size[top] & ~size[top + 1 :].any()):
                m.d.comb += [
                    exponent.eq(self.level + (top + BIAS - shift)),
                    leading.eq(size[:top] << (len(leading) - top)),
                ]
        below = exponent <= 0
        if bits > FRACTION + 1:
            exponent = self._rounded(m, leading, exponent, fraction)
        beyond = exponent > 2 * BIAS
        with m.If(self.odd):
            m.d.comb += self.o.eq(NAN)
        with m.Elif(~size.any() | below):
            m.d.comb += self.o.eq(Cat(Const(0, BITS - 1), negative & size.any()))
        with m.Elif(beyond):
            m.d.comb += self.o.eq(Cat(Const(0, FRACTION), Const((1 << EXPONENT) - 1, EXPONENT), negative))
        with m.Else():
            m.d.comb += self.o.eq(Cat(fraction, exponent[:EXPONENT], negative))
        return m

    def _rounded(self, m: Module, leading: Value, exponent: Signal, fraction: Signal) -> Signal:
        """The exponent after rounding what is behind the leading one to a fraction, whose carry raises it."""
        rest = len(leading) - FRACTION
        rounded, raised = Signal(FRACTION + 1, name="rounded"), Signal(signed(LEVEL + 2), name="raised")
        up = leading[rest - 1] & (leading[: rest - 1].any() | leading[rest])
        m.d.comb += [
            rounded.eq(leading[rest:] + up),
            fraction.eq(rounded[:FRACTION]),
            raised.eq(exponent + rounded[FRACTION]),
        ]
        return raised


__all__ = ["LEVEL", "MovingCodes", "SharedCode", "SharedSum", "StayingCodes", "code_format", "shared_marks"]
