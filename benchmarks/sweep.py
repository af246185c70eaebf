"""A thousand points of one Llama layer on edge chips: points a second, and where the time goes.

Run: python -m benchmarks.sweep [--points N] [--workers N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from siliconloom.arch.sweep import Sweep
from siliconloom.sweeps.axes import axes_of, fixed_sets, sets_at
from siliconloom.sweeps.designs import design_of
from siliconloom.sweeps.executors import InProcess
from siliconloom.sweeps.question import setting_of
from siliconloom.sweeps.run import run_sweep

GOAL_S = 30.0
"""Seconds of a thousand points on two cores."""
SPLIT = 40
"""Points that are timed part by part, in one process."""
KEYS = {
    "tile.array.rows": {"values": [8, 16, 32, 64, 128], "with": ["tile.array.cols", "tile.vector.lanes"]},
    "tile.scratchpad.capacity": ["512 KiB", "1 MiB", "2 MiB", "4 MiB", "8 MiB"],
    "tile.dma.bytes_per_cycle": [32, 64, 128, 256],
    "memory.dram.bandwidth": {"from": "12.8 GB/s", "to": "128 GB/s", "step": "12.8 GB/s"},
}


def described(points: int, latency: str) -> Sweep:
    return Sweep.model_validate(
        {
            "machine": "npu-edge",
            "workload": "llama3-8b",
            "set": {"workload.layers": 1, "workload.sequence": 128, "memory.dram.latency": latency},
            "keys": KEYS,
            "method": "random",
            "points": points,
        }
    )


def split(sweep: Sweep) -> dict[str, float]:
    """Milliseconds a point of reading, mapping, simulating, and of all else that its result takes."""
    axes = axes_of(sweep)
    setting = setting_of(sweep.machine, sweep.workload, sweep.mapping, {})
    sets = [sets_at(axes, fixed_sets(sweep), place) for place in design_of(sweep, axes)[:SPLIT]]
    total: Counter[str] = Counter()
    with InProcess(setting) as one:
        for _, found in one.answers(enumerate(sets)):
            total.update(found.parts)
    rest = total["all"] - total["read"] - total["map"] - total["simulate"]
    parts = {"read": total["read"], "map": total["map"], "simulate": total["simulate"], "result": rest}
    return {name: 1e3 * seconds / len(sets) for name, seconds in parts.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--points", type=int, default=1000)
    asked.add_argument("--workers", type=int, default=None)
    asked.add_argument("--json", default=None)
    given = asked.parse_args()
    now = time.time_ns() // 1000 % 100_000  # a latency that nobody asked before, so that nothing is known
    sweep = described(given.points, f"{100_000 + now} ps")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = run_sweep(sweep, Path(folder) / "kept", workers=given.workers)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        run_sweep(sweep, Path(folder) / "kept", workers=given.workers)
        again = time.perf_counter() - began
    parts = split(described(given.points, f"{200_001 + now} ps"))
    rate = found.counts.evaluated / seconds
    result: dict[str, Any] = {"points": given.points, "failed": found.counts.failed, "seconds": seconds, "rate": rate}
    result |= {"again_s": again, "split_ms": parts}
    print(
        f"{given.points} points, {found.counts.failed} failed: {seconds:.1f} s, {rate:.1f} points/s (goal {GOAL_S} s for 1000)"
    )
    print(f"the same command again: {again:.2f} s")
    print("one process, ms a point: " + ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items()))
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
