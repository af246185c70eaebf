"""A million requests on each library memory: seconds of the replay, every command run and with repeats known.

``python -m benchmarks.dram`` prints the table and writes ``benchmarks/results/dram.json``. DRAMsim3 and Ramulator2 do
not install from PyPI, so nothing of theirs is timed here.
"""

from __future__ import annotations

import json
import time

import numpy as np

from benchmarks.measure import HERE, machine
from siliconloom.arch.dram import dram_names, load_dram
from siliconloom.sim.dram.replay import replay

REQUESTS = 1_000_000


def main() -> None:
    """Measure, print, write."""
    rows = []
    zeros = np.zeros(REQUESTS, np.int64)
    some = np.arange(REQUESTS, dtype=np.int64)
    print(
        f"{'memory':8s} {'trace':7s} {'exact s':>8s} {'s':>7s} {'factor':>7s} {'known':>7s} {'cycles':>12s} {'of peak':>8s} {'hits':>6s}"
    )
    warm = np.stack([zeros[:9999], zeros[:9999], some[:9999] * 64])
    replay(load_dram("hbm2"), *warm)
    replay(load_dram("hbm2"), *warm, exact=True)
    for name in dram_names():
        dram = load_dram(name)
        size = dram.organization.request_bytes
        total = dram.organization.capacity // size
        traces = {
            "stream": (zeros, some),
            "mixed": ((some % 3 == 0).astype(np.int64), some),
            "stride": (zeros, some * (8192 // size)),
            "random": (zeros, np.random.default_rng(0).integers(0, total, REQUESTS)),
        }
        for trace, (write, line) in traces.items():
            address = line % total * size
            began = time.perf_counter()
            run = replay(dram, zeros, write, address, exact=True)
            middle = time.perf_counter()
            known = replay(dram, zeros, write, address)
            seconds, exact = time.perf_counter() - middle, middle - began
            assert run.cycles == known.cycles
            assert np.array_equal(run.done, known.done)
            assert np.array_equal(run.entered, known.entered)
            share = run.bursts * dram.burst_cycles / dram.organization.channels / run.finish
            rows.append(
                {
                    "memory": name,
                    "trace": trace,
                    "exact_s": exact,
                    "s": seconds,
                    "cycles": run.cycles,
                    "of_peak": share,
                    "row_hits": run.row_hits,
                    "requests": REQUESTS,
                    "known": known.collapse.requests,
                }
            )
            print(
                f"{name:8s} {trace:7s} {exact:8.2f} {seconds:7.3f} {exact / seconds:7.1f} {known.collapse.requests / REQUESTS:7.1%} "
                f"{run.cycles:12,} {share:8.1%} {run.row_hits / REQUESTS:6.1%}"
            )
    path = HERE / "results" / "dram.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
