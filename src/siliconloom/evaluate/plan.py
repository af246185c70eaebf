"""``loom plan``: what it reads, prints and writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from msgspec import Struct

from siliconloom import __version__
from siliconloom.arch import LoomError, load_system
from siliconloom.arch.document import Description, Document
from siliconloom.arch.errors import Position
from siliconloom.arch.execution_trace import ExecutionTrace
from siliconloom.arch.gpu import refuse_idle
from siliconloom.arch.gpu_system import refuse_unread
from siliconloom.arch.kinds import is_gpu
from siliconloom.arch.planned import PLAN_SCHEMA
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.quantity import format_si
from siliconloom.arch.run import DescribedRun, Straggler
from siliconloom.arch.timeline import Timeline
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.model import chunk_notes
from siliconloom.evaluate.asked import asked
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.faulty_runs import faulty_run
from siliconloom.evaluate.pim_machine import check_policy, refuse_idle_policies
from siliconloom.evaluate.steps import working_note
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.experts import degrees, read_routed
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.kv_transfer import share_of, transfer_cache
from siliconloom.mapper.system.placing import place
from siliconloom.mapper.system.plan import Plan, parse_plan, refuse_training_keys
from siliconloom.mapper.system.search import ANY, Found, search, too_much
from siliconloom.mapper.system.step import Slowdown
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import Attention, Graph, Phase, load_workload
from siliconloom.workloads.roles import Role

Described = TypeVar("Described", bound=Description)


def read_plan_input(
    system: str | Document, model: str | Document | Graph, assignments: list[tuple[str, str]]
) -> tuple[Cluster, Graph, dict[str, Any], Troubles, Decoding | None]:
    """Cluster, workload, the values of ``plan.`` given, what goes wrong, and what follows, from names and overrides."""
    troubles = Troubles(_read("run", assignments, DescribedRun), _read("slow", assignments, Straggler))
    later = [(p.removeprefix("decode."), v) for p, v in assignments if p.startswith("decode.")]
    assignments = [(p, v) for p, v in assignments if not p.startswith(("run.", "slow.", "decode."))]
    theirs = [(p.removeprefix("workload."), v) for p, v in assignments if p.startswith("workload.")]
    phases = {Phase.DECODE} if later else set[Phase]()
    graph = load_workload(model, theirs)
    rest = [(p, v) for p, v in assignments if not p.startswith("workload.")]
    cluster, fixed = read_cluster(system, rest, {graph.phase, *phases})
    decoding = None
    if later:
        if graph.phase is not Phase.PREFILL:
            raise LoomError(f"decode. follows prompts; workload.phase is {graph.phase.value}")
        if any(o.role is Role.CROSS_ATTENTION for o in graph.operators()):
            kind = f"{graph.name}, an encoder with a decoder"
            raise LoomError(f"decode. of {kind}: not supported; workload.phase=decode plans it alone")
        if graph.requests:
            raise LoomError("decode. after requests of unequal lengths (workload.requests): not supported")
        length = next(o.kv_len for o in graph.operators() if isinstance(o, Attention))
        sets = [s for s in theirs if s[0] not in ("phase", "sequence", "context")]
        decode = load_workload(model, [*sets, ("phase", "decode"), ("context", str(length))])
        decoding = Decoding(decode, parse_plan(later))
    return cluster, graph, fixed, troubles, decoding


class Troubles(Struct, frozen=True):
    """Failures of a whole run, and a stage or link that falls behind in a step; none unless asked for."""

    run: DescribedRun | None = None
    slow: Straggler | None = None


class Decoding(Struct, frozen=True):
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


def read_cluster(
    name: str | Document, assignments: list[tuple[str, str]], phases: Collection[Phase]
) -> tuple[Cluster, dict[str, Any]]:
    """A system as a cluster, and the values of ``plan.``, from a name and overrides, for work of some phases."""
    mine = [(p.removeprefix("plan."), v) for p, v in assignments if p.startswith("plan.")]
    inner = [(p.removeprefix("chip."), v) for p, v in assignments if p.startswith("chip.")]
    rest = [(p, v) for p, v in assignments if not p.startswith(("plan.", "chip."))]
    fixed = parse_plan(mine)
    system = load_system(name, rest)
    refuse_unread(system, rest)
    if all(is_gpu(group.chip) for group in system.chips) and Phase.TRAINING not in phases:
        refuse_idle(inner, dict.fromkeys(("power", "idle_power"), "a plan has no energies"), "chip.")
    cluster = cluster_of(system, inner)
    ours = [machine.chip for machine, _ in cluster.kinds if isinstance(machine, ChipMachine)]
    if ours:
        refuse_idle_policies(ours, system.policy, phases, rest)
        for chip in ours:
            check_policy(system.policy, chip)
    return cluster, fixed


def plan_result(
    cluster: Cluster,
    graph: Graph,
    fixed: dict[str, Any],
    troubles: Troubles | None = None,
    decoding: Decoding | None = None,
    *,
    watcher: Watcher = NOBODY,
    timeline: list[Timeline] | None = None,
    traces: list[Callable[[], ExecutionTrace]] | None = None,
) -> dict[str, Any]:
    """The best plan, its step, and what the others lost by, under the versioned schema.

    Where there is a ``timeline``, that of the best plan is put there; to ``traces`` what makes its execution trace.
    """
    began = time.perf_counter()
    training = graph.phase is Phase.TRAINING
    fixed = dict(fixed)
    documents = fixed.pop("documents", ())
    cluster, idle = _working(cluster, fixed)
    whole = {"data", "tensor", "pipeline", "microbatch"} <= set(fixed) and fixed.get("overlap") != ANY
    given, routed = fixed, read_routed(fixed, graph, whole=whole)
    fixed = degrees(fixed)
    planner = (Trainer if training else Server)(cluster, graph, documents, routed)
    run, slow = (troubles.run, troubles.slow) if troubles else (None, None)
    _refuse(fixed, training, run=run, slow=slow)
    if whole:
        plan = planner.loaded(Plan(**fixed))
        step = planner.step(plan)
        if (error := too_much(planner, plan, step.memory)) is not None:
            raise error
        best: tuple[Found, ...] = (Found(plan, step),)
        counts = {"simulated": 1, "pruned": 0, "too_large": 0}
    else:
        with watcher.share("searching") as progress:
            found = search(planner, fixed, progress=progress)
        best = found.best
        counts = {"simulated": found.simulated, "pruned": found.pruned, "too_large": found.too_large}
    places, before = cluster.places, best[0].step.seconds
    if cluster.uneven:
        with watcher.share("placing") as progress:
            best, places = _placed(planner, best, progress)
    first = best[0]
    if timeline is not None:
        from siliconloom.evaluate.step_timeline import plan_timeline

        placed = type(planner)(cluster.placed(places), graph, documents, routed)
        timeline.append(plan_timeline(placed, first.plan, _late(slow)))
    if traces is not None:
        from siliconloom.evaluate.traced_step import step_trace

        planned = type(planner)(cluster.placed(places), graph, documents, routed)
        traces.append(lambda: step_trace(planned, first.plan, graph.name))
    result = {
        "schema": PLAN_SCHEMA,
        "version": __version__,
        "system": cluster.name,
        "workload": graph.name,
        "batch": graph.batch,
        "phase": graph.phase.value,
        "asked": asked(planner.graph, machine=cluster.name, digest=cluster.digest, plan=given),
        "sequence": planner.attention.kv_len,
        "parameters": planner.parameters,
        "flops": planner.flops,
        **_row(first, planner, chips=True),
        "placement": list(places) if places != cluster.places else None,
        "unplaced_step_s": before,
        "notes": [
            *idle,
            *graph.notes,
            *(note for machine, _ in cluster.kinds for note in machine.notes),
            *(chunk_notes(graph) if any(isinstance(machine, GpuMachine) for machine, _ in cluster.kinds) else []),
            *([routed.note(first.plan)] if routed and first.plan.expert > 1 else []),
        ],
        "search": {**counts, "wall_s": time.perf_counter() - began},
        "alternatives": [
            {
                **_row(other, planner),
                "slower_by": other.step.seconds / first.step.seconds - 1,
                "lost_by": _lost(first, other),
            }
            for other in best[1:]
        ],
    }
    if slow is not None and isinstance(planner, Trainer):
        placed = Trainer(cluster.placed(places), graph, documents)
        step_s = placed.step(first.plan, _late(slow)).seconds
        result["slow"] = {"step_s": step_s, "slower_by": step_s / first.step.seconds - 1}
    if decoding is not None and isinstance(planner, Server):
        result["decode"] = _decoded(planner, first, decoding, watcher)
    if run is not None:
        held = first.step.memory
        state = (held.weights + held.optimizer) * cluster.chips
        result["run"] = faulty_run(run, step_s=first.step.seconds, chips=cluster.chips, state_bytes=state)
    floor = planner.bound
    result["lower_bound_s"] = floor
    if first.step.seconds < floor:
        raise AssertionError(f"a step of {first.step.seconds} s is under the arithmetic's {floor} s")
    return result


def _working(cluster: Cluster, fixed: dict[str, Any]) -> tuple[Cluster, list[str]]:
    """The chips that a plan is for, where all its degrees are given and are fewer than there are; and a note of it."""
    if not {"data", "tensor", "pipeline"} <= set(fixed) or len(cluster.kinds) > 1:
        return cluster, []
    degrees = ("data", "tensor", "context", "pipeline", "attention_chips")
    chips = Plan(**{name: fixed[name] for name in degrees if name in fixed}).chips
    if chips >= cluster.chips:
        return cluster, []
    return cluster.part(chips), [working_note(chips, cluster.chips)]


def _late(slow: Straggler | None) -> list[Slowdown]:
    return [] if slow is None else [Slowdown(slow.at, slow.factor, slow.stage, slow.link)]


def _decoded(planner: Server, prompts: Found, decoding: Decoding, watcher: Watcher) -> dict[str, Any]:
    """The best plan of the tokens that follow, and what it takes to bring the cache to its chips."""
    cluster = planner.cluster
    after = Server(cluster, decoding.graph, routed=read_routed(decoding.fixed, decoding.graph))
    _refuse(decoding.fixed, training=False)
    with watcher.share("searching") as progress:
        best = search(after, degrees(decoding.fixed), progress=progress).best[0]
    heads = planner.attention.kv_heads
    here, there = (share_of(f.plan, f.step.stages, heads) for f in (prompts, best))
    size = float(planner.graph.kv_bytes)
    moved = transfer_cache(here, there, size, cluster.fabrics[0], cluster.places)
    return {
        **_row(best, after, chips=True),
        "lower_bound_s": after.bound,
        "cache_bytes": size,
        "moved_bytes": moved.moved,
        "kv_transfer_s": moved.seconds,
    }


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


def _refuse(fixed: dict[str, Any], training: bool, **troubles: object) -> None:
    """Keys that mean nothing in this phase."""
    if training:
        return
    for name, given in troubles.items():
        if given is not None:
            raise LoomError(f"{name}. is for training; set workload.phase=training")
    refuse_training_keys(fixed)


def _row(found: Found, planner: Trainer | Server, *, chips: bool = False) -> dict[str, Any]:
    """A plan and its step; with ``chips`` which chip holds which experts, where that was found."""
    step, routed = found.step, planner.routed
    chip_seconds = step.seconds * planner.cluster.chips
    tokens = planner.graph.tokens
    return {
        "plan": found.plan.as_dict(),
        "plan_text": found.plan.text(training=isinstance(planner, Trainer)),
        "step_s": step.seconds,
        "tflops_per_chip": planner.flops / chip_seconds / 1e12,
        "computed_tflops_per_chip": planner.computed_flops / chip_seconds / 1e12,
        "utilization": planner.bound / step.seconds,
        "tokens_per_second": tokens / step.seconds,
        "memory_bytes": step.memory.total,
        "memory": {
            "weights": step.memory.weights,
            "gradients": step.memory.gradients,
            "optimizer": step.memory.optimizer,
            "activations": step.memory.activations,
            "cache": step.memory.cache,
            "host": step.memory.host,
        },
        "bubble": step.bubble,
        "exposed_comm_s": step.exposed,
        "gradient_s": step.gradients,
        "optimizer_s": step.optimizer,
        "host_s": step.host,
        "microbatches": step.microbatches,
        "stage_layers": list(step.stages),
        **({"experts": routed.result(found.plan, chips=chips)} if routed and found.plan.expert > 1 else {}),
    }


def _lost(best: Found, other: Found) -> str:
    """The part of the step that grew most."""
    idle = [(f.step.pipeline * f.step.bubble) for f in (best, other)]
    busy = [f.step.pipeline * (1 - f.step.bubble) for f in (best, other)]
    parts = {
        "bubble": idle[1] - idle[0],
        "kernels and tensor-parallel sums": busy[1] - busy[0],
        "gradients": other.step.gradients - best.step.gradients,
        "optimizer": other.step.optimizer - best.step.optimizer,
        "the host": other.step.host - best.step.host,
    }
    name = max(parts, key=lambda n: parts[n])
    return f"{name} (+{format_si(parts[name], 's')})" if parts[name] > 0 else "a tie"
