"""Durations of the NPU's other units, in cycles of the tile's clock."""

from __future__ import annotations

from siliconloom.arch.description import Memory, NpuTile, VectorUnit
from siliconloom.arch.vector import VectorFunction, vector_cost

SCRATCHPAD_READ = 1
"""Cycles from the address to the data of a scratchpad or accumulator read."""
ACCUMULATOR_WRITE = 1
"""Cycles from the array's output to the accumulator holding it."""
QUEUE_POP = 1
"""Cycles from an instruction leaving its queue until the next one is seen, and until its place can be filled."""
BARRIER = 1
"""Cycles from a barrier starting to its posts, when nothing before it is still at work."""


def vector_cycles(unit: VectorUnit, function: VectorFunction, rows: int, cols: int) -> int:
    """Cycles of one vector instruction over ``rows`` x ``cols`` elements.

    A row function makes each pass over all rows before the next, so it waits for the pipeline once per reduction and
    once at the end; an element function packs its elements densely into the lanes.
    """
    cost = vector_cost(function)
    if cost.by_row:
        slots = rows * -(-cols // unit.lanes)
        return cost.passes * slots + (cost.reductions + 1) * unit.latency
    return cost.passes * -(-rows * cols // unit.lanes) + unit.latency


def moved_bytes(memory: Memory, rows: int, row_bytes: int, pitch: int) -> int:
    """Bytes that a transfer moves: rows that are not adjacent are rounded up to the memory's access size."""
    if rows == 1 or pitch == row_bytes:
        total = rows * row_bytes
        return -(-total // memory.access_bytes) * memory.access_bytes
    return rows * -(-row_bytes // memory.access_bytes) * memory.access_bytes


def transfer_cycles(tile: NpuTile, memory: Memory, clock: int, moved: int, sharers: int) -> int:
    """Cycles for which a transfer of ``moved`` bytes holds the memory port.

    Parameters
    ----------
    tile, memory
        Who moves them, and from where or to where.
    clock
        Hertz.
    moved
        Bytes, see `moved_bytes`.
    sharers
        Tiles among which the memory's bandwidth is divided evenly.
    """
    memory_cycles = -(-moved * clock * sharers // memory.bandwidth)
    return max(memory_cycles, -(-moved // tile.dma.bytes_per_cycle), 1)
