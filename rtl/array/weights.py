"""Packed weights at the array's edge: codes and their groups' scales become operands, in the cycle in which they enter.

The layout is that of `arch.packing`, whose `unpacked` gives the same numbers. A code becomes a short floating-point
number, exactly; it is multiplied by its scale, exactly in fp32, and the minimum, where there is one, is added; the sum
is rounded to the operands' format. MX blocks go the same way: their scale is a power of two, and where other weights
have minima theirs is -0.

With ``unpack_stages`` registers divide the way of a beat (`Steps`). Scales and minima are kept as a header enters it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import reduce
from operator import or_

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed
from amaranth.lib.wiring import In, Out

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import INTEGER_CODES, DataType
from siliconloom.arch.packing import SCALE, header_lines
from siliconloom.arch.scaled import PLACES
from siliconloom.rtl.array.arithmetic import Widening
from siliconloom.rtl.array.elements import arithmetic_of
from siliconloom.rtl.cells.floating import (
    ADDED,
    ALIGNED,
    BIAS,
    BITS,
    EXPONENT,
    FRACTION,
    NAN,
    NORMALISED,
    ORDERED,
    ROUNDED,
    ProductParts,
    float_product,
    float_sum,
    narrowed,
    product_parts,
    widened,
)
from siliconloom.rtl.library import Circuit, Library

CODE = 8
"""Bits of the widest code."""
CHOSEN, NUMBER, PRODUCT, SCALED, OFFSET = range(5, 10)
"""Where a code's way may be cut beside the places of its sum.

Behind the choice of the code and of what goes with it, behind its floating-point number, behind the product of the
significands, behind the product with its scale, before it is rounded to an operand.
"""
WITH_MINIMA = (SCALED, ADDED, PRODUCT, NORMALISED, CHOSEN, ORDERED, OFFSET, NUMBER)
WITHOUT_MINIMA = (PRODUCT, CHOSEN, NUMBER, SCALED)
OF_CACHE = (OFFSET, NUMBER, CHOSEN)
"""Where some registers are, the first place first; what is left over stands where the last one in the way is."""
WAY = (CHOSEN, NUMBER, PRODUCT, SCALED, ORDERED, ALIGNED, ADDED, NORMALISED, ROUNDED, OFFSET)
"""All places, in the order in which a code passes them."""
OTHERS = 3
"""Registers in which beats of all kinds but packed weights are made to operands; they then wait for those."""


Kept = tuple[Value, list[Value]]
"""Whether a beat is of keys or values in a format, as it comes, and its operands."""


class BeatKind(IntEnum):
    """What a beat of the stationary operand is: operands, codes of a format, or a line of a header.

    ``SCALES`` is the header of an MX block. Those behind ``HEADER`` are only where an array takes such blocks, and the
    others, of keys and values, only where it takes these: those without scales, then a header of those that have some,
    and codes of a format.
    """

    OPERANDS = 0
    INT4 = 1
    INT8 = 2
    HEADER = 3
    SCALES = 4
    FP4_E2M1 = 5
    FP8_E4M3 = 6
    FP8_E5M2 = 7
    CACHE_FP8_E4M3 = 8
    CACHE_FP8_E5M2 = 9
    CACHE_SCALES = 10
    KEYS_INT8 = 11
    VALUES_INT8 = 12
    KEYS_INT4 = 13
    VALUES_INT4 = 14


def code_kind(dtype: DataType) -> BeatKind:
    """The kind of a beat of codes."""
    return BeatKind[dtype.name]


def header_kind(dtype: DataType) -> BeatKind:
    """The kind of a header before codes of a format."""
    return BeatKind.HEADER if dtype in INTEGER_CODES else BeatKind.SCALES


def cache_kind(dtype: DataType) -> BeatKind:
    """The kind of a beat of keys or values without scales."""
    return BeatKind[f"CACHE_{dtype.name}"]


def scaled_kinds(dtype: DataType) -> tuple[BeatKind, BeatKind]:
    """Kinds of beats of keys, and of values, with scales."""
    return BeatKind[f"KEYS_{dtype.name}"], BeatKind[f"VALUES_{dtype.name}"]


def any_kind(kind: Value, kinds: Iterable[BeatKind]) -> Value:
    """Whether a beat is of one of these kinds."""
    return reduce(or_, (kind == each for each in kinds))


def kind_bits(array: SystolicArray) -> int:
    """Bits that tell the kinds of an array's beats apart."""
    if array.cache_codes or array.cache_scaled:
        return 4
    return 3 if array.weights is not None and array.weights.blocks else 2


