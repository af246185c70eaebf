"""The numbers of an array's elements: what enters them, products and sums, and the registers inside both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Module, Signal
from amaranth.hdl import Value, signed
from amaranth.lib.wiring import In, Out

from siliconloom.arch.array import ARRAY_FORMATS, LONG_SUM_BITS, SUM_BITS, SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import NotSupported
from siliconloom.rtl.cells.arithmetic import Integers
from siliconloom.rtl.cells.floating import (
    ADDED,
    ALIGNED,
    EXPONENT,
    NORMALISED,
    float_product,
    float_sum,
    narrowed,
    product_parts,
    widened,
)
from siliconloom.rtl.library import Circuit, Library


@dataclass(frozen=True)
class Arithmetic(ABC):
    """Operands of a format, their products, and sums of `sum_bits`.

    Parameters
    ----------
    dtype
        Format of the operands as they come to the array's edge.
    multiply_stages
        Registers from an element's operands to its adder.
    add_stages
        Registers inside its adder, beside the one that holds the sum.
    depth
        Products that an element sums per cycle; its operands then lie side by side.
    """

    dtype: DataType
    multiply_stages: int
    add_stages: int
    depth: int = 1

    @property
    @abstractmethod
    def bits(self) -> int:
        """Width of an operand inside the array."""

    @property
    @abstractmethod
    def clears(self) -> bool:
        """Whether what a row held before must go where a fold has no row: zero times it might not be zero."""

    @property
    def sum_bits(self) -> int:
        """Width of a sum."""
        return SUM_BITS

    @property
    def a_bits(self) -> int:
        """Width of what an element that keeps its sum takes from the left, of all its products."""
        return self.depth * self.bits

    @property
    def b_bits(self) -> int:
        """Width of what an element that keeps its sum takes from above, of all its products."""
        return self.depth * self.bits

    @property
    def state_bits(self) -> int:
        """Width of a sum inside the array, where it may be several numbers that are not added up yet."""
        return self.sum_bits

    @property
    def zero(self) -> Const:
        """The sum of no products, inside the array."""
        return Const(0, self.state_bits)

    def resolved(self, parent: Circuit, m: Module, en: Signal, states: Value, lanes: int) -> Value:
        """Sums as they leave, of those of so many lanes inside the array; `SystolicArray.resolve_stages` later."""
        return states

    @abstractmethod
    def entering(self, parent: Circuit, m: Module, name: str, beat: Value) -> Value:
        """Operands inside the array, from a beat of them at its edge; in the same cycle."""

    @abstractmethod
    def product(self, m: Module, en: Signal, a: Signal, b: Signal) -> Signal:
        """A * b, or the sum of as many products as there are, as `added` takes it, ``multiply_stages`` cycles later."""

    @abstractmethod
    def added(self, m: Module, en: Signal, total: Value, product: Value) -> Value:
        """The next sum, ``add_stages`` enabled cycles later."""

    def flag(self, m: Module, en: Signal, value: Signal, name: str) -> Signal:
        """A control bit delayed along with the product."""
        for stage in range(self.multiply_stages):
            register = Signal(name=f"{name}_{stage + 1}")
            with m.If(en):
                m.d.sync += register.eq(value)
            value = register
        return value


@dataclass(frozen=True)
class IntegerArithmetic(Arithmetic):
    """Two's complement; sums wrap."""

    @property
    def bits(self) -> int:
        return self.dtype.bits

    @property
    def clears(self) -> bool:
        return False

    @property
    def numbers(self) -> Integers:
        """How operands are multiplied and summed."""
        return Integers(self.bits, self.sum_bits)

    def operands(self, a: Signal, b: Signal) -> list[tuple[Value, Value]]:
        """Those of each product, of an element's side by side."""
        if self.depth == 1:
            return [(a, b)]
        lanes = (slice(at, at + self.bits) for at in range(0, self.depth * self.bits, self.bits))
        return [(a[lane], b[lane]) for lane in lanes]

    @property
    def sum_bits(self) -> int:
        return LONG_SUM_BITS if self.dtype is DataType.INT16 else SUM_BITS

    def entering(self, parent: Circuit, m: Module, name: str, beat: Value) -> Value:
        return beat

    def product(self, m: Module, en: Signal, a: Signal, b: Signal) -> Signal:
        more = self.depth.bit_length() - 1
        shape = signed(2 * self.bits + more)
        value = Signal(shape, name="product")
        m.d.comb += value.eq(tree_sum(m, "products", [self.numbers.mul(*each) for each in self.operands(a, b)]))
        for stage in range(self.multiply_stages):
            register = Signal(shape, name=f"product_{stage + 1}", reset_less=True)
            with m.If(en):
                m.d.sync += register.eq(value)
            value = register
        wide = Signal(self.numbers.sum, name="addend")
        m.d.comb += wide.eq(value)
        return wide

    def added(self, m: Module, en: Signal, total: Value, product: Value) -> Value:
        """The next sum; its registers come behind the adder, where synthesis may move them into it."""
        value = self.numbers.add(total, product)
        for stage in range(self.add_stages):
            (value,) = _registered(m, en, f"sum_{stage + 1}", [value])
        return value


