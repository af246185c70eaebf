"""What a product takes in a standard-cell library, by element and format, beside the table that ``loom sim`` counts with.

Run ``python -m benchmarks.energy --liberty cells.lib [--only TEXT] [--write]``: a minute a row. Netlists of arrays of 4 x 4
run `siliconloom.verification.power.BEATS` beats in Icarus, of normal operands, with and without delays. ``--write`` keeps the
rows that ran in ``benchmarks/results/energy.json``, under the library's name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siliconloom.arch import load_chip
from siliconloom.arch.technology import TECHNOLOGIES
from siliconloom.verification.power import power_of

RESULTS = Path(__file__).parent / "results" / "energy.json"
CLOCK = "100 MHz"
"""That cells are chosen for: one that all of these reach in 45 nm."""
TABLE, TABLE_VOLTS = "45nm", 0.9
"""Whose figures stand beside, at their supply (M. Horowitz, ISSCC 2014, figure 1.1.9)."""
Row = tuple[str, dict[str, Any]]
"""A chip of the library, and what is set of its array."""


def rows() -> dict[str, Row]:
    """Arrays by name."""
    made: dict[str, Row] = {
        f"int8, {name}": (f"systolic-{name}-8", {"operands": "[int8]"}) for name in ("ws", "is", "os")
    }
    for element in ("carry_save", "digit_serial"):
        made[f"int8, os, {element}"] = ("systolic-os-8", {"element": element})
    made["int4, ws"] = ("systolic-ws-8", {"operands": "[int4]"})
    made["int16, ws"] = ("systolic-ws-8", {"operands": "[int16]"})
    made["bf16, ws"] = ("systolic-ws-8", {"operands": "[bf16]"})
    made["bf16, ws, 2 and 3 stages"] = ("systolic-ws-8", {"operands": "[bf16]", "multiply_stages": 2, "add_stages": 3})
    made["fp8_e4m3, ws"] = ("systolic-ws-8", {"operands": "[fp8_e4m3]"})
    return made


def figures(row: Row, liberty: Path) -> dict[str, Any]:
    """Picojoules of a product, by what takes them; and what the table says."""
    name, sets = row
    sides = {"rows": 4, "cols": 4}
    chip = load_chip(name, [("clock", CLOCK), *((f"tile.array.{k}", str(v)) for k, v in (sides | sets).items())])
    found = power_of(chip, liberty)
    with_glitches, without = (
        next(r for r in found["runs"] if r["values"] == "normal" and r["glitches"] is each) for each in (True, False)
    )
    taken = {key: round(joules * 1e12, 4) for key, joules in with_glitches["joules_per_mac"].items()}
    (dtype,) = chip.tile.array.operands[:1]
    return taken | {
        "without_glitches": round(without["joules_per_mac"]["total"] * 1e12, 4),
        "table": round(TECHNOLOGIES[TABLE].mac(dtype) * 1e12, 4),
        "at_table_volts": round(taken["total"] * (TABLE_VOLTS / found["volts"]) ** 2, 4),
        "volts": found["volts"],
        "leakage_w": found["leakage_w"],
        "tools": found["tools"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that were asked for and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--liberty", type=Path, required=True, help="cell library with energies")
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(arguments)
    columns = ("clock", "registers", "logic", "total", "without_glitches", "at_table_volts", "table")
    print(f"{'pJ a product':28}" + "".join(f"{name:>17}" for name in columns))
    for name, row in rows().items():
        if not name.startswith(asked.only):
            continue
        found = figures(row, asked.liberty)
        print(f"{name:28}" + "".join(f"{found[column]:17.3f}" for column in columns), flush=True)
        if asked.write:
            kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
            kept.setdefault(asked.liberty.name, {})[name] = found
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
