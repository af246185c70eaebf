"""The timers of PIM commands proved: they say what counters of cycles and of activations say."""

import importlib.util

import pytest
from amaranth import Cat, Const, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Library
from siliconloom.rtl.pim.timers import activation_window, elapsed
from tests.rtl.contracts import implies

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)


def settled(cycles):
    """After so many cycles a counter below ``cycles`` that began anywhere is one again."""
    return 1 << (cycles - 1).bit_length() if cycles > 1 else 1


class After(Monitor):
    """Cycles since the last event are counted beside the timer."""

    def __init__(self, cycles, timer):
        self.cycles, self.timer = cycles, timer
        ports = {"event": In(1), **dict.fromkeys(("assert_elapsed", "cover_waits", "cover_again"), Out(1))}
        super().__init__(Library("timer"), "after", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        ready = self.timer(m, "it", self.event, self.cycles)
        since, before = Signal(range(self.cycles + 1), init=self.cycles), Signal()
        with m.If(self.event):
            m.d.sync += since.eq(1)
        with m.Elif(since != self.cycles):
            m.d.sync += since.eq(since + 1)
        m.d.sync += before.eq(self.event)
        m.d.comb += [
            self.assert_elapsed.eq(ready == (since == self.cycles)),
            self.cover_waits.eq(~ready if self.cycles > 1 else ready),
            self.cover_again.eq(before & self.event),
        ]
        return m


@pytest.mark.parametrize("cycles", [1, 2, 3, 7, 16, 21])
def test_a_command_waits_for_as_long_as_it_has_to(cycles):
    k = settled(cycles) + 1
    assert prove(After(cycles, elapsed), depth=k, induction=k).induction == k


class Window(Monitor):
    """What was activated in the last cycles is kept beside the timer; who asks obeys it."""

    def __init__(self, cycles, banks, timer):
        self.cycles, self.banks, self.timer = cycles, banks, timer
        properties = ("assume_obeys", "assume_one", "assert_one", "assert_banks", "cover_full", "cover_again")
        ports = {"single": In(1), "several": In(1), **dict.fromkeys(properties, Out(1))}
        super().__init__(Library("window"), "window", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        one, several = self.timer(m, "it", [(self.single, 1), (self.several, self.banks)], self.cycles, self.banks)
        history = [Signal(3, name=f"opened_{age}") for age in range(1, self.cycles)]
        opened, total = Signal(3), Signal(range(8 * self.cycles))
        m.d.comb += [
            opened.eq(self.single + Cat(Const(0, self.banks.bit_length() - 1), self.several)),
            total.eq(sum(history, Const(0))),
        ]
        for earlier, later in zip([opened, *history], history, strict=False):
            m.d.sync += later.eq(earlier)
        m.d.comb += [
            self.assume_one.eq(~(self.single & self.several)),
            self.assume_obeys.eq(implies(self.single, one) & implies(self.several, several)),
            self.assert_one.eq(one == (total + 1 <= 4)),
            self.assert_banks.eq(several == (total + self.banks <= 4)),
            self.cover_full.eq((total == 4) if self.cycles > 4 or self.banks > 1 else total == self.cycles - 1),
            self.cover_again.eq(self.single & (history[-1] != 0)),
        ]
        return m


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("cycles", "banks"), [(2, 4), (5, 2), (6, 1), (8, 4), (9, 2)])
def test_no_window_has_more_than_four_activations(cycles, banks):
    k = settled(cycles) + 1
    assert prove(Window(cycles, banks, activation_window), depth=k + 1, induction=k).induction == k


def test_a_timer_that_is_a_cycle_short_is_found():
    found = check(After(5, lambda m, name, event, cycles: elapsed(m, name, event, cycles - 1)), depth=7)
    assert found.counterexample.broken == ("assert_elapsed",)


def test_a_window_that_is_a_cycle_short_is_found():
    def short(m, name, events, cycles, banks):
        return activation_window(m, name, events, cycles - 1, banks)

    found = check(Window(6, 4, short), depth=9, only="assert_one")
    assert found.counterexample is not None


def test_a_window_that_counts_one_bank_of_several_is_found():
    def single(m, name, events, cycles, banks):
        return activation_window(m, name, [(strobe, 1) for strobe, _ in events], cycles, banks)

    found = check(Window(6, 4, single), depth=9)
    assert found.counterexample is not None
