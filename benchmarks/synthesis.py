"""What modules of tiles cost on an ECP5, each by itself, and a rule for what a change may cost.

Run ``python -m benchmarks.synthesis [--only TEXT] [--write] [--check]``: three minutes for all rows. A row is a module of a chip of the
library, synthesized alone and flat, with what it contains: LUTs, multipliers, flip-flops, block RAMs. Every memory of a chip is a row.
``--write`` keeps the rows that ran in ``benchmarks/results/synthesis.json``, in the place of what it says of the same modules.
``--check`` compares with that file, and fails where a module takes more than `ALLOWED` more of anything, or is gone; what
is meant to cost more is written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from siliconloom.arch import load_chip
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.synthesis.area import synthesize
from siliconloom.rtl.synthesis.module import module_of

RESULTS = Path(__file__).parent / "results" / "synthesis.json"
MODULES = {
    "npu-edge-int8": ("bank", "accumulator", "adder", "lane", "sequencer", "fetch", "load", "store"),
    "npu-edge": ("adder",),
}
"""Chips of the library, and modules of each beside its memories."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Synthesize the modules that were asked for, print the table; 1 where the rule is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
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
