"""NCCL's collectives, size by size from 1 KiB: measured, predicted, and interpolated with the size itself left out.

    python -m benchmarks.gpu_collectives [--rows]

One block for each GPU, operation and number of GPUs: the median and the 90 % quantile of the absolute error, the share
of rows within 10 %, and whether the model's constants were fitted to that group (`siliconloom.baselines.families`).
The floor is what measurements of the same thing lie apart: rows of two formats where nothing is added (the same bytes
moved twice), and other laboratories' rows of the same GPUs and size. ``--rows`` prints every size. Written to
``benchmarks/results/gpu_collectives.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np

from benchmarks.measure import HERE, machine
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import tables
from siliconloom.baselines.families import split
from siliconloom.baselines.interpolation import ADDS, curve
from siliconloom.baselines.operations import COLLECTIVES, Op
from siliconloom.baselines.predict import predict
from siliconloom.baselines.tables import Table

LEAST = 1024
TABLE, OTHER = "aiconfigurator-collectives", "vidur-allreduce-a100"
ASKED = 0.10


def rows(gpu: str, op: Op, gpus: int, name: str = TABLE, element: float = 2.0) -> Table:
    """NCCL's rows of one group from `LEAST` bytes, ascending."""
    table = tables.load(name)
    software = table.software.astype(str)
    o = table.operations
    keep = (table.gpu == gpu) & o.among(op) & (o.gpus == gpus) & (o.bytes >= LEAST) & (o.element_bytes() == element)
    table = table.select(keep & (np.char.startswith(software, "NCCL") | (software == "")))
    return table.select(np.argsort(table.operations.bytes))


def statistics(error: np.ndarray) -> dict[str, Any]:
    size = np.abs(error)
    return {
        "rows": len(error),
        "median": float(np.median(size)),
        "q90": float(np.quantile(size, 0.9)),
        "most": float(size.max()),
        "within": float((size <= ASKED).mean()),
    }


def group(gpu: str, op: Op, gpus: int, name: str = TABLE) -> dict[str, Any] | None:
    """Every size of a group, and its statistics; None where nobody measured it."""
    table = rows(gpu, op, gpus, name)
    if not len(table):
        return None
    found = predict(load_gpu(gpu), table.operations).seconds * 1e6 / table.time_us - 1.0
    made: dict[str, Any] = {
        "gpu": gpu,
        "operation": str(op),
        "gpus": gpus,
        "table": name,
        "fitted": bool(split(table)[0][0]) and name == TABLE,
        "sizes": table.operations.bytes.tolist(),
        "time_us": table.time_us.tolist(),
        "errors": found.tolist(),
        "predicted": statistics(found),
    }
    known = curve(gpu, op, gpus)
    if known is not None and (name == TABLE or not len(rows(gpu, op, gpus))):
        inner = known.size[1:-1] >= LEAST
        made["left_out"] = statistics(known.left_out()[inner])
        made["apart"] = known.spread
    twin = rows(gpu, op, gpus, name, 1.0)
    if len(twin) == len(table):
        made["int8"] = statistics(twin.time_us / table.time_us - 1.0)
    return made


def laboratories() -> dict[str, Any]:
    """All-reduce of A100s: calls in a running model over nccl-tests' bursts, below and from 1 MiB."""
    found = {}
    for gpus in (2, 8):
        theirs, ours = rows("a100", Op.ALL_REDUCE, gpus, OTHER), curve("a100", Op.ALL_REDUCE, gpus)
        assert ours is not None
        size = theirs.operations.bytes
        ratio = theirs.time_us * 1e-6 / np.array([ours.at(float(s)) or np.nan for s in size.tolist()]) - 1.0
        for label, mask in (("below 1 MiB", size < 2**20), ("from 1 MiB", size >= 2**20)):
            if mask.any():
                found[f"{gpus} A100, {label}"] = {"bias": float(np.nanmedian(ratio[mask])), "rows": int(mask.sum())}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="every size of every group")
    asked = parser.parse_args(arguments)
    groups = [g for gpu in ("a100", "h100") for op in COLLECTIVES for n in (2, 8) if (g := group(gpu, op, n))]
    others = [g for n in (2, 4, 8) if (g := group("a100", Op.ALL_REDUCE, n, OTHER))]
    print(f"{'NCCL, from 1 KiB':34s}{'the model':>29s}   {'size left out':>22s}  measured twice: they differ")
    print(
        f"{'':34s}{'median':>7s}{'q90':>7s}{'most':>7s}{'<10 %':>8s}   {'median':>7s}{'q90':>7s}{'<10 %':>8s}  {'median':>6s}{'most':>7s}"
    )
    for g in groups + others:
        p, left = g["predicted"], g.get("left_out")
        label = f"{g['gpu']} {g['operation']} {g['gpus']}" + ("" if g["table"] == TABLE else " *")
        text = f"{label:26s}{'fitted' if g['fitted'] else 'unseen':8s}"
        text += f"{p['median']:7.1%}{p['q90']:7.0%}{p['most']:7.0%}{p['within']:8.0%}   "
        text += f"{left['median']:7.1%}{left['q90']:7.0%}{left['within']:8.0%}" if left else " " * 22
        if Op(g["operation"]) not in ADDS:
            text += f"  {g['int8']['median']:6.1%}{g['int8']['most']:7.0%}"
        print(text)
        if asked.rows:
            for size, time, error in zip(g["sizes"], g["time_us"], g["errors"], strict=True):
                print(f"    {size:12,d} B {time:10.2f} us {error:+7.1%}")
    summary = {}
    for label, chosen in (
        ("fitted", [g for g in groups if g["fitted"]]),
        ("unseen", [g for g in groups if not g["fitted"]]),
    ):
        summary[label] = statistics(np.concatenate([g["errors"] for g in chosen]))
    inner = [curve(g["gpu"], g["operation"], g["gpus"]) for g in groups]
    summary["left out"] = statistics(np.concatenate([c.left_out()[c.size[1:-1] >= LEAST] for c in inner if c]))
    for label, s in summary.items():
        print(
            f"{label:12s}{s['rows']:5d} rows: median {s['median']:.1%}, q90 {s['q90']:.0%}, within 10 % {s['within']:.0%}"
        )
    apart = laboratories()
    for label, found in apart.items():
        print(f"another laboratory, in a running model: {label}, {found['rows']} rows: {found['bias']:+.0%}")
    print("* calls in a running model (another laboratory, older NCCL)")
    path = HERE / "results" / "gpu_collectives.json"
    result = {"machine": machine(), "summary": summary, "laboratories": apart, "groups": groups + others}
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
