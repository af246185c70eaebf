"""The credit counter of a sender: how many more transfers the receiver has room for."""

from __future__ import annotations

from amaranth import Module, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.library import Circuit, Library


class CreditCounter(Circuit):
    """Counts credits between 0 and ``credits``; all of them are there after reset.

    Spent and given in the same cycle, both happen. Neither a spend at zero nor a give beyond ``credits`` has an
    effect; both are errors.

    Parameters
    ----------
    credits
        Most credits; at least 1.

    Members
    -------
    spend : In(1)
        Use one credit.
    give : In(1)
        One comes back.
    available : Out(1)
        There is a credit to spend; depends on registers only.
    level : Out(range(credits + 1))
        Credits left, a register.
    error : Out(1)
        One cycle high after a spend or a give had no effect; a register.
    """

    def __init__(self, library: Library, credits: int) -> None:
        if credits < 1:
            raise LoomError(f"the credits of a credit counter are at least 1 (got {credits})")
        self.credits = credits
        ports = {
            "spend": In(1),
            "give": In(1),
            "available": Out(1),
            "level": Out(range(credits + 1), init=credits),
            "error": Out(1),
        }
        super().__init__(library, library.name("credits", credits), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        spent = Signal()
        surplus = Signal()
        m.d.comb += [
            self.available.eq(self.level != 0),
            spent.eq(self.spend & self.available),
            surplus.eq(self.give & ~spent & (self.level == self.credits)),
        ]
        m.d.sync += self.error.eq((self.spend & ~self.available) | surplus)
        with m.If(spent & ~self.give):
            m.d.sync += self.level.eq(self.level - 1)
        with m.Elif(self.give & ~spent & ~surplus):
            m.d.sync += self.level.eq(self.level + 1)
        return m
