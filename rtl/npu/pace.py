"""The regulator of transfers: at what pace their bytes may go, and until when a transfer has the port."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from siliconloom.arch.description import INTERVAL_ONE
from siliconloom.rtl.library import seen
from siliconloom.rtl.npu.geometry import LONGEST_BURST, Geometry, log2

FRACTION = INTERVAL_ONE.bit_length() - 1
TIME_BITS = 48


def fill(geometry: Geometry, width_more: Value) -> Value:
    """Beats that the last ones of a row count in addition, to fill an access; it has so many beats behind the first."""
    access = geometry.access // geometry.bus
    return ~width_more[: log2(access)] if access > 1 else Const(0, 1)


def longest(geometry: Geometry) -> int:
    """The longest time of a burst."""
    return (LONGEST_BURST + geometry.access // geometry.bus) * geometry.interval


def slack_of(cycles: Value | int, time: Value) -> Value:
    """What `Pace` may be ahead of beats that take a ``time`` for them to be over so many cycles from now."""
    return time - (Value.cast(cycles + 1) << FRACTION)


class Pace:
    """The regulator: how far a transfer's bytes are ahead of the time that has passed since it began.

    It begins in the cycle after one in which it ``rests``, or of ``start``.

    Beats are counted as the memory moves them: every row is rounded up to whole accesses. With T cycles passed, and
    beats so far that take P of them, the next ones taking B, everything is over in cycle ceil(P + B). So it is due
    within n cycles when ceil(P + B) <= T + n, which is P + B + 1 - e < T + n + 1 with e the least part of a cycle.
    ``lead`` is P + 1 - e - T, in parts of a cycle of which `INTERVAL_ONE` are one, as all times and slacks here
    are: what is due is the sign of a sum. Who uses it drives the ``time`` B of the beats that ``advance`` it, which
    is at ``most`` so long.
    """

    def __init__(self, m: Module, most: int, start: Value | None = None) -> None:
        self.rests = Signal(name="pace_rests")
        self.advance = Signal(name="pace_advance")
        self.released = Signal(name="pace_released")
        self.lead = seen(signed(TIME_BITS + FRACTION + 1), name="pace_lead")
        self.time = Signal(range(most + 1), name="pace_time")
        # Everything so far is over a cycle from now; of the cycle to come, so that it is a register.
        self.nearly = seen(name="pace_nearly")
        soon = slack_of(2, Const(0))
        with m.If(self.rests if start is None else self.rests | start):
            m.d.sync += [self.lead.eq(INTERVAL_ONE - 1), self.nearly.eq(1)]
        with m.Elif(self.advance):
            m.d.sync += [
                self.lead.eq(self.lead + (self.time - INTERVAL_ONE)),
                self.nearly.eq(self.is_due(self.time + soon)),
            ]
        with m.Else():
            m.d.sync += [self.lead.eq(self.lead - INTERVAL_ONE), self.nearly.eq(self.is_due(soon))]

    def is_due(self, slack: Value) -> Value:
        """Whether everything up to and including beats of such a slack is over in time.

        The sign of the lead and the slack: of the lead's upper bits, which the sum of the lower ones goes under, or
        over, or does neither.
        """
        slack = Value.cast(slack)
        low = len(slack) - slack.shape().signed
        if low >= len(self.lead):
            return self.lead + slack < 0
        total = Cat(self.lead[:low], Const(0, 1)).as_signed() + slack
        upper, under, over = self.lead[low:], total[-1], total[low] & ~total[-1]
        return Mux(under, upper[-1] | ~upper.any(), upper[-1] & ~(over & upper.all()))

    def hold(self, m: Module, active: Signal, final: Value, soon: Value) -> Signal:
        """Whether the port is held in this cycle: until the cycle before the last one of all beats' time.

        Beats that advance it may be the ``final`` ones, and then that time may be over a cycle from now (``soon``).
        """
        self.ending = ending = seen(name="pace_ending")
        over = Signal(name="pace_over")
        m.d.comb += [
            over.eq(soon | (ending & self.nearly)),
            self.released.eq(over),
            self.rests.eq(over | ~(active | ending)),
        ]
        with m.If(over):
            m.d.sync += ending.eq(0)
        with m.Elif(final):
            m.d.sync += ending.eq(1)
        held = Signal(name="pace_held")
        m.d.comb += held.eq((active | ending) & ~over)
        return held
