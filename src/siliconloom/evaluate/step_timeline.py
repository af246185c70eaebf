"""When what runs in a step of a plan: passes of every stage, the operators in them, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from siliconloom.arch.budget import require_memory
from siliconloom.arch.timeline import EVENT_BYTES, Span, Timeline
from siliconloom.evaluate.pass_work import PICO, Passes, PassWork, more_than_operators
from siliconloom.evaluate.steps import PlannedStep
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.pipeline import PassKind
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.planner import StepTime
from siliconloom.mapper.system.step import GREEDY, Slowdown
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import Graph, Phase

PASSES = {"F": "forward", "B": "backward", "W": "weights"}
"""Kinds of a pipeline's passes, by the letter that their names begin with."""
MOST_SPANS = 200_000
"""Operators of all passes that a timeline has at most; of more it has the passes."""


def plan_timeline(planner: Trainer | Server, plan: Plan, slow: Sequence[Slowdown] = ()) -> Timeline:
    """A step of a plan: tracks for each stage's passes, its operators, each link that is a stream, and what follows.

    Stages are devices of the pipeline, each all chips that do the same. What of a plan is more than operators one after
    the other has passes alone, and ``facts`` say why.
    """
    found = planner.timeline(plan, slow)
    title = f"{planner.graph.name} on {planner.cluster.name}: {plan.text(training=isinstance(planner, Trainer))}"
    tasks, run = found.tasks, found.run
    require_memory(f"--trace: {len(tasks):,} passes", len(tasks) * EVENT_BYTES, "a larger plan.microbatch has fewer")
    tracks, place = dict[int, str](), dict[int, int]()
    for stream in sorted(set(tasks.stream)):  # operators stand below their stage
        place[stream] = 2 * stream
        tracks[2 * stream] = f"stage {stream}" if stream < plan.pipeline else f"link {(stream - plan.pipeline) // 2}"
        if stream < plan.pipeline:
            tracks[2 * stream + 1] = f"operators {stream}"
    rows = zip(tasks.names, tasks.stream, run.start.tolist(), run.end.tolist(), strict=True)
    spans = [Span(place[at], name, PASSES.get(name[0], "message"), start, end) for name, at, start, end in rows]
    within, why = _operators(planner, plan, spans)
    finer = frozenset(span.track for span in within)
    tracks = {track: name for track, name in tracks.items() if track % 2 == 0 or track in finer}
    step = planner.step(plan, slow) if isinstance(planner, Trainer) else planner.step(plan)
    after = list(_after(step, max(tracks) + 2, run.finish)) if isinstance(planner, Trainer) else []
    tracks |= {span.track: "all stages" for span in after}
    facts: dict[str, Any] = {"step_s": step.seconds, **({"operators": why} if why else {})}
    if planner.graph.phase is Phase.DECODE and plan.pipeline > 1:
        facts["steady"] = "shown is every part's way through the stages, once: the step is the time from token to token"
    held = planner.held(plan, slow) if isinstance(planner, Trainer) else []
    return Timeline(
        title,
        1 / PICO,
        tracks,
        [*spans, *within, *after],
        facts,
        held={2 * device: (each.always.total, each.steps) for device, each in enumerate(held)},
        finer=finer,
    )


def _operators(planner: Trainer | Server, plan: Plan, spans: Sequence[Span]) -> tuple[list[Span], str]:
    """The operators of every pass, each on the track below its own, or none and why; of a slowed chip in proportion."""
    reasons = [*more_than_operators(planner, plan)]
    if plan.offload_activations or plan.offload == "parameters":
        reasons.append("what lies on the host (plan.offload)")
    if reasons:
        return [], f"not told apart: {', '.join(reasons)}"
    blocks = [kinds[0] for kinds in planner.stage_blocks(plan, plan.microbatch, planner.dealt(plan, plan.microbatch))]
    passes = Passes(planner, plan)
    apart = plan.schedule in GREEDY and plan.pipeline > 1
    kept: dict[tuple[PassKind, int], list[PassWork]] = {}
    made: list[Span] = []
    for span in spans:
        if span.category == "message":
            continue
        name, _, stage = span.name.partition(" of stage ")
        key = PassKind(name[0]), int(stage)
        if key not in kept:
            kept[key] = [work for work in passes.work(blocks[key[1]], key[0], apart=apart) if work.picoseconds]
        if len(made) + len(kept[key]) > MOST_SPANS:
            return [], f"not told apart: more than {MOST_SPANS:,} operators in all passes"
        made += _within(span, kept[key], span.track + 1)
    return made, ""


def _within(span: Span, works: Sequence[PassWork], track: int) -> Iterator[Span]:
    """What a pass consists of, from its start to its end."""
    ends = list(accumulate(work.picoseconds for work in works))
    if not ends:
        return
    scale = (span.end - span.start) / ends[-1]
    begin = span.start
    for work, end in zip(works, ends, strict=True):
        until = span.start + round(end * scale)
        kind = work.collective if work.dimension else work.kind
        details = {"pass": span.name, "bytes": work.size, "flops": work.operations}
        yield Span(track, work.name, kind, begin, until, details)
        begin = until


def _after(step: StepTime, track: int, begin: int) -> Iterator[Span]:
    """What of a training step follows its pipeline: sums and parameters that are left over, and the update."""
    rest = step.seconds - step.pipeline - step.gradients - step.optimizer
    for name, seconds in (
        ("shared parameters and gradients, left over", step.sharing),
        ("gradients, left over", step.gradients),
        ("optimizer", step.optimizer),
        ("host's update, left over", rest),
    ):
        ticks = round(seconds * PICO)
        if ticks > 0:
            yield Span(track, name, "after the passes", begin, begin + ticks)
            begin += ticks


def step_timeline(steps: PlannedStep, cluster: Cluster, graph: Graph, overhead: float = 0.0) -> Timeline:
    """A step of `loom sim` on GPUs or on a system: its plan's, or operators one after the other where no plan cuts it.

    ``overhead`` are seconds that software adds.
    """
    if steps.planner is not None:
        made = plan_timeline(steps.planner, steps.plan)
    else:
        times = cluster.machine.seconds(graph)
        works = [
            PassWork(operator.name, operator.kind, round(times.get(operator.name, 0.0) * PICO), operator.flops)
            for _, repeat, operators in graph.blocks()
            for _ in range(repeat)
            for operator in operators
        ]
        works = [work for work in works if work.picoseconds]
        require_memory(f"--trace: {len(works):,} operators", len(works) * EVENT_BYTES, "fewer layers have fewer")
        whole = Span(0, graph.name, "forward", 0, sum(work.picoseconds for work in works))
        title = f"{graph.name} on {cluster.name}"
        made = Timeline(title, 1 / PICO, {0: "operators"}, list(_within(whole, works, 0)), {"step_s": steps.seconds})
    ticks = round(overhead * PICO)
    if ticks <= 0:
        return made
    spans, track = list(made.spans), max(made.tracks) + 1
    end = max((span.end for span in spans), default=0)
    added = Span(track, "what the software adds", "software", end, end + ticks)
    tracks = {**made.tracks, track: "software"}
    facts = {**made.facts, "step_s": steps.seconds}
    return replace(made, tracks=tracks, spans=[*spans, added], facts=facts)


__all__ = ["plan_timeline", "step_timeline"]
