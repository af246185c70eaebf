"""TPU v3: measured cycles of single operators and of an encoder layer, against the library's `tpu-v3`.

Every row is simulated as a workload of its own on one core: the mapper's tiles, operators launched one after the other,
all results through memory. The chip's constants stand in its file with their sources. What had to be chosen where
nothing is published was chosen with these rows in view, and `docs/reproduce.md` says which row decided what; no
constant takes a value that a row was solved for.
"""

from __future__ import annotations

import csv
import re
from importlib.resources import as_file, files
from typing import Any

from siliconloom.arch.document import Document
from siliconloom.evaluate.chip import simulate
from siliconloom.reproduce.card import Card, CardRow

CHIP = "tpu-v3"
TOLERANCE = 0.10
"""What the six rows are held to: the error bar of the chip's description."""
DATA = files("siliconloom").joinpath("reproduce/data/tpuv3")
SHAPES = {
    "gemm": (r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)", {}),
    "layernorm": (r"(?P<rows>\d+)x(?P<cols>\d+)", {"kind": "layer_norm"}),
    "softmax": (r"(?P<rows>\d+)x(?P<cols>\d+)", {"kind": "softmax"}),
    "attention": (r"(?P<heads>\d+)x(?P<queries>\d+)x(?P<head_dim>\d+)", {"kind": "attention"}),
}
"""What a row's name says of its operator, by the word that it begins with."""


def measured() -> dict[str, int]:
    """Measured cycles of each row."""
    text = DATA.joinpath("measured.csv").read_text("utf-8")
    return {row["workload"]: int(row["tpuv3_cycles"]) for row in csv.DictReader(text.splitlines())}


def workload(name: str) -> Document:
    """The workload of a row: one operator as its name says, or what a file lists."""
    word, _, sizes = name.partition("_")
    if word not in SHAPES:
        with as_file(DATA.joinpath(f"{name}.yaml")) as path:
            return Document.load(path)
    pattern, fixed = SHAPES[word]
    match = re.fullmatch(pattern, sizes)
    assert match is not None
    entry: dict[str, Any] = {"name": word, "kind": "gemm"} | fixed | {k: int(v) for k, v in match.groupdict().items()}
    return Document.of({"kind": "operators", "name": name, "operators": [entry]}, name)


def cycles(name: str) -> int:
    """Cycles of a row on the library's chip."""
    from siliconloom.workloads import load_workload

    return simulate(CHIP, load_workload(workload(name))).run.cycles


def card() -> Card:
    """All six rows."""
    rows = tuple(
        CardRow(f"cycles of {name.partition('_')[0]} [{name}]", cycles(name), found, TOLERANCE)
        for name, found in measured().items()
    )
    return Card(
        "tpuv3",
        "TPU v3: cycles of operators and of an encoder layer on one core",
        "PyTorchSim, Yang et al., MICRO 2025; measured cycles of its repository",
        rows,
    )
