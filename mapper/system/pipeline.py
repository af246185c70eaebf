"""Orders of a pipeline's passes: which stage does which microbatch's forward, backward and weight pass, and when.

Stages are numbered along the model; with ``chunks`` above 1 every device holds several of them. A pass of a device is
(kind, microbatch, chunk). Sources: GPipe (Huang et al., 2019), 1F1B (PipeDream-Flush, Narayanan et al., 2021),
interleaved 1F1B (Narayanan et al., SC 2021, section 2.2), zero bubble (Qi et al., 2024: the backward pass is cut into
the gradient of the input, which the stage before waits for, and that of the weights, which nobody does), V-half (Qi et
al., "Pipeline parallelism with controllable memory", 2024).
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import StrEnum

from msgspec import Struct

from siliconloom.arch.errors import LoomError


class PassKind(StrEnum):
    """What a stage does with a microbatch."""

    FORWARD = "F"
    BACKWARD = "B"
    """Gradient of the input, and of the weights where the schedule does not cut it."""
    WEIGHT = "W"


class StagePass(Struct, frozen=True):
    """One pass of one device."""

    kind: PassKind
    microbatch: int
    chunk: int = 0


Schedule = list[list[StagePass]]
"""Passes of each device, in order."""


class StagePlacement(Struct, frozen=True):
    """Which device holds which stage: in turn (chunk c of device d is stage c p + d), or as a V for two chunks."""

    devices: int
    chunks: int = 1
    vee: bool = False

    @property
    def stages(self) -> int:
        return self.devices * self.chunks

    def stage(self, device: int, chunk: int) -> int:
        """Stage of a device's chunk."""
        if self.vee and chunk % 2:
            return (chunk + 1) * self.devices - 1 - device
        return chunk * self.devices + device

    def place(self, stage: int) -> tuple[int, int]:
        """Device and chunk of a stage."""
        chunk, device = divmod(stage, self.devices)
        return (self.devices - 1 - device if self.vee and chunk % 2 else device), chunk


