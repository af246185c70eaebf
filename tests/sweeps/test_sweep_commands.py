"""``loom sweep`` and ``loom show``: what they print and write, and bad input in one line."""

import csv
import io
import json
import re

import pytest
from msgspec.structs import replace
from pyarrow import parquet
from rich.console import Console

import siliconloom as sl
from siliconloom.arch.sweep import typed_levels
from siliconloom.arch.swept import SweepProgress, SweepResult, SweptMetric, swept_schema
from siliconloom.cli import main
from siliconloom.render.sweep import LiveSweep, short_names, sweep_tables
from siliconloom.render.sweep_files import sweep_csv
from siliconloom.render.sweep_page import sweep_html, tornado
from siliconloom.sweeps import extras
from siliconloom.sweeps.run import run_sweep
from tests.render.test_report import data_of
from tests.sweeps.small import sweep, write

WORDS = ("sweep", "sweep.yaml", "--workers", "1")


@pytest.mark.slow(seconds=1)
def test_what_is_printed_as_json_is_what_show_prints_of_the_file(folder, capsys):
    write(folder)
    assert main([*WORDS, "--json", "-"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["schema"] == "siliconloom.sweep/1"
    assert (folder / "sweep.sqlite").exists()
    assert main(["show", "sweep.sqlite", "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {k: v for k, v in shown.items() if k != "seconds"} == {k: v for k, v in first.items() if k != "seconds"}
    required = swept_schema()["$defs"]["SweepResult"]["required"]
    assert set(required) <= set(first)


def test_names_are_as_short_as_they_differ_however_often_they_come():
    """A page has a name for each of thousands of breaks, all of few keys."""
    paths = ["tile.array.rows", "tile.array.cols", "chip.tile.array.rows", "memory.dram.latency"]
    once = short_names(paths)
    assert once["memory.dram.latency"] == "latency"
    assert once["tile.array.cols"] == "cols"
    asked = []

    class Told(str):
        def split(self, *words):
            asked.append(self)
            return super().split(*words)

    assert short_names([Told(path) for path in paths] * 5000) == once
    assert len(asked) == len(paths)


def test_a_page_of_more_points_than_it_holds_has_the_front_and_says_so(monkeypatch):
    found = run_sweep(sweep(), workers=1)
    whole = sweep_html(found)
    monkeypatch.setattr("siliconloom.render.sweep_page.MOST_POINTS", 5)
    page = sweep_html(found)
    assert "points; loom show --csv F writes all" not in whole
    assert "5 of 12 points; loom show --csv F writes all" in page
    rows = data_of(page)["charts"]["points"]["rows"]
    assert len(rows) == 5
    assert {row[0] for row in rows if row[-1] == "yes"} == set(found.front)
    assert len(data_of(whole)["charts"]["points"]["rows"]) == 12


@pytest.mark.slow(seconds=1)
def test_tables_fit_80_columns(folder, monkeypatch):
    found = run_sweep(sweep(constraints=[{"metric": "power", "at_most": 5}]), workers=1)
    text = io.StringIO()
    sweep_tables(found, Console(file=text, width=80))
    assert max(map(len, text.getvalue().splitlines())) <= 80
    for word in ("front", "bandwidth", "lanes", "12 evaluated", "12 points keep them"):
        assert word in text.getvalue()


def test_csv_and_parquet_have_every_point_and_figure(folder):
    write(folder, keys={"tile.array.rows": {"values": [8, -1], "with": ["tile.array.cols"]}})
    assert main([*WORDS, "--csv", "p.csv", "--parquet", "p.parquet", "--json", "p.json"]) == 0
    result = json.loads((folder / "p.json").read_text())
    rows = list(csv.DictReader(io.StringIO((folder / "p.csv").read_text())))
    records = parquet.read_table("p.parquet").to_pylist()
    assert len(rows) == len(records) == len(result["points"]) == 2
    for row, record, point in zip(rows, records, result["points"], strict=True):
        assert row["tile.array.cols"] == str(record["tile.array.cols"]) == point["values"]["tile.array.cols"]
        assert record["why"] == point["why"]
        for name, value in point["metrics"].items():
            assert float(row[name]) == record[name] == value
    assert rows[1]["time"] == ""
    assert records[1]["time"] is None


def test_values_of_keys_are_numbers_in_base_units_in_every_table(folder):
    keys = {
        "memory.dram.bandwidth": ["25.6 GB/s", "1 GiB/s"],
        "memory.dram.latency": {"values": ["50 ns", "1.5 us"], "with": {"clock": ["1 GHz", "500 MHz"]}},
        "tile.scratchpad.capacity": ["512 KiB"],
        "tile.array.dataflow": ["weight_stationary"],
        "tile.vector.lanes": [8],
    }
    write(folder, keys=keys)
    assert main([*WORDS, "--csv", "p.csv", "--parquet", "p.parquet"]) == 0
    found = {
        "memory.dram.bandwidth": [25_600_000_000, 25_600_000_000, 2**30, 2**30],
        "memory.dram.latency": [50e-9, 1.5e-6] * 2,
        "clock": [10**9, 5 * 10**8] * 2,
        "tile.scratchpad.capacity": [512 * 1024] * 4,
        "tile.array.dataflow": ["weight_stationary"] * 4,
        "tile.vector.lanes": [8] * 4,
    }
    kept = parquet.read_table("p.parquet").to_pydict()
    rows = list(csv.DictReader(io.StringIO((folder / "p.csv").read_text())))
    frame = sl.sweep(folder / "sweep.yaml").frame("points")
    for path, values in found.items():
        assert kept[path] == values
        assert [type(value) for value in kept[path]] == [type(value) for value in values]
        assert [type(values[0])(row[path]) for row in rows] == values
        assert list(frame[f"values.{path}"]) == values


@pytest.mark.parametrize(
    ("levels", "typed"),
    [
        (["true", "false"], [True, False]),
        (["1", "0.5", "1e3"], [1.0, 0.5, 1000.0]),
        (["1_000", "-2"], [1000, -2]),
        (["1 GB/s", "1 GB"], ["1 GB/s", "1 GB"]),
        (["8", "512 KiB"], ["8", "512 KiB"]),
        (["1e999999", "1"], ["1e999999", "1"]),
        (["9223372036854775808"], ["9223372036854775808"]),
        (["0.8 pJ"], [8e-13]),
        (["int8", "bf16"], ["int8", "bf16"]),
        (["[1, 2]"], ["[1, 2]"]),
    ],
)
def test_a_column_is_of_one_type(levels, typed):
    found = typed_levels(levels)
    assert [found[level] for level in levels] == typed
    assert [type(found[level]) for level in levels] == [type(value) for value in typed]


@pytest.mark.parametrize("objectives", [["time"], ["time", "energy"]])
def test_the_page_stands_alone_and_shows_every_point(folder, objectives):
    write(folder, objectives=objectives, name="s<b>.yaml")
    keys = {"memory.dram.bandwidth": ["4 GB/s", "8 GB/s"], "tile.array.rows": [8, -1]}
    write(folder, objectives=objectives, keys=keys)
    assert main([*WORDS, "--report", "page.html"]) == 0
    page = (folder / "page.html").read_text()
    page = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"<script|https?:|src=|@import", page)
    assert page.count("<circle") == page.count("<polyline") - (len(objectives) > 1) == 2
    assert "Failed points" in page
    assert ("Pareto front" in page) == (len(objectives) > 1)


def test_bad_input_of_commands_is_one_line(folder, capsys):
    write(folder)
    (folder / "text").write_text("x\n" * 2000)
    for words, told in [
        (["show", "absent"], "no such file of results"),
        (["show", "text"], "no file of a sweep's results"),
        ([*WORDS, "--results", "text"], "no file of a sweep's results"),
        ([*WORDS, "--results", "sweep.yaml"], "is an input"),
        ([*WORDS, "--csv", "a", "--json", "a"], "both name a"),
        (["sweep", "sweep.yaml", "--workers", "0"], "at least 1"),
        (["sweep", "absent.yaml"], "cannot be read"),
    ]:
        assert main(list(words)) == 2, words
        caught = capsys.readouterr()
        assert told in caught.err
        assert caught.err.count("\n") == 1
    assert main([*WORDS]) == 0
    assert main(["show", "sweep.sqlite", "--name", "other"]) == 2
    assert "has no sweep named 'other'; it has sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [("nsga2", "optuna", "sweeps"), ("saltelli", "SALib.sample.sobol", "sweeps"), ("grid", "distributed", "dask")],
)
def test_an_absent_extra_says_what_to_install(folder, capsys, monkeypatch, method, module, extra):
    write(folder, **({} if method == "grid" else {"method": method, "points": 64}))
    real = extras.import_module

    def absent(name):
        if name == module:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])
        return real(name)

    monkeypatch.setattr(extras, "import_module", absent)
    words = ["--scheduler", "tcp://127.0.0.1:9"] if method == "grid" else ["--workers", "1"]
    assert main(["sweep", "sweep.yaml", *words]) == 2
    assert f"pip install siliconloom[{extra}]" in capsys.readouterr().err


