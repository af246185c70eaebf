"""How good the mapper's mappings are, beside others of the same operator, and how long it looks for them.

``python -m benchmarks.mapper`` maps 20 products and 6 operators of attention to six chips as ``loom sim`` does, and runs
200 other mappings of each beside that on the same engine: at random, and small changes of the best of these and of the
mapper's own (`benchmarks.sampling`). It takes four minutes, prints the tables and writes
``benchmarks/results/mapper.json``; ``--samples 1000`` takes twenty. Other mappings are tried each day: ``--seed`` says
which. ``--zigzag PYTHON`` gives five linears to ZigZag, too, where that Python has it
(``python -m venv FOLDER && FOLDER/bin/pip install zigzag-dse six``); what was kept of it stays otherwise.

The best found is no optimum. It is a mapping that exists.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec.structs import replace

from benchmarks import zigzag
from benchmarks.measure import HERE, LOOM, cpu_seconds, forget, machine
from benchmarks.sampling import Sample, Space, search
from siliconloom.arch import LoomError, load_chip
from siliconloom.evaluate.chip import Simulation, simulate
from siliconloom.mapper.chip.bounds import operator_bound
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Attention, Graph, load_workload
from siliconloom.workloads.subgraph import alone

CHIPS = ("npu-edge-int8", "npu-edge", "gemmini-16", "npu-datacenter", "npu-balanced", "tpu-v4")
PRODUCTS: dict[str, dict[str, int | bool]] = {
    "square 512": {"m": 512, "n": 512, "k": 512},
    "square 1000": {"m": 1000, "n": 1000, "k": 1000},
    "square 1024": {"m": 1024, "n": 1024, "k": 1024},
    "square 2048": {"m": 2048, "n": 2048, "k": 2048},
    "one row": {"m": 1, "n": 4096, "k": 4096},
    "eight rows": {"m": 8, "n": 4096, "k": 4096},
    "head of a model": {"m": 1, "n": 128256, "k": 4096},
    "deep": {"m": 128, "n": 128, "k": 131072},
    "odd": {"m": 509, "n": 1021, "k": 257},
    "depth of 16": {"m": 4096, "n": 4096, "k": 16},
    "16 columns": {"m": 4096, "n": 16, "k": 4096},
    "64 columns": {"m": 2048, "n": 64, "k": 4096},
    "gpt2 qkv": {"m": 1024, "n": 2304, "k": 768},
    "gpt2 down": {"m": 1024, "n": 768, "k": 3072},
    "llama3 up": {"m": 512, "n": 14336, "k": 4096},
    "convolution": {"m": 3136, "n": 64, "k": 576},
    "scores of 96 heads": {"m": 128, "n": 128, "k": 64, "batch": 96, "weight": False},
    "contexts of 96 heads": {"m": 128, "n": 64, "k": 128, "batch": 96, "weight": False},
    "scores of four rows": {"m": 4, "n": 2048, "k": 128, "batch": 64, "weight": False},
    "experts of four rows": {"m": 4, "n": 1408, "k": 2048, "batch": 64},
}
ATTENTION: dict[str, tuple[str, dict[str, str]]] = {
    "decode of 8, 4096 keys": ("llama3-8b", {"phase": "decode", "context": "4096", "batch": "8"}),
    "decode of 64, 2048 keys": ("llama3-8b", {"phase": "decode", "context": "2048", "batch": "64"}),
    "decode of 1, own keys": ("llama2-7b", {"phase": "decode", "context": "2048"}),
    "prompt of 512": ("llama3-8b", {"sequence": "512"}),
    "prompt of 2048": ("llama3-8b", {"sequence": "2048"}),
    "bert, 16 x 512": ("bert-base", {"sequence": "512", "batch": "16"}),
}
LINEARS = ((1024, 2304, 768), (1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (1, 4096, 4096))
LINEARS_CHIP = "npu-edge-int8"
SAMPLES = 200
GOOD = 1.03
"""Above this many times the best found a mapping of ours is told one by one."""

WASTEFUL = 1.25
"""The same of bytes."""
NEARLY = 1.0025
"""Of samples that take at most so many times the mapper's cycles, the one that moves the fewest bytes counts."""

