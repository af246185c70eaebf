"""What elements of an array cost in a standard-cell library: area and clock of each, alone and in arrays.

Run ``python -m benchmarks.elements --liberty cells.lib [--only TEXT] [--write]``: ten seconds for elements alone, some
minutes for the arrays. Yosys maps each design flat, for a clock that no cells reach, so that all it does is for speed; OpenSTA
times what it made. ``--write`` keeps the rows that ran in ``src/siliconloom/reproduce/data/bit-weight/elements.json``, where
``loom reproduce bit-weight`` takes its ratios from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from siliconloom.arch import load_chip
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.synthesis.area import synthesize
from siliconloom.rtl.synthesis.module import module_of
from siliconloom.rtl.synthesis.timing import sta_command, static_timing

RESULTS = Path(__file__).parents[1] / "src" / "siliconloom" / "reproduce" / "data" / "bit-weight" / "elements.json"
CLOCK = "4 GHz"
"""Faster than any of the cells."""
ELEMENTS = ("multiply_add", "carry_save", "compressor", "digit_serial")
INNER = "element_inner_chained"
"""An element with neighbours on all sides, which most of an array are."""
Row = tuple[str, dict[str, Any], str | None]
"""A chip of the library, what is set of its array, and a module of it, or all."""


def rows() -> dict[str, Row]:
    """Designs by name: elements alone, then arrays of 8 x 8."""
    made: dict[str, Row] = {}
    for element in ELEMENTS:
        made[f"element, {element}"] = ("systolic-os-8", {"element": element}, INNER)
    for element in ELEMENTS[:2]:
        made[f"weight stationary element, {element}"] = ("systolic-ws-8", {"element": element}, INNER)
    for name in ("os", "ws"):
        for element in ELEMENTS[:2]:
            made[f"array {name}, {element}"] = (f"systolic-{name}-8", {"element": element}, None)
    return made


def figures(row: Row, liberty: Path) -> dict[str, Any]:
    """Area in the library's unit, flip-flops, and the clock with its slowest path."""
    chip, sets, module = row
    described = load_chip(chip, [("clock", CLOCK), *((f"tile.array.{key}", str(value)) for key, value in sets.items())])
    bundle = build_rtl(described)
    if module is not None:
        bundle = module_of(bundle, module)
    command = sta_command()
    if command is None:
        raise SystemExit("OpenSTA (sta) is not installed")
    with TemporaryDirectory() as folder:
        area = synthesize(bundle, "generic", liberty, Path(folder), flatten=True)
        timed = static_timing(command, liberty, bundle.top, 1e9 / described.clock, Path(folder))
    return {
        "area": area.square_units,
        "flip_flops": area.registers,
        "mhz": round(timed.mhz, 1),
        "path": f"{timed.begins} to {timed.ends}, {timed.cells} cells",
        "tools": [area.yosys, timed.tool],
        "cells": liberty.name,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Synthesize the rows that were asked for and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--liberty", type=Path, required=True, help="cell library with timing")
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(arguments)
    print(f"{'':46} {'area':>12} {'FF':>7} {'MHz':>7}")
    for name, row in rows().items():
        if not name.startswith(asked.only):
            continue
        found = figures(row, asked.liberty)
        print(f"{name:46} {found['area']:12,.0f} {found['flip_flops']:7,} {found['mhz']:7.1f}", flush=True)
        if asked.write:
            kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
            kept[name] = found
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
