"""Figures for papers from results that were kept."""

import json
from xml.etree import ElementTree

import pytest

from siliconloom.cli import main
from tests.in_turn import in_turn

SMALL = ["--set", "workload.layers=1", "--set", "workload.sequence=32"]
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
        "service": ["serve", "h100", "gpt2", "64x16", "--set", "serve.requests=9"],
    }
    for name, command in commands.items():
        assert main([*command, "--json", str(folder / name)]) == 0
    return folder


def svg_text(path):
    return " ".join(each.text or "" for each in ElementTree.parse(path).getroot().iter() if each.tag.endswith("text"))


FIGURES = [
    *(("chip", "roofline"), ("chip", "operators"), ("chip", "energy"), ("gpu", "energy")),
    *(("comparison", "operators"), ("service", "latency"), ("service", "timeline")),
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
        ("[1]", [], "it has no 'schema'"),
        ('{"schema": "siliconloom.result/1"}', [], "must be one of siliconloom.result/2,"),
        ('{"schema": "siliconloom.plan/1"}', [], "plan: Field required"),
        (None, ["--kind", "rooflin"], "did you mean 'roofline'?"),
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
    same = tmp_path / "r.svg"
    same.write_bytes((kept / "chip").read_bytes())
    assert main(["figure", str(same), "-o", str(same)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
