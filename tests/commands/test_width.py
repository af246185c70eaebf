"""Lines that are longer than the terminal go on under their value."""

import json
from itertools import takewhile

import pytest

from siliconloom.cli import main
from siliconloom.render import tables
from siliconloom.render.tables import Screen
from tests.in_turn import in_turn

RUNS = [
    ("sim npu-balanced llama3-8b --set workload.phase=decode --set workload.layers=1", 21),
    ("sim neupims gpt3-7b --set workload.phase=decode --set workload.layers=1", 17),
    ("sim dgx-h100 llama3-8b", 17),
    ("sim pim-hbm gpt2-block-gemms --set workload.precision=int8", 15),
]


WIDTHS = [40, 80, 200]


@pytest.mark.parametrize(("command", "column", "width"), in_turn([(*run, w) for run in RUNS for w in WIDTHS], 2))
def test_what_an_energy_leaves_out_stays_in_its_column(command, column, width, monkeypatch, capsys):
    class Narrow(Screen):
        def __init__(self, **options):
            super().__init__(**{**options, "width": width})

    monkeypatch.setattr(tables, "Screen", Narrow)
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("without "))
    rest = list(takewhile(lambda line: line.strip() and not line[:column].strip(), lines[first:]))
    assert " ".join(line.strip() for line in rest).count("host") == 1
    for line in rest:
        assert len(line.rstrip()) <= width
        assert line[column] != " "


def test_names_of_the_library_fit_eighty_columns(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    said = [name for line in out.splitlines() for name in line.split(": ")[-1].strip().strip(",").split(", ")]
    assert main(["list", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert said == [name for kind, names in found.items() if kind != "schema" for name in names]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_of_a_mapping_go_on_under_their_value(width, monkeypatch, capsys):
    class Narrow(Screen):
        def __init__(self, **options):
            super().__init__(**{**options, "width": width})

    monkeypatch.setattr(tables, "Screen", Narrow)
    assert main(["map", "npu-edge", "gpt2", "--set", "workload.layers=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, (line.rstrip() for line in lines))) <= width
    first = next(number for number, line in enumerate(lines) if line.startswith("  buffers "))
    rest = list(takewhile(lambda line: line.startswith(" " * 15), lines[first + 1 :]))
    assert bool(rest) == (width < 200)
