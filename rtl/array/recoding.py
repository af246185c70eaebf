"""The edge at which operands of an array of digit-serial elements become digits that are not zero, one a cycle."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch.digits import place_bits
from siliconloom.rtl.library import Circuit, Library


class DigitLane(Circuit):
    """The digits of one operand, as `arch.digits` has them: those that are left, lowest first.

    Parameters
    ----------
    bits
        Of an operand, in two's complement.

    Members
    -------
    take : In(1)
        Take the operand at ``i``.
    step : In(1)
        The digit at ``o`` is used; what is left are the others.
    i : In(bits)
        An operand.
    o : Out
        Code of the lowest digit that is left (`rtl.array.carry_save.DigitArithmetic`), of zero where none is.
    more : Out(1)
        Another one is left behind it.
    """

    def __init__(self, library: Library, bits: int) -> None:
        self.bits = bits
        ports = {"take": In(1), "step": In(1), "i": In(bits), "o": Out(3 + place_bits(bits)), "more": Out(1)}
        super().__init__(library, library.name("digits", bits), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        count, width = self.bits // 2, place_bits(self.bits)
        magnitude, negative = Signal(self.bits), self.i[-1]
        m.d.comb += magnitude.eq((self.i ^ negative.replicate(self.bits)) + negative)
        ones, twos, minus = (Signal(count, name=name) for name in ("ones", "twos", "minus"))
        carry: Value = Const(0, 1)
        for place in range(count):
            low, high = magnitude[2 * place], magnitude[2 * place + 1]
            digit = Signal(2, name=f"digit_{place}")
            m.d.comb += [
                digit.eq(Cat(low, high) + carry),
                ones[place].eq(digit[0]),
                twos[place].eq(digit[1] & ~digit[0]),
                minus[place].eq(negative ^ digit.all()),
            ]
            carry, before = Signal(name=f"carry_{place}"), carry
            m.d.comb += carry.eq((low & high) | (high & before))
        left = Signal(count, name="left")
        kept_twos, kept_minus = (Signal(count, name=f"kept_{name}", reset_less=True) for name in ("twos", "minus"))
        lowest, others = Signal(count, name="lowest"), Signal(count, name="others")
        m.d.comb += [lowest.eq(left & (~left + 1)), others.eq(left & ~lowest)]
        with m.If(self.take):
            m.d.sync += [left.eq(ones | twos), kept_twos.eq(twos), kept_minus.eq(minus)]
        with m.Elif(self.step):
            m.d.sync += left.eq(others)
        places = [Cat(*(lowest[n] for n in range(count) if n >> bit & 1)).any() for bit in range(width)]
        two = (lowest & kept_twos).any()
        m.d.comb += [
            self.o.eq(Cat(left.any() & ~two, two, (lowest & kept_minus).any(), *places)),
            self.more.eq(others.any()),
        ]
        return m


class DigitEdge(Circuit):
    """Beats of operands as beats of digits: as many as that operand has that has most, one at least.

    A register stands between operands and digits. The next beat is taken in the cycle in which the last digits of the
    one before are.

    Parameters
    ----------
    lanes, bits
        Operands of a beat, and their width.
    b_width
        Of what goes with a beat, as it is, all the while.

    Members
    -------
    en : In(1)
        Advance.
    valid, a, b, last : In
        A beat, and whether it ends a fold.
    ready : Out(1)
        It is taken.
    may_end : In(1)
        The last digits of a fold may leave.
    fires : Out(1)
        Digits leave.
    first, ends : Out(1)
        They are the first, the last of a fold.
    a_out : Out
        A digit for each operand, zero where it has none left.
    b_out : Out
        What goes with them.
    """

    def __init__(self, library: Library, lanes: int, bits: int, b_width: int) -> None:
        self.lanes, self.bits, self.b_width = lanes, bits, b_width
        self.code = 3 + place_bits(bits)
        ports = {
            "en": In(1),
            "valid": In(1),
            "a": In(lanes * bits),
            "b": In(b_width),
            "last": In(1),
            "ready": Out(1),
            "may_end": In(1),
            "fires": Out(1),
            "first": Out(1),
            "ends": Out(1),
            "a_out": Out(lanes * self.code),
            "b_out": Out(b_width),
        }
        super().__init__(library, library.name("digit_edge", f"{lanes}x{bits}"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        held, begins, last = Signal(name="held"), Signal(name="begins", init=1), Signal(name="held_last")
        b = Signal(self.b_width, name="held_b", reset_less=True)
        done, taken = Signal(name="done"), Signal(name="taken")
        kind = self.library.make(DigitLane, self.bits)
        lanes = [
            self.place(m, kind, f"lane_{n}", take=taken, step=self.fires, i=self.a[n * self.bits : (n + 1) * self.bits])
            for n in range(self.lanes)
        ]
        m.d.comb += [
            done.eq(~Cat(*(lane.more for lane in lanes)).any()),
            self.ends.eq(self.fires & done & last),
            self.fires.eq(self.en & held & ~(done & last & ~self.may_end)),
            self.ready.eq(self.en & (~held | (self.fires & done))),
            taken.eq(self.valid & self.ready),
            self.first.eq(begins),
            self.a_out.eq(Cat(*(lane.o for lane in lanes))),
            self.b_out.eq(b),
        ]
        with m.If(taken):
            m.d.sync += [held.eq(1), b.eq(self.b), last.eq(self.last)]
        with m.Elif(self.fires & done):
            m.d.sync += held.eq(0)
        with m.If(self.fires):
            m.d.sync += begins.eq(Mux(done, last, 0))
        return m


__all__ = ["DigitEdge", "DigitLane"]
