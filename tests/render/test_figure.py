"""Figures for papers from results that were kept."""

import itertools
import json
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.cli import main
from siliconloom.render.page import PALETTE, colours_of
from siliconloom.render.sweep_page import staircase
from tests.in_turn import in_turn

SMALL = ["--set", "workload.layers=1", "--set", "workload.sequence=32"]
SWEPT = {
    **{"kind": "sweep", "machine": "h100", "workload": "gpt2", "objectives": ["energy", "throughput"]},
    "set": {"workload.layers": 1},
    "keys": {"workload.sequence": [16, 32, 64], "workload.batch": [1, 8], "memory.capacity": ["8 GB", "80 GB"]},
}
BEGINS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A file of each kind of result."""
    folder = tmp_path_factory.mktemp("kept")
    commands = {
        "chip": ["sim", "npu-edge-int8", "gpt2", *SMALL],
        "gpu": ["sim", "h100", "gpt2", *SMALL],
        "comparison": ["compare", "npu-edge-int8", "gpt2", "--gpu", "h100", *SMALL],
        "plan": ["plan", "dgx-h100", "llama3-8b"],
        "system": ["sim", "npu-datacenter-x8", "gpt2", *SMALL],
        "service": ["serve", "h100", "gpt2", "64x16", "--set", "serve.requests=9"],
    }
    for name, command in commands.items():
        assert main([*command, "--json", str(folder / name)]) == 0
    (folder / "small.yaml").write_text(yaml.safe_dump(SWEPT))
    database = ["--results", str(folder / "database"), "--workers", "1"]
    assert main(["sweep", str(folder / "small.yaml"), *database, "--json", str(folder / "sweep")]) == 0
    return folder


def svg_text(path):
    return " ".join(each.text or "" for each in ElementTree.parse(path).getroot().iter() if each.tag.endswith("text"))


FIGURES = [
    *(("chip", "roofline"), ("chip", "operators"), ("chip", "energy"), ("gpu", "energy")),
    *(("comparison", "operators"), ("service", "latency"), ("service", "timeline")),
    *(("plan", "plans"), ("sweep", "pareto"), ("sweep", "parallel"), ("database", "tornado")),
]


@pytest.mark.parametrize(
    ("name", "kind", "suffix"),
    in_turn(
        ((*each, [*BEGINS][(n + turn) % len(BEGINS)]) for n, each in enumerate(FIGURES) for turn in range(len(BEGINS))),
        0,
        seconds=0.8,
    ),
)
def test_a_figure_is_of_the_format_that_its_name_says_and_is_the_same_again(name, kind, suffix, kept, tmp_path):
    files = [tmp_path / f"{number}.{suffix}" for number in (1, 2)]
    for file in files:
        assert main(["figure", str(kept / name), "-o", str(file), "--kind", kind]) == 0
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(BEGINS[suffix])
    assert first == second


@pytest.mark.slow(seconds=1.5)
def test_figures_name_what_they_draw(kept, tmp_path):
    result = json.loads((kept / "chip").read_text())
    out = str(tmp_path / "f.svg")
    assert main(["figure", str(kept / "chip"), "-o", out]) == 0
    assert "multiply-accumulates per byte" in svg_text(out)
    for operator in (o for o in result["operators"] if o["macs"]):
        assert operator["name"] in svg_text(out)
    assert main(["figure", str(kept / "comparison"), "-o", out, "--kind", "energy"]) == 0
    assert "h100" in svg_text(out)
    assert main(["figure", str(kept / "gpu"), "-o", out]) == 0
    assert "seconds, all executions" in svg_text(out)
    assert main(["figure", str(kept / "service"), "-o", out]) == 0
    assert "share that waits no longer" in svg_text(out)
    assert main(["figure", str(kept / "service"), "-o", out, "--kind", "timeline"]) == 0
    assert "tokens of answers a second" in svg_text(out)


def test_titles_name_the_system_and_not_its_chip(kept, tmp_path):
    out = str(tmp_path / "f.svg")
    for kind in ("operators", "energy"):
        assert main(["figure", str(kept / "system"), "-o", out, "--kind", kind]) == 0
        assert "gpt2 on npu-datacenter-x8" in svg_text(out)


def test_a_plan_and_a_sweep_have_a_kind_where_nothing_is_said(kept, tmp_path):
    out = str(tmp_path / "f.svg")
    for name, told in (("plan", "seconds of a step"), ("sweep", "throughput (tokens/s)"), ("database", "energy (J)")):
        assert main(["figure", str(kept / name), "-o", out]) == 0
        assert told in svg_text(out)


def test_colours_are_different_in_one_figure():
    names = ["npu-balanced", "a100", *(f"m{n}" for n in range(40))]
    found = colours_of(names)
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert [found[name] for name in names[:8]] == list(PALETTE)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9), st.booleans(), st.booleans())
def test_a_staircase_is_the_edge_of_what_the_front_beats(points, first_less, second_less):
    """Every corner is beaten by a point of the front, and no step is a slope."""
    x, y = (1 if less else -1 for less in (first_less, second_less))
    front = sorted(
        {p for p in points if not any(q != p and x * q[0] <= x * p[0] and y * q[1] <= y * p[1] for q in points)}
    )
    line = staircase(front, first_less)
    assert set(front) <= set(line)
    assert all(a == c or b == d for (a, b), (c, d) in itertools.pairwise(line))
    assert all(any(x * a <= x * c and y * b <= y * d for a, b in front) for c, d in line)


def test_a_format_may_be_said_by_its_option(kept, tmp_path):
    files = {suffix: tmp_path / f"plot-{suffix}" for suffix in BEGINS}
    options = [word for suffix, path in files.items() for word in (f"--{suffix}", str(path))]
    assert main(["figure", str(kept / "chip"), *options, "-o", str(tmp_path / "f.svg")]) == 0
    for suffix, path in files.items():
        assert path.read_bytes().startswith(BEGINS[suffix])
    assert files["svg"].read_bytes() == (tmp_path / "f.svg").read_bytes()


def test_a_sweep_that_contradicts_itself_is_one_line(kept, tmp_path, capsys):
    for change, told in (
        (lambda r: r["front"].append(99), "front: has points that have no figures"),
        (lambda r: r["points"][0]["metrics"].pop("energy"), "points.0: has no energy"),
        (lambda r: r["points"][0]["values"].pop("workload.batch"), "points.0: has other values than its keys"),
        (lambda r: r["points"][1]["metrics"].update(energy="x"), "Expected `float`, got `str`"),
        (lambda r: r["effects"][0].update(key="x"), "effects.0: is of no key"),
    ):
        result = json.loads((kept / "sweep").read_text())
        change(result)
        (tmp_path / "r.json").write_text(json.dumps(result))
        assert main(["figure", str(tmp_path / "r.json"), "-o", str(tmp_path / "f.svg")]) == 2
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1


@pytest.mark.slow(seconds=1)
def test_names_of_users_are_no_formulas(kept, tmp_path):
    result = json.loads((kept / "chip").read_text())
    result["operators"][0]["name"], result["workload"] = r"$\frac{$", "a$b$ \u6f22"
    path, out = tmp_path / "r.json", tmp_path / "f.svg"
    path.write_text(json.dumps(result))
    for kind in ("operators", "roofline", "energy"):
        assert main(["figure", str(path), "-o", str(out), "--kind", kind]) == 0
    assert "a$b$" in svg_text(out)


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        ("{", [], "is no JSON"),
        ("[" * 100_000, [], "is no JSON"),
        ("[1]", [], "it has no 'schema'; --json of loom sim, compare, serve, plan, sweep and show"),
        ('{"schema": "siliconloom.result/1"}', [], "must be one of siliconloom.result/2,"),
        ('{"schema": "siliconloom.plan/1"}', [], "plan: Field required"),
        (None, ["--kind", "rooflin"], "did you mean 'roofline'?"),
        (None, ["--svg", "-"], "--svg -: must be a file"),
    ],
)
def test_what_is_no_result_is_one_line(change, options, told, kept, tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text((kept / "chip").read_text() if change is None else change)
    assert main(["figure", str(path), "-o", str(tmp_path / "f.svg"), *options]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "f.svg").exists()


OTHERS = (
    ("service", "operators"),
    ("service", "energy"),
    ("service", "roofline"),
    ("chip", "latency"),
    ("plan", "timeline"),
    ("chip", "pareto"),
    ("chip", "plans"),
    ("sweep", "roofline"),
    ("sweep", "operators"),
    ("sweep", "plans"),
)
"""Figures of other results than they are asked of."""


def test_a_figure_that_a_result_has_no_data_for_is_not_supported(kept, tmp_path, capsys):
    out = str(tmp_path / "f.svg")
    for name, kind in (
        ("plan", "operators"),
        ("plan", "energy"),
        ("gpu", "roofline"),
        ("comparison", "roofline"),
        *OTHERS,
    ):
        assert main(["figure", str(kept / name), "-o", out, "--kind", kind]) == 2
        assert "not supported: " in capsys.readouterr().err


def test_a_figure_goes_to_a_file_of_a_known_format(kept, tmp_path, capsys):
    for output in ("-", "f.jpg", "f"):
        assert main(["figure", str(kept / "chip"), "-o", output]) == 2
        assert "must be a file that ends in .svg, .png or .pdf" in capsys.readouterr().err
    assert main(["figure", str(kept / "chip")]) == 2
    assert "no file to write: give -o FILE, --svg FILE" in capsys.readouterr().err
    same = tmp_path / "r.svg"
    same.write_bytes((kept / "chip").read_bytes())
    assert main(["figure", str(same), "-o", str(same)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
