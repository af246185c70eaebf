"""A million requests on each library memory: seconds of the replay, and the share of the peak bandwidth.

``python -m benchmarks.dram`` prints the table and writes ``benchmarks/results/dram.json``. DRAMsim3 and Ramulator2 do
not install from PyPI, so nothing of theirs is timed here.
"""

from __future__ import annotations

import json
import time

import numpy as np

from benchmarks.measure import HERE, machine
from siliconloom.arch.dram import dram_names, load_dram
from siliconloom.sim.dram import replay

REQUESTS = 1_000_000


def main() -> None:
    """Measure, print, write."""
    rows = []
    zeros = np.zeros(REQUESTS, np.int64)
    print(f"{'memory':10s} {'trace':8s} {'seconds':>8s} {'cycles':>12s} {'of peak':>8s} {'row hits':>9s}")
    for name in dram_names():
        dram = load_dram(name)
        size = dram.organization.request_bytes
        lines = {
            "stream": np.arange(REQUESTS, dtype=np.int64),
            "random": np.random.default_rng(0).integers(0, dram.organization.capacity // size, REQUESTS),
        }
        replay(dram, zeros[:1], zeros[:1], zeros[:1])
        for trace, line in lines.items():
            began = time.perf_counter()
            found = replay(dram, zeros, zeros, line % (dram.organization.capacity // size) * size)
            seconds = time.perf_counter() - began
            share = found.bursts * dram.burst_cycles / dram.organization.channels / found.finish
            rows.append({
                "memory": name, "trace": trace, "s": seconds, "cycles": found.cycles, "of_peak": share,
                "row_hits": found.row_hits, "requests": REQUESTS,
            })  # fmt: skip
            print(
                f"{name:10s} {trace:8s} {seconds:8.2f} {found.cycles:12,} {share:8.1%} {found.row_hits / REQUESTS:9.1%}"
            )
    path = HERE / "results" / "dram.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
