"""Programs that this process has mapped and run: what makes no difference to a chip's cycles asks for no other ones.

Memory that gives more than the data buses of all tiles take is as fast as one that gives just that, and nothing in a
mapping or a run depends on energies. A sweep has many such points.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any

from msgspec import Struct, field

from siliconloom.arch.description import Chip
from siliconloom.arch.memory import Memory
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.sim.chip.engine import Run
from siliconloom.workloads import Graph

MOST_INSTRUCTIONS = 200_000
"""Instructions of all programs that are kept; the one that was asked for the longest ago goes first."""


class Timed(Struct):
    """A workload that was mapped to a chip, and how that ran."""

    plan: MappedWorkload
    run: Run
    kept: dict[str, Any] = field(default_factory=dict)
    """What was worked out of the program since, by name."""


def paced(chip: Chip) -> Chip:
    """The chip with nothing of it that its cycles do not depend on; none of its memories is faster than its buses."""
    if not isinstance(chip.tile, NpuTile):
        return chip
    memory = {name: _paced(chip, each) for name, each in chip.memory.items()}
    tile = _same(chip.tile)
    return chip.model_copy(update={"tile": tile, "memory": memory, "technology": "7nm", "description": ""})


@lru_cache(maxsize=256)
def _same(tile: NpuTile) -> NpuTile:
    """The first of equal tiles, so that nobody who keeps something by its tile compares it key by key."""
    return tile


def _paced(chip: Chip, memory: Memory) -> Memory:
    # several channels are as fast as the busiest of them, whatever the buses carry
    most = memory.bandwidth if memory.channels > 1 else min(memory.bandwidth, chip.dma_bandwidth)
    return memory.model_copy(update={"bandwidth": most, "energy": None})


_KEPT: OrderedDict[tuple[str, Graph], Timed] = OrderedDict()
_LOCK = Lock()


def recall(chip: Chip, graph: Graph, find: Callable[[Chip], tuple[MappedWorkload, Run]]) -> Timed:
    """What ``find`` returned before for the same graph on a chip of the same pace, or returns for that chip now."""
    slow = paced(chip)
    key = slow.digest, graph
    with _LOCK:
        found = _KEPT.get(key)
    found = found or Timed(*find(slow))
    if found.plan.searched is not None and found.plan.searched.interrupted:
        return found
    with _LOCK:
        _KEPT.pop(key, None)
        kept = [len(each.plan.program.instructions) for each in _KEPT.values()]
        room = MOST_INSTRUCTIONS - len(found.plan.program.instructions) - sum(kept)
        for length in kept:
            if room >= 0:
                break
            _KEPT.popitem(last=False)
            room += length
        _KEPT[key] = found
    return found


def forget() -> None:
    """Keep none of them."""
    with _LOCK:
        _KEPT.clear()


__all__ = ["Timed", "forget", "paced", "recall"]
