"""One training step of a plan: pipeline passes as tasks on streams, messages between stages, gradients, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from siliconloom.arch import LoomError
from siliconloom.mapper.pipeline import (
    Pass,
    Placement,
    Schedule,
    gpipe,
    greedy,
    interleaved,
    most_held,
    one_forward_one_backward,
)
from siliconloom.planning.plan import Plan
from siliconloom.sim.streams import StreamRun, Tasks, run_tasks

PICO = 1e12


@dataclass(frozen=True)
class PipelineRun:
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


def make_schedule(plan: Plan, microbatches: int, times: tuple[float, float, float] = (1, 1, 1)) -> Schedule:
    """Passes of each device in the order of the plan's schedule."""
    p = plan.pipeline
    if plan.chunks > 1 and plan.schedule != "interleaved":
        raise LoomError(f"plan.chunks: only the interleaved schedule has several ({plan.schedule} has one)")
    if plan.schedule == "gpipe":
        return gpipe(p, microbatches)
    if plan.schedule == "interleaved" and p > 1:
        return interleaved(p, microbatches, plan.chunks)
    if plan.schedule == "zero_bubble" and p > 1:
        scale = 1000 / max(times)
        whole = tuple(max(round(t * scale), 1) for t in times)
        return greedy(Placement(p), microbatches, p, whole)  # type: ignore[arg-type]
    return one_forward_one_backward(p, microbatches)


def run_pipeline(
    schedule: Schedule, placement: Placement, forward: Sequence[float], backward: Sequence[float],
    weight: Sequence[float] | None = None, *, hop: float = 0.0,
) -> PipelineRun:  # fmt: skip
    """Time a schedule.

    ``forward``, ``backward`` and ``weight`` are seconds of each stage's passes for one microbatch; without weight
    passes of their own ``backward`` has them. ``hop`` is the time from a pass's end until its result is at the next
    stage.
    """
    tasks = Tasks()
    number: dict[tuple[Pass, int, int], int] = {}
    durations = {Pass.FORWARD: forward, Pass.BACKWARD: backward, Pass.WEIGHT: weight or backward}
    for device, steps in enumerate(schedule):
        for step in steps:
            stage = placement.stage(device, step.chunk)
            seconds = durations[step.kind][stage]
            number[step.kind, step.microbatch, stage] = tasks.add(
                f"{step.kind}{step.microbatch} of stage {stage}", device, round(seconds * PICO)
            )
    last, lag = placement.stages - 1, round(hop * PICO)
    for (kind, microbatch, stage), task in number.items():
        if kind is Pass.FORWARD and stage:
            tasks.wait(task, number[Pass.FORWARD, microbatch, stage - 1], lag)
        elif kind is Pass.BACKWARD and stage == last:
            tasks.wait(task, number[Pass.FORWARD, microbatch, stage])
        elif kind is Pass.BACKWARD:
            tasks.wait(task, number[Pass.BACKWARD, microbatch, stage + 1], lag)
        elif kind is Pass.WEIGHT:
            tasks.wait(task, number[Pass.BACKWARD, microbatch, stage])
    run = run_tasks(tasks)
    busy = sum(tasks.duration)
    whole = run.finish * placement.devices
    held = tuple(h / placement.chunks for h in most_held(schedule))
    return PipelineRun(run.finish / PICO, 1 - busy / whole if whole else 0.0, held, run, tasks)
