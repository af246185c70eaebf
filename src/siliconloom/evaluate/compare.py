"""``loom compare``: one workload on one of our chips and on GPUs, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.quantity import format_bytes
from siliconloom.baselines.lookup import measured
from siliconloom.baselines.model import ModelPrediction, predict_model
from siliconloom.baselines.roofline import flops
from siliconloom.baselines.stacks import Stack
from siliconloom.evaluate.asked import asked
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.mapper.system.parallel import Split, share
from siliconloom.sim.chip.energy import EXCLUDED_BY_BOARDS
from siliconloom.workloads import Graph, Phase

SCHEMA = "siliconloom.compare/1"
MOST_DOLLARS = 1_000_000_000
"""An hour, of any machine: more is a slip of the keyboard."""


def parse_prices(texts: list[str], known: list[str]) -> dict[str, float]:
    """Prices in dollars an hour from texts such as ``h100=2.5``; a system's is that of all its chips."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = float("nan")
        if not equals or not np.isfinite(price) or price < 0:
            raise LoomError(f"--price {text}: must look like NAME=DOLLARS_PER_HOUR, such as h100=2.5")
        if price > MOST_DOLLARS:
            raise LoomError(f"--price {text}: must be at most {MOST_DOLLARS:,} dollars an hour")
        names = {n.lower(): n for n in known}
        if name.lower() not in names:
            near = nearest_name(name, known)
            raise LoomError(
                f"--price {text}: '{name}' is not compared here; "
                + (f"did you mean '{near}'?" if near else "compared are " + ", ".join(known))
            )
        found[names[name.lower()]] = price
    return found


