"""What each device of a pipeline keeps for its backward passes, over a training step."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.mapper.system.layers import Block
from siliconloom.mapper.system.memory import Held, MemoryUse, activations, staying, training_memory
from siliconloom.mapper.system.pipeline import PassKind, Schedule, StagePlacement
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.system.streams import StreamRun


class HeldOverTime(Struct, frozen=True):
    """What a chip of a device holds: parameters and their state all the time, and activations from times on.

    ``steps`` are picoseconds and bytes of activations from then on; before the first there are none.
    """

    always: MemoryUse
    steps: tuple[tuple[int, float], ...]

    @property
    def most(self) -> float:
        """Bytes of activations at most."""
        return max((size for _, size in self.steps), default=0.0)


def held_over_time(
    plan: Plan,
    schedule: Schedule,
    placement: StagePlacement,
    run: StreamRun,
    blocks: Sequence[Sequence[Block]],
    *,
    last: bool = False,
) -> list[HeldOverTime]:
    """Of every device, from a run of its passes in the order of the schedule.

    What a microbatch keeps comes with its forward pass and goes with the last pass that reads it. What the head keeps
    goes with its backward pass, and what a layer computes again is there while its backward pass runs.

    Parameters
    ----------
    blocks
        Of each stage, as one of its chips executes them.
    last
        See `mapper.system.memory.training_memory`.
    """
    stages = [Held.of(each) for each in blocks]
    found, number = [], 0
    for device, steps in enumerate(schedule):
        frees = PassKind.WEIGHT if any(s.kind is PassKind.WEIGHT for s in steps) else PassKind.BACKWARD
        changes: list[tuple[int, float]] = []
        for step in steps:
            start, end = int(run.start[number]), int(run.end[number])
            number += 1
            held = stages[placement.stage(device, step.chunk)]
            kept = activations(held, plan)
            if plan.offload_activations:  # what a pass works on, and what leaves or comes meanwhile
                here = staying(held, plan, 1.0)
                kept, changes = 0.0, [*changes, (start, here), (end, -here)]
            if step.kind is PassKind.FORWARD:
                changes.append((start, kept + held.head))
            if step.kind is frees:
                changes.append((end, -kept))
            if step.kind is PassKind.BACKWARD:
                changes.append((end, -held.head))
                if plan.recompute == "full":
                    changes += [(start, held.largest), (end, -held.largest)]
        own = Held.of([b for s in range(placement.stages) if placement.place(s)[0] == device for b in blocks[s]])
        always = replace(training_memory(own, plan, 0.0, last=last), activations=0.0)
        found.append(HeldOverTime(always, _summed(changes)))
    return found


def _summed(changes: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Bytes from each time on; at the same time what goes makes room for what comes."""
    found: list[tuple[int, float]] = []
    size = 0.0
    for at, change in sorted(changes):
        size = max(size + change, 0.0)
        if found and found[-1][0] == at:
            found[-1] = at, size
        else:
            found.append((at, size))
    return tuple(found)


__all__ = ["HeldOverTime", "held_over_time"]