@dataclass(frozen=True)
class FloatArithmetic(Arithmetic):
    """Floating point as `rtl.cells.floating` has it; one product after the other is added in fp32."""

    @property
    def fraction(self) -> int:
        """Bits of an operand's fraction."""
        return self.dtype.layout.fraction_bits

    @property
    def bits(self) -> int:
        return 1 + EXPONENT + self.fraction

    @property
    def clears(self) -> bool:
        return True

    def entering(self, parent: Circuit, m: Module, name: str, beat: Value) -> Value:
        if self.bits == self.dtype.bits:
            return beat
        lane, width = parent.library.make(Widening, self.dtype), self.dtype.bits
        parts = [beat[at : at + width] for at in range(0, len(beat), width)]
        return Cat(*[parent.place(m, lane, f"{name}_{number}", i=part).o for number, part in enumerate(parts)])

    def product(self, m: Module, en: Signal, a: Signal, b: Signal) -> Signal:
        """A * b; registers stand behind the multiplier, then behind the whole product, then at the operands."""
        stages, fraction = self.multiply_stages, self.fraction
        left, right = _registered(m, en, "operand", [a, b]) if stages > 2 else (a, b)
        parts = product_parts(left, right, fraction)
        significand = Signal(2 * fraction + 2, name="significand")
        m.d.comb += significand.eq(Cat(left[:fraction], 1) * Cat(right[:fraction], 1))
        passing: list[Value] = [significand, *parts]
        if stages > 0:
            passing = _registered(m, en, "product_part", passing)
        product = float_product(m, "product", type(parts)(*passing[1:]), passing[0], fraction)
        if stages > 1:
            (product,) = _registered(m, en, "product_register", [product])
        return product

    def added(self, m: Module, en: Signal, total: Value, product: Value) -> Value:
        cuts = {0: (), 1: (ADDED,), 2: (ALIGNED, ADDED), 3: (ALIGNED, ADDED, NORMALISED)}[self.add_stages]

        def cut(place: int, values: list[Value]) -> list[Value]:
            return _registered(m, en, f"sum_{place}", values) if place in cuts else values

        return float_sum(m, "sum", total, product, cut)


class Widening(Circuit):
    """A number of a short format as the leading bits of its fp32 number, without a register.

    Members
    -------
    i : In
        The number as it is stored.
    o : Out
        As `rtl.cells.floating.widened` says.
    """

    def __init__(self, library: Library, dtype: DataType) -> None:
        self.layout = dtype.layout
        ports = {"i": In(dtype.bits), "o": Out(1 + EXPONENT + self.layout.fraction_bits)}
        super().__init__(library, library.name("widening", dtype.value), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        m.d.comb += self.o.eq(widened(m, "number", self.i, self.layout))
        return m


class Narrowing(Circuit):
    """An fp32 number rounded to a short format, halves to even, without a register.

    Members
    -------
    i : In
        The number.
    o : Out
        As `arch.floats.narrowed` has it.
    """

    def __init__(self, library: Library, dtype: DataType) -> None:
        self.layout = dtype.layout
        super().__init__(library, library.name("narrowing", dtype.value), {"i": In(32), "o": Out(dtype.bits)})

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        m.d.comb += self.o.eq(narrowed(m, "number", self.i, self.layout))
        return m


def tree_sum(m: Module, name: str, values: Sequence[Value]) -> Value:
    """The sum of signed products of as many bits each, added up in pairs.

    Products have a bit of their sign more than they need, so the sum of n of them needs floor(log2 n) bits more than
    one. Where one side is wider, the sum is thus as wide as that, and the other one is widened to it before.
    """
    if len(values) == 1:
        return values[0]
    half = -(-len(values) // 2)
    left, right = tree_sum(m, f"{name}_0", values[:half]), tree_sum(m, f"{name}_1", values[half:])
    bits = len(left)
    if len(right) == bits:
        return left + right
    short = Signal(len(right), name=f"{name}_1")
    m.d.comb += short.eq(right)
    wide = Cat(short, short[-1].replicate(bits - len(short)))
    return (left.as_unsigned() + wide)[:bits].as_signed()


def _registered(m: Module, en: Signal, name: str, values: Sequence[Value]) -> list[Value]:
    """Values one enabled cycle later, without a reset."""
    made: list[Value] = []
    for number, value in enumerate(values):
        register = Signal(len(value), name=f"{name}_{number}", reset_less=True)
        with m.If(en):
            m.d.sync += register.eq(value)
        made.append(register)
    return made


def operand_type(array: SystolicArray) -> DataType:
    """`SystolicArray.circuit_format`; raises `NotSupported` where there is none."""
    if array.circuit_format is None:
        floats = ", ".join(d for d in ARRAY_FORMATS if not d.is_integer)
        named = ", ".join(array.operands)
        raise NotSupported(f"RTL for {named} operands; int4, int8 and int16, or one of {floats}, are built")
    return array.circuit_format


__all__ = ["Arithmetic", "FloatArithmetic", "IntegerArithmetic", "Narrowing", "Widening", "operand_type"]
