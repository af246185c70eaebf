"""Which lines, branches and toggles of a tile's Verilog the programs of `loom verify` reach, as Verilator counts them.

Run ``python -m benchmarks.coverage [CHIP] [--programs N] [--write]``. Random programs in changing surroundings, the
directed ones, and every fault run on the tile; each is held against simulator and golden model, as ever. ``--write``
keeps the figures in ``benchmarks/results/coverage.json``.

A *line* is a block of statements that Verilator counts together, a *branch* one side of an if or a case, a *toggle*
one bit that rises or falls. Points are those of modules, not of instances: a module that stands in many places is
reached when one of them is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import machine
from siliconloom.arch import Chip, load_chip
from siliconloom.arch.faults import Cause
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.directed import directed_programs
from siliconloom.verification.faults import fault_cases
from siliconloom.verification.npu import compare, surrounded
from siliconloom.verification.programs import random_program

ARGUMENTS = ("--coverage-line", "--coverage-toggle")
DATA = "coverage.dat"
KINDS = {"v_line": "lines", "v_branch": "branches", "v_toggle": "toggles"}
"""What Verilator calls a page of its points, and what they are called here."""
POINT = re.compile(r"C '(?P<key>.*)' (?P<count>\d+)")
PROGRAMS = 32
RESULT = Path(__file__).parent / "results" / "coverage.json"
TOLD = 40
"""Modules that are printed, those with the most points that nothing reaches first."""


class Point(NamedTuple):
    """A place that Verilator counts: its kind, module's file, line, what it says there, and how often it was reached."""

    kind: str
    file: str
    line: int
    text: str
    count: int


def points(text: str) -> Iterator[Point]:
    """The points of a file that Verilator wrote."""
    for line in text.splitlines():
        found = POINT.fullmatch(line)
        if found is None:
            continue
        parts = dict(part.split("\x02", 1) for part in found["key"].split("\x01") if part)
        kind = KINDS.get(parts["page"].partition("/")[0])
        if kind is not None:
            yield Point(kind, Path(parts["f"]).name, int(parts["l"]), parts.get("o", ""), int(found["count"]))


def tally(found: Sequence[Point]) -> dict[str, dict[str, int]]:
    """Points there are, and points that were reached, by kind."""
    counted = {kind: {"points": 0, "reached": 0} for kind in KINDS.values()}
    for point in found:
        counted[point.kind]["points"] += 1
        counted[point.kind]["reached"] += point.count > 0
    return counted


def cases_of(chip: Chip, programs: int) -> tuple[list[tuple[str, LoadedProgram]], list[ProgramCase]]:
    """Random and directed programs by name, each in the surroundings that have their turn."""
    made = [(f"random {n}", random_program(chip, n, extreme=n % 4 == 1)) for n in range(programs)]
    made += directed_programs(chip)
    placed, cases = [], []
    for number, (name, each) in enumerate(made):
        here, options = surrounded(each, number)
        placed.append((name, here))
        cases.append(ProgramCase(here.program, here.memory, here.base, **options))
    return placed, cases


def measure(chip: Chip, programs: int) -> tuple[list[Point], dict[str, Any]]:
    """The points of the tile's own Verilog, and what was run; raises `SystemExit` where a run is wrong."""
    bundle = build_rtl(chip)
    placed, cases = cases_of(chip, programs)
    faults = fault_cases(chip)
    after, after_case = placed[0][1], cases[0]
    runs = [*cases, *(each for fault in faults for each in (fault.case, after_case))]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sources = bundle.write(Path(folder) / "rtl")
        place = Path(folder) / "bench"
        outcomes = run_programs(chip, sources, bundle.top, runs, folder=place, arguments=ARGUMENTS)
        text = next(place.rglob(DATA)).read_text(encoding="latin-1")
    errors, left = list[str](), iter(outcomes)
    for (name, made), case in zip(placed, cases, strict=True):
        errors += compare(name, chip, made, next(left), case.stall > 0 or case.order > 0).errors
    for fault in faults:
        outcome = next(left)
        if not outcome.ended or outcome.cause != fault.cause:
            errors.append(f"{fault.name}: {outcome.cause.text}, not {Cause(fault.cause).text}")
        errors += compare(f"after {fault.name}", chip, after, next(left)).errors
    if errors:
        raise SystemExit("\n".join(errors))
    own = {path.name for path in sources}
    ran = {
        "random": programs,
        "directed": len(placed) - programs,
        "faults": len(faults),
        "cycles": sum(outcome.cycles for outcome in outcomes),
        "seconds": round(time.perf_counter() - began),
    }
    return [point for point in points(text) if point.file in own], ran


def main() -> int:
    """Measure, print a table by module, and keep it where it is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("chip", nargs="?", default="npu-edge-int8")
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--missed",
        metavar="MODULE",
        help="list lines and branches that nothing reaches, of modules with this in the name",
    )
    asked = parser.parse_args()
    chip = load_chip(asked.chip)
    found, ran = measure(chip, asked.programs)
    if not found:
        raise SystemExit("Verilator counted no points")
    modules: dict[str, list[Point]] = defaultdict(list)
    for point in found:
        modules[point.file.removesuffix(".v")].append(point)
    told = {name: tally(own) for name, own in modules.items()}
    whole = tally(found)

    def missed(counted: dict[str, dict[str, int]]) -> int:
        return sum(each["points"] - each["reached"] for each in counted.values())

    print(f"{asked.chip}: {ran}")
    print(f"{'':44s}" + "".join(f"{kind:>26s}" for kind in KINDS.values()))
    rows = sorted(told.items(), key=lambda item: (-missed(item[1]), item[0]))[:TOLD]
    for name, counted in [("all", whole), *rows]:
        cells = (f"{c['reached']:,} of {c['points']:,}" + f" {share(c):6.1f}%" for c in counted.values())
        print(f"{name:44s}" + "".join(f"{cell:>26s}" for cell in cells))
    if asked.missed is not None:
        for point in sorted(found):
            if asked.missed in point.file and not point.count and point.kind != "toggles":
                print(f"{point.file}:{point.line}: {point.kind}: {point.text}")
    if asked.write:
        record = {"chip": asked.chip, "digest": chip.digest, "machine": machine(), "ran": ran, "all": whole}
        record["modules"] = dict(sorted(told.items()))
        RESULT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def share(counted: dict[str, int]) -> float:
    """Per cent of the points that were reached; of none, all."""
    return 100 * counted["reached"] / counted["points"] if counted["points"] else 100.0


if __name__ == "__main__":
    sys.exit(main())
