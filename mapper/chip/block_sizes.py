"""How many rows the blocks have that an array which keeps its sums takes a product's first operand in.

Blocks of as many rows as a large array has leave little room for columns in small buffers, and where an access of main
memory is longer than a part of their lines most of what is read is dropped. So smaller ones are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from msgspec.structs import replace

from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.mapper.chip.choice import cost_of
from siliconloom.mapper.chip.chosen import INTERRUPTED, SearchEffort
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.operands import Turned
from siliconloom.mapper.chip.program import MappedWorkload

WORSE = 3
"""So many sizes of blocks in a row that are no better than larger ones before no smaller ones are looked at."""
Blocks = Mapping[str, int]
"""Rows of a block of products, by their names: `Task.block`."""


def in_best_blocks(
    sizes: Sequence[int], products: Sequence[str], mapped: Callable[[Blocks], MappedWorkload], by: Objective, words: int
) -> MappedWorkload:
    """The best with blocks as large as the array, half as large and so on, until some in a row are no better.

    And with those of each product that it costs the least in, with what brings its rows there. A program of more than
    so many ``words`` loses against one that is not.
    """
    if not sizes:
        return mapped({})
    made: list[MappedWorkload] = []
    tried: list[dict[str, int]] = []
    costs: list[tuple[bool, float]] = []

    def add(blocks: dict[str, int]) -> bool:
        """Whether these blocks are better than all before."""
        found, cost = mapped(blocks), (True, inf)
        try:
            cost = len(found.program.instructions) > words, cost_of(by, found)
        except CompilationInterrupted:
            raise
        except KeyboardInterrupt:
            found = _interrupted(found)
        better = cost < min(costs, default=(True, inf))
        made.append(found)
        tried.append(blocks)
        costs.append(cost)
        return better

    def interrupted() -> bool:
        return any(map(_is_interrupted, made))

    add({})
    worse = 0
    for size in sizes:
        if interrupted() or worse == WORSE:
            break
        worse = 0 if add(dict.fromkeys(products, size)) else worse + 1
    if len(made) > 1 and not interrupted():
        each = [_product_costs(some) for some in made]
        best = {name: min(range(len(made)), key=lambda at: each[at][name]) for name in products}
        mixed = {name: tried[at][name] for name, at in best.items() if tried[at]}
        if mixed not in tried:
            add(mixed)
    found = made[min(range(len(made)), key=costs.__getitem__)]
    if interrupted() and not _is_interrupted(found):  # whatever it was that was not looked at to its end
        last = made[-1]
        found = replace(found, searched=last.searched, notes=last.notes)
    return found


def _interrupted(made: MappedWorkload) -> MappedWorkload:
    if _is_interrupted(made):
        return made
    searched = replace(made.searched or SearchEffort(), interrupted=True)
    return replace(made, searched=searched, notes=(*made.notes, INTERRUPTED))


def _is_interrupted(made: MappedWorkload) -> bool:
    return made.searched is not None and made.searched.interrupted


def _product_costs(made: MappedWorkload) -> dict[str, int]:
    """What every product costs, with what transposes its rows."""
    assert made.mapping is not None
    found: dict[str, int] = {}
    for part, chosen in zip(made.mapping.parts, made.mapping.choice[1], strict=True):
        for task in part.tasks:
            name = task.cached.owner.name if isinstance(task.cached, Turned) else task.operator.name
            found[name] = found.get(name, 0) + part.count * chosen[task.operator.name].cost
    return found


__all__ = ["Blocks", "in_best_blocks"]