def held(m: Module, name: str, values: Sequence[Value], en: Value | None, count: int) -> list[Value]:
    """Values behind so many registers, which take on what is before them in cycles of ``en``."""
    found = list(values)
    for stage in range(count):
        later = [Signal(v.shape(), name=f"{name}_{n}_{stage}", reset_less=True) for n, v in enumerate(found)]
        with m.If(en):
            m.d.sync += [register.eq(value) for register, value in zip(later, found, strict=True)]
        found = list[Value](later)
    return found


class Steps:
    """Registers that divide the way of a code to its operand.

    Parameters
    ----------
    en
        The cycles in which they take on what is before them.
    stages
        Their number.
    order
        The places of a kind of code, as `WITH_MINIMA`.
    """

    def __init__(self, m: Module, en: Value | None, stages: int, order: Sequence[int]) -> None:
        self.m, self.en, self.spent = m, en, Counter(order[:stages])
        self.spent[max(order, key=WAY.index)] += stages - self.spent.total()

    def cut(self, place: int, values: Sequence[Value]) -> list[Value]:
        """Values behind the registers of a place."""
        return held(self.m, f"step_{place}", values, self.en, self.spent.pop(place, 0))


def step_ports(array: SystolicArray) -> dict[str, In]:
    """What tells registers of a way to take on what is before them; none where there are no such registers."""
    return {"en": In(1)} if array.unpack_stages else {}


def enable_of(circuit: Circuit) -> Value | None:
    """That of a circuit's `step_ports`."""
    return circuit.en if "en" in circuit.signature.members else None


def weight_marks(array: SystolicArray) -> dict[str, int]:
    """What a beat of an array's stationary operand says of itself, with widths: its kind, how many rows are used."""
    if not array.has_edge:
        return {}
    return {"kind": kind_bits(array)} | ({"rows": array.load_rows.bit_length()} if array.load_rows > 1 else {})