Row = dict[str, Any]


def product_file(folder: str, entry: dict[str, int | bool]) -> str:
    """A file with a product as a workload."""
    path = Path(folder) / "product.yaml"
    path.write_text(json.dumps({"kind": "gemms", "name": "product", "gemms": [{"name": "g", **entry}]}))
    return str(path)


def product_graph(**entry: int | bool) -> Graph:
    """A product as a workload."""
    with tempfile.TemporaryDirectory() as folder:
        return load_workload(product_file(folder, entry))


def attention_graph(model: str, sets: dict[str, str]) -> Graph:
    """The attention of a layer of a model as a workload, executed once."""
    graph = load_workload(model, list(sets.items()))
    found = next(each for each in graph.operators() if isinstance(each, Attention))
    return alone(graph, replace(found, repeat=1))


def cases() -> dict[str, Graph]:
    """Every operator that is mapped."""
    products = {name: product_graph(**entry) for name, entry in PRODUCTS.items()}
    return products | {name: attention_graph(*each) for name, each in ATTENTION.items()}


def case(chip: str, name: str, graph: Graph, samples: int, seed: int) -> Row:
    """One operator on one chip: the mapper's cycles, and those of the best of other mappings."""
    forget()
    began = time.process_time()
    done = simulate(load_chip(chip), graph)
    search_s = time.process_time() - began
    mapping = done.plan.mapping
    assert mapping is not None
    space = Space(done.chip, graph, f"{seed} {chip} {name}")
    own, cycles = space.sample_of(done.plan), Stopwatch(space.chip)(space.alone(mapping).program)
    began = time.process_time()
    found = search(space, samples, done.plan)
    sampled_s = time.process_time() - began
    best = min(cycles, found.cycles or cycles)
    moved = space.moved(mapping)
    near = [(size, each) for taken, size, each in found.moved if taken <= NEARLY * cycles]
    frugal, frugal_sample = min([(moved, own), *near], key=lambda each: each[0])
    bound = operator_bound(space.chip, space.task.operator, space.task.fused).lower_bound_cycles
    row: Row = {
        "chip": chip,
        "operator": name,
        "kind": space.kind,
        "cycles": cycles,
        "best": best,
        "sampled": found.cycles,
        "ratio": cycles / best,
        "bound": bound,
        "above_bound": cycles / bound,
        "best_above_bound": best / bound,
        "estimate_off": abs(space.estimate(mapping) / cycles - 1),
        "estimates_off": mean(found.errors) if found.errors else 0.0,
        "estimates_worst": max(found.errors, default=0.0),
        "bytes": moved,
        "fewest_bytes": frugal,
        "bytes_ratio": moved / frugal,
        "search_s": search_s,
        "sampled_s": sampled_s,
        "run": len(found.errors),
        "illegal": found.illegal,
    }
    if row["bytes_ratio"] > WASTEFUL:
        row |= {"mapper": as_text(space, own), "frugal": as_text(space, frugal_sample)}
    if row["ratio"] > GOOD:
        assert found.best is not None
        row |= compared(space, done, own, found.best)
    return row


def compared(space: Space, done: Simulation, own: Sample, best: Sample) -> Row:
    """Both mappings, what each difference is worth alone, and what all divisions of the buffers give (``--search``).

    One that has no room with its other half, or is refused, has no cycles.
    """
    watch = Stopwatch(space.chip)

    def cycles(sample: Sample) -> int | None:
        try:
            return watch(space.alone(space.read(space.document(sample))).program) if space.slots(sample) else None
        except LoomError:
            return None

    searched = simulate(done.chip, done.graph, search=True).plan.mapping
    assert searched is not None
    row: Row = {"searched": watch(space.alone(searched).program), "mapper": as_text(space, own)}
    row |= {"winner": as_text(space, best), "only": {}}
    for name, changed in (
        ("its parts", Sample(best.share, own.sizes, own.apart)),
        ("its sizes", Sample(own.share, best.sizes, own.apart)),
        ("its rings", Sample(own.share, own.sizes, best.apart)),
    ):
        if changed != own:
            row["only"][name] = cycles(changed)
    return row


