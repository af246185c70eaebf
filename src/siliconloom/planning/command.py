"""``loom plan``: what it reads, prints and writes."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported, load_system
from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.arch.vector import VectorFunction
from siliconloom.planning.cluster import Cluster, cluster_of
from siliconloom.planning.plan import Plan, parse_plan, shape_of
from siliconloom.planning.search import Found, search
from siliconloom.planning.training import Trainer
from siliconloom.tables import Row, progress_bar, table
from siliconloom.workloads import Graph, Phase, Vector, load_workload

SCHEMA = "siliconloom.plan/1"


def read_plan_input(
    system: str, model: str, assignments: list[tuple[str, str]]
) -> tuple[Cluster, Graph, dict[str, Any]]:
    """Cluster, workload and the values of ``plan.`` given, from names and overrides."""
    theirs = [(p.removeprefix("workload."), v) for p, v in assignments if p.startswith("workload.")]
    cluster, fixed = read_cluster(system, [(p, v) for p, v in assignments if not p.startswith("workload.")])
    graph = load_workload(model, theirs)
    if graph.phase is not Phase.TRAINING:
        raise NotSupported(f"loom plan of {graph.phase.value}; set workload.phase=training")
    return cluster, graph, fixed


def read_cluster(name: str, assignments: list[tuple[str, str]]) -> tuple[Cluster, dict[str, Any]]:
    """A system as a cluster, and the values of ``plan.``, from a name and overrides."""
    mine = [(p.removeprefix("plan."), v) for p, v in assignments if p.startswith("plan.")]
    inner = [(p.removeprefix("chip."), v) for p, v in assignments if p.startswith("chip.")]
    rest = [(p, v) for p, v in assignments if not p.startswith(("plan.", "chip."))]
    fixed = parse_plan(mine)
    return cluster_of(load_system(name, rest), inner), fixed


def plan_result(cluster: Cluster, graph: Graph, fixed: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """The best plan, its step, and what the others lost by, under the versioned schema."""
    began = time.perf_counter()
    shape = shape_of(graph)
    gated = any(
        isinstance(o, Vector) and o.function in (VectorFunction.GATED_SILU, VectorFunction.GATED_GELU)
        for o in graph.operators()
    )
    dtype = graph.precision.value
    trainer = Trainer(cluster, shape, graph.batch, gated=gated, dtype=dtype)
    whole = {"data", "tensor", "pipeline", "microbatch"} <= set(fixed)
    if whole:
        plan = Plan(**fixed)
        step = trainer.step(plan)
        need, room = step.memory.total, cluster.gpu.memory.capacity
        if need > room:
            raise LoomError(
                f"{plan.text()} needs {format_bytes(need)} of each {cluster.gpu.name}, which has {format_bytes(room)}: "
                f"{format_bytes(need - room)} too much; more tensor or pipeline parallelism, ZeRO or recomputation help"
            )
        best: tuple[Found, ...] = (Found(plan, step),)
        counts = {"simulated": 1, "pruned": 0, "too_large": 0}
    else:
        with progress_bar(not quiet, "searching") as progress:
            found = search(trainer, fixed, progress=progress)
        best = found.best
        counts = {"simulated": found.simulated, "pruned": found.pruned, "too_large": found.too_large}
    first = best[0]
    peak = cluster.gpu.peak_flops(dtype)
    result = {
        "schema": SCHEMA,
        "version": __version__,
        "system": cluster.name,
        "workload": graph.name,
        "batch": graph.batch,
        "sequence": shape.sequence,
        "parameters": shape.parameters,
        "flops": trainer.flops,
        **_row(first, trainer, cluster, peak),
        "search": {**counts, "wall_s": time.perf_counter() - began},
        "alternatives": [
            {**_row(other, trainer, cluster, peak), "slower_by": other.step.seconds / first.step.seconds - 1,
             "lost_by": _lost(first, other)}
            for other in best[1:]
        ],
    }  # fmt: skip
    floor = trainer.flops / (cluster.chips * peak)
    result["lower_bound_s"] = floor
    if first.step.seconds < floor:
        raise AssertionError(f"a step of {first.step.seconds} s is under the arithmetic's {floor} s")
    return result


def plan_tables(result: dict[str, Any], out: Console) -> None:
    """Print the plan, where its time goes, and the next best ones."""
    plan = Plan(**result["plan"])
    size, work = f"{result['parameters'] / 1e9:.4g} G parameters", f"{result['batch']:,} x {result['sequence']:,}"
    out.print(f"[bold]{result['workload']}[/bold] ({size}, batch {work}) on [bold]{result['system']}[/bold]")
    memory, looked = result["memory"], result["search"]
    parts = ", ".join(f"{name} {format_bytes(value)}" for name, value in memory.items() if value)
    rows: list[Row] = [
        ("plan", plan.text()),
        ("step", f"{format_si(result['step_s'], 's')}; the arithmetic alone {format_si(result['lower_bound_s'], 's')}"),
        ("per chip", f"{result['tflops_per_chip']:.4g} TFLOP/s, {result['utilization']:.1%} of its peak"),
        ("bubble", f"{result['bubble']:.1%} of the pipeline"),
        ("waiting for messages", format_si(result["exposed_comm_s"], "s")),
        ("gradients, optimizer", f"{format_si(result['gradient_s'], 's')}, {format_si(result['optimizer_s'], 's')}"),
        ("memory", f"{format_bytes(result['memory_bytes'])}: {parts}"),
        ("search", f"{looked['simulated']} plans simulated, {looked['pruned']:,} slower by their bound, "
                   f"{looked['too_large']:,} too large, in {format_si(looked['wall_s'], 's')}"),
    ]  # fmt: skip
    out.print(table("plan", [("", "left"), ("", "left")], rows))
    if result["alternatives"]:
        out.print()
        others: list[Row] = [
            (Plan(**a["plan"]).text(), f"+{a['slower_by']:.2%}", a["lost_by"]) for a in result["alternatives"]
        ]
        out.print(table("next best", [("plan", "left"), ("step", "right"), ("loses by", "left")], others))


def _row(found: Found, trainer: Trainer, cluster: Cluster, peak: float) -> dict[str, Any]:
    step = found.step
    per_chip = trainer.flops / step.seconds / cluster.chips
    return {
        "plan": found.plan.as_dict(),
        "step_s": step.seconds,
        "tflops_per_chip": per_chip / 1e12,
        "utilization": per_chip / peak,
        "memory_bytes": step.memory.total,
        "memory": {
            "weights": step.memory.weights, "gradients": step.memory.gradients, "optimizer": step.memory.optimizer,
            "activations": step.memory.activations,
        },
        "bubble": step.bubble,
        "exposed_comm_s": step.exposed,
        "gradient_s": step.gradients,
        "optimizer_s": step.optimizer,
        "microbatches": step.microbatches,
    }  # fmt: skip


def _lost(best: Found, other: Found) -> str:
    """The part of the step that grew most."""
    idle = [(f.step.pipeline * f.step.bubble) for f in (best, other)]
    busy = [f.step.pipeline * (1 - f.step.bubble) for f in (best, other)]
    parts = {
        "bubble": idle[1] - idle[0],
        "kernels and tensor-parallel sums": busy[1] - busy[0],
        "gradients": other.step.gradients - best.step.gradients,
        "optimizer": other.step.optimizer - best.step.optimizer,
    }
    name = max(parts, key=lambda n: parts[n])
    return f"{name} (+{format_si(parts[name], 's')})" if parts[name] > 0 else "a tie"
