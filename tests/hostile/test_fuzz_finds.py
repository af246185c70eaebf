"""The fuzzer's own checks: each kind of failure, planted, is found; the same seed is the same case."""

import json

import pytest

fuzz, hostile = (pytest.importorskip(f"benchmarks.{name}") for name in ("fuzz", "hostile"))
pytestmark = pytest.mark.checkout


def outcome(**changes):
    return fuzz.Outcome(**{"seed": 0, "status": 0, "out": "", "err": "", "seconds": 0.0, **changes})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"status": 2, "err": "loom: wrong\n"}, None),
        ({"status": 2, "err": "compiling x, once per installation ...\nloom: wrong\n"}, None),
        ({"results": '{"cycles": 5, "bound_cycles": 5, "utilization": 1.0}'}, None),
        ({"status": 70, "err": "loom: strange\n"}, "status 70"),
        ({"status": 2, "err": "Traceback\n"}, "internal error: Traceback"),
        ({"status": 2, "err": "loom: a\nb\n"}, "2 lines of error"),
        ({"status": 2, "err": ""}, "0 lines of error"),
        ({"status": 2, "err": "loom: " + "x" * 600}, "a long line of error"),
        ({"out": "a\x1b[31m"}, "a control character reaches the terminal"),
        ({"status": -27}, "more than 20 s of CPU"),
        ({"status": 2, "err": "loom: there is not enough memory for this\n"}, "memory"),
        ({"results": '{"a": {"cycles": 5, "bound_cycles": 6}}'}, "number: .a: bound_cycles above cycles"),
        ({"results": '{"utilization": 1.01}'}, "number: .utilization outside 0 to 1"),
        ({"out": '{"seconds": NaN}'}, "number: .seconds is not finite"),
        ({"results": "{"}, "the result is not JSON"),
    ],
)
def test_a_planted_failure_is_found(changes, found):
    assert outcome(**changes).failures() == ([] if found is None else [found])


def test_the_same_seed_is_the_same_case():
    assert [vars(hostile.case(seed)) for seed in range(200)] == [vars(hostile.case(seed)) for seed in range(200)]


def test_every_command_is_among_the_cases():
    from siliconloom.cli import app

    names = {each.name or each.callback.__name__ for each in app.registered_commands}
    assert names - {hostile.case(seed).arguments[0] for seed in range(4000)} == set()


def test_a_process_that_is_ended_counts_once_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(fuzz, "CPU_S", 0.2)
    monkeypatch.setattr(fuzz, "PREPARE", ())
    monkeypatch.setattr("siliconloom.commands.warming.RUNS", {})
    real = fuzz.run_case

    def endless(seed, made, folder):
        while seed == 2:
            pass
        return real(seed, hostile.Case(["list", "--json", "-"]), folder)

    monkeypatch.setattr(fuzz, "run_case", endless)
    found = list(fuzz.run_cases([1, 2, 3]))
    assert [(each.seed, each.status) for each in found] == [(1, 0), (2, -27), (3, 0)]
    assert json.loads(found[2].out)["schema"] == "siliconloom.library/1"
