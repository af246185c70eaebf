"""What happens to a sweep while it runs, and files that are damaged: told in a line, and nothing wrong is kept."""

import os
import re
import sqlite3

import pytest

from siliconloom.arch.errors import LoomError
from siliconloom.arch.swept import SweptConstraint
from siliconloom.cli import main
from siliconloom.sweeps import question, run
from siliconloom.sweeps.analysis import LARGER, WORSE, direction_of, monotone_breaks
from siliconloom.sweeps.axes import Axis
from siliconloom.sweeps.run import run_sweep
from tests.sweeps.small import CHIP, PRODUCTS, sweep, without_times, write
from tests.sweeps.test_sweep_analysis import point


def test_a_machine_that_is_edited_meanwhile_ends_the_sweep_and_leaves_nothing_wrong(tmp_path, monkeypatch):
    path, kept, whole = write(tmp_path), tmp_path / "kept.sqlite", tmp_path / "whole.sqlite"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "EVERY_S", 0.0)

    def edit(progress):
        if progress.done == 5:
            (tmp_path / "chip.yaml").write_text(CHIP.replace("1 GHz", "100 MHz"))

    with pytest.raises(LoomError, match="is not the file that the sweep began with; 5 finished points"):
        run_sweep(path, kept, workers=1, watcher=edit)
    (tmp_path / "chip.yaml").write_text(CHIP)
    again = run_sweep(path, kept, workers=1)
    assert again.counts.reused == 5
    assert without_times(again) == without_times(run_sweep(path, whole, workers=1))


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("restored", [False, True])
def test_a_workload_that_is_edited_within_a_point_leaves_nothing_wrong(tmp_path, monkeypatch, restored):
    """Not in this process either, which keeps the graphs of workloads."""
    path, whole = write(tmp_path), tmp_path / "whole.sqlite"
    monkeypatch.chdir(tmp_path)
    evaluated, left = question._evaluated, [3]

    def edited(*given):
        left[0] -= 1
        if left[0]:
            return evaluated(*given)
        (tmp_path / "products.yaml").write_text(PRODUCTS.replace("n: 16", "n: 160"))
        try:
            return evaluated(*given)
        finally:
            if restored:
                (tmp_path / "products.yaml").write_text(PRODUCTS)

    monkeypatch.setattr(question, "_evaluated", edited)
    question._graph.cache_clear()
    with pytest.raises(LoomError, match="is not the file that the sweep began with"):
        run_sweep(path, "kept.sqlite", workers=1)
    (tmp_path / "products.yaml").write_text(PRODUCTS)
    monkeypatch.setattr(question, "_evaluated", evaluated)
    again = run_sweep(path, "kept.sqlite", workers=1)
    assert again.counts.reused == 2
    question._graph.cache_clear()
    assert without_times(again) == without_times(run_sweep(path, whole, workers=1))


def test_an_objective_that_a_machine_lacks_has_its_place(tmp_path, monkeypatch, capsys):
    keys = {"workload.gemms.0.m": [16]}
    path = str(write(tmp_path, machine="h100", workload="products.yaml", keys=keys, objectives=["time", "area"]))
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", path, "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert "objectives.1: the point" in err
    assert "has no area" in err


@pytest.mark.slow(seconds=1)
def test_results_that_are_removed_meanwhile_are_told(tmp_path, monkeypatch):
    path, kept = write(tmp_path), tmp_path / "kept.sqlite"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "EVERY_S", 0.0)
    with pytest.raises(LoomError, match="removed or replaced"):
        run_sweep(path, kept, workers=1, watcher=lambda progress: kept.unlink(missing_ok=True))