def compare_workload(
    name: str,
    sets: list[tuple[str, str]],
    graph: Graph,
    gpus: list[Gpu],
    *,
    tensor: int = 1,
    sustained: bool = False,
    stack: Stack | None = None,
    prices: list[str] | None = None,
    watcher: Watcher = NOBODY,
    overrides: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Simulate ``graph`` on a chip or system, predict it on the GPUs, and put all side by side."""
    if graph.phase is Phase.TRAINING:
        raise NotSupported(
            "training in loom compare, whose GPUs have no gradients' sums and no optimizer; loom sim has it"
        )
    described, simulated = _simulation(name, sets, graph, watcher)
    names = [described, *(g.name for g in gpus)]
    if len(set(names)) < len(names):
        raise LoomError(f"--gpu: {', '.join(names[1:])}: each machine once, none of them {described}")
    dollars = parse_prices(prices or [], names)
    predicted = [gpu_step(g, graph, tensor=tensor, sustained=sustained, stack=stack) for g in gpus]
    result = simulated()
    covers = {part: o["name"] for o in result["operators"] for part in (o["name"], *o.get("fused_names", ()))}
    theirs = [
        gpu_machine(g, p, gpus=tensor, covers=covers, tokens=graph.tokens) for g, p in zip(gpus, predicted, strict=True)
    ]
    digest = result["asked"]["machine_digest"]
    compared = compare_result(
        graph, our_machine(described, result), theirs, dollars, [*result["notes"], *_methods(result)]
    )
    return {**compared, "asked": asked(graph, overrides, machine=described, digest=digest)}


def _simulation(
    name: str, sets: list[tuple[str, str]], graph: Graph, watcher: Watcher
) -> tuple[str, Callable[[], dict[str, Any]]]:
    """Name of the machine that ``name`` describes, and what simulates it: all input is read before any work."""
    machine = read_machine(name, sets)
    if machine.chip is not None and machine.system is None and machine.chip.tile.kind == "pim":
        raise NotSupported(f"compare of a bare pim tile ({machine.name}); name a system or a chip that has one")

    def evaluated() -> dict[str, Any]:
        found = evaluate(machine, graph, sets, watcher=watcher).result
        for operator in found["operators"]:
            if isinstance(operator.get("fused"), list):
                operator["fused_names"] = operator["fused"]
        return found

    return machine.name, evaluated


def _methods(result: dict[str, Any]) -> list[str]:
    """Say that the two sides of GPUs against GPUs differ in how their times are found."""
    if result["kind"] != "gpus":
        return []
    return ["times of the first machine are predicted throughout; of the others, kernels marked m were measured"]


def gpu_step(
    gpu: Gpu, graph: Graph, *, tensor: int = 1, sustained: bool = False, stack: Stack | None = None
) -> ModelPrediction:
    """Predict one step of ``graph`` on ``tensor`` GPUs that share every operator.

    Raises
    ------
    LoomError
        When the model does not fit the GPUs' memory, or cannot be shared evenly.
    """
    need = (graph.weight_bytes + graph.kv_bytes) / tensor
    if need > gpu.memory.capacity:
        least = -(-(graph.weight_bytes + graph.kv_bytes) // gpu.memory.capacity)
        raise LoomError(
            f"{graph.name} needs {format_bytes(need)} of each {gpu.name} for weights and cache, which has "
            f"{format_bytes(gpu.memory.capacity)}; try --tensor {1 << (least - 1).bit_length()}"
        )
    found = predict_model(gpu, share(graph, Split(tensor)), groups={"tensor": tensor}, sustained=sustained)
    if stack is None:
        return found
    kernels = sum(k.repeat for k in found.kernels if not k.fused)
    extra = stack.seconds(found.total_seconds, kernels) - found.total_seconds
    return ModelPrediction(
        found.kernels, found.operations, found.seconds, found.joules, found.roofline, found.bound, found.error, extra
    )


def gpu_machine(gpu: Gpu, found: ModelPrediction, *, gpus: int, covers: dict[str, str], tokens: int) -> dict[str, Any]:
    """Totals and rows of a GPU; ``covers`` names the row that each operator belongs to.

    A kernel that somebody measured at this very size counts with its measured time.
    """
    known = measured(gpu.name, found.operations)
    work = flops(found.operations)
    rows: dict[str, dict[str, Any]] = {}
    spread = 0.0
    for index, kernel in enumerate(found.kernels):
        operator = kernel.operator.removesuffix(".all_reduce").removesuffix(".all_gather")
        row = rows.setdefault(
            covers.get(operator, operator),
            {"seconds": 0.0, "energy_j": 0.0, "roofline_s": 0.0, "flops": 0.0, "error_s": 0.0, "kernels": []},
        )
        seconds, error, source = float(found.seconds[index]), float(found.error[index]), "modelled"
        sources: tuple[str, ...] = ()
        if (exact := known[index]) is not None:
            seconds, error, source, sources = exact.seconds, exact.spread, "measured", exact.sources
        row["seconds"] += seconds * kernel.repeat
        row["energy_j"] += float(found.joules[index]) * kernel.repeat * gpus
        row["roofline_s"] += float(found.roofline[index]) * kernel.repeat
        row["flops"] += float(work[index]) * kernel.repeat
        row["error_s"] += seconds * error * kernel.repeat
        row["kernels"].append(
            {
                "name": kernel.operator,
                "op": kernel.row["op"],
                "seconds": seconds,
                "times": kernel.repeat,
                "source": source,
                "error": error,
                "bound": found.bound[index],
                "fused": kernel.fused,
                "measured_in": list(sources),
            }
        )
    for row in rows.values():
        longest = max(row["kernels"], key=lambda k: k["seconds"] * k["times"])
        row["bound"] = longest["bound"]
        kinds = {k["source"] for k in row["kernels"]}
        row["source"] = kinds.pop() if len(kinds) == 1 else "both"
        row["error"] = row.pop("error_s") / max(row["seconds"], 1e-30)
        spread += row["error"] * row["seconds"]
    seconds = sum(r["seconds"] for r in rows.values()) + found.overhead
    joules = sum(r["energy_j"] for r in rows.values()) + found.overhead * gpu.idle_power * gpus
    peak = gpu.peak_flops(found.operations.dtypes()[0]) or 1.0
    return {
        "name": gpu.name,
        "kind": "gpu",
        "energy_of": "boards",
        "count": gpus,
        "seconds": seconds,
        "error": spread / seconds,
        "overhead_s": found.overhead,
        "energy_j": joules,
        "energy_excludes": list(EXCLUDED_BY_BOARDS),
        "power_w": joules / seconds,
        "tokens_per_second": tokens / seconds,
        "utilization": float((work * found.repeats).sum()) / seconds / peak,
        "roofline_s": sum(r["roofline_s"] for r in rows.values()),
        "achieved": sum(r["roofline_s"] for r in rows.values()) / seconds,
        "operators": rows,
    }


def our_machine(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Totals and rows of a result of `loom sim` in the same form; simulated cycles have no error bars.

    Operators of a system are those of one chip, all layers of its stage.
    """
    clock = result["clock_hz"]
    rows: dict[str, dict[str, Any]] = {}
    for o in result["operators"]:
        bound = o.get("bound_cycles")
        seconds = o["seconds"]
        row = {
            "seconds": seconds,
            "energy_j": o.get("energy_j"),
            "roofline_s": None if bound is None else bound / clock,
            "flops": 2.0 * o.get("macs", 0),
            "bound": o.get("bound", o.get("unit", "")),
            "source": "modelled" if result["kind"] == "gpus" else "simulated",
            "error": o.get("error", 0.0),
        }
        rows[o["name"]] = row
    system = result.get("system")
    return {
        "name": name,
        "kind": "system" if system else "chip",
        "energy_of": "boards" if result["energy_excludes"] == list(EXCLUDED_BY_BOARDS) else "chips",
        "count": 1,
        "chips": system["chips"] if system else 1,
        "seconds": result["seconds"],
        "error": result.get("error", 0.0),
        "overhead_s": 0.0,
        "energy_j": result["energy_j"],
        "energy_excludes": result["energy_excludes"],
        "power_w": result["energy_j"] / result["seconds"],
        "tokens_per_second": result["tokens_per_second"],
        "utilization": result["utilization"],
        "roofline_s": result["bound"]["lower_bound_cycles"] / clock,
        "achieved": result["bound"]["achieved"],
        "operators": rows,
    }


def compare_result(
    graph: Graph, ours: dict[str, Any], theirs: list[dict[str, Any]], prices: dict[str, float], notes: list[str]
) -> dict[str, Any]:
    """The comparison under its versioned schema; `speedup` above 1 means that ours is faster."""
    machines = [ours, *theirs]
    for machine in machines:
        price = prices.get(machine["name"])
        machine["dollars_per_hour"] = price
        hourly = machine["tokens_per_second"] * 3600
        machine["dollars_per_million_tokens"] = None if price is None else price / hourly * 1e6
    operators = []
    for name in ours["operators"]:
        row: dict[str, Any] = {"name": name}
        for machine in machines:
            found = machine["operators"].get(name)
            if found is not None:
                floor = found["roofline_s"]
                found["achieved"] = floor / found["seconds"] if floor and found["seconds"] else None
            row[machine["name"]] = found
        operators.append(row)
    for machine in machines:
        del machine["operators"]
    for machine in theirs:
        machine["speedup"] = machine["seconds"] / ours["seconds"]
        machine["speedup_range"] = [
            machine["speedup"] * (1 - machine["error"]),
            machine["speedup"] * (1 + machine["error"]),
        ]
        machine["energy_ratio"] = machine["energy_j"] / ours["energy_j"] if ours["energy_j"] else None
    return {
        "schema": SCHEMA,
        "version": __version__,
        "workload": graph.name,
        "phase": graph.phase.value,
        "precision": graph.precision.value,
        "batch": graph.batch,
        "tokens": graph.tokens,
        "notes": notes,
        "machines": machines,
        "operators": operators,
    }
