"""Speed and size of the first complete path, with SCALE-Sim on the same GEMMs beside it.

``python -m benchmarks.path`` prints the tables and writes ``benchmarks/results/path.json``. SCALE-Sim 3 is installed
from PyPI into an environment of its own on first use (it needs an older NumPy); ``--full`` gives it all six GEMMs of
the GPT-2 block, which takes minutes, instead of the 1024 x 768 x 768 projection only.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.measure import CACHE, HERE, LOOM, best_of, cold_compilation_s, machine, measured, peak_mib
from benchmarks.peers import ScaleSim
from siliconloom.evaluate.chip import simulate
from siliconloom.workloads import Gemm, load_workload

MODELS = (
    ("npu-edge-int8", "gpt2", ("workload.sequence=1024",)),
    ("npu-edge-int8", "gpt2", ("workload.phase=decode", "workload.context=1024")),
    ("npu-datacenter", "llama3-8b", ("workload.sequence=2048",)),
    ("npu-datacenter", "llama3-8b", ("workload.phase=decode", "workload.context=4096")),
)


def engine() -> dict[str, float]:
    """Events per second of the compiled kernel on a long run, and the seconds of its first compilation."""
    simulate("npu-edge-int8", "gpt2", [("workload.layers", "1"), ("workload.sequence", "16")])
    best = 0.0
    for _ in range(3):
        run = simulate("npu-datacenter", "llama3-8b", [("workload.sequence", "2048")], exact=True).run
        best = max(best, run.events / run.wall_s)
    return {"events_per_s": best, "events": run.events, "cold_first_run_s": cold_compilation_s()}


def models() -> list[dict[str, Any]]:
    """Whole ``loom sim`` processes of the demo's models, warm."""
    rows = []
    for chip, workload, sets in MODELS:
        command = [*LOOM, "sim", chip, workload, "--json", "-"]
        for each in sets:
            command += ["--set", each]
        runs = [measured(command) for _ in range(3)]
        again = [measured(command, again=True)[0] for _ in range(4)][1:]
        result = json.loads(runs[0][1])
        rows.append(
            {
                "chip": chip,
                "workload": workload,
                "phase": result["phase"],
                "cycles": result["cycles"],
                "bound_reached": result["bound"]["achieved"],
                "events": result["simulator"]["events"],
                "wall_s": sorted(wall for wall, _ in runs)[1],
                "again_s": sorted(again)[1],
                "peak_mib": peak_mib(command),
            }
        )
    return rows


def scale_sim(full: bool) -> list[dict[str, Any]]:
    """SCALE-Sim 3 and ours on the same GEMMs, 128 x 128 weight stationary; empty when it cannot be installed."""
    peer = ScaleSim()
    if not peer.available:
        return []
    gemms = [o for o in load_workload("gpt2-block-gemms").operators() if isinstance(o, Gemm)]
    if not full:
        gemms = [g for g in gemms if (g.m, g.n, g.k) == (1024, 768, 768)]
    rows = []
    for gemm in gemms:
        theirs = peer.gemm(gemm.m, gemm.n, gemm.k)
        ours = _our_gemm(gemm)
        rows.append(
            {
                "gemm": f"{gemm.m} x {gemm.n} x {gemm.k}",
                "scale_sim_cycles": theirs.cycles,
                "scale_sim_process_s": theirs.process_s,
                "scale_sim_s": theirs.simulation_s,
                "cycles": ours["cycles"],
                "process_s": ours["process_s"],
                "simulation_s": ours["simulation_s"],
                "process_ratio": theirs.process_s / ours["process_s"],
                "simulation_ratio": theirs.simulation_s / ours["simulation_s"],
            }
        )
    return rows


def block(full: bool) -> dict[str, float]:
    """The distinct products of a GPT-2 block, each simulator in one process of its own: what a person waits for."""
    peer = ScaleSim()
    if not (full and peer.available):
        return {}
    gemms = [o for o in load_workload("gpt2-block-gemms").operators() if isinstance(o, Gemm)]
    theirs = peer.gemms([(g.m, g.n, g.k) for g in gemms])
    ours = sorted(measured([*LOOM, "sim", "systolic-ws-128", "gpt2-block-gemms", "--json", "-"])[0] for _ in range(5))[
        2
    ]
    return {
        "products": len(gemms),
        "scale_sim_process_s": theirs.process_s,
        "process_s": ours,
        "process_ratio": theirs.process_s / ours,
    }


def _our_gemm(gemm: Gemm) -> dict[str, float]:
    """The same product on the same bare array: a whole ``loom sim`` process, and mapping and simulation alone."""
    path = CACHE / "gemm.yaml"
    path.write_text(f"kind: gemms\nprecision: int8\ngemms: [{{name: g, m: {gemm.m}, n: {gemm.n}, k: {gemm.k}}}]\n")
    process, _ = measured([*LOOM, "sim", "systolic-ws-128", str(path), "--json", "-"])
    best, done = best_of(5, lambda: simulate("systolic-ws-128", str(path)))
    return {"cycles": done.run.cycles, "process_s": process, "simulation_s": best}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all six GEMMs of the block for SCALE-Sim (minutes)")
    full = parser.parse_args().full
    CACHE.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": machine(),
        "engine": engine(),
        "models": models(),
        "scale_sim": scale_sim(full),
        "block": block(full),
    }
    kernel = result["engine"]
    print(
        f"engine: {kernel['events_per_s'] / 1e6:.1f} M events/s; first run with compilation {kernel['cold_first_run_s']:.1f} s\n"
    )
    print(
        f"{'chip':15s} {'workload':10s} {'phase':8s} {'cycles':>13s} {'of bound':>8s} {'events':>11s} {'seconds':>8s} {'again':>6s} {'MiB':>6s}"
    )
    for r in result["models"]:
        print(
            f"{r['chip']:15s} {r['workload']:10s} {r['phase']:8s} {r['cycles']:13,} {r['bound_reached']:8.1%} {r['events']:11,} "
            f"{r['wall_s']:8.2f} {r['again_s']:6.2f} {r['peak_mib']:6.0f}"
        )
    if result["scale_sim"]:
        print("\nSCALE-Sim 3, 128 x 128 weight stationary, stall free, against ours on a bare array")
        print("seconds of a whole process, and of reading, mapping and simulating alone")
        print(f"{'':20s} {'cycles':>17s} {'process s':>19s} {'simulation s':>27s}")
        print(
            f"{'GEMM':20s} {'its':>9s} {'ours':>7s} {'its':>6s} {'ours':>5s} {'ratio':>6s} {'its':>6s} {'ours':>9s} {'ratio':>10s}"
        )
        for r in result["scale_sim"]:
            print(
                f"{r['gemm']:20s} {r['scale_sim_cycles']:9,} {r['cycles']:7,} "
                f"{r['scale_sim_process_s']:6.1f} {r['process_s']:5.1f} {r['process_ratio']:5.0f}x "
                f"{r['scale_sim_s']:6.1f} {r['simulation_s']:9.5f} {r['simulation_ratio']:9,.0f}x"
            )
        print(
            "Its cycles are folds x (2R + C + M - 2): every fold loads, fills and drains alone. Ours load the next fold's\n"
            "weights behind the present one and fill once, as the RTL does: 2R + C + 1 + folds x max(M, R)."
        )
    if result["block"]:
        b = result["block"]
        print(
            f"\nGPT-2 block, {b['products']} products, one process each: SCALE-Sim {b['scale_sim_process_s']:.1f} s, "
            f"ours {b['process_s']:.2f} s, {b['process_ratio']:.0f}x"
        )
    path = HERE / "results" / "path.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
