"""SkipPipe: iterations of pipelines whose microbatches skip and reorder stages, on twenty nodes around the world.

The published schedule gives the messages' delays between nodes, the microbatches that a node can hold, every
microbatch's path and the time of a forward pass; the repository's settings a backward pass of 1.5 times that, a quarter
for the loss, a rest of 0.13 s after a pass and 0.09 s after a first one, and when microbatches enter, in waves whose
members wait for those of the first one on the same path. The iteration follows from these, with microbatches served in
the order in which they arrive.

Where a microbatch arrives at the very moment at which a node becomes free, we take it as too late for that turn; the
released simulator leaves it to the rounding of its sums. The other way round the first and third figure are 80.99 and
35.69 s, the others the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.paths import Visit, follow, round_trip
from siliconloom.reproduce.visits import ExpertJob, Stay, VisitRun, run_visits

PICO = 1e12
SHARE = {Visit.FORWARD: 1.0, Visit.LOSS: 0.25, Visit.BACKWARD: 1.5}
"""Time of a visit in forward passes."""
REST, FIRST_REST = 0.13, 0.09
TOLERANCE = 0.01
PUBLISHED = {
    "whole pipelines": "baseline",
    "stages skipped at random": "random",
    "SkipPipe without its collision rule": "nonca",
    "SkipPipe": "ca",
}
Entry = tuple[Sequence[int], float, int | None]
"""A microbatch's path, the second at which it enters, and the microbatch that must be done before."""


def card() -> Card:
    """Simulate the four published schedules."""
    text = files("siliconloom").joinpath("reproduce/data/skippipe/schedule.json").read_text("utf-8")
    schedule = json.loads(text)
    entries = {"baseline": _whole(schedule), "ca": _collision_aware(schedule)}
    entries |= {"random": _waves(schedule, "random-paths"), "nonca": _waves(schedule, "non-ca-paths")}
    runs = {name: run_paths(schedule, entries[key]) for name, key in PUBLISHED.items()}
    rows = [
        CardRow(f"iteration, s [{name}]", runs[name].finish / PICO, schedule[f"{key}-expected-time"], TOLERANCE)
        for name, key in PUBLISHED.items()
    ]
    rows += [
        CardRow(f"microbatches held by a node [{name}]", max(run.most), schedule["memory"], 0.0, sense="at most")
        for name, run in runs.items()
    ]
    return Card(
        "skippipe",
        "SkipPipe: partial and reordered pipelines on twenty nodes",
        "Blagoev, Chen and Ersoy, SkipPipe, 2025; schedule of its repository",
        tuple(rows),
    )


def pass_seconds(schedule: dict[str, Any]) -> float:
    """Seconds of a forward pass: the planned distance of a first node's first two."""
    first, second = schedule["non-ca-processing-order"]["0"][:2]
    return float(second[1] - first[1])


def run_paths(schedule: dict[str, Any], entries: Sequence[Entry]) -> VisitRun:
    """Run microbatches along their paths."""
    forward = pass_seconds(schedule)
    jobs = []
    for number, (path, ready, after) in enumerate(entries):
        stops = round_trip(path)
        rests = [FIRST_REST] + [REST] * (len(stops) - 1)
        stays = tuple(
            Stay(stop.node, round(SHARE[stop.kind] * forward * PICO), round(rest * PICO), stop.holds)
            for stop, rest in zip(stops, rests, strict=True)
        )
        jobs.append(ExpertJob(f"microbatch {number}", stays, round(ready * PICO), after))
    delays = np.rint(np.array(schedule["delays"]) * PICO).astype(np.int64)
    return run_visits(jobs, delays, [schedule["memory"]] * len(delays))


def _whole(schedule: dict[str, Any]) -> list[Entry]:
    """Three pipelines through all stages, three waves of three microbatches each."""
    stages = schedule["partitions"]
    lanes = [[stage[lane] for stage in stages] for lane in range(3)]
    first = [path for path in lanes for _ in range(3)]
    return [(path, 0.1 * wave, number if wave else None) for wave in range(3) for number, path in enumerate(first)]


def _waves(schedule: dict[str, Any], key: str) -> list[Entry]:
    """Two waves of fifteen paths, three from each first node, a forward pass apart."""
    paths, forward = _paths(schedule[key]), pass_seconds(schedule)
    return [
        (path, 2.5 * wave + number % 3 * forward, number if wave else None)
        for wave in range(2)
        for number, path in enumerate(paths)
    ]


def _collision_aware(schedule: dict[str, Any]) -> list[Entry]:
    """Two waves, three microbatches on each of five paths, a second apart."""
    first = [(path, turn) for turn in range(3) for path in _paths(schedule["ca-paths"])]
    return [
        (path, 2.5 * wave + turn, number if wave else None)
        for wave in range(2)
        for number, (path, turn) in enumerate(first)
    ]


def _paths(table: dict[str, dict[str, int]]) -> list[list[int]]:
    return [follow({int(a): b for a, b in table[str(number)].items()}) for number in range(len(table))]
