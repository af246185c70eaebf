"""Training runs that fail: given failures to the second, the mean of many against Daly's formula."""

from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from siliconloom.arch import LoomError
from siliconloom.sim.system.failures import (
    TrainingRun,
    best_interval,
    expected_failures,
    expected_seconds,
    run_training,
)

RUN = TrainingRun(steps=100, step_s=1.0, checkpoint_s=2.0, restart_s=5.0, checkpoint_steps=10)


def test_without_failures_a_run_is_its_steps_and_checkpoints():
    result = run_training(RUN)
    assert (result.seconds, result.checkpoints, result.failures) == (100 + 9 * 2, 9, 0)
    assert result.seconds == expected_seconds(RUN)


def test_a_failure_costs_the_stretch_and_a_restart():
    result = run_training(RUN, failures=[30.0])  # 24 s are saved in two checkpoints; 6 s are lost
    assert (result.seconds, result.lost_s, result.restart_s) == (118 + 6 + 5, 6, 5)
    kinds = [(event.seconds, event.kind, event.saved) for event in result.events[:5]]
    assert kinds == [
        (24, "checkpoint", 20),
        (30, "failure", 20),
        (35, "restarted", 20),
        (119, "checkpoint", 90),
        (129, "finished", 100),
    ]


def test_a_failure_during_a_checkpoint_undoes_it_and_one_during_a_restart_begins_it_again():
    assert run_training(RUN, failures=[11.0]).lost_s == 11
    twice = run_training(RUN, failures=[11.0, 14.0])
    assert (twice.seconds, twice.restart_s, twice.failures) == (118 + 11 + 3 + 5, 8, 2)


def test_without_spares_the_run_waits_for_a_mended_chip():
    kept = {**asdict(RUN), "spares": 1, "repair_s": 20.0}
    result = run_training(TrainingRun(**kept), failures=[5.0, 15.0])
    # the second failure finds no spare: the first chip is back at 25
    assert (result.waiting_s, result.lost_s, result.restart_s) == (10, 5 + 5, 10)
    assert result.seconds == 118 + 10 + 10 + 10
    with pytest.raises(LoomError, match=r"no spare chip is left 15 s into the run, and none is mended"):
        run_training(TrainingRun(**{**kept, "repair_s": inf}), failures=[5.0, 15.0])


@pytest.mark.slow(seconds=1)
@settings(max_examples=100, deadline=None)
@given(
    steps=st.integers(0, 60),
    stretch=st.one_of(st.none(), st.integers(1, 70)),
    spares=st.one_of(st.none(), st.integers(0, 3)),
    failures=st.lists(st.floats(0, 400), max_size=12),
    seed=st.integers(0, 99),
)
def test_the_parts_of_a_run_add_up(steps, stretch, spares, failures, seed):
    run = TrainingRun(
        steps=steps,
        step_s=1.5,
        chips=4,
        mtbf_s=200.0,
        checkpoint_s=2.0,
        restart_s=7.0,
        checkpoint_steps=stretch,
        spares=spares,
        repair_s=30.0,
    )
    for result in (run_training(run, failures=failures), run_training(run, seed=seed)):
        parts = result.useful_s + result.checkpoint_s + result.lost_s + result.restart_s + result.waiting_s
        assert result.seconds == pytest.approx(parts)
        assert 0 < result.goodput <= 1
        assert [event.seconds for event in result.events] == sorted(event.seconds for event in result.events)
        assert result.events[-1].saved == steps
        assert result.failures == sum(event.kind == "failure" for event in result.events)
    assert run_training(run, seed=seed) == run_training(run, seed=seed)


@pytest.mark.parametrize(("chips", "stretch"), [(1, 25), (8, 25), (8, 60), (16, None)])
def test_the_mean_of_many_runs_is_dalys(chips, stretch):
    run = TrainingRun(
        steps=500, step_s=2.0, chips=chips, mtbf_s=4000.0, checkpoint_s=6.0, restart_s=20.0, checkpoint_steps=stretch
    )
    times = np.array([run_training(run, seed=seed).seconds for seed in range(600)])
    expected = expected_seconds(run)
    assert times.mean() == pytest.approx(expected, rel=0.02)
    assert abs(times.mean() - expected) < 4 * times.std() / sqrt(len(times))


def test_the_best_interval_is_the_best():
    """Daly's interval, in whole steps, is at most a thousandth slower than the best of all."""
    run = TrainingRun(steps=5000, step_s=2.0, chips=64, mtbf_s=1e6, checkpoint_s=30.0, restart_s=60.0)
    every = {n: expected_seconds(TrainingRun(**{**asdict(run), "checkpoint_steps": n})) for n in range(50, 5000, 10)}
    assert expected_seconds(run) <= min(every.values()) * 1.001
    young = sqrt(2 * 30 * 1e6 / 64)
    assert best_interval(30.0, 1e6 / 64) == pytest.approx(young, rel=0.05)
    assert best_interval(30.0, 10.0) == 10.0


def test_a_run_that_gets_nowhere_says_so(monkeypatch):
    monkeypatch.setattr("siliconloom.sim.system.failures.FAILURES_MOST", 1000)
    with pytest.raises(LoomError, match=r"the run failed 1,001 times and is at step 0 of 100"):
        run_training(TrainingRun(steps=100, step_s=1.0, chips=1000, mtbf_s=1000.0, restart_s=60.0))


@pytest.mark.parametrize(("name", "value"), [("mtbf_s", 0.0), ("steps", -1), ("checkpoint_steps", 0), ("chips", 0)])
def test_nonsense_is_refused(name, value):
    with pytest.raises(LoomError, match=f"run.{name}: must be"):
        TrainingRun(**{**asdict(RUN), name: value})


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_best_interval_is_dalys(hours, minutes):
    """The captions of his figures 3 to 5: checkpoints of 5 minutes."""
    assert best_interval(300.0, hours * 3600) / 60 == pytest.approx(minutes, rel=0.01)


def test_a_run_without_a_record_is_the_same_run():
    run = TrainingRun(steps=3000, step_s=1.0, chips=8, mtbf_s=800.0, checkpoint_s=0.5, restart_s=2.0)
    kept, bare = run_training(run, seed=3), run_training(run, seed=3, record=False)
    assert kept.events
    assert not bare.events
    assert {**asdict(kept), "events": ()} == asdict(bare)


def test_expected_failures_are_the_mean_of_many_runs():
    run = TrainingRun(steps=2000, step_s=1.0, chips=8, mtbf_s=800.0, checkpoint_s=0.5, restart_s=5.0)
    mean = sum(run_training(run, seed=s, record=False).failures for s in range(200)) / 200
    assert expected_failures(run) == pytest.approx(mean, rel=0.03)
