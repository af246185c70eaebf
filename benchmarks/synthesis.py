"""What modules of tiles cost on an ECP5, each by itself, and a rule for what a change may cost.

Run ``python -m benchmarks.synthesis [--only TEXT] [--write] [--check]``: three minutes for all rows. A row is a module of a chip of the
library, synthesized alone and flat, with what it contains: LUTs, multipliers, flip-flops, block RAMs. Every memory of a chip is a row.
``--write`` keeps the rows that ran in ``benchmarks/results/synthesis.json``, in the place of what it says of the same modules.
``--check`` compares with that file, and fails where a module takes more than `ALLOWED` more of anything, or is gone; what
is meant to cost more is written.
``--place`` places whole tiles that fit an LFE5U-85F instead (`PLACED`), a quarter of an hour or more each, and keeps their clocks and slowest paths in
``benchmarks/results/placements.json``; ``--check`` then fails where the slowest of the same seeds is more than `SLOWER` slower.
``--liberty FILE`` maps whole tiles to a library's cells instead (`TIMED`), five to ten minutes each, and OpenSTA says their clocks, kept in
``benchmarks/results/timed.json`` by the file's name; ``--check`` then fails where one misses the clock that it is described with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from siliconloom.arch import load_chip
from siliconloom.evaluate.synth import synth
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.synthesis.area import synthesize
from siliconloom.rtl.synthesis.module import module_of

RESULTS = Path(__file__).parent / "results" / "synthesis.json"
MODULES = {
    "npu-edge-int8": ("bank", "accumulator", "adder", "lane", "sequencer", "fetch", "load", "store"),
    "npu-edge": ("adder",),
}
"""Chips of the library, and modules of each beside its memories."""
PLACEMENTS = RESULTS.with_name("placements.json")
PART = "ecp5-85"
SMALL = {
    "tile.array.rows": "4",
    "tile.array.cols": "4",
    "tile.vector.lanes": "2",
    "tile.dma.bytes_per_cycle": "8",
    "tile.scratchpad.capacity": "32KiB",
    "tile.scratchpad.banks": "4",
    "tile.accumulator.capacity": "4KiB",
    "tile.sequencer.program_words": "256",
}
Described = tuple[str, dict[str, str]]
PLACED: dict[str, Described] = {"npu-edge-int8, 4 x 4": ("npu-edge-int8", SMALL)}
"""Whole tiles that are placed: chips of the library and what is set."""
DIVIDED = {
    **SMALL,
    "clock": "250MHz",
    "tile.array.multiply_stages": "2",
    "tile.array.add_stages": "3",
    "tile.array.accumulate_stages": "4",
    "tile.vector.sum_stages": "4",
    "tile.vector.latency": "88",
}
TIMED: dict[str, Described] = {
    "npu-edge-int8, 4 x 4": ("npu-edge-int8", {**SMALL, "clock": "250MHz", "tile.vector.latency": "27"}),
    "npu-edge in bf16, 4 x 4": ("npu-edge", {**DIVIDED, "tile.array.weights": "null", "tile.array.cache": "[]"}),
    "npu-edge, 4 x 4": ("npu-edge", {**DIVIDED, "tile.array.unpack_stages": "8"}),
}
"""Whole tiles that are mapped to a library's cells, for the clock of their descriptions."""
TIMED_RESULTS = RESULTS.with_name("timed.json")
SEEDS = 1
"""Placements of each."""
SLOWER = 0.1
"""Share by which a clock may fall unnoticed; another netlist that is as good falls anywhere within it."""
FIGURES = ("luts", "multipliers", "registers", "block_rams")
ALLOWED = 0.02
"""Share by which a figure may grow unnoticed."""

Table = dict[str, dict[str, int]]
"""Figures by name, of modules by chip and name."""


def modules_of(chip: str) -> Iterator[tuple[str, Bundle, str]]:
    """Names of a chip's modules as rows say them, its design, and their names in it."""
    bundle = build_rtl(load_chip(chip))
    names = [each["module"].removeprefix(f"{bundle.top}_") for each in bundle.sidecar["memories"]]
    for module in (*names, *MODULES[chip]):
        yield f"{chip} {module}", bundle, module


def figures(bundle: Bundle, module: str) -> dict[str, int]:
    """What a module takes."""
    with TemporaryDirectory() as folder:
        area = synthesize(module_of(bundle, module), "ecp5", None, Path(folder), flatten=True)
    return {each: getattr(area, each) for each in FIGURES}


def worse(now: Table, before: Table) -> list[str]:
    """What modules take more of than they did, a line each."""
    return [
        f"{module}: {now[module][each]:,} {each} instead of {was[each]:,}"
        for module, was in before.items()
        if module in now
        for each in FIGURES
        if now[module][each] > was[each] * (1 + ALLOWED)
    ]


