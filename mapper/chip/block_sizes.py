"""How many rows the blocks have that an array which keeps its sums takes a product's first operand in.

Blocks of as many rows as a large array has leave little room for columns in small buffers, and where an access of main
memory is longer than a part of their lines most of what is read is dropped. So smaller ones are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

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

    def cost(made: MappedWorkload) -> tuple[bool, int]:
        return len(made.program.instructions) > words, by.measure(made.program)

    made = [mapped({})]
    tried: list[dict[str, int]] = [{}]

    def add(blocks: dict[str, int]) -> bool:
        """Whether these blocks are better than all before."""
        before = min(map(cost, made))
        made.append(mapped(blocks))
        tried.append(blocks)
        return cost(made[-1]) < before

    def interrupted() -> bool:
        return any(map(_is_interrupted, made))

    worse = 0
    for size in sizes:
        if interrupted() or worse == WORSE:
            break
        worse = 0 if add(dict.fromkeys(products, size)) else worse + 1
    if len(made) > 1 and not interrupted():
        costs = [_product_costs(each) for each in made]
        best = {name: min(range(len(made)), key=lambda at: costs[at][name]) for name in products}
        mixed = {name: tried[at][name] for name, at in best.items() if tried[at]}
        if mixed not in tried:
            add(mixed)
    found = min(made, key=cost)
    if interrupted() and not _is_interrupted(found):  # whatever it was that was not looked at to its end
        last = made[-1]
        found = replace(found, searched=last.searched, notes=last.notes)
    return found


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
