"""The regulator of transfers proved: it says what counters of cycles and of the memory's time say, compared."""

import importlib.util

import pytest
from amaranth import Signal
from amaranth.lib.wiring import In, Out
from msgspec.structs import replace

from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.dma import Pace
from siliconloom.rtl.npu.geometry import geometry_of
from tests.rtl.contracts import implies
from tests.rtl.npu import small_chip

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)
TIME, FRACTION, BURST = 5, 2, 2
"""Bits of the time that is looked at, of a cycle's parts, and of a burst's beats: more only lengthen the same adder."""
CYCLE = 1 << FRACTION


@pytest.fixture(autouse=True)
def short_numbers(monkeypatch):
    for name, value in {"TIME_BITS": TIME + 2, "FRACTION": FRACTION, "INTERVAL_ONE": CYCLE}.items():
        monkeypatch.setattr(f"siliconloom.rtl.npu.dma.{name}", value)


class Regulated(Monitor):
    """A transfer that advances whenever it likes, and ends once; two counters beside the pace."""

    PROPERTIES = """assume_short assume_port assert_due assert_released invariant_lead invariant_ending invariant_end
    cover_kept cover_released cover_late"""

    def __init__(self, interval, kind):
        self.interval, self.kind = interval, kind
        free = {"start": In(1), "advance": In(1), "final": In(1), "beats": In(BURST), "cycles": In(BURST)}
        ports = free | dict.fromkeys(self.PROPERTIES.split(), Out(1))
        super().__init__(Library("regulated"), "regulated", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        pace = self.kind(m, replace(geometry_of(small_chip()), interval=self.interval), self.start)
        pace.hold(m, self.final, self.final)
        time, passed, running = Signal(TIME), Signal(TIME + FRACTION), Signal()
        ending, end, over = Signal(), Signal(TIME + 1), Signal()
        after = passed + self.beats * self.interval
        due = (after + CYCLE - 1) >> FRACTION
        m.d.comb += [
            pace.beats.eq(self.beats),
            pace.advance.eq(self.advance),
            over.eq((self.final & (time + 1 >= due)) | (ending & (time + 1 >= end))),
        ]
        m.d.sync += time.eq(time + 1)
        with m.If(self.advance):
            m.d.sync += passed.eq(after)
        with m.If(self.final & ~over):
            m.d.sync += [ending.eq(1), end.eq(due)]
        with m.Elif(over):
            m.d.sync += ending.eq(0)
        with m.If(self.start):
            m.d.sync += [time.eq(0), passed.eq(0), running.eq(1)]
        m.d.comb += [
            # neither counter is full, and nobody has the port whose transfer has not let it go
            self.assume_short.eq(~time.all() & (after < 1 << len(passed))),
            self.assume_port.eq(
                implies(self.advance | self.final, running)
                & implies(self.final, self.advance)
                & implies(ending, ~self.advance)
                & implies((ending | self.final) & self.start, over)
            ),
            self.assert_due.eq(implies(running, pace.due_within(self.cycles) == (time + self.cycles >= due))),
            self.assert_released.eq(pace.released == over),
            self.invariant_lead.eq(implies(running, pace.lead == passed + (CYCLE - 1) - (time << FRACTION))),
            self.invariant_ending.eq((pace.ending == ending) & implies(ending, running)),
            self.invariant_end.eq(implies(ending, end == (passed + CYCLE - 1) >> FRACTION)),
            self.cover_kept.eq(ending & ~over),
            self.cover_released.eq(ending & over & self.start),
            self.cover_late.eq(running & (passed >> FRACTION < time)),
        ]
        return m


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("interval", [CYCLE, CYCLE + 1, 2 * CYCLE - 1])
def test_what_is_due_is_what_counters_say(interval):
    assert prove(Regulated(interval, Pace), depth=5, induction=1).induction == 1


class PaceThatForgetsTheRest(Pace):
    """Its lead begins at nothing: what is left of a cycle does not count as one that has begun."""

    def __init__(self, m, geometry, start):
        super().__init__(m, geometry, start)
        with m.If(start):
            m.d.sync += self.lead.eq(0)


def test_a_pace_that_rounds_down_is_found():
    found = check(Regulated(CYCLE + 1, PaceThatForgetsTheRest), depth=5)
    assert found.counterexample is not None
    assert {"assert_due", "assert_released"} & {*found.counterexample.broken}
