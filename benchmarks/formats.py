"""What number formats cost as circuits: LUTs, multipliers, flip-flops and clock of a 4 x 4 array on an ECP5.

The last rows are arrays with an edge at which weights and operands are made to what the elements multiply: int4 and int8
in groups, MX blocks, operands that share an exponent. They are the module ``array`` of a tile, between registers, and
are compared with the same array without such an edge.

Run ``python -m benchmarks.formats [--seeds N] [--only TEXT] [--write]``. Rows are formats, and of some the registers inside
multiply and add (`multiply_stages`, `add_stages`). With ``--seeds 0`` nothing is placed, and there is no clock: a few
minutes for all rows. Placing and routing takes minutes for each floating-point row and seed. ``--write`` keeps the rows
that ran in ``benchmarks/results/formats.json``, in the place of what it says of the same rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from siliconloom.arch import load_chip
from siliconloom.evaluate.synth import synth

RESULTS = Path(__file__).parent / "results" / "formats.json"
ROWS = (
    ("int4", 1, 0),
    ("int8", 0, 0),
    ("int8", 1, 0),
    ("int16", 0, 0),
    ("int16", 1, 0),
    ("int16", 2, 1),
    ("fp8_e5m2", 1, 0),
    ("fp8_e4m3", 1, 0),
    ("bf16", 0, 0),
    ("bf16", 1, 0),
    ("bf16", 1, 1),
    ("bf16", 2, 2),
    ("bf16", 2, 3),
    ("fp16", 1, 0),
    ("fp16", 2, 3),
)
"""Format, registers at the multiplier, registers inside the adder."""
SIDE = 4
EDGES = (
    ("bf16, weights as elements", "npu-edge", {"tile.array.weights": "null"}),
    ("bf16, weights int4 or int8 in groups", "npu-edge", {}),
    ("bf16, weights in MX blocks, too", "npu-edge-mx", {}),
    ("fp8_e4m3, elements rounded to it", "npu-edge-w8a8", {"tile.array.operands": "[fp8_e4m3]"}),
    ("int8, operands that share exponents (W8A8)", "npu-edge-w8a8", {}),
    ("int4, the same (W4A4)", "npu-edge-w8a8", {"tile.array.operands": "[int4]"}),
    ("int16, the same (W16A16)", "npu-edge-w8a8", {"tile.array.operands": "[int16]"}),
    ("int8, the same, weights int4 in groups (W4A8)", "npu-edge-w4a8", {}),
)
"""What is multiplied and what the edge does; a chip of the library, and what of it is changed."""


def row(dtype: str, multiply: int, add: int) -> dict[str, Any]:
    """Keys of a description: one array."""
    sets = {"operands": dtype, "rows": SIDE, "cols": SIDE, "multiply_stages": multiply, "add_stages": add}
    return {f"tile.array.{key}": value for key, value in sets.items()}


def edge_row(changed: dict[str, str]) -> dict[str, Any]:
    """Keys of a description: a tile whose array is as small."""
    return {f"tile.array.{key}": SIDE for key in ("rows", "cols", "load_rows")} | {"tile.vector.lanes": SIDE} | changed


def measured(chip: str, sets: dict[str, Any], module: str | None, seeds: int) -> dict[str, Any]:
    """Cells, and the clock's median over ``seeds`` placements."""
    found = synth(load_chip(chip, [(key, str(value)) for key, value in sets.items()]), seeds=seeds, module=module)
    clock = found["fmax"]["median"] if found["fmax"] else None
    figures = {key: found[key] for key in ("luts", "dsps", "flip_flops")}
    return figures | {"fmax_mhz": clock, "seeds": seeds if clock is not None else 0}


def main() -> None:
    """Synthesize the rows that were asked for, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    arrays = [(" ".join(map(str, each)), "systolic-ws-8", row(*each), None) for each in ROWS]
    edges = [(name, chip, edge_row(changed), "array") for name, chip, changed in EDGES]
    print(f"{SIDE} x {SIDE}, weight stationary, ECP5; after a format the registers at multipliers and inside adders")
    print(f"{'':48s} {'LUT':>7s} {'DSP':>4s} {'FF':>6s} {'MHz':>6s}")
    for name, chip, sets, part in arrays + edges:
        if not name.startswith(asked.only):
            continue
        found = measured(chip, sets, part, asked.seeds)
        clock = "-" if found["fmax_mhz"] is None else f"{found['fmax_mhz']:.1f}"
        print(f"{name:48s} {found['luts']:7,d} {found['dsps']:4d} {found['flip_flops']:6,d} {clock:>6s}", flush=True)
        if found["fmax_mhz"] is None:  # a clock that is known stays
            found |= {key: kept.get(name, found)[key] for key in ("fmax_mhz", "seeds")}
        kept[name] = found
        if asked.write:
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
