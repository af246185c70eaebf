"""How long collectives take to simulate, from 16 to 16,384 chips; ASTRA-sim's analytical backend beside, as quoted.

    python -m benchmarks.network

Writes ``benchmarks/results/network.json``. Every message crosses every link of its path. ASTRA-sim 2 (analytical,
ring all-reduce of 1,024 chips) took 8.5 s on a machine like this one; it cannot be installed here.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path

from siliconloom.arch.network import Endpoint, LinkPort, Topology, wire
from siliconloom.mapper.network.collectives import collective
from siliconloom.sim.network.messages import find_routes, run_transfers

RESULTS = Path(__file__).parent / "results" / "network.json"
LINK = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})
SIZE = 2.0**26
CASES = (
    ("ring", "ring", (16, 64, 256, 1024, 4096)),
    ("torus", "hierarchical", (16, 64, 256, 1024, 4096, 16384)),
    ("switch", "halving_doubling", (16, 64, 256, 1024, 4096, 16384)),
)
PEER = {"name": "ASTRA-sim 2, analytical", "case": "ring all-reduce of 1,024 chips", "seconds": 8.5}


def run(kind: str, algorithm: str, chips: int) -> dict[str, float | int | str]:
    """Wall time of one all-reduce: topology, messages, paths, all events."""
    began = time.perf_counter()
    wiring = wire(Topology.model_validate({"kind": kind}), LINK, chips)
    transfers = collective("all_reduce", algorithm, wiring, SIZE)
    routes = find_routes(wiring, transfers)
    found = run_transfers(wiring, transfers, Endpoint(), routes)
    return {
        "topology": kind,
        "algorithm": algorithm,
        "chips": chips,
        "messages": len(transfers),
        "simulated_us": found.finish / 1e6,
        "wall_s": time.perf_counter() - began,
    }


def main() -> int:
    """Run every case once warm, print and write."""
    for kind, algorithm, _ in CASES:
        run(kind, algorithm, 16)
    rows = []
    for kind, algorithm, sizes in CASES:
        for chips in sizes:
            row = run(kind, algorithm, chips)
            rows.append(row)
            print(f"{kind:8s} {algorithm:18s} {chips:6,d} chips {row['messages']:12,d} messages {row['wall_s']:8.3f} s")
    print(f"{PEER['name']}: {PEER['case']}: {PEER['seconds']} s, as quoted")
    RESULTS.write_text(
        json.dumps(
            {"machine": platform.machine(), "python": platform.python_version(), "rows": rows, "peer": PEER}, indent=1
        )
        + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
