"""The engine: jumping against running every event, and against its peers.

``python -m benchmarks.engine`` takes about three minutes, prints the tables and writes
``benchmarks/results/engine.json``. ``--full`` gives SCALE-Sim 3 (from PyPI) every product of the GPT-2 block and of
ResNet-50, which takes it ten minutes more, instead of three of them. ONNXim does not install from PyPI: its figures
are quoted, from runs on a two-core machine like this one.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

from benchmarks.measure import CACHE, HERE, LOOM, best_of, cold_compilation_s, machine, measured, peak_mib
from benchmarks.peers import ScaleSim
from siliconloom.arch import LoomError, load_chip
from siliconloom.evaluate.chip import simulate
from siliconloom.sim.chip.engine import run
from siliconloom.workloads import Gemm, load_workload, workload_names

Sets = tuple[str, ...]
CHIP = "npu-datacenter"
ROOM = "memory.hbm.capacity=16 TiB"
MODELS: tuple[tuple[str, str, Sets, str], ...] = (
    ("Llama-3-70B, prefill 8192", "llama3-70b", ("workload.sequence=8192",), "under 5 s and 1 GB"),
    ("Llama-3-8B, decode at 4096", "llama3-8b", ("workload.phase=decode", "workload.context=4096"), "under 1 s"),
    ("Llama-3-70B, prefill 2048, 8 layers", "llama3-70b", ("workload.sequence=2048", "workload.layers=8"), ""),
    ("Llama-3-70B, prefill 2048, 80 layers", "llama3-70b", ("workload.sequence=2048",), "under 2 x 8 layers"),
    ("Llama-3-8B, prefill 2K", "llama3-8b", ("workload.sequence=2048", ROOM), ""),
    ("Llama-3-8B, prefill 128K", "llama3-8b", ("workload.sequence=131072", ROOM), "under 2 x 2K"),
)
LARGE = 200_000
"""Events from which a workload counts as large."""
ONNXIM = (
    ("GEMM 1024 x 3072 x 768, one core", 4.8, "CPU s"),
    ("GPT-2 (OPT-125M there), prefill 1024, four cores there", 61.0, "s"),
    ("Llama-3-8B, prefill 1024: 32 layers (one layer there)", 1500.0, "s"),
)
SAMPLE = {(1024, 768, 768), (784, 128, 1152), (49, 2048, 512)}
"""Products that SCALE-Sim gets without ``--full``."""
BLOCK, RESNET = "gpt2-block-gemms", "resnet50-conv"


def pairs(sets: Sets) -> list[tuple[str, str]]:
    """Overrides as the library takes them."""
    return [(path, value) for path, _, value in (each.partition("=") for each in sets)]


def models() -> list[dict[str, Any]]:
    """Whole ``loom sim`` processes, jumping and running every event, whose results are compared."""
    rows = []
    for title, workload, sets, goal in MODELS:
        command = [*LOOM, "sim", CHIP, workload, "--json", "-"]
        for each in sets:
            command += ["--set", each]
        jumped: dict[str, Any] = {}
        for exact in (False, True):
            if exact and "128K" in title:
                continue  # a thousand million events; the tests compare at reduced size
            line = [*command, "--exact"] if exact else command
            wall, out = min(measured(line) for _ in range(1 if exact else 5))
            result = json.loads(out)
            simulator = result.pop("simulator")
            rows.append(
                {
                    "model": title,
                    "exact": exact,
                    "goal": goal,
                    "process_s": wall,
                    "peak_mib": peak_mib(line),
                    "cycles": result["cycles"],
                    **simulator,
                }
            )
            if exact and result != jumped:
                raise AssertionError(f"{title}: --exact prints something else")
            jumped = result
    return rows


def library() -> list[dict[str, Any]]:
    """Events of every library workload on the datacentre NPU, prefill and decode."""
    rows = []
    room = pairs((ROOM,))
    for workload in workload_names():
        for sets in ((), (("phase", "decode"),), (("phase", "decode"), ("batch", "16"))):
            try:
                graph = load_workload(workload, list(sets))
            except LoomError:
                continue
            found = simulate(load_chip(CHIP, room), graph).run
            rows.append(
                {
                    "workload": workload,
                    "phase": graph.phase.value,
                    "batch": graph.batch,
                    "events": found.events,
                    "events_skipped": found.events_skipped,
                    "periods": found.periods,
                    "lookups": found.lookups,
                    "fewer": (found.events + found.events_skipped) / found.events,
                    "wall_s": found.wall_s,
                    "large": found.events + found.events_skipped >= LARGE,
                }
            )
    return rows


def kernel() -> dict[str, float]:
    """Speed of the event kernel when every event is run, and what its compilation and a small warm run take."""
    simulation = simulate(CHIP, "llama3-70b", pairs(("workload.sequence=8192",)))
    found = max((run(simulation.plan.program, simulation.chip, exact=True) for _ in range(3)), key=lambda r: -r.wall_s)
    small = min(measured([*LOOM, "sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=1"])[0] for _ in range(5))
    return {
        "events": found.events,
        "events_per_s": found.events / found.wall_s,
        "cold_first_run_s": cold_compilation_s(),
        "warm_small_process_s": small,
    }


def scale_sim(full: bool) -> list[dict[str, Any]]:
    """Each product on a bare 128 x 128 weight-stationary array, SCALE-Sim's and ours; empty when it is not to be had."""
    peer = ScaleSim()
    if not peer.available:
        return []
    chip, rows = load_chip("systolic-ws-128"), []
    array = chip.tile.array  # type: ignore[union-attr]
    for workload in (BLOCK, RESNET):
        counted: dict[tuple[int, int, int], int] = {}
        for o in load_workload(workload).operators():
            assert isinstance(o, Gemm)
            counted[o.m, o.n, o.k] = counted.get((o.m, o.n, o.k), 0) + o.batch * o.repeat
        for (m, n, k), count in counted.items():
            if not full and (m, n, k) not in SAMPLE:
                continue
            theirs = peer.gemm(m, n, k)
            path = CACHE / "gemm.yaml"
            path.write_text(f"kind: gemms\nprecision: int8\ngemms: [{{name: g, m: {m}, n: {n}, k: {k}}}]\n")
            graph = load_workload(str(path))
            seconds, ours = best_of(20, lambda graph=graph: simulate(chip, graph))
            folds, rest = -(-n // 128) * -(-k // 128), k % 128 or 128
            # every fold of SCALE-Sim loads, fills and drains alone; ours do that behind one another
            alone = folds * (2 * array.rows + array.cols + m - 2)
            paced = -(-n // 128) * ((-(-k // 128) - 1) * max(m, 128) + max(m, rest))
            edge = (128 if k >= 128 else k) - max(m, 128 if k >= 128 else k) + m + array.rows + array.cols + 1
            rows.append(
                {
                    "workload": workload,
                    "gemm": f"{m} x {n} x {k}",
                    "count": count,
                    "scale_sim_cycles": theirs.cycles,
                    "cycles": ours.run.cycles,
                    "scale_sim_rule": theirs.cycles - alone,
                    "rule": ours.run.cycles - paced - edge,
                    "scale_sim_s": theirs.simulation_s,
                    "scale_sim_cpu_s": theirs.cpu_s,
                    "scale_sim_mib": theirs.peak_mib,
                    "s": seconds,
                    "ratio": theirs.simulation_s / seconds,
                }
            )
    return rows


def onnxim() -> list[dict[str, Any]]:
    """The cases that ONNXim's figures are of, with ours in memory timing: mapping and simulation in one process."""
    path = CACHE / "gemm.yaml"
    path.write_text("kind: gemms\nprecision: int8\ngemms: [{name: g, m: 1024, n: 3072, k: 768}]\n")
    chip = load_chip(CHIP)
    graphs = (
        load_workload(str(path)),
        load_workload("gpt2", [("sequence", "1024")]),
        load_workload("llama3-8b", [("sequence", "1024")]),
    )
    rows = []
    for (title, theirs, unit), graph in zip(ONNXIM, graphs, strict=True):
        seconds, found = best_of(10, lambda graph=graph: simulate(chip, graph))
        rows.append(
            {
                "case": title,
                "onnxim": theirs,
                "unit": unit,
                "s": seconds,
                "cycles": found.run.cycles,
                "ratio": theirs / seconds,
            }
        )
    return rows


def point(sets: tuple[tuple[str, str], ...]) -> int:
    """Cycles of one Llama layer on one design, or nothing when it does not fit."""
    try:
        return simulate(load_chip(CHIP, list(sets)), _layer()).run.cycles
    except LoomError:
        return 0


def _layer() -> Any:
    return load_workload("llama3-8b", [("layers", "1"), ("sequence", "2048")])


def sweep() -> dict[str, float]:
    """A thousand designs, array x buffer x bandwidth, for one Llama layer, on two cores."""
    arrays, buffers = (32, 64, 96, 128, 256), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    designs = [
        (
            ("tile.array.rows", str(side)),
            ("tile.array.cols", str(side)),
            ("tile.scratchpad.capacity", f"{size} MiB"),
            ("memory.hbm.bandwidth", f"{rate} GB/s"),
        )
        for side, size, rate in product(arrays, buffers, range(100, 2100, 100))
    ]
    began = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        cycles = list(pool.map(point, designs, chunksize=20))
    return {
        "designs": len(designs),
        "do_not_fit": cycles.count(0),
        "s": time.perf_counter() - began,
        "best_cycles": min(c for c in cycles if c),
    }


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    k = result["kernel"]
    print(
        f"kernel: {k['events_per_s'] / 1e6:.1f} million events/s when all {k['events'] / 1e6:.1f} million are run; first run "
        f"with compilation {k['cold_first_run_s']:.1f} s; small model, whole process {k['warm_small_process_s']:.2f} s\n"
    )
    print(
        f"{'whole loom sim process, ' + CHIP:38s} {'':6s} {'seconds':>8s} {'MiB':>5s} {'sim. s':>8s} {'events':>12s} "
        f"{'jumped':>14s} {'fewer':>9s}  goal"
    )
    for r in result["models"]:
        fewer = (r["events"] + r["events_skipped"]) / r["events"]
        print(
            f"{r['model']:38s} {'exact' if r['exact'] else 'fast':6s} {r['process_s']:8.2f} {r['peak_mib']:5.0f} "
            f"{r['wall_s']:8.4f} {r['events']:12,} {r['events_skipped']:14,} {fewer:8,.0f}x  {r['goal']}"
        )
    print(
        f"\n{'library workload, ' + CHIP:28s} {'phase':>8s} {'batch':>5s} {'all events':>13s} {'run':>7s} {'fewer':>9s} "
        f"{'periods':>8s} {'look-ups':>8s}"
    )
    for r in result["library"]:
        mark = "" if r["large"] else "  (small)"
        print(
            f"{r['workload']:28s} {r['phase']:>8s} {r['batch']:5d} {r['events'] + r['events_skipped']:13,} {r['events']:7,} "
            f"{r['fewer']:8,.0f}x {r['periods']:8,} {r['lookups']:8,}{mark}"
        )
    large = [r["fewer"] for r in result["library"] if r["large"]]
    print(f"workloads of at least {LARGE:,} events: {min(large):,.0f} to {max(large):,.0f} times fewer events\n")
    if result["scale_sim"]:
        _show_scale_sim(result["scale_sim"], result["scale_sim_whole"])
    print(f"{'ONNXim (quoted), ours on ' + CHIP:58s} {'its s':>7s} {'ours s':>8s} {'ratio':>9s}")
    for r in result["onnxim"]:
        print(f"{r['case']:58s} {r['onnxim']:7,.1f} {r['s']:8.4f} {r['ratio']:8,.0f}x")
    s = result["sweep"]
    print(
        f"\nsweep: {s['designs']} designs of one Llama-3-8B layer in {s['s']:.1f} s on two cores "
        f"({s['do_not_fit']} do not fit their buffers)"
    )


def _whole(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both lists as they stand, repetitions and all, as far as SCALE-Sim was given them."""
    found = []
    for workload in (BLOCK, RESNET):
        own = [r for r in rows if r["workload"] == workload]
        graph = load_workload(workload)
        seconds, _ = best_of(20, lambda graph=graph: simulate(load_chip("systolic-ws-128"), graph))
        theirs = sum(r["count"] * r["scale_sim_s"] for r in own)
        found.append(
            {
                "workload": workload,
                "products": sum(r["count"] for r in own),
                "scale_sim_s": theirs,
                "s": seconds,
                "scale_sim_mib": max(r["scale_sim_mib"] for r in own),
                "ratio": theirs / seconds,
            }
        )
    return found


def _show_scale_sim(rows: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    print("SCALE-Sim 3, 128 x 128 weight stationary, stall free; ours on a bare array, mapping and simulation")
    print(f"{'product':22s} {'its cycles':>11s} {'ours':>11s} {'its s':>8s} {'MiB':>6s} {'ours s':>9s} {'ratio':>10s}")
    for workload in (BLOCK, RESNET):
        own = [r for r in rows if r["workload"] == workload]
        for r in own:
            print(
                f"{r['gemm']:22s} {r['scale_sim_cycles']:11,} {r['cycles']:11,} {r['scale_sim_s']:8.2f} "
                f"{r['scale_sim_mib']:6.0f} {r['s']:9.6f} {r['ratio']:9,.0f}x"
            )
        for r in whole:
            if r["workload"] == workload:
                print(
                    f"{workload + ', ' + str(r['products']) + ' products':46s} {r['scale_sim_s']:8.2f} {r['scale_sim_mib']:6.0f} "
                    f"{r['s']:9.6f} {r['ratio']:9,.0f}x"
                )
    off = [r for r in rows if r["scale_sim_rule"] or r["rule"]]
    print(
        "Its cycles are folds x (2R + C + M - 2): every fold loads, fills and drains alone. Ours are the first load,\n"
        "M and R + C + 1 to fill and drain once, and max(M, load) for every other fold, whose weights load behind the\n"
        f"one before, as in the RTL. Products that these two rules do not explain to the cycle: {len(off)}.\n"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every product of both lists for SCALE-Sim (ten minutes)")
    full = parser.parse_args().full
    CACHE.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": machine(),
        "kernel": kernel(),
        "models": models(),
        "library": library(),
        "onnxim": onnxim(),
        "sweep": sweep(),
        "scale_sim": scale_sim(full),
    }
    result["scale_sim_whole"] = _whole(result["scale_sim"]) if result["scale_sim"] else []
    show(result)
    path = HERE / "results" / "engine.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
