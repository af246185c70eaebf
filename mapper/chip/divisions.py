"""Which ways to divide the buffers are tried for a workload: what its smallest tiles need, and shares of the rest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.layout import sums_room
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.attention_cost import attention_needs, fewest_keys
from siliconloom.mapper.chip.banked import channel_needs, channel_tiling
from siliconloom.mapper.chip.bounds import Bound
from siliconloom.mapper.chip.gemm_layout import GemmLayout, gemm_layout_of
from siliconloom.mapper.chip.layout import (
    CONTEXT_SHARES,
    FRUGAL_SHARES,
    SHARES,
    STAYING_SHARES,
    Layout,
    grain_of,
    layouts,
    room_for_rows,
)
from siliconloom.mapper.chip.looked import PARTS
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tile_sizes import FINE, candidates
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.workloads import Attention, Gemm

CONSTANT_SHARES = (32, 256)
"""A slot of what requantises takes at most this part of the scratchpad."""

VALUES_SHARE = 16
"""A slot of values of attention takes this part of the scratchpad."""
MOST_STAYING = 4
"""Most numbers of rows that stay for which there is a division."""
PACED = 0.1
"""There is a ring of values where at least this part of the work waits for memory: that of a token, not of a prompt.

Neither half of two rings is then waited for while the memory's latency passes. Arrays that keep their sums have none,
as their transposed operands have the semaphores.
"""
TOKENS = 16
"""What has so few rows, or queries, nearly waits where memory takes half as long; of work that does a little less than
`PACED` is enough: with a memory or a DMA of half the width there would be a ring.
"""
NEARLY_PACED = 0.08
ATTENDED, ALONE = 0.12, 0.5
"""Other divisions of the accumulator are tried where attention is this part of the work; where it is the second, there
is a ring of values, too."""


Divisions = dict[Hashable, list[Layout]]
"""Ways to divide the buffers of some tasks, by what of a tile and of their bounds they depend on."""


def divisions_of(
    chip: Chip,
    tile: NpuTile,
    tasks: Sequence[Task],
    bounds: Sequence[Bound],
    *,
    frugal: bool = False,
    simulated: bool = True,
    known: Divisions | None = None,
) -> list[Layout]:
    """Ways to divide the buffers for tasks that have these bounds.

    There is room for tiles for the whole array, for half of it and so on, so that an array of twice the size is tried
    with the divisions of this one, too; and for rows of products that stay (`_staying`). Where bytes count beside time
    those are tried as well that leave most of the scratchpad to one operand of products (`FRUGAL_SHARES`). Values have
    a ring of their own only where candidates are ``simulated``: what it saves hangs on when loads meet. What is
    ``known`` is of the same tasks, on chips that a lowering reads the same of (`drafts.lowering_key`).
    """
    paced, nearly, attended = _shares_of_work(chip, tasks, bounds)
    has_ring = simulated and (paced >= PACED or nearly >= NEARLY_PACED or attended >= ALONE)
    has_ring = has_ring and not any(channel_tiling(chip, task) for task in tasks)
    has_ring = has_ring and oriented(tile).array.dataflow != "output_stationary"
    contexts = CONTEXT_SHARES if attended >= ATTENDED else CONTEXT_SHARES[:1]
    shares = (*SHARES, *FRUGAL_SHARES) if frugal else SHARES
    key = tile.scratchpad, tile.accumulator, has_ring, contexts, shares
    found = None if known is None else known.get(key)
    if found is None:
        found = _divided(chip, tile, tasks, shares, contexts, has_ring=has_ring)
        if known is not None:
            known[key] = found
    return list(found)


def _divided(
    chip: Chip,
    tile: NpuTile,
    tasks: Sequence[Task],
    shares: tuple[tuple[int, ...], ...],
    contexts: tuple[int, ...],
    *,
    has_ring: bool,
) -> list[Layout]:
    """The same for shares that are decided, with a ring of values or without."""
    constants, found = set[int](), dict[Layout, None]()
    values = {"values": tile.scratchpad.capacity // VALUES_SHARE // grain_of(tile) * grain_of(tile)}
    for columns, least in _least(tasks, chip, tile):
        constants |= _constant_bytes(tile, tasks, least["constants"])
        for each in [least, least | values] if has_ring else [least]:
            found |= dict.fromkeys(layouts(tile, constants, each, shares, contexts))
            for rows in _staying(tasks, tile, chip, each, columns):
                room = each | {"moving": rows}
                found |= dict.fromkeys(layouts(tile, constants, room, STAYING_SHARES, contexts))
    return list(found)


def _staying(tasks: Sequence[Task], tile: NpuTile, chip: Chip, least: Mapping[str, int], panel: int) -> list[int]:
    """Bytes of a slot of the first operand, so that both hold all rows of a product, half of them, a third and so on.

    As many as there is room for beside the least of all other rings, and beside columns of the whole depth that fill an
    access of the memory, or a ``panel`` of the array's lines that are used; of the products with the most work.
    """
    work: dict[int, int] = {}
    for task in tasks:
        if not isinstance(task.operator, Gemm):
            continue
        shape = gemm_shape(task.operator, task)
        layout, most = gemm_layout_of(tile, shape), room_for_rows(tile, least)
        wide = shape.halves * max(chip.nearest.access_bytes * 8 // shape.dtype.bits, panel)
        columns = max(int(layout.b_tile(wide, shape.k)), least["weights"])
        beside = room_for_rows(tile, {**least, "weights": columns})
        # beside columns of a part of the depth all rows that stay have their sums at once
        line = shape.halves * int(layout.sums(1, panel))
        pitch = int(layout.a_local(shape.k))
        summed = sums_room(tile) * (4 - CONTEXT_SHARES[0]) // (4 * SLOTS * line) * pitch
        for room in {most, (most + beside) // 2, beside, min(most, summed)}:
            sizes = (-(-shape.m // (parts * FINE)) * FINE for parts in range(1, PARTS + 1))
            rows = next((rows for rows in sizes if rows * pitch <= room), 0)
            if rows and not layout.blocks:
                size = int(layout.kept_slot(rows, wide, shape.k))
                work[size] = work.get(size, 0) + task.operator.macs * task.operator.repeat
    return sorted(work, key=lambda size: (-work[size], size))[:MOST_STAYING]


def _shares_of_work(chip: Chip, tasks: Sequence[Task], bounds: Sequence[Bound]) -> tuple[float, float, float]:
    """What part of all work waits for the memory in products and attention, or nearly (`TOKENS`); and attention's part.

    Work is what bounds say, and the memory's latency once for the cache of every sequence and head.
    """
    paced = nearly = attended = total = 0
    latency = chip.cycles(chip.nearest.latency)
    for task, bound in zip(tasks, bounds, strict=True):
        operator, cycles = task.operator, task.operator.repeat * bound.lower_bound_cycles
        total += cycles
        if isinstance(operator, Gemm | Attention):
            rows = operator.m if isinstance(operator, Gemm) else operator.q_len
            slack = 2 if rows <= TOKENS else 1
            paced += cycles if bound.memory_cycles >= bound.lower_bound_cycles else 0
            nearly += cycles if slack * bound.memory_cycles >= bound.lower_bound_cycles else 0
        if isinstance(operator, Attention):
            waits = operator.repeat * operator.batch * operator.kv_heads * latency
            attended, paced, nearly, total = attended + cycles, paced + waits, nearly + waits, total + waits
    return paced / max(total, 1), nearly / max(total, 1), attended / max(total, 1)


def _constant_bytes(tile: NpuTile, tasks: Sequence[Task], least: int) -> set[int]:
    """Room for what the smallest tiles need, and for what requantises the columns of a result tile: more or less."""
    widest = 0
    for task in tasks:
        if isinstance(task.operator, Gemm):
            shape = gemm_shape(task.operator, task)
            layout = gemm_layout_of(tile, shape)
            widest = max(widest, int(layout.functions_at(shape.stored_n)) + layout.function_bytes)
    shares = (tile.scratchpad.capacity // share for share in CONSTANT_SHARES)
    return {max(least, min(widest, share)) for share in shares}


def _least(tasks: Sequence[Task], chip: Chip, tile: NpuTile) -> list[tuple[int, dict[str, int]]]:
    """Columns of a panel, and bytes of a slot of every ring that the smallest tiles of the tasks take.

    First those for the whole array, then for half of its lines, a quarter and so on, as far as such tiles are tried.
    """
    others, attended = dict[str, int](), list[Attention]()
    products: list[tuple[GemmLayout, list[int], Sequence[NDArray[np.int64]]]] = []
    for task in tasks:
        operator = task.operator
        if isinstance(operator, Gemm):
            shape = gemm_shape(operator, task)
            whole = [int(sizes[0]) for sizes in candidates(tile, shape, parts=False)]
            products.append((gemm_layout_of(tile, shape), whole, candidates(tile, shape)))
        elif channel_tiling(chip, task) is not None:
            _raise_to(others, channel_needs(tile, task))
        elif isinstance(operator, Attention):
            attended.append(operator)
        else:
            _raise_to(others, VectorLayout(tile, vector_shape(tile, operator, task)).least())
    found: list[tuple[int, dict[str, int]]] = []
    for part in range(max((max(whole).bit_length() for _, whole, _ in products), default=1)):
        least, panel = dict(others), max(tile.array.cols >> part, 1)
        for each in attended:
            keys = fewest_keys(chip, each, panel)
            _raise_to(least, attention_needs(chip, each, 1, keys, 1, False, each.kv_len, apart=False))
        for layout, whole, tried in products:
            places = [each.searchsorted(-(-size // 2**part)) for size, each in zip(whole, tried, strict=True)]
            m, n, k = (int(each[place]) for place, each in zip(places, tried, strict=True))
            _raise_to(least, layout.needs(m, n, k))
        if not found or least != found[-1][1]:
            found.append((panel, least))
    return found


def least_of(tasks: Sequence[Task], chip: Chip, tile: NpuTile) -> dict[str, int]:
    """Bytes of a slot of every ring that the smallest tiles of any that are tried take."""
    return _least(tasks, chip, tile)[-1][1]


def _raise_to(least: dict[str, int], needs: Mapping[str, Any]) -> None:
    """Make what is needed at least so much."""
    for ring, need in needs.items():
        least[ring] = max(least.get(ring, 0), int(need))


__all__ = ["divisions_of", "least_of"]