def test_one_point_is_no_points():
    keys = {"tile.array.rows": [8, -1, 16]}
    found = run_sweep(sweep(keys=keys, constraints=[{"metric": "power", "at_least": 0}]), workers=1)
    found = replace(found, counts=replace(found.counts, feasible=1))
    text = io.StringIO()
    sweep_tables(found, Console(file=text, width=80))
    assert "; 1 point keeps them" in text.getvalue()
    assert "\n1 point failed\n" in text.getvalue()


def test_a_key_that_does_nothing_has_no_bar():
    text = io.StringIO()
    found = run_sweep(sweep(objectives=["area"]), workers=1)
    sweep_tables(found, Console(file=text, width=80))
    rows = {line.split()[0]: line for line in text.getvalue().splitlines() if " at " in line}
    assert "=" not in rows["bandwidth"]
    assert "=" in rows["lanes"]
    assert "no effect" in tornado(found, found.asked.objectives[0])


def test_short_names_tell_keys_apart():
    paths = ["tile.array.rows", "memory.a.bandwidth", "memory.b.bandwidth", "rows.rows", "clock"]
    assert list(short_names(paths).values()) == ["array.rows", "a.bandwidth", "b.bandwidth", "rows.rows", "clock"]


def test_the_live_table_shows_how_far_it_is_and_the_front(folder):
    text = io.StringIO()
    screen = Console(file=text, width=80, force_terminal=True)
    seen: list[SweepProgress] = []
    with LiveSweep(True, screen) as live:

        def watch(progress):
            seen.append(progress)
            live(progress)

        found: SweepResult = run_sweep(sweep(), workers=1, watcher=watch)
    assert "12 of 12 points" in text.getvalue()
    assert "front so far" in text.getvalue()
    assert (
        seen[-1].objectives
        == found.asked.objectives
        == (SweptMetric("time", "s", True), SweptMetric("energy", "J", True))
    )
    assert tuple(point.number for point in seen[-1].front) == found.front


def test_figures_of_csv_are_those_of_the_result():
    found = run_sweep(sweep(), workers=1)
    rows = list(csv.DictReader(io.StringIO(sweep_csv(found))))
    assert [int(row["point"]) for row in rows if row["front"] == "True"] == sorted(found.front)
