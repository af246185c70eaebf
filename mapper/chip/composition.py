"""What a workload takes by the times of its operators alone and of neighbours; the whole is not simulated.

Two operators that follow one another overlap: parameters of the second are loaded while the first ends. So the time of
a sequence is estimated as the sum of what each takes alone, less what each two neighbours save together::

    T(a, b, c, ...)  =  T(a) + T(b) + T(c) + ...  -  (T(a) + T(b) - T(a, b))  -  (T(b) + T(c) - T(b, c))  -  ...
                     =  T(a, b) + T(b, c) + ...  -  T(b) - T(c) - ...

which is exact where nobody overlaps with more than the next one. Where weights are loaded ahead of earlier operators
(`mapper.chip.ahead`) as many are taken together as that reaches over: three, less what each two in between take, and
so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

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

    def taken(places: tuple[Place, ...]) -> int:
        some = [_chosen(mapping, place) for place in places]
        # where there are several levels it counts what lies where, and in its block what is loaded ahead
        begins = tuple(number for number in range(1, len(places)) if not _in_one(places[number - 1], places[number]))
        alike = (begins, *((nameless(task), chosen) for task, chosen in some)) if one_level else places
        if alike not in known:
            known[alike] = cycles(_program(plan, mapping, places))
        return known[alike]

    order = [
        (number, n)
        for number, part in enumerate(mapping.parts)
        for _ in range(part.count)
        for n in range(len(part.tasks))
    ]
    together = min(_reach(mapping) + 1, len(order))
    whole = _in_a_row(order, together)
    inner = _in_a_row(order[1:-1], together - 1) if together > 1 else Counter[tuple[Place, ...]]()
    return sum(count * taken(row) for row, count in whole.items()) - sum(
        count * taken(row) for row, count in inner.items()
    )


def _reach(mapping: Mapping) -> int:
    """Over how many operators what is loaded for another one reaches: one, or as many as it goes ahead of."""
    ahead = (chosen.ahead for made in mapping.choice[1] for chosen in made.values())
    return max([1, *(max(each.weights, each.values) for each in ahead)])


def _in_a_row(order: Sequence[Place], together: int) -> Counter[tuple[Place, ...]]:
    """How often which so many tasks follow one another."""
    return Counter(tuple(order[first : first + together]) for first in range(len(order) - together + 1))


def _in_one(first: Place, second: Place) -> bool:
    """Whether a task follows another one in the same repetition of a block."""
    return first[0] == second[0] and first[1] + 1 == second[1]


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
    """Some tasks in a row, each block's in the first repetition of its part."""
    parts, chosen = list[Part](), list[dict[str, Chosen]]()
    for number, place in enumerate(places):
        whole, (task, its) = mapping.parts[place[0]], _chosen(mapping, place)
        name = task.operator.name
        if number and _in_one(places[number - 1], place):
            last = parts.pop()
            its = replace(its, ahead=its.ahead.within(len(last.tasks) + 1))
            parts.append(Part(last.first, 1, (*last.tasks, task), last.levels | {name: whole.levels[name]}))
            chosen[-1][name] = its
        else:
            parts.append(Part(whole.first, 1, (task,), {name: whole.levels[name]}))
            chosen.append({name: replace(its, ahead=its.ahead.within(1))})
    memory = _Beside(plan.chip, None if plan.placement is None else plan.placement.homes)
    choice = mapping.choice[0], chosen
    return lower_tasks(plan.chip, plan.graph, parts, choice, memory, draft=True, short=plan.short).program


__all__ = ["composed_cycles"]