@pytest.mark.slow(seconds=1)
def test_a_damaged_point_is_named(tmp_path, monkeypatch, capsys):
    path = str(write(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", path, "--results", "r.sqlite", "--workers", "1"]) == 0
    with sqlite3.connect("r.sqlite") as file:
        file.execute("UPDATE points SET metrics = '{' WHERE rowid = 3")
    file.close()
    for words in (["show", "r.sqlite"], ["sweep", path, "--results", "r.sqlite", "--workers", "1"]):
        capsys.readouterr()
        assert main(words) == 2
        assert "r.sqlite: the point" in capsys.readouterr().err


def test_no_answer_at_all_is_a_failed_check(tmp_path, monkeypatch, capsys):
    path = str(write(tmp_path, keys={"tile.scratchpad.capacity": ["1 B", "2 B"]}))
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", path, "--workers", "1"]) == 1
    assert "no point has an answer; the first:" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_results_are_a_file(tmp_path, capsys, kind):
    path = tmp_path / "results"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    assert main(["show", str(path)]) == 2
    assert "is no file of results" in capsys.readouterr().err


@pytest.mark.slow(seconds=2)
def test_points_of_a_space_beyond_every_range_are_drawn(tmp_path, monkeypatch):
    paths = (
        "memory.dram.bandwidth",
        "memory.dram.latency",
        "memory.dram.capacity",
        "clock",
        "tile.dma.bytes_per_cycle",
    )
    units = ("MB/s", "ns", "MiB", "MHz", "")
    keys = {
        p: {"from": f"1 {u}".strip(), "to": f"9999 {u}".strip(), "step": f"1 {u}".strip()}
        for p, u in zip(paths, units, strict=True)
    }
    for key in keys.values():
        for end, value in key.items():
            key[end] = int(value) if value.isdigit() else value
    path = write(tmp_path, keys=keys, method="random", points=3)
    monkeypatch.chdir(tmp_path)
    first, second = (run_sweep(path, None, workers=1) for _ in range(2))
    assert len({str(p.values) for p in first.points}) == 3
    assert without_times(first) == without_times(second)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"keys": {"tile.array.rows": {"from": "1e999999999", "to": "1e9999999999", "factor": 2}}},
            "keys.tile.array.rows",
        ),
        ({"constraints": [{"metric": "time", "at_most": float("nan")}]}, "finite"),
        ({"constraints": [{"metric": "power", "at_most": "1e999 W"}]}, "finite"),
        ({"keys": {"tile.array.rows": [8, 16], "tile.array": ["{rows: 8, cols: 8}"]}}, "is a part of"),
        ({"keys": {"tile.array.rows": {"values": [8, 16], "with": ["tile.array.cols", "tile.array.cols"]}}}, "twice"),
    ],
)
def test_what_no_sweep_can_mean_is_refused_with_its_place(tmp_path, monkeypatch, capsys, changed, text):
    path = str(write(tmp_path, **changed))
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", path, "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert "sweep.yaml:" in err
    assert err.count("\n") == 1


def test_every_kind_of_a_larger_machine_has_a_direction():
    paths = [
        "clock",
        "tile_count",
        "tile.array.rows",
        "tile.array.cols",
        "tile.array.load_rows",
        "tile.scratchpad.capacity",
        "tile.accumulator.capacity",
        "tile.vector.lanes",
        "tile.vector.transpose_rows",
        "tile.dma.bytes_per_cycle",
        "memory.dram.bandwidth",
        "memory.hbm-2.capacity",
        "memory.dram.devices",
    ]
    assert all(direction_of(Axis(path, {path: ("1", "2")})) == 1 for path in paths)
    found = {pattern for pattern in LARGER for path in paths if re.fullmatch(pattern, path)}
    assert found == set(LARGER)


@pytest.mark.parametrize(
    ("worse", "told"), [(0.5 * WORSE, False), (0.99 * WORSE, False), (1.02 * WORSE, True), (2 * WORSE, True)]
)
def test_one_percent_is_where_a_larger_machine_is_told(worse, told):
    axis = Axis("clock", {"clock": ("1 GHz", "2 GHz")})
    found = monotone_breaks((axis,), [point(0, 1.0), point(1, 1.0 + worse)], [(0,), (1,)])
    assert bool(found) is told


def test_a_constraint_has_one_side():
    assert SweptConstraint("power", 1.0, None).excess(1.5) == 0.5
    assert sweep().keys
