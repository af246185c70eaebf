"""``loom plan``: what it reads, prints and writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console

from siliconloom import __version__
from siliconloom.arch import LoomError, load_system
from siliconloom.arch.document import Description, Document
from siliconloom.arch.errors import Position
from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.arch.run import Run, Straggler
from siliconloom.faulty_runs import faulty_run
from siliconloom.output import write_text
from siliconloom.planning.cluster import Cluster, cluster_of
from siliconloom.planning.handover import hand_over, share_of
from siliconloom.planning.inference import Server
from siliconloom.planning.machines import ChipMachine
from siliconloom.planning.placing import place, shown
from siliconloom.planning.plan import TRAINING_ONLY, Plan, parse_plan
from siliconloom.planning.search import ANY, Found, search, too_much
from siliconloom.planning.step import Slowdown
from siliconloom.planning.timeline import pipeline_trace
from siliconloom.planning.training import Trainer
from siliconloom.simulate import asked, path_notes
from siliconloom.tables import Row, bold, print_overrides, progress_bar, table
from siliconloom.workloads import Attention, Graph, Phase, load_workload

SCHEMA = "siliconloom.plan/1"
Described = TypeVar("Described", bound=Description)


def read_plan_input(
    system: str, model: str, assignments: list[tuple[str, str]]
) -> tuple[Cluster, Graph, dict[str, Any], Troubles, Decoding | None]:
    """Cluster, workload, the values of ``plan.`` given, what goes wrong, and what follows, from names and overrides."""
    troubles = Troubles(_read("run", assignments, Run), _read("slow", assignments, Straggler))
    later = [(p.removeprefix("decode."), v) for p, v in assignments if p.startswith("decode.")]
    assignments = [(p, v) for p, v in assignments if not p.startswith(("run.", "slow.", "decode."))]
    theirs = [(p.removeprefix("workload."), v) for p, v in assignments if p.startswith("workload.")]
    cluster, fixed = read_cluster(system, [(p, v) for p, v in assignments if not p.startswith("workload.")])
    graph = load_workload(model, theirs)
    decoding = None
    if later:
        if graph.phase is not Phase.PREFILL:
            raise LoomError(f"decode. follows prompts; workload.phase is {graph.phase.value}")
        length = next(o.kv_len for o in graph.operators() if isinstance(o, Attention))
        sets = [s for s in theirs if s[0] not in ("phase", "sequence", "context")]
        decode = load_workload(model, [*sets, ("phase", "decode"), ("context", str(length))])
        decoding = Decoding(decode, parse_plan(later))
    return cluster, graph, fixed, troubles, decoding


@dataclass(frozen=True)
class Troubles:
    """Failures of a whole run, and a stage or link that falls behind in a step; none unless asked for."""

    run: Run | None = None
    slow: Straggler | None = None


@dataclass(frozen=True)
class Decoding:
    """Next tokens after the prompts, under a plan of their own: their workload, and the values of ``decode.`` given."""

    graph: Graph
    fixed: dict[str, Any]


def _read(prefix: str, assignments: list[tuple[str, str]], kind: type[Described]) -> Described | None:
    """A description from overrides under a prefix; nothing when there are none."""
    mine = [(p.removeprefix(f"{prefix}."), v) for p, v in assignments if p.startswith(f"{prefix}.")]
    if not mine:
        return None
    document = Document({}, {(): Position(f"--set {prefix}.", 1, 1)}, f"--set {prefix}.")
    document.override(mine, f"{prefix}.")
    return document.validate(kind)


def read_cluster(name: str, assignments: list[tuple[str, str]]) -> tuple[Cluster, dict[str, Any]]:
    """A system as a cluster, and the values of ``plan.``, from a name and overrides."""
    mine = [(p.removeprefix("plan."), v) for p, v in assignments if p.startswith("plan.")]
    inner = [(p.removeprefix("chip."), v) for p, v in assignments if p.startswith("chip.")]
    rest = [(p, v) for p, v in assignments if not p.startswith(("plan.", "chip."))]
    fixed = parse_plan(mine)
    return cluster_of(load_system(name, rest), inner), fixed


def plan_result(
    cluster: Cluster,
    graph: Graph,
    fixed: dict[str, Any],
    troubles: Troubles | None = None,
    decoding: Decoding | None = None,
    *,
    quiet: bool = False,
    trace: str | None = None,
) -> dict[str, Any]:
    """The best plan, its step, and what the others lost by, under the versioned schema."""
    began = time.perf_counter()
    training = graph.phase is Phase.TRAINING
    fixed = dict(fixed)
    documents = fixed.pop("documents", ())
    planner = (Trainer if training else Server)(cluster, graph, documents)
    run, slow = (troubles.run, troubles.slow) if troubles else (None, None)
    _refuse(fixed, training, run=run, slow=slow)
    if {"data", "tensor", "pipeline", "microbatch"} <= set(fixed) and fixed.get("overlap") != ANY:
        plan = Plan(**fixed)
        step = planner.step(plan)
        if (error := too_much(planner, plan, step.memory)) is not None:
            raise error
        best: tuple[Found, ...] = (Found(plan, step),)
        counts = {"simulated": 1, "pruned": 0, "too_large": 0}
    else:
        with progress_bar(not quiet, "searching") as progress:
            found = search(planner, fixed, progress=progress)
        best = found.best
        counts = {"simulated": found.simulated, "pruned": found.pruned, "too_large": found.too_large}
    places, before = cluster.places, best[0].step.seconds
    if cluster.uneven:
        with progress_bar(not quiet, "placing") as progress:
            best, places = _placed(planner, best, progress)
    first = best[0]
    if trace is not None:
        _write_trace(trace, type(planner)(cluster.placed(places), graph, documents), first.plan, slow)
    result = {
        "schema": SCHEMA,
        "version": __version__,
        "system": cluster.name,
        "workload": graph.name,
        "batch": graph.batch,
        "phase": graph.phase.value,
        "asked": asked(graph, ()),
        "sequence": planner.attention.kv_len,
        "parameters": planner.parameters,
        "flops": planner.flops,
        **_row(first, planner),
        "placement": list(places) if places != cluster.places else None,
        "unplaced_step_s": before,
        "notes": [n for m, _ in cluster.kinds if isinstance(m, ChipMachine) for n in path_notes(m.chip)],
        "search": {**counts, "wall_s": time.perf_counter() - began},
        "alternatives": [
            {**_row(other, planner), "slower_by": other.step.seconds / first.step.seconds - 1,
             "lost_by": _lost(first, other)}
            for other in best[1:]
        ],
    }  # fmt: skip
    if slow is not None and isinstance(planner, Trainer):
        placed = Trainer(cluster.placed(places), graph, documents)
        step_s = placed.step(first.plan, _late(slow)).seconds
        result["slow"] = {"step_s": step_s, "slower_by": step_s / first.step.seconds - 1}
    if decoding is not None and isinstance(planner, Server):
        result["decode"] = _decoded(planner, first, decoding, quiet)
    if run is not None:
        held = first.step.memory
        state = (held.weights + held.optimizer) * cluster.chips
        result["run"] = faulty_run(run, step_s=first.step.seconds, chips=cluster.chips, state_bytes=state)
    floor = planner.bound
    result["lower_bound_s"] = floor
    if first.step.seconds < floor:
        raise AssertionError(f"a step of {first.step.seconds} s is under the arithmetic's {floor} s")
    return result


def _late(slow: Straggler | None) -> list[Slowdown]:
    return [] if slow is None else [Slowdown(slow.at, slow.factor, slow.stage, slow.link)]


def _write_trace(path: str, planner: Trainer | Server, plan: Plan, slow: Straggler | None) -> None:
    """The pipeline's passes, for Perfetto."""
    found = planner.timeline(plan, _late(slow))
    title = f"{planner.graph.name} on {planner.cluster.name}: {plan.text(training=isinstance(planner, Trainer))}"
    write_text(path, pipeline_trace(title, plan.pipeline, found))