def as_text(space: Space, sample: Sample) -> str:
    """A mapping in one line: parts, sizes, order, what stays."""
    document = space.document(sample)
    task = document["tasks"][-1]
    cut = " ".join(f"{name}/{parts}" for name, parts in task.get("cut", {}).items())
    sizes = ", ".join(f"{key} {value}" for key, value in task[space.kind].items() if value is not False)
    apart = ", values in a ring of their own" if sample.apart else ""
    return f"{cut + ': ' if cut else ''}{sizes}{apart}".replace(" True", "")


def linears(python: str) -> Row:
    """Five linears, ZigZag's and ours; empty where that Python has none."""
    version = zigzag.available(python)
    if not version:
        print(f"{python} has no ZigZag (zigzag-dse): its figures are left out", file=sys.stderr)
        return {}
    chip, rows = load_chip(LINEARS_CHIP), []
    simulate(chip, product_graph(m=512, n=512, k=512))  # imports and kernels are there
    for m, n, k in LINEARS:
        print(f"ZigZag: {m} x {n} x {k}", file=sys.stderr)
        theirs, graph = zigzag.product(python, chip, m, n, k), product_graph(m=m, n=n, k=k)
        forget()
        began = time.process_time()
        ours = simulate(chip, graph)
        search_s = time.process_time() - began
        with tempfile.TemporaryDirectory() as folder:
            file = product_file(folder, {"m": m, "n": n, "k": k})
            process_s, _ = cpu_seconds([*LOOM, "sim", LINEARS_CHIP, file, "--json", "-"])
        moved = sum(task.tiling.read_bytes + task.tiling.write_bytes for task in ours.plan.tasks if task.tiling)
        row = {"linear": f"{m} x {n} x {k}", "cycles": ours.run.cycles, "zigzag_cycles": theirs.cycles}
        row |= {"traffic": moved, "zigzag_traffic": theirs.traffic, "search_s": search_s, "process_s": process_s}
        rows.append(row | {"zigzag_search_s": theirs.search_s, "zigzag_process_s": theirs.process_s})
    return {"version": version, "chip": LINEARS_CHIP, "rows": rows}


def summary(rows: list[Row]) -> Row:
    """What a chip's rows come to."""

    def over(key: str) -> dict[str, float]:
        return {"mean": mean(row[key] for row in rows), "worst": max(row[key] for row in rows)}

    keys = ("ratio", "above_bound", "best_above_bound", "estimate_off", "bytes_ratio", "search_s")
    found: Row = {"operators": len(rows)} | {key: over(key) for key in keys}
    errors = {"mean": mean(row["estimates_off"] for row in rows), "worst": max(row["estimates_worst"] for row in rows)}
    counts = {key: sum(row[key] for row in rows) for key in ("run", "illegal")}
    return found | {"estimates_off": errors, "above": sum(row["ratio"] > GOOD for row in rows)} | counts


