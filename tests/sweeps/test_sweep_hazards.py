"""What happens to a sweep while it runs, and files that are damaged: told in a line, and nothing wrong is kept."""

import json
import os
import re
import shutil
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.arch.swept import SweptConstraint
from siliconloom.cli import main
from siliconloom.sweeps import question, run
from siliconloom.sweeps.analysis import LARGER, WORSE, direction_of, monotone_breaks
from siliconloom.sweeps.axes import Axis
from siliconloom.sweeps.run import run_sweep
from siliconloom.sweeps.shown import stored_result
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file of results with 12 points, and its sweep."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        run_sweep(write(folder), "r.sqlite", workers=1)
    return folder


def damaged(whole, tmp_path, statement, *values):
    """A copy of the file in this folder, with a statement of SQL behind it."""
    for name in ("r.sqlite", "sweep.yaml", "chip.yaml", "products.yaml"):
        shutil.copyfile(whole / name, tmp_path / name)
    with sqlite3.connect(tmp_path / "r.sqlite") as file:
        file.execute(statement, values)
    file.close()


DAMAGES = (
    ("UPDATE points SET metrics = json_set(metrics, '$.time', 'abc') WHERE rowid = 3", "its time is no number: abc"),
    ("UPDATE points SET metrics = json_set(metrics, '$.time', -1) WHERE rowid = 3", "its time is negative: -1"),
    ("UPDATE points SET metrics = '{' WHERE rowid = 3", "its figures are no JSON"),
    ("UPDATE points SET metrics = x'ff00' WHERE rowid = 3", "its figures are no JSON"),
    ("UPDATE points SET metrics = '{}' WHERE rowid = 3", "it has no figures"),
    ("UPDATE points SET state = 'dane' WHERE rowid = 3", "its state is none of done, failed and again: dane"),
    ("UPDATE points SET state = 'failed' WHERE rowid = 3", "its state is failed, and it has no reason"),
    ("UPDATE points SET bound = x'ff' WHERE rowid = 3", "its bound is no text: b'\\xff'"),
    ("UPDATE members SET place = '[9,9,9]' WHERE ordinal = 3", "its values are none of the keys' values"),
    ("UPDATE members SET place = '[0,0]' WHERE ordinal = 3", "its values are none of the keys' values"),
    ("UPDATE members SET place = '[0,0,-1]' WHERE ordinal = 3", "its values are no list of numbers"),
    ("UPDATE members SET place = '[2,1,0]' WHERE ordinal = 3", "its values are not those that it was evaluated with"),
    ("UPDATE points SET sets = '{}' WHERE rowid = 3", "its values are not those that it was evaluated with"),
    ("UPDATE members SET place = 'x' WHERE ordinal = 3", "its values are no JSON"),
)


@pytest.mark.parametrize(("statement", "told"), DAMAGES)
def test_a_damaged_point_is_told_left_out_and_evaluated_again(whole, tmp_path, capsys, statement, told):
    damaged(whole, tmp_path, statement)
    assert main(["show", "r.sqlite", "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (note,) = (note for note in shown["notes"] if "damaged" in note)
    assert "is damaged and left out: " + told in note
    assert len(shown["points"]) == 11
    assert not shown["complete"]
    again = run_sweep("sweep.yaml", "r.sqlite", workers=1)
    of_place = "members" in statement
    assert (again.counts.evaluated, again.counts.reused) == ((0, 12) if of_place else (1, 11))
    assert [told in note for note in again.notes] == ([] if of_place else [True])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(whole)
        expected = stored_result("r.sqlite")[0]
    assert stored_result("r.sqlite")[0].points == again.points == expected.points


@pytest.mark.parametrize("change", ["seconds = -1", "seconds = 'abc'", "evaluated = 1.5", "name = x'00'"])
def test_a_damaged_sweep_is_told_and_written_anew(whole, tmp_path, capsys, change):
    damaged(whole, tmp_path, f"UPDATE sweeps SET {change}")
    assert main(["show", "r.sqlite"]) == 2
    err = capsys.readouterr().err
    assert "is damaged; the same loom sweep writes it anew" in err
    assert err.count("\n") == 1
    again = run_sweep("sweep.yaml", "r.sqlite", workers=1)
    assert (again.counts.evaluated, again.counts.reused) == (0, 12)
    assert stored_result("r.sqlite")[0].points == again.points


def test_a_file_that_has_changed_since_is_told(tmp_path):
    write(tmp_path)
    first = run_sweep("sweep.yaml", "r.sqlite", workers=1)
    assert stored_result("r.sqlite")[0].notes == first.notes == ()
    (tmp_path / "chip.yaml").write_text(CHIP.replace("1 GHz", "2 GHz"))
    (note,) = stored_result("r.sqlite")[0].notes
    assert f"{tmp_path / 'chip.yaml'} has changed since" in note
    (tmp_path / "chip.yaml").unlink()
    assert stored_result("r.sqlite")[0].notes == ()


def test_a_machine_beside_the_sweeps_file_is_told(tmp_path, monkeypatch, capsys):
    """Paths are from the current folder, as in other descriptions."""
    path = str(write(tmp_path))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert main(["sweep", path, "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert "there is one beside this file, and paths are from the current folder" in err
    assert err.count("\n") == 1


COLUMNS = [
    *(("points", column) for column in ("key", "sets", "state", "metrics", "bound", "why")),
    *(("members", column) for column in ("ordinal", "point", "place")),
    *(("sweeps", column) for column in ("digest", "name", "description", "code", "complete", "seconds", "evaluated")),
]
JUNK = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=6),
    st.text(max_size=6).filter(lambda text: text.isprintable()),
    st.recursive(st.none() | st.integers() | st.floats() | st.just("time"), lambda a: st.lists(a, max_size=3)).map(
        json.dumps
    ),
    st.dictionaries(st.sampled_from(["time", "energy", "gap", "x"]), st.none() | st.floats() | st.integers()).map(
        json.dumps
    ),
    st.just("[" * 100_000),
)


@given(st.sampled_from(COLUMNS), JUNK)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_row_show_says_it_in_a_line(whole, tmp_path, column, junk):
    """A sweep is shown without what is damaged, or refused in one line."""
    try:
        damaged(whole, tmp_path, f"UPDATE {column[0]} SET {column[1]} = ? WHERE rowid = 1", junk)
    except sqlite3.IntegrityError:
        return  # the file itself takes no such value
    assert main(["show", str(tmp_path / "r.sqlite"), "--report", str(tmp_path / "page.html")]) in (0, 2)


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