def _decoded(planner: Server, prompts: Found, decoding: Decoding, quiet: bool) -> dict[str, Any]:
    """The best plan of the tokens that follow, and what it takes to bring the cache to its chips."""
    cluster = planner.cluster
    after = Server(cluster, decoding.graph)
    _refuse(decoding.fixed, training=False)
    with progress_bar(not quiet, "searching") as progress:
        best = search(after, decoding.fixed, progress=progress).best[0]
    heads = planner.attention.kv_heads
    here, there = (share_of(f.plan, f.step.stages, heads) for f in (prompts, best))
    size = float(planner.graph.kv_bytes)
    moved = hand_over(here, there, size, cluster.fabrics[0], cluster.places)
    return {
        **_row(best, after), "lower_bound_s": after.bound, "cache_bytes": size, "moved_bytes": moved.moved,
        "handover_s": moved.seconds,
    }  # fmt: skip


def _placed(
    planner: Trainer | Server, best: tuple[Found, ...], progress: Callable[[float], None]
) -> tuple[tuple[Found, ...], tuple[int, ...]]:
    """The best plans, each on the chips that suit it best, and the chips of the first one's ranks."""
    found = []
    for plan in (f.plan for f in best):
        places, step = place(planner, plan, progress=progress)
        found.append((Found(plan, step), places))
    found.sort(key=lambda f: f[0].step.seconds)
    return tuple(f for f, _ in found), found[0][1]


