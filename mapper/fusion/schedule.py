"""Sequential or pipelined, group by group, under an on-chip budget: the fastest choice, exactly.

He et al., "InTAR: Inter-Task Auto-Reconfigurable Accelerator Design for High Data Volume Variation in DNNs", FCCM
2025: a task that runs alone has all cores and leaves its result on chip or in memory; tasks that run as a pipeline
share the cores and hand on coordinate by coordinate, so that a large intermediate result needs no room. Tasks keep
the cascade's order; groups are runs of it. What a later group reads is kept on chip or goes to memory and comes back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.mapper.fusion.tasks import TaskGraph

Mode = Literal["sequential", "parallel", "pipelined"]
Objective = Literal["time", "traffic"]
MOST_KEPT = 12
"""Tensors that a later group reads of which every choice is looked at."""

MOST_SHARES = 50_000
"""Ways to share the cores among the tasks of a group that are looked at."""


class CoreMachine(Struct, frozen=True):
    """Cores that can be given to tasks, and the memories around them.

    Parameters
    ----------
    cores, lanes
        Cores, and multiply-adds of each in a cycle.
    buffer
        Bytes on chip for what groups hand on, and for what lies between the tasks of a pipeline.
    bandwidth
        Bytes from or to memory in a cycle, beside the computation.
    element_bytes
        Bytes of an element.
    """

    cores: int
    lanes: int
    buffer: float
    bandwidth: float
    element_bytes: int = 2


class TaskGroup(Struct, frozen=True):
    """Tasks that run at the same time.

    Parameters
    ----------
    first, last
        Its tasks are those from ``first`` up to ``last``, not included.
    mode
        One task on all cores, tasks beside one another, or a pipeline.
    rank
        Along which it is a pipeline.
    cores
        Cores of each task.
    compute, moved
        Cycles of its multiply-adds, and bytes from and to memory.
    kept
        Tensors that lie on chip after it.
    cycles
        The longer of computation and memory.
    """

    first: int
    last: int
    mode: Mode
    rank: str
    cores: tuple[int, ...]
    compute: float
    moved: int
    kept: tuple[str, ...]
    cycles: float


class ExecutionPlan(Struct, frozen=True):
    """Groups one after the other, and their cycles."""

    groups: tuple[TaskGroup, ...]

    @property
    def cycles(self) -> float:
        """Cycles of all groups."""
        return sum(group.cycles for group in self.groups)

    @property
    def moved(self) -> int:
        """Bytes of all groups."""
        return sum(group.moved for group in self.groups)


def group_compute(macs: Sequence[int], cores: Sequence[int], lanes: int, steps: int) -> float:
    """Cycles of tasks on cores of their own: as a pipeline of ``steps``, or beside one another where that is one.

    Every task takes as long for each step; the first step passes through all tasks, the slowest sets the pace after.
    """
    each = [count / (given * lanes) / steps for count, given in zip(macs, cores, strict=True)]
    return max(each) if steps == 1 else sum(each) + (steps - 1) * max(each)


def best_cores(macs: Sequence[int], machine: CoreMachine, steps: int) -> tuple[float, tuple[int, ...]] | None:
    """Fewest cycles over all ways to give every task at least one core, with the cores; ``None`` without enough."""
    if len(macs) > machine.cores:
        return None
    if math.comb(machine.cores - 1, len(macs) - 1) > MOST_SHARES:
        raise NotSupported(f"more than {MOST_SHARES} ways to share {machine.cores} cores among {len(macs)} products")
    ways = _shares(machine.cores, len(macs))
    return min((group_compute(macs, cores, machine.lanes, steps), cores) for cores in ways)


def _shares(cores: int, tasks: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, cores), tasks - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, cores)))


def group_moves(
    graph: TaskGraph, machine: CoreMachine, first: int, last: int, kept: frozenset[str], after: frozenset[str]
) -> int | None:
    """Bytes that a group moves with ``kept`` on chip before and ``after`` behind it; ``None`` where that has no room.

    What is read and not kept comes from memory once. What is made goes there if it is an output, or if a later group
    reads it and it is not kept; what was kept and is given up goes there, too, unless it is an input.
    """
    cascade, size = graph.cascade, machine.element_bytes
    tasks = graph.tasks[first:last]
    made = {tensor for task in tasks for tensor in task.makes}
    read = {tensor for task in tasks for tensor in task.reads}
    found = graph.pipeline(first, last)
    assert found is not None
    rank, steps = found
    between = sum(cascade.size(t) // steps for t in made & read - after) if rank else 0
    if (sum(cascade.size(t) for t in kept | after) + between) * size > machine.buffer:
        return None
    moved = sum(cascade.size(t) for t in read - made - kept)
    for tensor in (made | kept) - after - set(cascade.inputs):
        if any(place >= last for place in graph.readers.get(tensor, ())):
            moved += cascade.size(tensor)
    moved += sum(cascade.size(t) for t in made if t in cascade.outputs)
    return moved * size


def candidates(graph: TaskGraph, first: int, last: int, kept: frozenset[str]) -> Iterator[frozenset[str]]:
    """Every choice of what lies on chip after a group: what lay there, was read or made, and is read later."""
    tasks = graph.tasks[first:last]
    there = kept | {t for task in tasks for t in (*task.reads, *task.makes)}
    later = sorted(t for t in there if any(place >= last for place in graph.readers.get(t, ())))
    if len(later) > MOST_KEPT:
        raise LoomError(f"{graph.cascade.name}: more than {MOST_KEPT} tensors are read by later groups")
    for count in range(len(later), -1, -1):
        yield from map(frozenset, itertools.combinations(later, count))


def make_group(
    graph: TaskGraph, machine: CoreMachine, first: int, last: int, kept: frozenset[str], after: frozenset[str]
) -> TaskGroup | None:
    """A group with its best cores; ``None`` where its tasks cannot run together or find no room."""
    found = graph.pipeline(first, last)
    shared = found and best_cores([task.macs for task in graph.tasks[first:last]], machine, found[1])
    if not found or not shared:
        return None
    moved = group_moves(graph, machine, first, last, kept, after)
    if moved is None:
        return None
    mode: Mode = "pipelined" if found[0] else "parallel" if last - first > 1 else "sequential"
    cycles = max(shared[0], moved / machine.bandwidth)
    return TaskGroup(first, last, mode, found[0], shared[1], shared[0], moved, tuple(sorted(after)), cycles)


def best_schedule(
    graph: TaskGraph,
    machine: CoreMachine,
    *,
    modes: Sequence[Mode] = ("sequential", "parallel", "pipelined"),
    objective: Objective = "time",
) -> ExecutionPlan:
    """The best schedule, by dynamic programming over what is done and what lies on chip.

    Parameters
    ----------
    modes
        Modes that groups may have: ``("sequential",)`` is an accelerator that never reconfigures.
    objective
        ``time``: fewest cycles. ``traffic``: fewest bytes, of equal ones fewest cycles; that is InTAR's rule, which
        pipelines what would not stay on chip and nothing else.

    Raises
    ------
    LoomError
        Where no schedule has room.
    """
    count = len(graph.tasks)

    @cache
    def rest(first: int, kept: frozenset[str]) -> tuple[float, float, tuple[TaskGroup, ...]]:
        """Least cost, cycles and groups of the tasks from ``first`` on."""
        if first == count:
            return 0.0, 0.0, ()
        best: tuple[float, float, tuple[TaskGroup, ...]] = (math.inf, math.inf, ())
        for last in range(first + 1, count + 1):
            if graph.pipeline(first, last) is None:
                continue
            for after in candidates(graph, first, last, kept):
                group = make_group(graph, machine, first, last, kept, after)
                if group is None or group.mode not in modes:
                    continue
                cost, cycles, groups = rest(last, after)
                own = group.cycles if objective == "time" else group.moved
                best = min(best, (own + cost, group.cycles + cycles, (group, *groups)), key=lambda found: found[:2])
        return best

    cost, _, groups = rest(0, frozenset())
    if math.isinf(cost):
        raise LoomError(f"{graph.cascade.name}: no schedule finds room in {machine.buffer:.0f} bytes")
    return ExecutionPlan(groups)


__all__ = [
    "CoreMachine",
    "ExecutionPlan",
    "TaskGroup",
    "best_cores",
    "best_schedule",
    "candidates",
    "group_compute",
    "group_moves",
    "make_group",
]
