"""The counting semaphore with which one unit tells another that operands, or room for results, are there."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import SEMAPHORE_LIMIT
from siliconloom.rtl.library import Circuit, Library, seen


class SemaphoreCounter(Circuit):
    """A count that is given to and taken from; given and taken in the same cycle, both happen.

    A give that would lift the count above its largest value, after what is taken in the same cycle, is dropped as a
    whole; a take at zero has no effect, whatever is given in the same cycle.

    Parameters
    ----------
    width
        Bits of the count; at least 2. The default holds ``SEMAPHORE_LIMIT`` of the instruction set.

    Members
    -------
    load, initial : In(1), In(width)
        Set the count; what is given or taken in that cycle is lost.
    take : In(1)
        Take one.
    give : In(2)
        How many to add.
    available : Out(1)
        The count is above zero; depends on registers only.
    level : Out(width)
        The count; depends on registers only.
    overflow, underflow : Out(1)
        One cycle high after a give was dropped, after a take had no effect; depend on registers only.
    """

    LATENCY = 1
    """Cycles from a give to the count that ``available`` shows."""

    def __init__(self, library: Library, width: int = SEMAPHORE_LIMIT.bit_length()) -> None:
        if width < 2:
            raise LoomError(f"the width of a semaphore is at least 2, that of what is given (got {width})")
        self.width = width
        ports = {
            "load": In(1),
            "initial": In(width),
            "take": In(1),
            "give": In(2),
            "available": Out(1),
            "level": Out(width),
            "overflow": Out(1),
            "underflow": Out(1),
        }
        super().__init__(library, library.name("semaphore", width), ports, reset=True)
        # What is given comes late: it stands in registers for a cycle, `kept` is the count without it.
        self.kept, self.given = seen(width, name="kept"), seen(2, name="given")
        # whether their sum is above zero
        self.some = Signal(name="some")

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        kept, given = self.kept, self.given
        low = Signal(3)
        high = Signal(self.width - 1)
        total = Cat(low[:2], high)
        less = Signal(self.width)
        m.d.comb += [
            # In two parts, because Verilator complains of a sum whose terms differ in width.
            low.eq(kept[:2] + given),
            high.eq(kept[2:] + low[2]),
            self.overflow.eq(total[-1]),
            self.level.eq(Mux(self.overflow, kept, total[: self.width])),
            self.available.eq(self.some),
            less.eq(self.level - 1),
        ]
        m.d.sync += [
            self.underflow.eq(self.take & ~self.available & ~self.load),
            given.eq(Mux(self.load, 0, self.give)),
        ]
        several = Signal()
        m.d.comb += several.eq((kept[1:] != 0) | (~self.overflow & (given[1] | (kept[0] & given[0]))))
        with m.If(self.load):
            m.d.sync += [kept.eq(self.initial), self.some.eq(self.initial != 0)]
        with m.Elif(self.take & self.available):
            m.d.sync += [kept.eq(less), self.some.eq(several | (self.give != 0))]
        with m.Else():
            m.d.sync += [kept.eq(self.level), self.some.eq(self.available | (self.give != 0))]
        return m
