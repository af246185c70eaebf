"""The chip-to-chip link: every flit once, in order, in the cycle that the model says, whatever goes wrong."""

import pytest

from siliconloom.rtl.bench.link_cases import run_link_cases
from tests.rtl.links import modelled, protocols, random_case

pytestmark = pytest.mark.rtl
LINKS = list(protocols())


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


@pytest.mark.parametrize("number", range(len(LINKS)))
def test_cycles_equal_the_models_with_and_without_errors(tmp_path, number):
    protocol = LINKS[number]
    rates = [0, 0, 0.002, 0.01, 0.05]
    cases = [random_case(protocol, 10 * number + n, rate) for n, rate in enumerate(rates)]
    outcomes = compared(protocol, cases, tmp_path)
    assert all(o.counters["retries"] == 0 for o in outcomes[:2])
    assert sum(o.counters["retries"] for o in outcomes) > 3
