"""The chip-to-chip link: every flit once, in order, in the cycle that the model says, whatever goes wrong."""

import shutil

import pytest

from siliconloom.arch import DescriptionError
from siliconloom.arch.link import LinkProtocol, crc32c
from siliconloom.rtl.bench.link_cases import run_link_cases
from tests.rtl.links import modelled, protocols, random_case

pytestmark = pytest.mark.rtl
LINKS = list(protocols())
icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
RATES = (0, 0, 0.002, 0.01, 0.05)


def compared(protocol, cases, folder, **options):
    outcomes = run_link_cases(protocol, cases, folder=folder, **options)
    for case, outcome in zip(cases, outcomes, strict=True):
        assert outcome.ended
        assert outcome.flits == list(case.flits)
        model = modelled(protocol, case)
        assert outcome.taken == model.taken
        assert outcome.delivered == model.delivered
        found = dict(outcome.counters)
        assert found.pop("overflows") == 0
        end = outcome.delivered[-1] + 600
        hit = sum(bool(f.control) and protocol.wire_cycles < f.cycle <= end for f in case.faults)
        assert found.pop("control_errors") == hit + protocol.wire_cycles + 1  # until the first word is there
        counts = model.counts
        assert found == {
            "retries": counts.retries, "timeouts": counts.timeouts, "errors": counts.errors,
            "duplicates": counts.duplicates,
        }  # fmt: skip
    return outcomes


@icarus
@pytest.mark.parametrize("number", range(len(LINKS)))
def test_cycles_equal_the_models_with_and_without_errors(tmp_path, number):
    protocol = LINKS[number]
    cases = [random_case(protocol, 10 * number + n, rate) for n, rate in enumerate(RATES)]
    outcomes = compared(protocol, cases, tmp_path, simulator="icarus")
    assert all(o.counters["retries"] == 0 for o in outcomes[:2])
    assert sum(o.counters["retries"] for o in outcomes) > 3


@pytest.mark.slow
def test_cycles_equal_the_models_on_long_runs(tmp_path):
    protocol = LinkProtocol()
    cases = [random_case(protocol, 100 + n, RATES[n % len(RATES)], flits=4000) for n in range(20)]
    compared(protocol, cases, tmp_path, simulator="verilator")


@icarus
@pytest.mark.parametrize("number", [1, 2])
def test_any_wrong_bits_at_all_lose_and_repeat_nothing(tmp_path, number):
    protocol = LINKS[number]
    cases = [random_case(protocol, 70 + n, rate, harsh=True) for n, rate in enumerate((0.005, 0.02, 0.05))]
    outcomes = run_link_cases(protocol, cases, folder=tmp_path, simulator="icarus")
    for case, outcome in zip(cases, outcomes, strict=True):
        assert outcome.ended
        assert outcome.flits == list(case.flits)
        assert outcome.counters["errors"] > 0


@icarus
def test_a_link_with_another_wire_is_found_out(tmp_path):
    case = random_case(LINKS[1], 5)
    built = LINKS[1].model_copy(update={"wire_cycles": 9})
    (outcome,) = run_link_cases(built, [case], folder=tmp_path, simulator="icarus")
    assert outcome.flits == list(case.flits)
    assert outcome.delivered != modelled(LINKS[1], case).delivered


def test_the_crc_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the catalogues


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
    with pytest.raises((ValueError, DescriptionError)) as found:
        LinkProtocol(**fields)
    assert text in str(found.value)
