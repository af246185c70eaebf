"""Points have the figures of `loom sim`, once each, whoever evaluates them."""

import subprocess
import sys

import pytest

from siliconloom.arch import memo
from siliconloom.arch.errors import LoomError
from siliconloom.arch.overrides import split_overrides
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.sweeps import executors, question, run
from siliconloom.sweeps.axes import axes_of, fixed_sets
from siliconloom.sweeps.metrics import METRICS, Metric, metrics_of
from siliconloom.sweeps.run import SweepInterrupted, run_sweep
from siliconloom.sweeps.shown import stored_result
from siliconloom.workloads import load_workload
from tests.sweeps.small import CHIP, sweep, without_times, write


@pytest.fixture
def asked(monkeypatch):
    """The points that are evaluated in this process."""
    found = []
    real = question.answer

    def counted(setting, sets):
        found.append(dict(sets))
        return real(setting, sets)

    monkeypatch.setattr(executors, "answer", counted)
    return found


@pytest.mark.slow(seconds=1)
def test_a_point_is_what_the_machine_is_evaluated_to():
    found = run_sweep(sweep(set={"tile.accumulator.capacity": "32 KiB"}), workers=1)
    assert found.counts.distinct == found.counts.evaluated == 12
    for point in found.points[::5]:
        sets = [("tile.accumulator.capacity", "32 KiB"), *point.values.items()]
        chip, workload = split_overrides(sets)
        alone = evaluate(read_machine("chip.yaml", chip), load_workload("products.yaml", workload)).result
        assert point.metrics == metrics_of(alone)
        assert point.metrics["edp"] == alone["energy_j"] * alone["seconds"]
        assert point.bound == alone["bound"]["name"]


def test_what_is_known_is_not_asked_again_whatever_sweep_it_was_in(asked):
    first = run_sweep(sweep(), "kept", workers=1)
    assert len(asked) == 12
    assert without_times(run_sweep(sweep(), "kept", workers=1)) == without_times(first)
    assert len(asked) == 12
    wider = sweep(name="wider", keys={**sweep().model_dump(by_alias=True, exclude_unset=True)["keys"]})
    assert run_sweep(wider, "kept", workers=1).counts.reused == 12
    keys = {"memory.dram.bandwidth": ["8 GB/s", "32 GB/s"], "workload.gemms.0.m": [16]}
    more = sweep(set={"tile.vector.lanes": 8}, keys=keys)
    assert run_sweep(more, "kept", workers=1).counts.evaluated == 1
    assert len(asked) == 13
    shown, names = stored_result("kept", "wider")
    assert names == ["sweep", "wider"]
    assert without_times(shown)["points"] == without_times(first)["points"]


@pytest.mark.slow(seconds=1)
def test_a_changed_file_is_another_question(folder, asked):
    run_sweep(sweep(), "kept", workers=1)
    (folder / "chip.yaml").write_text(CHIP.replace("1 GHz", "2 GHz"))
    found = run_sweep(sweep(), "kept", workers=1)
    assert (found.counts.evaluated, len(asked)) == (12, 24)


def test_equal_machines_are_evaluated_once_whatever_they_are_called(monkeypatch):
    monkeypatch.setattr(memo.Shared, "memo", memo.Memo(None))
    run_sweep(sweep(keys={"memory.dram.bandwidth": ["8 GB/s", "8000 MB/s", "8e9 B/s"]}), workers=1)
    answers = memo.shared_memo().answers
    assert (answers.found, answers.remembered) == (1, 2)


def test_points_that_cannot_be_are_told_and_the_others_are_done():
    keys = {"tile.array.rows": [8, -1], "tile.scratchpad.capacity": ["64 KiB", "1 PB", "2 KiB"]}
    found = run_sweep(sweep(keys=keys), "kept", workers=1)
    failed = [point for point in found.points if point.state == "failed"]
    assert found.complete
    assert 0 < len(failed) < 6
    assert all(point.why and "\n" not in point.why and point.metrics == {} for point in failed)
    assert run_sweep(sweep(keys=keys), "kept", workers=1).counts.reused == 6
    none = run_sweep(sweep(keys={"tile.array.rows": [-1, -2]}), workers=1)
    assert none.front == ()
    assert "every point failed" in none.notes[0]