class WeightLane(Circuit):
    """The operand that a code stands for.

    Parameters
    ----------
    elements
        The format of what it makes, where that is not the operands': fp32 (`rtl.array.shared`).

    Members
    -------
    code : In(8)
        A whole number: without a sign where there are minima, else in two's complement; or an element of an MX block.
    kind : In
        `BeatKind` of the code, where the array takes MX blocks.
    scale, minimum : In
        As leading bits of their fp32 numbers (`Widening`); the minimum where there is one.
    en : In(1)
        Registers take on what is before them, where there are some (`Steps`).
    o : Out
        The operand as it is stored.
    """

    def __init__(self, library: Library, array: SystolicArray, elements: DataType | None = None) -> None:
        assert array.weights is not None
        self.dtype = elements or arithmetic_of(array).dtype
        self.weights, self.minima = array.weights, array.weights.has_minima
        self.fraction = SCALE.layout.fraction_bits
        wide = 1 + EXPONENT + self.fraction
        ports = {"code": In(CODE)} | ({"kind": In(kind_bits(array))} if array.weights.blocks else {})
        ports |= {"scale": In(wide), **({"minimum": In(wide)} if self.minima else {}), "o": Out(self.dtype.bits)}
        self.stages = array.unpack_stages
        ports |= step_ports(array)
        codes = ("minimum" if self.minima else "signed",) if array.weights.codes else ()
        name = library.name("weight", self.dtype.value, *codes, *(d.value for d in array.weights.blocks))
        super().__init__(library, name, ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        fraction = self.fraction
        steps = Steps(m, enable_of(self), self.stages, WITH_MINIMA if self.minima else WITHOUT_MINIMA)
        minimum = [self.minimum] if self.minima else []
        blocks = [self.kind] if self.weights.blocks else []
        code, scale, *rest = steps.cut(CHOSEN, [self.code, self.scale, *minimum, *blocks])
        found = self._of_kind(m, code, *rest[len(minimum) :])
        number, scale, *minimum = steps.cut(NUMBER, [found, scale, *rest[: len(minimum)]])
        significand = Signal(2 * fraction + 2, name="significand")
        m.d.comb += significand.eq(Cat(number[:fraction], 1) * Cat(scale[:fraction], 1))
        significand, *parts = steps.cut(PRODUCT, [significand, *product_parts(number, scale, fraction), *minimum])
        kinds = ProductParts(*parts[: len(parts) - len(minimum)])
        product = float_product(m, "product", kinds, significand, fraction)
        value, *minimum = steps.cut(SCALED, [product, *parts[len(parts) - len(minimum) :]])
        if self.minima:
            other = Cat(Const(0, BITS - len(minimum[0])), minimum[0])
            (value,) = steps.cut(OFFSET, [float_sum(m, "sum", value, other, steps.cut)])
        assert not steps.spent.total()
        m.d.comb += self.o.eq(narrowed(m, "operand", value, self.dtype.layout))
        return m

    def _of_kind(self, m: Module, code: Value, kind: Value | None = None) -> Value:
        """The code as the leading bits of its fp32 number, whatever kind it is of."""
        found: Value | None = self._number(m, code) if self.weights.codes else None
        for dtype in self.weights.blocks:
            short = widened(m, dtype.value, code[: dtype.bits], dtype.layout)
            wide = Cat(Const(0, self.fraction - dtype.layout.fraction_bits), short)
            found = wide if found is None or kind is None else Mux(kind == code_kind(dtype), wide, found)
        assert found is not None
        number = Signal(len(found), name="number")
        m.d.comb += number.eq(found)
        return number

    def _number(self, m: Module, code: Value) -> Value:
        """A whole number as the leading bits of its fp32 number."""
        negative = Signal(name="negative")
        magnitude = Signal(CODE, name="magnitude")
        if self.minima:
            m.d.comb += magnitude.eq(code)
        else:
            m.d.comb += [negative.eq(code[-1]), magnitude.eq(Mux(negative, -code, code))]
        exponent, bits = Signal(EXPONENT, name="exponent"), Signal(self.fraction, name="bits")
        for top in range(CODE):  # the highest bit that is set becomes the leading one
            with m.If(magnitude[top] & ~magnitude[top + 1 :].any()):
                m.d.comb += [exponent.eq(BIAS + top), bits.eq(magnitude[:top] << (self.fraction - top))]
        return Cat(bits, exponent, negative)


class CacheLane(Circuit):
    """The operand that a key or a value without a scale is, without a register.

    Members
    -------
    code : In(8)
        A number in eight bits.
    o : Out
        The operand as it is stored: the same number, which every format of operands has.
    """

    def __init__(self, library: Library, array: SystolicArray, dtype: DataType) -> None:
        self.dtype, self.operand = dtype, arithmetic_of(array).dtype
        ports = {"code": In(dtype.bits), "o": Out(self.operand.bits)}
        super().__init__(library, library.name("cached", dtype.value, self.operand.value), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        short = widened(m, "number", self.code, self.dtype.layout)
        number = Signal(BITS, name="word")
        m.d.comb += number.eq(Cat(Const(0, BITS - len(short)), short))
        m.d.comb += self.o.eq(narrowed(m, "operand", number, self.operand.layout))
        return m


class ScaledLane(Circuit):
    """The operand that a key or a value with a scale is.

    Members
    -------
    code : In(8)
        A whole number in two's complement.
    scale : In(8)
        The exponent that its line shares, as fp32 counts it.
    short : In(1)
        The code is one of four bits, whose point is elsewhere; where the array takes such and others.
    en : In(1)
        As of `WeightLane`; of registers there are `OTHERS` at most.
    o : Out
        The operand as it is stored.
    """

    def __init__(self, library: Library, array: SystolicArray) -> None:
        self.formats, self.operand = array.cache_scaled, arithmetic_of(array).dtype
        ports = {"code": In(CODE), "scale": In(EXPONENT), **({"short": In(1)} if len(self.formats) > 1 else {})}
        ports |= {"o": Out(self.operand.bits)} | step_ports(array)
        self.stages = min(array.unpack_stages, OTHERS)
        names = (dtype.value for dtype in self.formats)
        super().__init__(library, library.name("scaled", *names, self.operand.value), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        steps = Steps(m, enable_of(self), self.stages, OF_CACHE)
        short = [self.short] if len(self.formats) > 1 else []
        code, scale, *short = steps.cut(CHOSEN, [self.code, self.scale, *short])
        negative, magnitude = code[-1], Signal(CODE, name="magnitude")
        m.d.comb += magnitude.eq(Mux(code[-1], -code, code))
        top, bits = Signal(range(CODE), name="top"), Signal(CODE - 1, name="bits")
        for place in range(CODE):  # the highest bit that is set becomes the leading one
            with m.If(magnitude[place] & ~magnitude[place + 1 :].any()):
                m.d.comb += [top.eq(place), bits.eq(magnitude[:place] << (CODE - 1 - place))]
        leading, fraction, some, negative, scale, *short = steps.cut(
            NUMBER, [top, bits, magnitude.any(), negative, scale, *short]
        )
        places: Value = Const(PLACES[self.formats[0]], 3)
        if len(self.formats) > 1:
            places = Mux(short[0], PLACES[DataType.INT4], PLACES[DataType.INT8])
        exponent = Signal(signed(EXPONENT + 2), name="exponent")
        m.d.comb += exponent.eq(scale + leading - places)
        least = Mux(exponent > 0, Cat(fraction, exponent[:EXPONENT]), 0)
        word = Signal(BITS, name="word")
        whole = Cat(Const(0, FRACTION - (CODE - 1)), least, negative)
        m.d.comb += word.eq(Mux(scale.all(), NAN, Mux(some, whole, 0)))
        (number,) = steps.cut(OFFSET, [word])
        assert not steps.spent.total()
        m.d.comb += self.o.eq(narrowed(m, "operand", number, self.operand.layout))
        return m


class WeightEdge(Circuit):
    """Operands of a beat, of whatever kind it is; keeps the scales and minima of the group that goes on.

    Parameters
    ----------
    elements
        As of `WeightLane`: a beat that has no codes has elements then.

    Members
    -------
    data, kind : In
        The beat.
    keep : In(1)
        It is a line of a header, which is kept. Where weights are packed.
    taken : In(1)
        It enters the array, or is kept. Where keys and values have scales.
    rows : In
        Rows of the beat that are used; the others' operands are zero. Where a beat has more than one.
    en : In(1)
        Registers on the way of a beat take on what is before them, where there are some.
    o : Out
        As many registers later: operands as they travel inside the array, or elements, row by row.
    """

    def __init__(self, library: Library, array: SystolicArray, elements: DataType | None = None) -> None:
        self.array, self.arithmetic = array, arithmetic_of(array)
        self.minima = array.weights is not None and array.weights.has_minima
        self.elements, self.dtype = elements, elements or arithmetic_of(array).dtype
        formats = array.weights.formats if array.weights is not None else ()
        self.lines = max((header_lines(array, dtype) for dtype in formats), default=0)
        self.lanes = array.load_rows * array.cols
        ports = {
            "data": In(self.lanes * self.dtype.bits),
            **{name: In(width) for name, width in weight_marks(array).items()},
            **({"keep": In(1)} if array.weights is not None else {}),
            **({"taken": In(1)} if array.cache_scaled else {}),
            **step_ports(array),
            "o": Out(self.lanes * (self.arithmetic.bits if elements is None else elements.bits)),
        }
        reset = self.lines > 1 or bool(array.cache_scaled)
        super().__init__(library, library.name("weights"), ports, reset=reset)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        array, bits = self.array, self.dtype.bits
        en, early = enable_of(self), min(array.unpack_stages, OTHERS)
        others = held(m, "plain", [self.data[bits * lane :][:bits] for lane in range(self.lanes)], en, early)
        own: Value = self.kind == BeatKind.OPERANDS
        for kind, values in (*self._cached(m, en, early), *self._scaled(m)):
            own = own | kind
            (which,) = held(m, "kind", [kind], en, early)
            others = [Mux(which, its, other) for its, other in zip(values, others, strict=True)]
        made = held(m, "others", others, en, array.unpack_stages - early)
        if array.weights is not None:
            (is_own,) = held(m, "own", [own], en, array.unpack_stages)
            made = [Mux(is_own, other, its) for its, other in zip(self._packed(m), made, strict=True)]
        if array.load_rows > 1:
            (rows,) = held(m, "rows", [self.rows], en, array.unpack_stages)
            made = [Mux(number // array.cols < rows, each, 0) for number, each in enumerate(made)]
        beat: Value = Cat(*made)
        if self.elements is None:
            beat = self.arithmetic.entering(self, m, "stationary_lane", beat)
        m.d.comb += self.o.eq(beat)
        return m

    def _packed(self, m: Module) -> list[Value]:
        """Operands of codes with scales."""
        array = self.array
        assert array.weights is not None
        scales, minima = self._header(m)
        lane = self.library.make(WeightLane, array, *([self.elements] if self.elements else []))
        kind = {"kind": self.kind} if array.weights.blocks else {}
        made = list[Value]()
        for number in range(self.lanes):
            column = number % array.cols
            ports = {**kind, "scale": scales[column], **({"minimum": minima[column]} if self.minima else {})}
            ports |= {"en": self.en} if array.unpack_stages else {}
            made.append(self.place(m, lane, f"lane_{number}", code=self._code(m, number), **ports).o)
        return made

    def _scaled(self, m: Module) -> list[Kept]:
        """Operands of keys and values with scales.

        Scales are kept as they come: those in front are of the beat. Keys have one for each column, and the next ones
        behind a block of as many rows; values have one for each row, and the next ones behind a beat.
        """
        array, formats = self.array, self.array.cache_scaled
        if not formats:
            return []
        cols, rows, count = array.cols, array.load_rows, self.lanes
        scales = Signal(EXPONENT * count, name="cache_scales", reset_less=True)
        beats = cols // rows
        beat = Signal(range(max(beats, 2)), name="cache_beat")
        by_rows = any_kind(self.kind, (scaled_kinds(dtype)[1] for dtype in formats))
        by_cols = any_kind(self.kind, (scaled_kinds(dtype)[0] for dtype in formats))
        with m.If(self.taken & (self.kind == BeatKind.CACHE_SCALES)):
            m.d.sync += [scales.eq(self.data[: len(scales)]), beat.eq(0)]
        with m.If(self.taken & by_rows):
            m.d.sync += scales.eq(scales.shift_right(EXPONENT * rows))
        with m.If(self.taken & by_cols):
            m.d.sync += beat.eq(Mux(beat == beats - 1, 0, beat + 1))
            with m.If(beat == beats - 1):
                m.d.sync += scales.eq(scales.shift_right(EXPONENT * cols))
        short = any_kind(self.kind, scaled_kinds(DataType.INT4)) if DataType.INT4 in formats else Const(0, 1)
        lane, made = self.library.make(ScaledLane, array), list[Value]()
        for number in range(count):
            row, column = divmod(number, cols)
            scale = Signal(EXPONENT, name=f"cache_scale_{number}")
            own, theirs = (scales[EXPONENT * at :][:EXPONENT] for at in (row, column))
            m.d.comb += scale.eq(Mux(by_rows, own, theirs))
            ports = ({"short": short} if len(formats) > 1 else {}) | ({"en": self.en} if array.unpack_stages else {})
            code = self._whole(m, number, by_rows)
            made.append(self.place(m, lane, f"scaled_{number}", code=code, scale=scale, **ports).o)
        return [(by_rows | by_cols, made)]

    def _whole(self, m: Module, number: int, by_rows: Value) -> Value:
        """The code of a lane among those of keys or values with scales."""
        formats, cols = self.array.cache_scaled, self.array.cols
        code = Signal(CODE, name=f"cache_code_{number}")
        byte, found = self.data[CODE * number :][:CODE], None
        if DataType.INT4 in formats:
            row, column = divmod(number, cols)
            paired = 2 * (row // 2 * cols + column) + row % 2  # two rows of keys lie in one of bytes
            values, keys = (self.data[4 * at :][:4] for at in (number, paired))
            nibble = Mux(by_rows, values, keys)
            found = Cat(nibble, nibble[-1].replicate(4))
        if DataType.INT8 in formats:
            wide = any_kind(self.kind, scaled_kinds(DataType.INT8))
            found = byte if found is None else Mux(wide, byte, found)
        m.d.comb += code.eq(found)
        return code

    def _cached(self, m: Module, en: Value | None, steps: int) -> list[Kept]:
        """Operands of keys and values without scales, of each format."""
        found = list[Kept]()
        for dtype in self.array.cache_codes:
            lane = self.library.make(CacheLane, self.array, dtype)
            codes = [self.data[8 * number : 8 * number + 8] for number in range(self.lanes)]
            codes = held(m, f"{dtype.value}_code", codes, en, min(steps, 1))
            own = [self.place(m, lane, f"{dtype.value}_{number}", code=code).o for number, code in enumerate(codes)]
            found.append((self.kind == cache_kind(dtype), held(m, dtype.value, own, en, max(steps - 1, 0))))
        return found

    def _code(self, m: Module, number: int) -> Value:
        """The code of a lane, of whatever format that the array has."""
        assert self.array.weights is not None
        formats = self.array.weights.formats
        nibble, byte = self.data[4 * number : 4 * number + 4], self.data[8 * number : 8 * number + 8]
        high = Const(0, 4) if self.minima else nibble[-1].replicate(4)
        short = [dtype for dtype in formats if dtype.bits == 4]
        if len(short) == len(formats):
            return Cat(nibble, high)
        if not short:
            return byte
        return Mux(reduce(or_, (self.kind == code_kind(dtype) for dtype in short)), Cat(nibble, high), byte)

    def _header(self, m: Module) -> tuple[list[Value], list[Value]]:
        """Scales and minima of each column, as leading bits of their fp32 numbers."""
        assert self.array.weights is not None
        if not self.array.weights.codes:
            return self._scales(m), []
        cols, width, lines = self.array.cols, SCALE.bits, self.lines
        count = cols * (1 + self.minima)
        size = self.lanes * self.arithmetic.dtype.bits  # a line of a header, whatever else a beat may have
        patterns = [self.data[width * at % size :][:width] for at in range(count)]
        widening = self.library.make(Widening, SCALE)
        kept, keep = list[Value](), Signal(name="keep_header")
        m.d.comb += keep.eq(self.keep & (self.kind == BeatKind.HEADER) if self.array.weights.blocks else self.keep)
        line = Signal(range(max(lines, 2)), name="line")
        if lines > 1:
            with m.If(keep):
                m.d.sync += line.eq(Mux(line == lines - 1, 0, line + 1))
        for at, pattern in enumerate(patterns):
            wide = self.place(m, widening, f"header_{at}", i=pattern).o
            register = Signal(len(wide), name=f"kept_{at}", reset_less=True)
            with m.If(keep & (line == width * at // size)):
                m.d.sync += register.eq(wide)
            if self.array.weights.blocks:
                none = Const(1 << len(wide) - 1, len(wide))
                with m.If(self.keep & (self.kind == BeatKind.SCALES)):
                    m.d.sync += register.eq(self._power(at) if at < cols else none)
            kept.append(register)
        return kept[:cols], kept[cols:]

    def _scales(self, m: Module) -> list[Value]:
        """Scales of each column, of MX blocks alone."""
        kept = list[Value]()
        for at in range(self.array.cols):
            register = Signal(1 + EXPONENT + SCALE.layout.fraction_bits, name=f"kept_{at}", reset_less=True)
            with m.If(self.keep):
                m.d.sync += register.eq(self._power(at))
            kept.append(register)
        return kept

    def _power(self, column: int) -> Value:
        """The scale of a column of an MX block: an exponent, of which all ones are no number."""
        byte = self.data[8 * column : 8 * column + 8]
        return Cat(byte.all(), Const(0, SCALE.layout.fraction_bits - 1), byte, Const(0, 1))


__all__ = [
    "BeatKind",
    "CacheLane",
    "ScaledLane",
    "WeightEdge",
    "WeightLane",
    "any_kind",
    "cache_kind",
    "code_kind",
    "header_kind",
    "kind_bits",
    "scaled_kinds",
    "weight_marks",
]
