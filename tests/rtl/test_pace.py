"""The regulator of transfers proved: it says what counters of cycles and of the memory's time say, compared."""

import importlib.util

import pytest
from amaranth import Signal
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.pace import Pace, slack_of
from tests.rtl.contracts import implies

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)
TIME, FRACTION, BURST = 5, 2, 2
"""Bits of the time that is looked at, of a cycle's parts, and of a burst's beats: more only lengthen the same adder."""
CYCLE = 1 << FRACTION


@pytest.fixture(autouse=True)
def short_numbers(monkeypatch):
    for name, value in {"TIME_BITS": TIME + 2, "FRACTION": FRACTION, "INTERVAL_ONE": CYCLE}.items():
        monkeypatch.setattr(f"siliconloom.rtl.npu.pace.{name}", value)


class Regulated(Monitor):
    """A transfer that advances whenever it likes, and ends once; two counters beside the pace."""

    PROPERTIES = """assume_short assume_port assert_due assert_released invariant_lead invariant_nearly
    invariant_ending invariant_end cover_kept cover_released cover_late"""

    def __init__(self, interval, kind):
        self.interval, self.kind = interval, kind
        free = {"start": In(1), "advance": In(1), "final": In(1), "beats": In(BURST), "cycles": In(BURST)}
        ports = free | dict.fromkeys(self.PROPERTIES.split(), Out(1))
        super().__init__(Library("regulated"), "regulated", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        pace, active = self.kind(m, ((1 << BURST) - 1) * self.interval), Signal()
        soon = pace.is_due(slack_of(1, pace.time))
        pace.hold(m, active, self.final, self.final & soon)
        time, passed, running = Signal(TIME), Signal(TIME + FRACTION), Signal()
        ending, end, over = Signal(), Signal(TIME + 1), Signal()
        after = passed + self.beats * self.interval
        due = (after + CYCLE - 1) >> FRACTION
        m.d.comb += [
            pace.time.eq(self.beats * self.interval),
            pace.advance.eq(self.advance),
            over.eq((self.final & (time + 1 >= due)) | (ending & (time + 1 >= end))),
        ]
        m.d.sync += time.eq(time + 1)
        with m.If(self.advance):
            m.d.sync += passed.eq(after)
        going = active | ending
        with m.If(self.final & ~over):
            m.d.sync += [ending.eq(1), end.eq(due)]
        with m.Elif(over):
            m.d.sync += ending.eq(0)
        with m.If(self.start):
            m.d.sync += [time.eq(0), passed.eq(0), running.eq(1)]
        m.d.sync += active.eq(self.start | (active & ~self.final))
        m.d.comb += [
            # neither counter is full, and nobody has the port whose transfer has not let it go
            self.assume_short.eq(~time.all() & (after < 1 << len(passed))),
            self.assume_port.eq(
                implies(self.advance, active)
                & implies(self.final, self.advance)
                & implies((ending | active) & self.start, over)
            ),
            self.assert_due.eq(
                implies(going, pace.is_due(slack_of(self.cycles, pace.time)) == (time + self.cycles >= due))
            ),
            self.assert_released.eq(pace.released == over),
            self.invariant_lead.eq(implies(going, pace.lead == passed + (CYCLE - 1) - (time << FRACTION))),
            self.invariant_nearly.eq(implies(going, pace.nearly == (pace.lead < 2 * CYCLE))),
            self.invariant_ending.eq((pace.ending == ending) & implies(going, running) & ~(active & ending)),
            self.invariant_end.eq(implies(ending, end == (passed + CYCLE - 1) >> FRACTION)),
            self.cover_kept.eq(ending & ~over),
            self.cover_released.eq(ending & over & self.start),
            self.cover_late.eq(going & (passed >> FRACTION < time)),
        ]
        return m


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("interval", [CYCLE, CYCLE + 1, 2 * CYCLE - 1])
def test_what_is_due_is_what_counters_say(interval):
    assert prove(Regulated(interval, Pace), depth=5, induction=1).induction == 1


class PaceThatForgetsTheRest(Pace):
    """Its lead begins at nothing: what is left of a cycle does not count as one that has begun."""

    def __init__(self, m, most):
        super().__init__(m, most)
        with m.If(self.rests):
            m.d.sync += self.lead.eq(0)


class PaceThatEndsSoon(Pace):
    """What is over a cycle from now is told as if no beats had gone out in the cycle before."""

    def __init__(self, m, most):
        super().__init__(m, most)
        with m.If(self.advance & ~self.rests):
            m.d.sync += self.nearly.eq(self.is_due(slack_of(2, self.time * 0)))


def test_a_pace_that_ends_too_soon_is_found():
    found = check(Regulated(CYCLE + 1, PaceThatEndsSoon), depth=6)
    assert found.counterexample is not None
    assert "assert_released" in found.counterexample.broken


def test_a_pace_that_rounds_down_is_found():
    found = check(Regulated(CYCLE + 1, PaceThatForgetsTheRest), depth=5)
    assert found.counterexample is not None
    assert {"assert_due", "assert_released"} & {*found.counterexample.broken}
