"""Runs of a plan on failing chips, as ``run.*`` of a command describes them."""

import json

import pytest

from siliconloom.arch import LoomError
from siliconloom.arch.document import Document
from siliconloom.arch.run import DescribedRun
from siliconloom.evaluate.faulty_runs import faulty_run


def read(text):
    return Document.parse(text, "run.yaml").validate(DescribedRun)


def test_a_run_of_weeks_loses_what_dalys_formula_says():
    run = read("{steps: 100000, mtbf: 5 y, storage: 20 GB/s, restart: 5 min, seeds: 200}")
    found = faulty_run(run, step_s=12.0, chips=4096, state_bytes=2e12)
    assert json.loads(json.dumps(found)) == found
    assert found["checkpoint_s"] == 100
    assert found["mtbf_s"] == pytest.approx(5 * 365 * 86400 / 4096)
    assert found["seconds"]["mean"] == pytest.approx(found["expected_s"], rel=0.02)
    assert found["seconds"]["p10"] < found["seconds"]["mean"] < found["seconds"]["p90"]
    parts = sum(found[name] for name in ("useful_s", "checkpoints_s", "lost_s", "restart_s", "waiting_s"))
    assert parts == pytest.approx(found["seconds"]["mean"])
    assert found["ideal_s"] == found["useful_s"] == 1.2e6
    assert 0.8 < found["goodput"] < 1


def test_a_run_without_failures_is_its_steps():
    found = faulty_run(read("{steps: 10}"), step_s=2.0, chips=8)
    assert (found["seconds"]["mean"], found["failures"], found["mtbf_s"], found["goodput"]) == (20, 0, None, 1)


def test_few_spares_make_it_wait():
    text = "{{steps: 2000, mtbf: 10 d, checkpoint: 1 min, restart: 2 min, repair: 1 d, spares: {}}}"
    few, many = (faulty_run(read(text.format(spares)), step_s=20.0, chips=64) for spares in (1, 1000))
    assert few["waiting_s"] > 0 == many["waiting_s"]
    assert few["expected_s"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{steps: 0}", "steps: must be greater than or equal to 1"),
        ("{steps: 5, mtbf: 3}", "mtbf: has no unit: write for example '30 d'"),
        ("{steps: 5, mtbf: 3.5}", "mtbf: has no unit"),
        ("{steps: 5, mtbf: 0 s}", "mtbf: must be greater than 0"),
        ("{steps: 5, mtfb: 3 d}", "unknown key 'mtfb'.*did you mean 'mtbf'"),
        ("{steps: 5, restart: -3 s}", "restart: must not be negative"),
        ("{mtbf: 3 d}", "the key 'steps' is missing"),
    ],
)
def test_bad_settings_are_one_clear_line(text, message):
    with pytest.raises(LoomError, match=message):
        read(text)


def test_checkpoint_time_and_storage_exclude_each_other():
    with pytest.raises(LoomError, match="give one of them"):
        faulty_run(read("{steps: 5, checkpoint: 1 s, storage: 1 GB/s}"), step_s=1.0, chips=1)


def test_a_run_that_would_fail_too_often_is_refused_before_it_begins(monkeypatch):
    monkeypatch.setattr("siliconloom.evaluate.faulty_runs.run_training", None)
    with pytest.raises(LoomError, match=r"^run.mtbf: chips fail every 37.5 s, a restart takes 600 s .* 906,.* times"):
        faulty_run(read("{steps: 1000000, mtbf: 5 min, restart: 10 min}"), step_s=0.003827, chips=8)
    with pytest.raises(LoomError, match=r"^run.mtbf: .* would fail without end"):
        faulty_run(read("{steps: 10, mtbf: 1 s, restart: 1 y}"), step_s=1.0, chips=8)
    with pytest.raises(LoomError, match=r"^run.seeds: 10,000 runs that fail .* times each"):
        faulty_run(read("{steps: 1000000, mtbf: 1 d, seeds: 10000}"), step_s=10.0, chips=8)


@pytest.mark.slow(seconds=1)
def test_the_events_of_runs_are_not_kept():
    """Three events a failure, twenty runs of up to a million failures: they took up to 10 GB."""
    import tracemalloc

    run = read("{steps: 200000, mtbf: 1 h, checkpoint: 10 ms, restart: 1 s, seeds: 3}")
    tracemalloc.start()
    found = faulty_run(run, step_s=1.0, chips=64)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["failures"] > 3000
    assert most < 1 << 20
