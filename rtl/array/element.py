"""The processing elements: one multiply-accumulate and the registers that make the array systolic."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.cells.arithmetic import SUM_BITS, Integers
from siliconloom.rtl.library import Circuit, Library

ACCUMULATOR_BITS = SUM_BITS


@dataclass(frozen=True)
class Arithmetic:
    """The numbers of an array, and the pipeline between multiplier and adder.

    Parameters
    ----------
    bits
        Width of an operand: 4 or 8.
    stages
        Registers between multiplier and adder.
    """

    bits: int
    stages: int

    @property
    def numbers(self) -> Integers:
        """How operands are multiplied and summed."""
        return Integers(self.bits)

    def product(self, m: Module, en: Signal, a: Signal, b: Signal) -> Signal:
        """A * b, ``stages`` enabled cycles later, extended to a sum's width."""
        value = Signal(self.numbers.product, name="product")
        m.d.comb += value.eq(self.numbers.mul(a, b))
        for stage in range(self.stages):
            register = Signal(self.numbers.product, name=f"product_{stage + 1}", reset_less=True)
            with m.If(en):
                m.d.sync += register.eq(value)
            value = register
        wide = Signal(self.numbers.sum, name="addend")
        m.d.comb += wide.eq(value)
        return wide

    def flag(self, m: Module, en: Signal, value: Signal, name: str) -> Signal:
        """A control bit delayed along with the product."""
        for stage in range(self.stages):
            register = Signal(name=f"{name}_{stage + 1}")
            with m.If(en):
                m.d.sync += register.eq(value)
            value = register
        return value


class StationaryElement(Circuit):
    """Element of a weight- or input-stationary array.

    Parameters
    ----------
    passes_right
        Has a neighbour on the right.
    passes_load
        Has a neighbour below on the same load chain.

    Members
    -------
    en : In(1)
        Advance.
    moving, sum : In
        Moving operand from the left, partial sum from above.
    load : In
        Stationary operand from above.
    capture, swap : In(1)
        Take ``load`` into the shadow register; make the shadow register active.
    sum_out : Out
        Partial sum, registered.
    moving_out, capture_out, swap_out : Out
        To the right, registered; only with ``passes_right``.
    load_out : Out
        Downwards, registered; only with ``passes_load``.
    """

    def __init__(self, library: Library, arithmetic: Arithmetic, *, passes_right: bool, passes_load: bool) -> None:
        self.arithmetic, self.passes_right, self.passes_load = arithmetic, passes_right, passes_load
        bits = arithmetic.bits
        ports = {
            "en": In(1),
            "moving": In(bits),
            "load": In(bits),
            "sum": In(ACCUMULATOR_BITS),
            "capture": In(1),
            "swap": In(1),
            "sum_out": Out(ACCUMULATOR_BITS),
        }
        if passes_right:
            ports |= {"moving_out": Out(bits), "capture_out": Out(1), "swap_out": Out(1)}
        if passes_load:
            ports |= {"load_out": Out(bits)}
        kind = "element" + "_inner" * passes_right + "_chained" * passes_load
        super().__init__(library, library.name(kind), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        bits = self.arithmetic.bits
        # reset, so that rows which no tile has used yet multiply zero by zero and not by an unknown
        shadow, active = Signal(bits, name="shadow"), Signal(bits, name="active")
        total = Signal(ACCUMULATOR_BITS, reset_less=True)
        product = self.arithmetic.product(m, self.en, self.moving, active)
        with m.If(self.en):
            m.d.sync += total.eq(self.arithmetic.numbers.add(self.sum, product))
            with m.If(self.capture):
                m.d.sync += shadow.eq(self.load)
            with m.If(self.swap):
                m.d.sync += active.eq(shadow)
        m.d.comb += self.sum_out.eq(total)
        if self.passes_right:
            for name in ("moving", "capture", "swap"):
                # without a reset, control that is unknown at power-up would run through the row after the reset
                _register(m, self.en, getattr(self, name), getattr(self, f"{name}_out"), name, reset=name != "moving")
        if self.passes_load:
            _register(m, self.en, self.load, self.load_out, "load")
        return m


class OutputElement(Circuit):
    """Element of an output-stationary array.

    Parameters
    ----------
    passes_right, passes_down
        Has a neighbour on the right, below.

    Members
    -------
    en : In(1)
        Advance.
    a, b : In
        Operands from the left and from above.
    valid, first, last : In(1)
        The operands count; they begin, they end a sum.
    shift, drain : In
        Take the finished sum from above.
    drain_out : Out
        Finished sum, registered.
    a_out, valid_out, first_out, last_out, shift_out : Out
        To the right, registered; only with ``passes_right``.
    b_out : Out
        Downwards, registered; only with ``passes_down``.
    """

    def __init__(self, library: Library, arithmetic: Arithmetic, *, passes_right: bool, passes_down: bool) -> None:
        self.arithmetic, self.passes_right, self.passes_down = arithmetic, passes_right, passes_down
        bits = arithmetic.bits
        ports = {
            "en": In(1),
            "a": In(bits),
            "b": In(bits),
            "valid": In(1),
            "first": In(1),
            "last": In(1),
            "shift": In(1),
            "drain": In(ACCUMULATOR_BITS),
            "drain_out": Out(ACCUMULATOR_BITS),
        }
        if passes_right:
            ports |= {"a_out": Out(bits)} | {f"{name}_out": Out(1) for name in CONTROLS}
        if passes_down:
            ports |= {"b_out": Out(bits)}
        kind = "element" + "_inner" * passes_right + "_chained" * passes_down
        super().__init__(library, library.name(kind), ports, reset=passes_right or arithmetic.stages > 0)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        arithmetic, en = self.arithmetic, self.en
        product = arithmetic.product(m, en, self.a, self.b)
        valid, first, last = (arithmetic.flag(m, en, getattr(self, name), name) for name in ("valid", "first", "last"))
        held = Signal(ACCUMULATOR_BITS, reset_less=True)
        finished = Signal(ACCUMULATOR_BITS, reset_less=True)
        total = Signal(ACCUMULATOR_BITS)
        m.d.comb += total.eq(arithmetic.numbers.add(Mux(first, arithmetic.numbers.zero, held), product))
        with m.If(en):
            with m.If(valid):
                m.d.sync += held.eq(total)
            with m.If(valid & last):
                m.d.sync += finished.eq(total)
            with m.Elif(self.shift):
                m.d.sync += finished.eq(self.drain)
        m.d.comb += self.drain_out.eq(finished)
        if self.passes_right:
            _register(m, en, self.a, self.a_out, "a")
            for name in CONTROLS:
                _register(m, en, getattr(self, name), getattr(self, f"{name}_out"), name, reset=True)
        if self.passes_down:
            _register(m, en, self.b, self.b_out, "b")
        return m


CONTROLS = ("valid", "first", "last", "shift")
"""Control bits that travel to the right with operand a."""


def _register(m: Module, en: Signal, source: Signal, target: Signal, name: str, *, reset: bool = False) -> None:
    register = Signal(len(source), name=f"{name}_register", reset_less=not reset)
    with m.If(en):
        m.d.sync += register.eq(source)
    m.d.comb += target.eq(register)
