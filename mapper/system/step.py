"""One training step of a plan: pipeline passes as tasks on streams, messages between stages, gradients, optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from siliconloom.arch import LoomError
from siliconloom.arch.budget import require_memory
from siliconloom.mapper.system.pipeline import (
    PassKind,
    Schedule,
    StagePlacement,
    gpipe,
    greedy,
    interleaved,
    most_held,
    one_forward_one_backward,
)
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.system.streams import StreamRun, Tasks, run_tasks
from siliconloom.sim.timing.changes import Changes, read_changes

PICO = 1e12
PASS_BYTES = 800
"""That a pass takes with its name, its place in the schedule and what it waits for."""
GREEDY = {"zero_bubble": lambda p: p, "zero_bubble_2": lambda p: 2 * p, "v_half": lambda p: p + 2}
"""Schedules with weight passes of their own: microbatch-chunks that a device of ``p`` holds at most."""


class Slowdown(Struct, frozen=True):
    """From ``at`` seconds on a device's passes, or a link's messages, take ``factor`` times as long.

    Link k joins stages k and k + 1. An infinite factor stops it until its next change.
    """

    at: float
    factor: float
    device: int | None = None
    link: int | None = None


class PipelineRun(Struct, frozen=True):
    """A pipeline's passes in time.

    Parameters
    ----------
    seconds
        Until the last pass is done.
    bubble
        Share of the devices' time in which they do nothing.
    held
        Microbatches, in whole stages of a device, whose activations each device holds at most.
    """

    seconds: float
    bubble: float
    held: tuple[float, ...]
    run: StreamRun
    tasks: Tasks


def make_placement(plan: Plan) -> StagePlacement:
    """Devices of a plan's stages."""
    if plan.schedule == "v_half" and plan.pipeline > 1:
        return StagePlacement(plan.pipeline, 2, vee=True)
    return StagePlacement(plan.pipeline, plan.chunks)


def check_passes(microbatches: int, stages: int, kinds: int) -> None:
    """Refuse more passes than there is memory for, before they are written down; raises `LoomError`."""
    passes = microbatches * stages * kinds
    require_memory(
        f"plan.microbatch: {microbatches:,} microbatches on {stages} stages",
        passes * PASS_BYTES,
        "larger ones, or a smaller workload.batch, need less",
    )


def check_chunks(pipeline: int, schedule: str, chunks: int) -> None:
    """Refuse several stages of each device where the schedule has none to interleave; raises `LoomError`."""
    if chunks > 1 and pipeline == 1:
        raise LoomError(f"plan.chunks {chunks}: a pipeline of one stage has nothing to interleave")
    if chunks > 1 and schedule != "interleaved":
        raise LoomError(f"plan.chunks: only the interleaved schedule has several ({schedule} has its own)")


def make_schedule(plan: Plan, microbatches: int, times: tuple[float, float, float] = (1, 1, 1)) -> Schedule:
    """Passes of each device in the order of the plan's schedule."""
    p = plan.pipeline
    check_passes(microbatches, make_placement(plan).stages, 3 if plan.schedule in GREEDY else 2)
    check_chunks(p, plan.schedule, plan.chunks)
    if plan.schedule == "gpipe":
        return gpipe(p, microbatches)
    if plan.schedule == "interleaved" and p > 1:
        return interleaved(p, microbatches, plan.chunks)
    if plan.schedule in GREEDY and p > 1:
        scale = 1000 / max(times)
        whole = (max(round(times[0] * scale), 1), max(round(times[1] * scale), 1), max(round(times[2] * scale), 1))
        return greedy(make_placement(plan), microbatches, GREEDY[plan.schedule](p), whole)
    return one_forward_one_backward(p, microbatches, ahead=1 if plan.vocabulary and p > 1 else 0)


def run_pipeline(
    schedule: Schedule,
    placement: StagePlacement,
    forward: Sequence[float],
    backward: Sequence[float],
    weight: Sequence[float] | None = None,
    *,
    hop: float = 0.0,
    slow: Sequence[Slowdown] = (),
) -> PipelineRun:
    """Time a schedule.

    ``forward``, ``backward`` and ``weight`` are seconds of each stage's passes for one microbatch; without weight
    passes of their own ``backward`` has them. ``hop`` is the time from a pass's end until its result is at the next
    stage. ``slow`` are devices and links that fall behind; messages over such a link follow each other, in each
    direction, where those of other links overlap.
    """
    tasks = Tasks()
    number: dict[tuple[PassKind, int, int], int] = {}
    durations = {PassKind.FORWARD: forward, PassKind.BACKWARD: backward, PassKind.WEIGHT: weight or backward}
    for device, steps in enumerate(schedule):
        for step in steps:
            stage = placement.stage(device, step.chunk)
            seconds = durations[step.kind][stage]
            number[step.kind, step.microbatch, stage] = tasks.add(
                f"{step.kind}{step.microbatch} of stage {stage}", device, round(seconds * PICO)
            )
    last, lag = placement.stages - 1, round(hop * PICO)
    links = {each.link for each in slow if each.link is not None}
    first_link = placement.devices

    def message(to: int, came_from: int, link: int, back: bool, name: str) -> None:
        """What ``to`` needs from ``came_from``: a delay, or a message on a link's own stream where it may slow down."""
        if link not in links:
            tasks.wait(to, came_from, lag)
            return
        sent = tasks.add(name, first_link + 2 * link + back, lag)
        tasks.wait(sent, came_from)
        tasks.wait(to, sent)

    for (kind, microbatch, stage), task in number.items():
        if kind is PassKind.FORWARD and stage:
            earlier = number[PassKind.FORWARD, microbatch, stage - 1]
            message(task, earlier, stage - 1, False, f"result {microbatch} of stage {stage - 1}")
        elif kind is PassKind.BACKWARD and stage == last:
            tasks.wait(task, number[PassKind.FORWARD, microbatch, stage])
        elif kind is PassKind.BACKWARD:
            earlier = number[PassKind.BACKWARD, microbatch, stage + 1]
            message(task, earlier, stage, True, f"gradient {microbatch} of stage {stage + 1}")
        elif kind is PassKind.WEIGHT:
            tasks.wait(task, number[PassKind.BACKWARD, microbatch, stage])
    run = run_tasks(tasks, _changes(slow, placement))
    busy = int((run.end - run.start)[: len(number)].sum())
    whole = run.finish * placement.devices
    held = tuple(h / placement.chunks for h in most_held(schedule))
    return PipelineRun(run.finish / PICO, 1 - busy / whole if whole else 0.0, held, run, tasks)


def _changes(slow: Sequence[Slowdown], placement: StagePlacement) -> Changes:
    """Slowdowns by stream: devices, then links one way and the other."""
    entries: list[tuple[int, int, float]] = []
    for each in slow:
        at = round(each.at * PICO)
        if (each.device is None) == (each.link is None):
            raise LoomError("a slowdown is of either a device or a link")
        if each.device is not None:
            if not 0 <= each.device < placement.devices:
                raise LoomError(f"a slowdown's device must be from 0 to {placement.devices - 1} (got {each.device})")
            entries.append((each.device, at, each.factor))
        elif each.link is not None:
            if not 0 <= each.link < placement.stages - 1:
                raise LoomError(f"a slowdown's link must be from 0 to {placement.stages - 2} (got {each.link})")
            entries += [(placement.devices + 2 * each.link + back, at, each.factor) for back in (0, 1)]
    return read_changes(placement.devices + 2 * placement.stages, entries)
