"""What a byte of main memory's traffic is worth where time counts.

Mappings that take nearly as long may move bytes that differ by more than half: a tile that computes for as long as it
loads is as fast with any. So a byte has a price in cycles, where there is one memory level: those of several are
not worth the same. All bytes that a workload must
move are worth `PART` of the least time that it could take: twice as many bytes as need be are saved where that takes no
more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.arch.description import Chip
from siliconloom.mapper.chip.bounds import graph_bound, least_traffic
from siliconloom.mapper.chip.chosen import Part
from siliconloom.workloads import Graph

PART = 0.03
"""Of the least time: what all bytes that must be moved are worth."""


def price_of_byte(chip: Chip, graph: Graph, parts: Sequence[Part]) -> float:
    """Cycles that a byte is worth; ``graph`` is as `fit_precision` makes it, and cut into such parts.

    The least time and the fewest bytes are those of the bounds (`mapper.chip.bounds`). Nothing where there are several
    memory levels.
    """
    if len(chip.memory) != 1:
        return 0.0
    return PART * graph_bound(chip, graph).lower_bound_cycles / max(fewest_bytes(chip, parts), 1)


def fewest_bytes(chip: Chip, parts: Sequence[Part]) -> int:
    """What all tasks move at least, one after the other."""
    return sum(part.count * least_traffic(chip, task.operator, task.fused) for part in parts for task in part.tasks)


__all__ = ["PART", "fewest_bytes", "price_of_byte"]
