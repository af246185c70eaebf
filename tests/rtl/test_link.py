"""The chip-to-chip link: every flit once, in order, in the cycle that the model says, whatever goes wrong."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.link import LinkProtocol, Symbol, crc32c
from siliconloom.rtl.bench.link_cases import PATTERN, SETTLE, run_link_cases
from siliconloom.sim.network.link import ErrorPattern, Faults, run_link
from siliconloom.verification.link import compare_link
from siliconloom.verification.link_cases import modelled_link, random_link_case
from tests.in_turn import in_turn

LINKS = [
    LinkProtocol(wire_cycles=0, packet_flits=1, outstanding=1, credits=1, timeout=7),
    LinkProtocol(),
    LinkProtocol(flit_bits=128, wire_cycles=3, packet_flits=4, outstanding=2, credits=8, timeout=20),
    LinkProtocol(wire_cycles=40, packet_flits=8, outstanding=16, credits=16, timeout=95),
    LinkProtocol(wire_cycles=1, packet_flits=16, outstanding=4, credits=256, timeout=200),
]
RATES = (0, 0, 0.002, 0.01, 0.05)
icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")


def compared(protocol, cases, folder, simulator):
    outcomes = run_link_cases(protocol, cases, folder=folder, simulator=simulator)
    for number, (case, outcome) in enumerate(zip(cases, outcomes, strict=True)):
        parity = compare_link(protocol, number, case, outcome)
        assert parity.value_errors + parity.cycle_errors == []
        end = outcome.delivered[-1] + SETTLE
        hit = sum(bool(f.control) and protocol.wire_cycles < f.cycle <= end for f in case.faults)
        # until the first control word is there
        assert outcome.counters["control_errors"] == hit + protocol.wire_cycles + 1
    return outcomes


@pytest.mark.slow(seconds=10)
@icarus
@pytest.mark.rtl
@pytest.mark.parametrize("number", range(len(LINKS)))
def test_cycles_equal_the_models_with_and_without_errors(tmp_path, number):
    protocol = LINKS[number]
    cases = [random_link_case(protocol, 10 * number + n, rate, 120) for n, rate in enumerate(RATES)]
    outcomes = compared(protocol, cases, tmp_path, "icarus")
    assert all(o.counters["retries"] == 0 for o in outcomes[:2])
    assert sum(o.counters["retries"] for o in outcomes) > 2


@pytest.mark.rtl
@pytest.mark.slow
def test_cycles_equal_the_models_on_long_runs(seed, tmp_path):
    """One of two links a day, with other flits and wrong bits each."""
    protocol = (LinkProtocol(), LinkProtocol(flit_bits=256, wire_cycles=33, credits=128))[seed % 2]
    cases = [random_link_case(protocol, 100 * (seed + 1) + n, RATES[n % len(RATES)], flits=4000) for n in range(20)]
    compared(protocol, cases, tmp_path, "verilator")


@icarus
@pytest.mark.rtl
@pytest.mark.parametrize("number", in_turn([1, 2], 0))
def test_any_wrong_bits_at_all_lose_and_repeat_nothing(tmp_path, number):
    protocol = LINKS[number]
    cases = [random_link_case(protocol, 70 + n, rate, 120, harsh=True) for n, rate in enumerate((0.005, 0.02, 0.05))]
    outcomes = run_link_cases(protocol, cases, folder=tmp_path, simulator="icarus")
    for case, outcome in zip(cases, outcomes, strict=True):
        assert outcome.ended
        assert outcome.flits == list(case.flits)
        assert outcome.counters["errors"] > 0


@pytest.mark.slow(seconds=1.5)
@icarus
@pytest.mark.rtl
def test_a_link_with_another_wire_is_found_out(tmp_path):
    case = random_link_case(LINKS[1], 5, flits=100)
    built = LINKS[1].model_copy(update={"wire_cycles": 9})
    (outcome,) = run_link_cases(built, [case], folder=tmp_path, simulator="icarus")
    parity = compare_link(LINKS[1], 0, case, outcome)
    assert parity.value_errors == []
    assert (parity.divergence.stream, parity.divergence.number) == ("delivered flit", 0)
    assert any("first difference: delivered flit 0" in error for error in parity.cycle_errors)


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), number=st.integers(0, len(LINKS) - 1), rate=st.sampled_from(RATES))
def test_the_model_delivers_after_the_way_and_within_the_credits(seed, number, rate):
    protocol = LINKS[number]
    case = random_link_case(protocol, seed, rate, flits=120)
    run = modelled_link(protocol, case)
    assert len(run.taken) == len(run.delivered) == len(case.flits)
    assert np.all(np.diff(run.delivered) > 0)
    lead = np.array(run.delivered) - np.array(run.taken)
    assert lead.min() >= protocol.wire_cycles + 5  # head, a flit, tail, and a register on either side
    # what is under way fits the buffer and the slots
    kept = protocol.credits + (protocol.outstanding + 1) * protocol.packet_flits
    assert all(run.delivered[i] < run.taken[i + kept] for i in range(len(case.flits) - kept))


def test_a_link_under_load_moves_what_heads_and_tails_leave():
    protocol = LinkProtocol(wire_cycles=8, packet_flits=16, outstanding=8, credits=256)
    run = run_link(protocol, [n % 16 == 15 for n in range(16 * 100)], ErrorPattern(), ErrorPattern())
    assert run.delivered[-1] - run.delivered[15] == 99 * 18
    assert protocol.efficiency == 16 / 18


def test_a_sink_that_never_takes_is_an_error_and_no_hang():
    never = np.zeros(PATTERN, bool)
    with pytest.raises(LoomError, match="a pattern of waits needs a cycle without one"):
        ErrorPattern(never)
    seldom = never.copy()
    seldom[7] = True
    with pytest.raises(LoomError, match="delivered 1 of 2 flits within 20,000 cycles"):
        run_link(LinkProtocol(), [True, True], ErrorPattern(), ErrorPattern(seldom), limit=20_000)


def test_one_lost_head_costs_a_round_of_asking():
    protocol = LinkProtocol()
    clean = run_link(protocol, [True], ErrorPattern(), ErrorPattern())
    # taken in 0, head decided in 1, on the other side in 2 + wire
    lost = run_link(protocol, [True], ErrorPattern(), ErrorPattern(), Faults(symbols=[2 + protocol.wire_cycles]))
    assert lost.counts.retries == lost.counts.errors == 1
    assert lost.counts.timeouts == 0
    # nak registered, on its way back, gone back, head again: 2 wires, and 4 registers and decisions on the way
    assert lost.delivered[0] - clean.delivered[0] == 2 * protocol.wire_cycles + 5


def test_two_lost_heads_cost_the_timeout():
    protocol = LinkProtocol()
    first = 2 + protocol.wire_cycles
    again = first + 2 * protocol.wire_cycles + 5
    lost = run_link(protocol, [True], ErrorPattern(), ErrorPattern(), Faults(symbols=[first, again]))
    assert (lost.counts.retries, lost.counts.timeouts) == (2, 1)


def test_the_crc_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the catalogues


def test_one_wrong_bit_makes_no_symbol():
    for symbol in Symbol:
        assert all(symbol ^ 1 << bit not in list(Symbol) for bit in range(3))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"flit_bits": 96}, "flit_bits must be 64, 128, 256 or 512 (got 96)"),
        ({"packet_flits": 12}, "packet_flits must be a power of two from 1 to 64 (got 12)"),
        ({"credits": 8}, "credits must hold a whole packet of 16 flits (got 8)"),
        ({"timeout": 37}, "timeout must be at least 38 cycles"),
        ({"flit_bits": 512}, "packet_flits must be at most 9 with flits of 512 bits"),
    ],
)
def test_what_cannot_work_is_refused(fields, text):
    with pytest.raises(ValueError, match=r"protocol|Protocol") as found:
        LinkProtocol(**fields)
    assert text in str(found.value)