def _long(seconds: float) -> str:
    """Hours or days where seconds are many."""
    for unit, size in (("d", 86400.0), ("h", 3600.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.4g} {unit}"
    return format_si(seconds, "s")


def _refuse(fixed: dict[str, Any], training: bool, **troubles: object) -> None:
    """Keys that mean nothing in this phase."""
    if training:
        return
    for name, given in troubles.items():
        if given is not None:
            raise LoomError(f"{name}. is for training; set workload.phase=training")
    for key in TRAINING_ONLY:
        if key in fixed:
            raise LoomError(f"plan.{key} is for training; set workload.phase=training")


def plan_tables(result: dict[str, Any], out: Console) -> None:
    """Print the plan, where its time goes, and the next best ones."""
    plan = Plan(**result["plan"])
    training = result["phase"] == "training"
    size, work = f"{result['parameters'] / 1e9:.4g} G parameters", f"{result['batch']:,} x {result['sequence']:,}"
    out.print(f"{bold(result['workload'])} ({size}, {result['phase']}, batch {work}) on {bold(result['system'])}")
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    memory, looked = result["memory"], result["search"]
    parts = ", ".join(f"{name} {format_bytes(value)}" for name, value in memory.items() if value)
    rows: list[Row] = [
        ("plan", plan.text(training=training)),
        ("step", f"{format_si(result['step_s'], 's')}; the arithmetic alone {format_si(result['lower_bound_s'], 's')}"),
        ("per chip", f"{result['tflops_per_chip']:.4g} TFLOP/s; {result['utilization']:.1%} of the peak is reached"),
        ("tokens", f"{result['tokens_per_second']:,.4g} a second"),
        ("bubble", f"{result['bubble']:.1%} of the pipeline"),
        ("waiting for messages", format_si(result["exposed_comm_s"], "s")),
        *([("gradients, optimizer",
            f"{format_si(result['gradient_s'], 's')} left over, {format_si(result['optimizer_s'], 's')}")]
          if training else []),
        ("memory", f"{format_bytes(result['memory_bytes'])}: {parts}"),
        *([("placement", f"ranks in order on chips {shown(result['placement'])}; "
            f"{result['unplaced_step_s'] / result['step_s'] - 1:.1%} slower in the order described")]
          if result["placement"] else []),
        ("search", f"{looked['simulated']} plans simulated, {looked['pruned']:,} slower by their bound, "
                   f"{looked['too_large']:,} too large, in {format_si(looked['wall_s'], 's')}"),
    ]  # fmt: skip
    out.print(table("plan", [("", "left"), ("", "left")], rows))
    if "decode" in result:
        after = result["decode"]
        out.print()
        tokens: list[Row] = [
            ("plan", Plan(**after["plan"]).text(training=False)),
            ("step", f"{format_si(after['step_s'], 's')}; {after['tokens_per_second']:,.4g} tokens a second"),
            ("memory", format_bytes(after["memory_bytes"])),
            ("handover", f"{format_bytes(after['moved_bytes'])} of a cache of {format_bytes(after['cache_bytes'])} "
                         f"change chips in {format_si(after['handover_s'], 's')}"),
        ]  # fmt: skip
        out.print(table("next tokens", [("", "left"), ("", "left")], tokens))
    if "slow" in result:
        late = result["slow"]
        out.print(f"with the straggler: {format_si(late['step_s'], 's')}, {late['slower_by']:.1%} slower")
    if "run" in result:
        out.print()
        run = result["run"]
        spread = run["seconds"]
        expected = f", {_long(run['expected_s'])} by Daly's formula" if run["expected_s"] else ""
        spent: list[Row] = [
            ("time", f"{_long(spread['mean'])}, from {_long(spread['p10'])} to {_long(spread['p90'])} in eight of ten "
                     f"runs; {_long(run['ideal_s'])} without failures{expected}"),
            ("failures", f"{run['failures']:.4g}; a checkpoint every {run['checkpoint_steps']:,} steps"),
            ("lost", f"{_long(run['lost_s'])} of steps, {_long(run['restart_s'])} in restarts, "
                     f"{_long(run['checkpoints_s'])} in checkpoints, {_long(run['waiting_s'])} waiting for chips"),
            ("goodput", f"{run['goodput']:.1%}"),
        ]  # fmt: skip
        out.print(table("run", [("", "left"), ("", "left")], spent))
    if result["alternatives"]:
        out.print()
        others: list[Row] = [
            (Plan(**a["plan"]).text(training=training), f"+{a['slower_by']:.2%}", a["lost_by"])
            for a in result["alternatives"]
        ]
        out.print(table("next best", [("plan", "left"), ("step", "right"), ("loses by", "left")], others))


def _row(found: Found, planner: Trainer | Server) -> dict[str, Any]:
    step = found.step
    per_chip = planner.flops / step.seconds / planner.cluster.chips
    tokens = planner.graph.tokens
    return {
        "plan": found.plan.as_dict(),
        "step_s": step.seconds,
        "tflops_per_chip": per_chip / 1e12,
        "utilization": planner.bound / step.seconds,
        "tokens_per_second": tokens / step.seconds,
        "memory_bytes": step.memory.total,
        "memory": {
            "weights": step.memory.weights, "gradients": step.memory.gradients, "optimizer": step.memory.optimizer,
            "activations": step.memory.activations, "cache": step.memory.cache,
        },
        "bubble": step.bubble,
        "exposed_comm_s": step.exposed,
        "gradient_s": step.gradients,
        "optimizer_s": step.optimizer,
        "microbatches": step.microbatches,
        "stage_layers": list(step.stages),
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
