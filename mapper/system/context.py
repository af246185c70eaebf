"""Seconds of context-parallel attention: a schedule's blocks and messages on each rank's compute and links.

A block waits for what its rank was sent in the steps before. An input leaves when its source has it and its target has
done the blocks of the steps before (it holds the inputs of this step and of the next); a partial result leaves when
the source's blocks of the steps before are done. Links take messages in the order of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from siliconloom.arch.rank_links import RankLink, RankLinks
from siliconloom.mapper.context import ContextBlock, Kind, Schedule, ScheduleMessage, context_schedule, shard_tokens
from siliconloom.mapper.context.schedule import RESULTS
from siliconloom.sim.system.streams import Tasks, run_tasks

PICO = 1e12
BACKWARD = 2.5
"""Products of a block's backward pass over those of its forward pass: five for two."""

BlockSeconds = Callable[[int, int, int, int], float]
"""Seconds of a forward block: queries, keys, pairs of each head that the mask admits, query heads.

LASP-2's blocks have no queries where they make states, and no keys where they apply them.
"""


class ContextTime(Struct, frozen=True):
    """One pass of one layer's attention.

    Parameters
    ----------
    seconds
        Until the last rank has everything.
    compute, idle
        Seconds that the busiest rank computes, and that the ranks' mean falls short of it.
    exposed
        Seconds that the busiest rank's work does not explain: communication that nothing hides.
    sent
        Bytes that the rank which sends most sends.
    starts
        When the last rank begins the blocks of each step that has any.
    """

    seconds: float
    compute: float
    idle: float
    exposed: float
    sent: float
    starts: tuple[float, ...]


class ContextCost(Struct, frozen=True):
    """Forward and backward pass of one layer's attention."""

    forward: ContextTime
    backward: ContextTime