def placed(name: str) -> dict[str, Any]:
    """Clock, slowest path and resources of a tile that is placed."""
    chip, sets = PLACED[name]
    found = synth(load_chip(chip, [*sets.items()]), seeds=SEEDS, part=PART)
    run = found["place_and_route"]
    return {
        "sets": sets,
        "part": PART,
        "tools": [found["tool"], run["tool"]],
        "used": {each["name"]: each["used"] for each in found["part"]["resources"]},
        "seeds": run["seeds"],
        "mhz": found["fmax_mhz"],
        "critical_path": run["critical_path"],
    }


def slower(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Placed tiles that are slower than they were with the same seeds, a line each."""
    return [
        f"{name}: {min(row['mhz']):.1f} MHz instead of {min(before[name]['mhz']):.1f}"
        for name, row in now.items()
        if name in before
        and row["seeds"] == before[name]["seeds"]
        and min(row["mhz"]) < min(before[name]["mhz"]) * (1 - SLOWER)
    ]


def place(asked: argparse.Namespace) -> int:
    """Place the tiles that were asked for; 1 where one has become slower."""
    before = json.loads(PLACEMENTS.read_text(encoding="utf-8")) if PLACEMENTS.exists() else {}
    now = {}
    for name in PLACED:
        if name.startswith(asked.only):
            now[name] = placed(name)
            path = now[name]["critical_path"]
            print(f"{name:40} {min(now[name]['mhz']):.1f} MHz, {path['delay_ns']:.1f} ns: {', '.join(path['through'])}")
    broken = slower(now, before) if asked.check else []
    for line in broken:
        print(f"slower than was kept: {line}")
    if asked.write:
        PLACEMENTS.write_text(json.dumps({**before, **now}, indent=1) + "\n", encoding="utf-8")
    return 1 if broken else 0


def timed(name: str, liberty: Path) -> dict[str, Any]:
    """Clock, slowest path and cells of a tile that is mapped to a library."""
    chip, sets = TIMED[name]
    found = synth(load_chip(chip, [*sets.items()]), target="generic", liberty=liberty)
    analysed = found["static_timing"]
    return {
        "sets": sets,
        "liberty": liberty.name,
        "tools": [found["tool"], analysed["tool"]],
        "area": found["area"]["cells"],
        "flip_flops": found["flip_flops"],
        "mhz": found["fmax_mhz"][0],
        "asked_mhz": 1000 / analysed["period_ns"],
        "path": {each: analysed[each] for each in ("begins", "ends", "cells")},
    }


def time_cells(asked: argparse.Namespace) -> int:
    """Map the tiles that were asked for; 1 where one misses its clock."""
    before = json.loads(TIMED_RESULTS.read_text(encoding="utf-8")) if TIMED_RESULTS.exists() else {}
    now = {}
    for name in TIMED:
        if name.startswith(asked.only):
            now[name] = row = timed(name, asked.liberty)
            path = f"{row['path']['begins']} to {row['path']['ends']}"
            print(f"{name:40} {row['mhz']:.1f} of {row['asked_mhz']:.0f} MHz, {path}", flush=True)
    broken = [name for name, row in now.items() if row["mhz"] < row["asked_mhz"]] if asked.check else []
    for name in broken:
        print(f"slower than its clock: {name}")
    if asked.write:
        TIMED_RESULTS.write_text(json.dumps({**before, **now}, indent=1) + "\n", encoding="utf-8")
    return 1 if broken else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Synthesize the modules that were asked for, print the table; 1 where the rule is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--place", action="store_true", help="place whole tiles instead")
    parser.add_argument("--liberty", type=Path, help="map whole tiles to the cells of this file instead")
    asked = parser.parse_args(arguments)
    if asked.place:
        return place(asked)
    if asked.liberty:
        return time_cells(asked)
    before: Table = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    now: Table = {}
    print(f"{'':40} {'LUT':>7} {'DSP':>5} {'FF':>7} {'RAM':>5}")
    chips = [chip for chip in MODULES if f"{chip} ".startswith(asked.only) or asked.only.startswith(f"{chip} ")]
    for name, bundle, module in (row for chip in chips for row in modules_of(chip)):
        if name.startswith(asked.only):
            now[name] = figures(bundle, module)
            luts, multipliers, registers, rams = now[name].values()
            print(f"{name:40} {luts:>7,} {multipliers:>5,} {registers:>7,} {rams:>5,}", flush=True)
    broken = worse(now, before) if asked.check else []
    if asked.check:
        broken += [f"{name}: is gone" for name in before if name.startswith(asked.only) and name not in now]
    for line in broken:
        print(f"more than was kept: {line}")
    if asked.write:
        gone = {name for name in before if name.startswith(asked.only)} - now.keys()
        table = {name: each for name, each in {**before, **now}.items() if name not in gone}
        RESULTS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