def test_an_objective_that_a_point_lacks_ends_the_sweep_and_finished_points_are_kept(monkeypatch, asked):
    def heat(result):
        return None if len(asked) > 3 else 1.0

    monkeypatch.setitem(METRICS._rows, "heat", Metric("W", True, heat))
    with pytest.raises(LoomError, match=r"the point memory.dram.bandwidth=.* has no heat; 4 finished points are"):
        run_sweep(sweep(objectives=["heat"]), "kept", workers=1)
    shown, _ = stored_result("kept")
    assert not shown.complete
    assert len([point for point in shown.points if "heat" in point.metrics]) == 3


def test_an_interrupted_sweep_says_what_it_kept_and_goes_on(monkeypatch, asked):
    monkeypatch.setattr(run, "EVERY_S", 0.0)

    def stop(progress):
        if progress.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted, match="4 finished points are kept in kept"):
        run_sweep(sweep(), "kept", workers=1, watcher=stop)
    seen = []
    found = run_sweep(sweep(), "kept", workers=1, watcher=seen.append)
    assert (found.counts.reused, found.counts.evaluated) == (4, 8)
    assert [progress.done for progress in seen][-1] == 12
    assert {progress.total for progress in seen} == {12}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_a_search_asks_the_same_after_an_interruption(monkeypatch, method):
    keys = {
        "memory.dram.bandwidth": {"from": "1 GB/s", "to": "40 GB/s", "step": "1 GB/s"},
        "tile.vector.lanes": [8, 16],
    }
    wanted = sweep(
        method=method, points=16, population=4, keys=keys, constraints=[{"metric": "power", "at_most": "1 W"}]
    )
    monkeypatch.setattr(run, "EVERY_S", 0.0)

    def stop(progress):
        if progress.done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted):
        run_sweep(wanted, "kept", workers=1, watcher=stop)
    again, whole = run_sweep(wanted, "kept", workers=1), run_sweep(wanted, workers=1)
    assert again.counts.reused >= 6
    assert without_times(again) == without_times(whole)
    assert whole.counts.asked == 16


def test_constraints_keep_points_from_the_front():
    free = run_sweep(sweep(), workers=1)
    power = [free.points[number].metrics["power"] for number in free.front]
    bound = min(power)
    held = run_sweep(sweep(constraints=[{"metric": "power", "at_most": bound}]), workers=1)
    assert all(held.points[number].metrics["power"] <= bound for number in held.front)
    assert held.counts.feasible == sum(point.metrics["power"] <= bound for point in free.points)
    assert run_sweep(sweep(constraints=[{"metric": "power", "at_most": "1 uW"}]), workers=1).front == ()


@pytest.mark.slow
def test_processes_find_what_one_does_though_workers_die(tmp_path):
    """A worker that is killed takes nothing with it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, multiprocessing\n"
        "from siliconloom.sweeps.run import run_sweep\n"
        "killed = []\n"
        "def watch(progress):\n"
        "    if progress.done >= 3 and not killed:\n"
        "        killed.append(multiprocessing.active_children()[0].pid)\n"
        "        os.kill(killed[0], signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    found = run_sweep('sweep.yaml', 'kept', workers=2, watcher=watch)\n"
        "    print(len(killed), found.counts.evaluated, found.counts.failed)\n"
    )
    path = write(tmp_path, keys={"memory.dram.bandwidth": {"from": "1 GB/s", "to": "120 GB/s", "step": "1 GB/s"}})
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1", "120", "0"], done.stderr
    assert without_times(stored_result("kept")[0]) == without_times(run_sweep(path, workers=1))


def test_axes_and_fixed_keys_are_texts_as_set_takes_them():
    described = sweep(set={"a": True, "b": 1.5, "c": "x y", "d": [1, "z"]})
    assert fixed_sets(described) == [("a", "true"), ("b", "1.5"), ("c", "x y"), ("d", '[1, "z"]')]
    assert axes_of(described)[1].levels == ("8", "16")


def test_a_worker_with_other_files_or_code_is_refused(folder, monkeypatch):
    setting = question.setting_of("chip.yaml", "products.yaml", sweep().mapping, {"chip.yaml": "0" * 64})
    with pytest.raises(question.StaleError, match="is not the file that the sweep began with"):
        question.answer(setting, ())
    monkeypatch.setattr(question, "version_digest", lambda: "another")
    fresh = question.PointSetting("chip.yaml", "products.yaml", False, None, "time", None, (), "one")
    with pytest.raises(question.StaleError, match="another version"):
        question.answer(fresh, ())
