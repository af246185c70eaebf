"""The counting semaphore with which one unit tells another that operands, or room for results, are there."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import SEMAPHORE_LIMIT
from siliconloom.rtl.library import Circuit, Library


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
        The count, a register.
    overflow, underflow : Out(1)
        One cycle high after a give was dropped, after a take had no effect; registers.
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

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        kept = Signal(self.width)
        low = Signal(3)
        high = Signal(self.width - 1)
        total = Cat(low[:2], high)
        m.d.comb += [
            self.available.eq(self.level != 0),
            kept.eq(self.level - (self.take & self.available)),
            # In two parts, because Verilator complains of a sum whose terms differ in width.
            low.eq(kept[:2] + self.give),
            high.eq(kept[2:] + low[2]),
        ]
        full = total[-1]
        m.d.sync += [self.overflow.eq(full & ~self.load), self.underflow.eq(self.take & ~self.available & ~self.load)]
        with m.If(self.load):
            m.d.sync += self.level.eq(self.initial)
        with m.Elif(full):
            m.d.sync += self.level.eq(kept)
        with m.Else():
            m.d.sync += self.level.eq(total[: self.width])
        return m