def gpipe(devices: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes."""
    forward = [StagePass(PassKind.FORWARD, m) for m in range(microbatches)]
    backward = [StagePass(PassKind.BACKWARD, m) for m in range(microbatches)]
    return [forward + backward for _ in range(devices)]


def one_forward_one_backward(devices: int, microbatches: int, *, ahead: int = 0) -> Schedule:
    """1F1B: a stage holds as many microbatches as there are stages from it to the end, and ``ahead`` more."""
    schedule = []
    for device in range(devices):
        warm = min(devices - device - 1 + ahead, microbatches)
        steps = [StagePass(PassKind.FORWARD, m) for m in range(warm)]
        for m in range(microbatches - warm):
            steps += [StagePass(PassKind.FORWARD, warm + m), StagePass(PassKind.BACKWARD, m)]
        steps += [StagePass(PassKind.BACKWARD, m) for m in range(microbatches - warm, microbatches)]
        schedule.append(steps)
    return schedule


def interleaved(devices: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: devices take turns over ``chunks`` stages each, microbatches in groups of ``devices``.

    Raises
    ------
    LoomError
        When the microbatches do not fill groups.
    """
    if microbatches % devices:
        raise LoomError(
            f"interleaved 1F1B takes groups of {devices} microbatches: {microbatches} is no multiple, "
            f"{microbatches + devices - microbatches % devices} is"
        )
    total = microbatches * chunks

    def forward(index: int) -> StagePass:
        group, within = divmod(index, devices * chunks)
        return StagePass(PassKind.FORWARD, group * devices + within % devices, within // devices)

    def backward(index: int) -> StagePass:
        group, within = divmod(index, devices * chunks)
        return StagePass(PassKind.BACKWARD, group * devices + within % devices, chunks - 1 - within // devices)

    schedule = []
    for device in range(devices):
        warm = total if microbatches == devices else min((devices - device - 1) * 2 + (chunks - 1) * devices, total)
        steps = [forward(i) for i in range(warm)]
        for i in range(total - warm):
            steps += [forward(warm + i), backward(i)]
        steps += [backward(i) for i in range(total - warm, total)]
        schedule.append(steps)
    return schedule


def greedy(
    placement: StagePlacement, microbatches: int, most: int, times: tuple[int, int, int] = (1, 1, 1), hop: int = 0
) -> Schedule:
    """Backward, else forward while at most ``most`` microbatch-chunks are held, else weight passes, as they come.

    With ``most`` the number of devices this is zero bubble's H1, with twice as many H2; in a V with two chunks half as
    many is V-half (each chunk holds half of a stage).

    Parameters
    ----------
    times, hop
        Relative times of the three passes, and of a message between devices, that the order is made for.
    """
    last = placement.stages - 1
    held = [0] * placement.devices
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in range(placement.devices)]  # backward: microbatch, -stage
    fresh = [_Fresh(placement.chunks) for _ in range(placement.devices)]
    weights: list[deque[tuple[int, int]]] = [deque() for _ in range(placement.devices)]
    schedule: Schedule = [[] for _ in range(placement.devices)]
    free = [0] * placement.devices
    events: list[tuple[int, int]] = [(0, d) for d in range(placement.devices)]
    for m in range(microbatches):
        device, chunk = placement.place(0)
        fresh[device].add(0, m, chunk)
    left = 3 * microbatches * placement.stages
    while left:
        if not events:
            raise LoomError(f"pipeline: {most} microbatches are too few to hold for {placement.stages} stages")
        now, device = heapq.heappop(events)
        if now < free[device]:
            continue
        choice = _choose(now, waiting[device], fresh[device], weights[device], most - held[device])
        if choice is None:
            later = fresh[device].later()
            if waiting[device]:  # none of them is there by now
                later.append(waiting[device][0][0])
            if later:
                heapq.heappush(events, (min(later), device))
            continue
        kind, microbatch, chunk = choice
        stage = placement.stage(device, chunk)
        schedule[device].append(StagePass(kind, microbatch, chunk))
        left -= 1
        end = now + times[(PassKind.FORWARD, PassKind.BACKWARD, PassKind.WEIGHT).index(kind)]
        free[device] = end
        heapq.heappush(events, (end, device))
        if kind is PassKind.FORWARD:
            held[device] += 1
            if stage == last:
                heapq.heappush(waiting[device], (end, microbatch, chunk))
            else:
                next_device, next_chunk = placement.place(stage + 1)
                fresh[next_device].add(end + hop, microbatch, next_chunk)
                heapq.heappush(events, (end + hop, next_device))
        elif kind is PassKind.BACKWARD:
            weights[device].append((microbatch, chunk))
            if stage:
                next_device, next_chunk = placement.place(stage - 1)
                heapq.heappush(waiting[next_device], (end + hop, microbatch, next_chunk))
                heapq.heappush(events, (end + hop, next_device))
        else:
            held[device] -= 1
    return schedule


class _Fresh:
    """Forward passes of a device by chunk: those on their way by time, those that are there by microbatch."""

    def __init__(self, chunks: int) -> None:
        self.coming: list[list[tuple[int, int]]] = [[] for _ in range(chunks)]
        self.ready: list[list[int]] = [[] for _ in range(chunks)]

    def add(self, at: int, microbatch: int, chunk: int) -> None:
        heapq.heappush(self.coming[chunk], (at, microbatch))

    def take(self, now: int, room: int) -> tuple[int, int] | None:
        """Of what is there by ``now``, which never goes back: later chunks, which lead to backward passes and give
        room, first. A microbatch's later chunks need room before any of it is given back: that is kept free.
        """
        chunks = len(self.ready)
        for chunk in reversed(range(chunks)):
            coming, ready = self.coming[chunk], self.ready[chunk]
            while coming and coming[0][0] <= now:
                heapq.heappush(ready, heapq.heappop(coming)[1])
            if ready and chunks - chunk <= room:
                return heapq.heappop(ready), chunk
        return None

    def later(self) -> list[int]:
        """When the next ones come."""
        return [coming[0][0] for coming in self.coming if coming]


def _choose(
    now: int, waiting: list[tuple[int, int, int]], fresh: _Fresh, weights: deque[tuple[int, int]], room: int
) -> tuple[PassKind, int, int] | None:
    if waiting and waiting[0][0] <= now:
        _, microbatch, chunk = heapq.heappop(waiting)
        return PassKind.BACKWARD, microbatch, chunk
    forward = fresh.take(now, room)
    if forward is not None:
        return PassKind.FORWARD, *forward
    if weights:
        microbatch, chunk = weights.popleft()
        return PassKind.WEIGHT, microbatch, chunk
    return None


def most_held(schedule: Schedule) -> list[int]:
    """Microbatch-chunks whose activations each device holds at most: from forward to the last pass that needs them."""
    found = []
    for steps in schedule:
        frees = PassKind.WEIGHT if any(s.kind is PassKind.WEIGHT for s in steps) else PassKind.BACKWARD
        held = most = 0
        for step in steps:
            held += (step.kind is PassKind.FORWARD) - (step.kind is frees)
            most = max(most, held)
        found.append(most)
    return found
