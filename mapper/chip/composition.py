"""What a workload takes by the times of its operators alone and of neighbours in pairs; the whole is not simulated.

Two operators that follow one another overlap: parameters of the second are loaded while the first ends. So the time of
a sequence is estimated as the sum of what each takes alone, less what each two neighbours save together::

    T(a, b, c, ...)  =  T(a) + T(b) + T(c) + ...  -  (T(a) + T(b) - T(a, b))  -  (T(b) + T(c) - T(b, c))  -  ...

which is exact where nobody overlaps with more than the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Program
from siliconloom.mapper.chip.choice import Chosen, Part, nameless
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.memory import MemoryMap
from siliconloom.mapper.chip.program import MappedWorkload, Mapping, lower_tasks
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Graph

Place = tuple[int, int]
"""A task: the number of its part, and its own in that."""
Placed = tuple[Task, Chosen, tuple[str, ...]]
"""A task, what is chosen for it, and the memory levels of its objects (`choice.Part.levels`)."""


def program_of(chip: Chip, graph: Graph, layout: Layout, tasks: Sequence[Placed], times: int = 1) -> Program | None:
    """These tasks in a row, so many times.

    ``None`` where their objects do not fit the levels: they stream from one that they fill.
    """
    once, chosen, levels = list[Task](), dict[str, Chosen](), dict[str, tuple[str, ...]]()
    for task, one, its in tasks:
        cached = task.cached
        if cached is not None:
            cached = cached.of(repeat=times)
        once.append(replace(task, operator=replace(task.operator, repeat=times), cached=cached))
        chosen[task.operator.name], levels[task.operator.name] = one, its
    part = Part(0, times, tuple(once), levels)
    within = tuple(dict.fromkeys(level for its in levels.values() for level in its))
    memory = MemoryMap(chip, levels=tasks[0][2] if len(tasks) == 1 else within)
    program = lower_tasks(chip, graph, [part], (layout, [chosen]), memory, draft=True).program
    if len(chip.memory) > 1 and memory.used > min(chip.memory[level].total_capacity for level in within):
        return None
    return program


def composed_cycles(plan: MappedWorkload, cycles: Callable[[Program], int]) -> int:
    """Estimated cycles of a mapped workload; ``cycles`` says what a program takes.

    On a bare array it is the sum of the mapper's estimates. Neighbours whose objects lie in different memory levels are
    counted as if they did not overlap, and those that stream from a level that they fill by the estimate.
    """
    mapping = plan.mapping
    if mapping is None:
        return plan.estimated_cycles
    known = dict[tuple[Placed, ...], int]()

    def taken(*places: Place) -> int:
        some = [_chosen(mapping, place) for place in places]
        alike = tuple((nameless(task), chosen, levels) for task, chosen, levels in some)
        if alike not in known:
            program = _program(plan, mapping, some)
            known[alike] = sum(chosen.cost for _, chosen, _ in some) if program is None else cycles(program)
        return known[alike]

    total = 0
    for number, part in enumerate(mapping.parts):
        total += part.count * sum(taken((number, n)) for n in range(len(part.tasks)))
    for (first, second), count in _neighbours(mapping).items():
        if len({level for place in (first, second) for level in _chosen(mapping, place)[2]}) == 1:
            total -= count * (taken(first) + taken(second) - taken(first, second))
    return total


def _neighbours(mapping: Mapping) -> Counter[tuple[Place, Place]]:
    """How often which task follows which."""
    found = Counter[tuple[Place, Place]]()
    for number, part in enumerate(mapping.parts):
        places = [(number, n) for n in range(len(part.tasks))]
        for pair in pairwise(places):
            found[pair] += part.count
        if part.count > 1:
            found[places[-1], places[0]] += part.count - 1
    for number in range(1, len(mapping.parts)):
        found[(number - 1, len(mapping.parts[number - 1].tasks) - 1), (number, 0)] += 1
    return found


def _chosen(mapping: Mapping, place: Place) -> Placed:
    number, n = place
    part, tilings = mapping.parts[number], mapping.choice[1]
    task = part.tasks[n]
    return task, tilings[number][task.operator.name], part.levels[task.operator.name]


def _program(plan: MappedWorkload, mapping: Mapping, some: Sequence[Placed]) -> Program | None:
    """One task, or two in a row; one with itself is repeated."""
    different = {each[0].operator.name: each for each in some}
    times = len(some) // len(different)
    return program_of(plan.chip, plan.graph, mapping.choice[0], list(different.values()), times)


__all__ = ["composed_cycles", "program_of"]
