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

from siliconloom.arch.isa import Program
from siliconloom.mapper.chip.choice import nameless
from siliconloom.mapper.chip.chosen import Chosen, Part
from siliconloom.mapper.chip.memory import MemoryMap
from siliconloom.mapper.chip.program import MappedWorkload, Mapping, lower_tasks
from siliconloom.mapper.chip.tasks import Task

Place = tuple[int, int]
"""A task: the number of its part, and its own in that."""


def composed_cycles(plan: MappedWorkload, cycles: Callable[[Program], int]) -> int:
    """Estimated cycles of a mapped workload; ``cycles`` says what a program takes.

    On a bare array, whose products wait for nobody, that is the program's own time.
    """
    mapping = plan.mapping
    if mapping is None:
        return cycles(plan.program)
    known = dict[tuple[object, ...], int]()
    one_level = len(plan.chip.memory) == 1

    def taken(*places: Place) -> int:
        some = [_chosen(mapping, place) for place in places]
        # where there are several levels it counts what lies where
        alike = tuple((nameless(task), chosen) for task, chosen in some) if one_level else places
        if alike not in known:
            known[alike] = cycles(_program(plan, mapping, places))
        return known[alike]

    total = 0
    for number, part in enumerate(mapping.parts):
        total += part.count * sum(taken((number, n)) for n in range(len(part.tasks)))
    for (first, second), count in _neighbours(mapping).items():
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


def _chosen(mapping: Mapping, place: Place) -> tuple[Task, Chosen]:
    number, n = place
    task = mapping.parts[number].tasks[n]
    return task, mapping.choice[1][number][task.operator.name]


class _Beside(MemoryMap):
    """Where a whole workload's objects lie; what a task reads that another one made begins where memory does."""

    def take(self, operator: str, role: str, unit_bytes: int, units: int = 1) -> int:
        if self.homes is not None and (operator, role) not in self.homes:
            return self.chip.level_bases[0]
        return super().take(operator, role, unit_bytes, units)


def _program(plan: MappedWorkload, mapping: Mapping, places: Sequence[Place]) -> Program:
    """One task, or two in a row, in the first repetition of their parts."""
    parts, chosen = list[Part](), list[dict[str, Chosen]]()
    for place in places:
        whole, (task, its) = mapping.parts[place[0]], _chosen(mapping, place)
        name = task.operator.name
        parts.append(Part(whole.first, 1, (task,), {name: whole.levels[name]}))
        chosen.append({name: its})
    memory = _Beside(plan.chip, None if plan.placement is None else plan.placement.homes)
    choice = mapping.choice[0], chosen
    return lower_tasks(plan.chip, plan.graph, parts, choice, memory, draft=True, short=plan.short).program


__all__ = ["composed_cycles"]
