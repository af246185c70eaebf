"""What a program leaves in main memory for programs after it: parameters, and the cache.

Parameters lie tile by tile, so programs share them where their tiles have the same columns and depth; how many rows
they take, and in which order, is each program's own. The cache is the same where it has the same room.
"""

from __future__ import annotations

from siliconloom.arch.layout import padded
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.memory import Item, Kept, Key, Taken, alignment_of
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Gemm, Vector


def kept_of(mapped: MappedWorkload) -> Kept:
    """What a program of one memory level has in main memory that others can use, one behind the other."""
    assert mapped.memory is not None
    items: dict[Key, Item] = {}
    starts: dict[Key, int] = {}
    used, alignment = 0, alignment_of(mapped.chip)
    for key, item in mapped.memory.items.items():
        if stays(mapped, item):
            items[key], starts[key] = item, used
            used += padded(item.size, alignment)
    tiles = {
        each.task.operator.name: (each.tiling.n, each.tiling.k)
        for each in mapped.tasks
        if isinstance(each.tiling, GemmTiling) and isinstance(each.task.operator, Gemm) and each.task.operator.weight
    }
    return Kept(Taken(items, starts, used), tiles)


def stays(mapped: MappedWorkload, item: Item) -> bool:
    """Whether an object is the same in every program of a model: angles of rotations are those of its tokens."""
    operator = mapped.graph.dataflow[item.operator]
    turns = isinstance(operator, Vector) and operator.function == VectorFunction.ROPE
    return item.held in ("parameters", "cache") and not turns


__all__ = ["kept_of", "stays"]
