"""Vocabulary parallelism's baselines: measured 1F1B iterations on eight A100 from their stages' measured times.

Sixteen runs of 128 microbatches, layers shared evenly or redistributed. Each stage's forward and backward time is
measured; our 1F1B schedule on in-order streams makes the iteration of them, without any constant of our own: messages
between stages are taken as hidden behind the passes.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from siliconloom.mapper.system.pipeline import StagePlacement, most_held, one_forward_one_backward
from siliconloom.mapper.system.step import run_pipeline
from siliconloom.reproduce.card import Card, CardRow

STAGES = 8
TOLERANCE = 0.02


def card() -> Card:
    """Simulate every measured run, and count the microbatches that the first stage holds."""
    text = files("siliconloom").joinpath("reproduce/data/vocabulary-parallel/measured.csv").read_text("utf-8")
    rows = []
    for run in csv.DictReader(text.splitlines()):
        forward, backward = ([int(t) * 1e-6 for t in run[f"{kind}_us"].split()] for kind in ("forward", "backward"))
        schedule = one_forward_one_backward(STAGES, int(run["microbatches"]))
        ours = run_pipeline(schedule, StagePlacement(STAGES), forward, backward).seconds * 1e3
        rows.append(CardRow(f"iteration of 1F1B, ms [{run['name']}]", ours, float(run["iteration_ms"]), TOLERANCE))
    held = {ahead: most_held(one_forward_one_backward(STAGES, 128, ahead=ahead))[0] for ahead in (0, 1, 2)}
    rows += [
        CardRow("microbatches in flight on the first stage [1F1B: p]", held[0], STAGES, 0.0),
        CardRow("microbatches in flight on the first stage [one more barrier: p + 1]", held[1], STAGES + 1, 0.0),
        CardRow("microbatches in flight on the first stage [two more barriers: p + 2]", held[2], STAGES + 2, 0.0),
    ]
    return Card(
        "vocabulary-parallel",
        "Vocabulary parallelism: measured 1F1B iterations of eight A100",
        "Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, 2024",
        tuple(rows),
    )
