"""What a proof says and refuses: covers, counterexamples, inductions that do not close, monitors that prove nothing."""

import importlib.util
import sys

import pytest
from amaranth import DomainRenamer, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch import CheckFailed, LoomError, NotSupported
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Circuit, Library

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)


class Toggle(Monitor):
    """What the engine itself is tried on; ``describe`` adds the properties."""

    def __init__(self, properties, describe, *, reset=True):
        self.describe = describe
        super().__init__(
            Library("toggle"), "toggle", {"go": In(1), **dict.fromkeys(properties.split(), Out(1))}, reset=reset
        )

    def elaborate(self, platform):
        m = self.module()
        self.describe(m, self)
        return m


def counter(m, monitor):
    """Counts to five."""
    count = Signal(3)
    m.d.sync += count.eq(Mux(count == 5, 0, count + monitor.go))
    return count


def small(m, t):
    m.d.comb += [t.assert_small.eq(counter(m, t) < 6), t.cover_five.eq(counter(m, t) == 5)]


def test_an_outcome_says_what_is_known():
    monitor = Toggle("assert_small cover_five", small)
    outcome = prove(monitor, depth=8, induction=1)
    assert outcome.covered == {"cover_five": 6}
    assert "1 assertions hold in every cycle (k = 1)" in str(outcome)
    assert "in the first 8 cycles" in str(prove(monitor, depth=8))


def test_a_cover_that_is_not_reached_is_no_proof():
    outcome = check(Toggle("assert_small cover_five", small), depth=5)
    assert not outcome.proved
    assert str(outcome) == "toggle: cover_five not reached within 5 cycles"
    with pytest.raises(CheckFailed, match="cover_five not reached"):
        prove(Toggle("assert_small cover_five", small), depth=5)


def test_a_counterexample_is_a_table_of_ports_and_registers():
    def describe(m, t):
        count = counter(m, t)
        m.d.comb += [t.assert_below.eq(count < 2), t.cover_one.eq(count == 1)]

    with pytest.raises(CheckFailed) as found:
        prove(Toggle("assert_below cover_one", describe), depth=9)
    lines = found.value.__notes__[0].splitlines()
    assert lines[0] == str(found.value)
    assert lines[0] == "toggle: assert_below broken from reset; values are hexadecimal:"
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["cycle"] == ["0", "1", "2", "3"]
    assert rows["rst"][:3] == ["1", "0", "0"]
    assert rows["go"][1:3] == ["1", "1"]
    assert rows["count"][1:] == ["0", "1", "2"]
    assert rows["assert_below"][1:] == ["1", "1", "0"]


def test_an_induction_that_does_not_close_is_no_bug():
    """Seven is never reached, but is not excluded: after it comes eight, which is zero."""

    def describe(m, t):
        count = counter(m, t)
        m.d.comb += [t.assert_not_seven.eq(count != 7), t.cover_one.eq(count == 1)]

    monitor = Toggle("assert_not_seven cover_one", describe)
    outcome = check(monitor, depth=9, induction=2)
    assert not outcome.proved
    assert not outcome.counterexample.reachable
    assert "may never be reached" in str(outcome)
    assert prove(monitor, depth=9, induction=2, distinct=True).induction == 2


def test_a_register_without_reset_starts_with_any_value():
    def describe(m, t):
        flag = Signal(reset_less=True)
        m.d.comb += [t.assert_zero.eq(~flag), t.cover_go.eq(t.go)]
        m.d.sync += flag.eq(flag)

    assert check(Toggle("assert_zero cover_go", describe), depth=1).counterexample.broken == ("assert_zero",)


def test_assumptions_restrict_and_may_not_contradict():
    def describe(m, t):
        count = counter(m, t)
        m.d.comb += [t.assume_still.eq(~t.go), t.assert_zero.eq(count == 0), t.cover_zero.eq(count == 0)]

    assert prove(Toggle("assume_still assert_zero cover_zero", describe), depth=3, induction=1)

    def contradict(m, t):
        describe(m, t)
        m.d.comb += t.assume_go.eq(t.go)

    with pytest.raises(LoomError, match="the assumptions leave no run of 3 cycles"):
        check(Toggle("assume_still assume_go assert_zero cover_zero", contradict), depth=3)


def test_a_clock_that_is_no_port_is_refused():
    def describe(m, t):
        inner = SemaphoreCounter(Library("inner"), 3)
        m.submodules.inner = DomainRenamer("other")(inner)
        m.d.comb += [t.assert_full.eq(inner.level == 0), t.cover_go.eq(t.go), inner.give.eq(t.go)]

    with pytest.raises(LoomError, match="is not clocked by the rising edge of clk"):
        check(Toggle("assert_full cover_go", describe), depth=5)


@pytest.mark.parametrize(
    ("properties", "reset", "rule"),
    [
        ("assert_small", True, "at least one output cover_"),
        ("cover_five", True, "at least one output assert_"),
        ("assert_small cover_five", False, "a monitor has a reset"),
    ],
)
def test_a_monitor_that_cannot_prove_anything_is_refused(properties, reset, rule):
    def describe(m, t):
        for name in properties.split():
            m.d.comb += getattr(t, name).eq(counter(m, t) == 1)

    with pytest.raises(LoomError, match=rule):
        check(Toggle(properties, describe, reset=reset), depth=5)


def test_a_depth_below_the_induction_is_refused():
    with pytest.raises(LoomError, match="at least 1, and its induction"):
        check(Toggle("assert_small cover_five", small), depth=2, induction=3)


def test_an_assertion_that_is_not_there_is_refused():
    with pytest.raises(LoomError, match="toggle has no assertion assert_smal, only assert_small"):
        check(Toggle("assert_small cover_five", small), depth=2, only="assert_smal")


def test_a_circuit_that_is_written_in_verilog_takes_part():
    class Inverter(Circuit):
        def __init__(self, library):
            super().__init__(library, library.name("inverter"), {"i": In(1), "o": Out(1)})

        def written(self):
            name = self.module_name
            return f"module {name}(input clk, input i, output reg o); always @(posedge clk) o <= ~i; endmodule"

    def describe(m, t):
        inverted = t.place(m, t.library.make(Inverter), "inverter", i=t.go).o
        before = Signal(reset_less=True)
        m.d.sync += before.eq(t.go)
        m.d.comb += [t.assert_inverted.eq(inverted == ~before), t.assert_equal.eq(inverted == before)]
        m.d.comb += t.cover_go.eq(before)

    properties = "assert_inverted assert_equal cover_go"
    assert prove(Toggle(properties, describe), depth=3, induction=1, only="assert_inverted")
    assert not check(Toggle(properties, describe), depth=3, only="assert_equal").proved


@pytest.mark.parametrize(("package", "name"), [("pyosys", "pyosys"), ("z3", "z3-solver")])
def test_a_missing_package_is_named(package, name, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotSupported, match=f"not supported: .*install {name}"):
        check(Toggle("assert_small cover_five", small), depth=2)