class _Timeline:
    """A schedule as tasks on streams."""

    def __init__(self, schedule: Schedule, block_seconds: BlockSeconds, fabric: RankLinks, element: float) -> None:
        self.schedule, self.block_seconds, self.fabric, self.element = schedule, block_seconds, fabric, element
        self.tasks = Tasks()
        self.streams: dict[object, int] = {}
        self.busy = np.zeros(schedule.ranks, np.int64)
        self.firsts: dict[int, list[int]] = {}
        """Tasks of each step in which a rank begins it."""
        self.last: list[int | None] = [None] * schedule.ranks
        """Each rank's last block of the steps before."""
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in range(schedule.ranks)]
        """Inputs that are on their way to each rank: task, and latency after it."""
        self.arrivals: dict[object, tuple[int, int]] = {}
        self.landings: list[tuple[int, int]] = []

    def run(self) -> ContextTime:
        blocks: dict[int, list[ContextBlock]] = {}
        messages: dict[int, list[ScheduleMessage]] = {}
        for block in self.schedule.blocks:
            blocks.setdefault(block.step, []).append(block)
        for message in self.schedule.messages:
            messages.setdefault(message.step, []).append(message)
        for step in range(self.schedule.steps):
            before = [list(held) for held in self.inputs]
            last = list(self.last)
            for message in messages.get(step, ()):
                self._send(message, before, last)
            begun: set[int] = set()
            for block in blocks.get(step, ()):
                task = self._compute(block, before[block.rank])
                if block.rank not in begun:
                    self.firsts.setdefault(step, []).append(task)
                    begun.add(block.rank)
        found = run_tasks(self.tasks)
        landed = max((int(found.end[task]) + lag for task, lag in self.landings), default=0)
        finish, busiest = max(found.finish, landed), int(self.busy.max(initial=0))
        return ContextTime(
            seconds=finish / PICO,
            compute=busiest / PICO,
            idle=(busiest - float(self.busy.mean())) / PICO,
            exposed=(finish - busiest) / PICO,
            sent=float(self.schedule.sent.max(initial=0)) * self.element,
            starts=tuple(max(int(found.start[task]) for task in tasks) / PICO for tasks in self.firsts.values()),
        )

    def _stream(self, *key: object) -> int:
        return self.streams.setdefault(key, len(self.streams))

    def _compute(self, block: ContextBlock, inputs: list[tuple[int, int]]) -> int:
        queries, keys = shard_tokens(block.queries), shard_tokens(block.keys)
        seconds = self.block_seconds(queries, keys, block.pairs, len(block.heads))
        duration = round(seconds * (BACKWARD if self.schedule.backward else 1.0) * PICO)
        self.busy[block.rank] += duration
        name = f"step {block.step} of rank {block.rank}"
        task = self.tasks.add(name, self._stream("compute", block.rank), duration)
        for earlier, lag in inputs:
            self.tasks.wait(task, earlier, lag)
        # What later blocks of this rank need has come before this one.
        self.inputs[block.rank] = self.inputs[block.rank][len(inputs) :]
        inputs.clear()
        self.last[block.rank] = task
        return task

    def _send(self, message: ScheduleMessage, inputs: list[list[tuple[int, int]]], last: list[int | None]) -> None:
        link = self.fabric.between(message.source, message.target)
        duration = round(message.elements * self.element / link.bandwidth * PICO)
        latency = round(link.latency * PICO)
        name = f"{message.kind} from {message.source} to {message.target} in step {message.step}"
        way = self._way(link, message.source, message.target)
        tasks = [self.tasks.add(name, stream, duration) for stream in way]
        for earlier, later in pairwise(tasks):  # its head goes on while its tail still follows
            self.tasks.wait(later, earlier, (latency if link.wiring == "ring" else 0) - duration)
        made = message.kind in RESULTS or message.kind is Kind.STATE
        gate = last[message.source] if made else last[message.target]
        if gate is not None:
            self.tasks.wait(tasks[0], gate)
        known = self.arrivals.get((message.source, message.kind, message.shard, message.heads))
        if known is not None:
            self.tasks.wait(tasks[0], *known)
        elif not made and message.shard != self.schedule.holders[message.source]:
            for earlier, lag in inputs[message.source]:
                self.tasks.wait(tasks[0], earlier, lag)
        arrival = (tasks[-1], latency)
        self.arrivals[message.target, message.kind, message.shard, message.heads] = arrival
        self.landings.append(arrival)
        if message.kind not in RESULTS:
            self.inputs[message.target].append(arrival)

    def _way(self, link: RankLink, source: int, target: int) -> list[int]:
        level = "inner" if link is self.fabric.inner else "outer"
        if link.wiring == "mesh":
            return [self._stream(level, source, target)]
        if link.wiring == "port":
            return [self._stream(level, "out", source), self._stream(level, "in", target)]
        n = self.schedule.ranks
        ahead = (target - source) % n
        turn, hops = (1, ahead) if 2 * ahead <= n else (-1, n - ahead)
        return [self._stream(level, (source + turn * hop) % n, turn) for hop in range(hops)]


def time_context(
    schedule: Schedule, block_seconds: BlockSeconds, fabric: RankLinks | RankLink, *, element: float = 2.0
) -> ContextTime:
    """Run a schedule.

    Parameters
    ----------
    block_seconds
        Of a forward block; a backward schedule's take `BACKWARD` times as long.
    element
        Bytes of a number that is sent.
    """
    if isinstance(fabric, RankLink):
        fabric = RankLinks(fabric)
    return _Timeline(schedule, block_seconds, fabric, element).run()


def context_cost(
    scheme: str,
    ranks: int,
    lengths: Sequence[int],
    block_seconds: BlockSeconds,
    fabric: RankLinks | RankLink,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    causal: bool = True,
    ulysses: int = 1,
    element: float = 2.0,
) -> ContextCost:
    """Both passes of one layer's attention; see `context_schedule` and `time_context`."""
    forward, backward = (
        context_schedule(
            scheme,
            ranks,
            lengths,
            causal=causal,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            backward=backward,
            ulysses=ulysses,
        )
        for backward in (False, True)
    )
    return ContextCost(
        time_context(forward, block_seconds, fabric, element=element),
        time_context(backward, block_seconds, fabric, element=element),
    )