def show(rows: list[Row]) -> None:
    """Print the summaries, and the operators of which something better was found."""
    print(
        "Mean and worst: cycles of the mapper's program over those of the best found, and over a lower bound; what its\n"
        "estimate is off, and those of all samples; bytes over the fewest of samples that take no more than 0.25 % longer"
    )
    heading = f"{'chip':15s} {'':10s} {'mapper/best':>13s} {'above':>6s} {'mapper/bound':>13s} {'best/bound':>13s}"
    print(
        f"{heading} {'its estimate':>13s} {'estimates':>13s} {'bytes':>11s} {'CPU s':>12s} {'run':>7s} {'illegal':>7s}"
    )
    for chip in dict.fromkeys(row["chip"] for row in rows):
        for kind, title in (("gemm", "products"), ("attention", "attention")):
            own = [row for row in rows if (row["chip"], row["kind"]) == (chip, kind)]
            if not own:
                continue
            s = summary(own)
            ratios = f"{s['ratio']['mean']:6.3f} {s['ratio']['worst']:6.3f} {s['above']:6d}"
            bounds = " ".join(f"{s[k]['mean']:6.2f} {s[k]['worst']:6.2f}" for k in ("above_bound", "best_above_bound"))
            errors = " ".join(f"{s[k]['mean']:6.2%} {s[k]['worst']:6.1%}" for k in ("estimate_off", "estimates_off"))
            moved = f"{s['bytes_ratio']['mean']:5.2f} {s['bytes_ratio']['worst']:5.2f}"
            seconds = f"{s['search_s']['mean']:5.2f} {s['search_s']['worst']:6.2f}"
            print(
                f"{chip:15s} {title:10s} {ratios} {bounds} {errors} {moved} {seconds} {s['run']:7,} {s['illegal']:7,}"
            )
    for row in sorted(rows, key=lambda row: -row["ratio"]):
        if row["ratio"] > GOOD:
            at = f"{row['chip']}, {row['operator']}"
            print(
                f"\n{row['ratio']:.3f}  {at}: {row['cycles']:,} cycles, {row['best']:,} found, bound {row['bound']:,}"
            )
            print(f"       mapper: {row['mapper']}; with --search {row['searched']:,}\n       winner: {row['winner']}")
            only = ", ".join(f"{n} {c:,}" if c else f"{n}: no room" for n, c in row["only"].items())
            print(f"       the mapper's with one thing of the winner's: {only}")
    wasteful = [row for row in rows if row["bytes_ratio"] > WASTEFUL]
    print(f"\n{len(wasteful)} of {len(rows)} move more than {WASTEFUL} times the bytes of one that takes as long")
    for row in sorted(wasteful, key=lambda row: -row["bytes_ratio"])[:5]:
        print(f"{row['bytes_ratio']:.2f}  {row['chip']}, {row['operator']}: {row['mapper']}; frugal: {row['frugal']}")


def show_linears(record: Row) -> None:
    """Print ZigZag's figures beside ours."""
    print(f"\nZigZag {record['version']} on a machine of {record['chip']}'s sizes; seconds are processors'")
    print(f"{'linear':18s} {'cycles':>21s} {'MB moved':>13s} {'search s':>16s} {'process s':>13s}")
    print(
        f"{'':18s} {'its':>10s} {'ours':>10s} {'its':>6s} {'ours':>6s} {'its':>7s} {'ours':>8s} {'its':>6s} {'ours':>6s}"
    )
    for r in record["rows"]:
        print(
            f"{r['linear']:18s} {r['zigzag_cycles']:10,} {r['cycles']:10,} {r['zigzag_traffic'] / 1e6:6.1f} "
            f"{r['traffic'] / 1e6:6.1f} {r['zigzag_search_s']:7.2f} {r['search_s']:8.4f} {r['zigzag_process_s']:6.2f} "
            f"{r['process_s']:6.2f}"
        )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"mappings of each operator ({SAMPLES})")
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal(), help="which ones (the day's)")
    parser.add_argument("--chips", nargs="+", default=list(CHIPS), help="of some chips only; nothing is written")
    parser.add_argument("--zigzag", metavar="PYTHON", help="a Python that has ZigZag, for the linears")
    asked = parser.parse_args()
    path = HERE / "results" / "mapper.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    rows, graphs = [], cases()
    simulate(load_chip(CHIPS[0]), graphs["square 512"])
    for chip in asked.chips:
        for name, graph in graphs.items():
            rows.append(case(chip, name, graph, asked.samples, asked.seed))
            print(f"{chip}, {name}: {rows[-1]['ratio']:.3f}", file=sys.stderr)
    show(rows)
    if asked.zigzag is None:
        print("\nZigZag is not run: --zigzag PYTHON says which one has it", file=sys.stderr)
    peer = (linears(asked.zigzag) if asked.zigzag else {}) or before.get("zigzag", {})
    if peer:
        show_linears(peer)
    if list(asked.chips) != list(CHIPS):
        return
    git = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    about = {"machine": machine(), "commit": git.stdout.strip(), "samples": asked.samples, "seed": asked.seed}
    path.write_text(json.dumps(about | {"rows": rows, "zigzag": peer}, indent=1) + "\n")
    print(f"\nwritten: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
