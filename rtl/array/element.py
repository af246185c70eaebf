"""The processing elements: one multiply-accumulate and the registers that make the array systolic."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.array.arithmetic import Arithmetic
from siliconloom.rtl.library import Circuit, Library


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
    clear : In(1)
        Make the shadow register zero; only of arithmetic that `clears <Arithmetic.clears>`.
    sum_out : Out
        Partial sum, registered.
    moving_out, capture_out, swap_out, clear_out : Out
        To the right, registered; only with ``passes_right``.
    load_out : Out
        Downwards, one register and the adder's later; only with ``passes_load``.
    """

    def __init__(self, library: Library, arithmetic: Arithmetic, *, passes_right: bool, passes_load: bool) -> None:
        self.arithmetic, self.passes_right, self.passes_load = arithmetic, passes_right, passes_load
        bits = arithmetic.bits
        ports = {
            "en": In(1),
            "moving": In(bits),
            "load": In(bits),
            "sum": In(arithmetic.state_bits),
            "sum_out": Out(arithmetic.state_bits),
        }
        self.controls = stationary_controls(arithmetic)
        ports |= {name: In(1) for name in self.controls}
        if passes_right:
            ports |= {"moving_out": Out(bits)} | {f"{name}_out": Out(1) for name in self.controls}
        if passes_load:
            ports |= {"load_out": Out(bits)}
        kind = "element" + "_inner" * passes_right + "_chained" * passes_load
        super().__init__(library, library.name(kind), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        bits = self.arithmetic.bits
        # reset, so that rows which no tile has used yet multiply zero by zero and not by an unknown
        shadow, active = Signal(bits, name="shadow"), Signal(bits, name="active")
        total = Signal(self.arithmetic.state_bits, reset_less=True)
        product = self.arithmetic.product(m, self.en, self.moving, active)
        total_in = self.arithmetic.added(m, self.en, self.sum, product)
        with m.If(self.en):
            m.d.sync += total.eq(total_in)
            with m.If(self.capture):
                m.d.sync += shadow.eq(self.load)
            if self.arithmetic.clears:
                with m.If(self.clear):
                    m.d.sync += shadow.eq(0)
            with m.If(self.swap):
                m.d.sync += active.eq(shadow)
        m.d.comb += self.sum_out.eq(total)
        if self.passes_right:
            for name in ("moving", *self.controls):
                # without a reset, control that is unknown at power-up would run through the row after the reset
                _register(m, self.en, getattr(self, name), getattr(self, f"{name}_out"), name, reset=name != "moving")
        if self.passes_load:
            load = self.load
            for stage in range(self.arithmetic.add_stages):
                later = Signal(bits, name=f"load_{stage + 1}", reset_less=True)
                _register(m, self.en, load, later, f"load_{stage + 1}")
                load = later
            _register(m, self.en, load, self.load_out, "load")
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
        ports = {
            "en": In(1),
            "a": In(arithmetic.a_bits),
            "b": In(arithmetic.b_bits),
            "valid": In(1),
            "first": In(1),
            "last": In(1),
            "shift": In(1),
            "drain": In(arithmetic.state_bits),
            "drain_out": Out(arithmetic.state_bits),
        }
        if passes_right:
            ports |= {"a_out": Out(arithmetic.a_bits)} | {f"{name}_out": Out(1) for name in CONTROLS}
        if passes_down:
            ports |= {"b_out": Out(arithmetic.b_bits)}
        kind = "element" + "_inner" * passes_right + "_chained" * passes_down
        super().__init__(library, library.name(kind), ports, reset=passes_right or arithmetic.multiply_stages > 0)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        arithmetic, en = self.arithmetic, self.en
        product = arithmetic.product(m, en, self.a, self.b)
        valid, first, last = (arithmetic.flag(m, en, getattr(self, name), name) for name in ("valid", "first", "last"))
        held = Signal(arithmetic.state_bits, reset_less=True)
        finished = Signal(arithmetic.state_bits, reset_less=True)
        total = Signal(arithmetic.state_bits)
        m.d.comb += total.eq(arithmetic.added(m, en, Mux(first, arithmetic.zero, held), product))
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


def stationary_controls(arithmetic: Arithmetic) -> tuple[str, ...]:
    """Control bits of an element that holds an operand; they travel to the right."""
    return ("capture", "swap", "clear") if arithmetic.clears else ("capture", "swap")


CONTROLS = ("valid", "first", "last", "shift")
"""Control bits that travel to the right with operand a."""


def _register(m: Module, en: Signal, source: Signal, target: Signal, name: str, *, reset: bool = False) -> None:
    register = Signal(len(source), name=f"{name}_register", reset_less=not reset)
    with m.If(en):
        m.d.sync += register.eq(source)
    m.d.comb += target.eq(register)
