"""Tasks of a cascade, and which of them can run as a pipeline.

A task is an Einsum with multiply-adds and the functions that follow it. Tasks of a group run at the same time, on
cores of their own. They may depend on one another where a rank exists along which all of them walk in one pass
(`siliconloom.workloads.cascades.passes`) and every tensor between them lies: then a consumer takes coordinate after
coordinate as the producer makes them, and only one lies in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError
from siliconloom.workloads.cascades.einsum import Cascade, EinsumNumber, ExtendedEinsum
from siliconloom.workloads.cascades.passes import plan_passes


class CascadeTask(Struct, frozen=True):
    """Einsums that run together, the multiply-adds on cores, functions after them on units beside.

    Parameters
    ----------
    name
        The tensor that its multiply-adds make.
    einsums
        Its Einsums.
    macs
        Multiply-adds.
    reads, makes
        Tensors that come from outside of it, and those it makes.
    """

    name: str
    einsums: tuple[ExtendedEinsum, ...]
    macs: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]


class TaskGraph(Struct, frozen=True, dict=True):
    """Tasks in the order of their cascade."""

    cascade: Cascade
    tasks: tuple[CascadeTask, ...]

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Tasks that read each tensor from outside of themselves."""
        found: dict[str, list[int]] = {}
        for place, task in enumerate(self.tasks):
            for tensor in task.reads:
                found.setdefault(tensor, []).append(place)
        return {tensor: tuple(places) for tensor, places in found.items()}

    def pipeline(self, first: int, last: int) -> tuple[str, int] | None:
        """Rank along which tasks ``first`` to ``last`` (not included) run as one pipeline, and its steps.

        No rank and one step where none of them reads what another makes; ``None`` where they cannot run together. Of
        several ranks the one with most steps, which fills the pipeline soonest.
        """
        tasks = self.tasks[first:last]
        made = {tensor for task in tasks for tensor in task.makes}
        inner = {tensor for task in tasks for tensor in task.reads if tensor in made}
        if not inner:
            return "", 1
        part = replace(self.cascade, einsums=tuple(e for task in tasks for e in task.einsums))
        legal = [rank for rank in part.extents if self._streams(part, rank, tasks, inner)]
        if not legal:
            return None
        best = max(legal, key=lambda rank: part.extents[rank])
        return best, part.extents[best]

    def _streams(self, part: Cascade, rank: str, tasks: Sequence[CascadeTask], inner: set[str]) -> bool:
        if any(rank not in self.cascade.ranks_of(tensor) for tensor in inner):
            return False
        plan = plan_passes(part, rank)
        joined = {e.name for task in tasks if {*task.makes, *task.reads} & inner for e in task.einsums}
        walks = {e.name for e, walked in zip(part.einsums, plan.walks, strict=True) if walked}
        multiplied = {task.name for task in tasks}
        return plan.count == 1 and joined & multiplied <= walks


def task_graph(cascade: Cascade) -> TaskGraph:
    """Cut a cascade into tasks: each Einsum with multiply-adds begins one, functions join the task before them.

    Functions before the first multiply-adds join the first task. Raises `LoomError` where there are none.
    """
    groups = list[list[ExtendedEinsum]]()
    before = list[ExtendedEinsum]()
    for einsum in cascade.einsums:
        if einsum.operations()["mac"] and not isinstance(einsum.expression, EinsumNumber):
            groups.append([*before, einsum])
            before = []
        elif groups:
            groups[-1].append(einsum)
        else:
            before.append(einsum)
    if not groups:
        raise LoomError(f"{cascade.name} has no multiply-adds")
    return TaskGraph(cascade, tuple(_task(cascade, group) for group in groups))


def _task(cascade: Cascade, einsums: Sequence[ExtendedEinsum]) -> CascadeTask:
    makes = tuple(dict.fromkeys(e.name for e in einsums))
    reads = tuple(dict.fromkeys(a.tensor for e in einsums for a in e.inputs if a.tensor not in makes))
    macs = [(e.name, cascade.points(e) * e.operations()["mac"]) for e in einsums]
    name = next(name for name, count in macs if count)
    return CascadeTask(name, tuple(einsums), sum(count for _, count in macs), reads, makes)


__all__ = ["CascadeTask", "TaskGraph", "task_graph"]
