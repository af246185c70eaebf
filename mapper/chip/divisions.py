"""Which ways to divide the buffers are tried for a workload: what its smallest tiles need, and shares of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.mapper.chip.attention_cost import attention_needs
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.layout import Layout, layouts
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import candidates
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.workloads import Attention, Gemm

CONSTANT_SHARES = (32, 256)
"""A slot of what requantises takes at most this part of the scratchpad."""


def divisions_of(chip: Chip, tile: NpuTile, tasks: Sequence[Task]) -> list[Layout]:
    """Ways to divide the buffers: with room for tiles for the whole array, for half of it and so on.

    So an array of twice the size is tried with the divisions of this one, too.
    """
    constants, found = set[int](), dict[Layout, None]()
    for least in _least(tasks, chip, tile):
        constants |= _constant_bytes(tile, tasks, least["constants"])
        found |= dict.fromkeys(layouts(tile, constants, least))
    return list(found)


def _constant_bytes(tile: NpuTile, tasks: Sequence[Task], least: int) -> set[int]:
    """Room for what the smallest tiles need, and for what requantises the columns of a result tile: more or less."""
    widest = 0
    for task in tasks:
        if isinstance(task.operator, Gemm):
            shape = gemm_shape(task.operator, task)
            layout = GemmLayout(tile, shape)
            widest = max(widest, int(layout.functions_at(shape.stored_n)) + layout.function_bytes)
    shares = (tile.scratchpad.capacity // share for share in CONSTANT_SHARES)
    return {max(least, min(widest, share)) for share in shares}


def _least(tasks: Sequence[Task], chip: Chip, tile: NpuTile) -> list[dict[str, int]]:
    """Bytes of a slot of every ring that the smallest tiles of the tasks take.

    First those for the whole array, then for half of its lines, a quarter and so on, as far as such tiles are tried.
    """
    others: dict[str, int] = {}
    products: list[tuple[GemmLayout, list[int], Sequence[NDArray[np.int64]]]] = []
    for task in tasks:
        operator = task.operator
        if isinstance(operator, Gemm):
            shape = gemm_shape(operator, task)
            whole = [int(sizes[0]) for sizes in candidates(tile, shape, parts=False)]
            products.append((GemmLayout(tile, shape), whole, candidates(tile, shape)))
        elif isinstance(operator, Attention):
            _raise_to(
                others,
                attention_needs(chip, operator, 1, min(tile.array.cols, operator.kv_len), 1, False, operator.kv_len),
            )
        else:
            _raise_to(others, VectorLayout(tile, vector_shape(tile, operator, task)).least())
    found: list[dict[str, int]] = []
    for part in range(max((max(whole).bit_length() for _, whole, _ in products), default=1)):
        least = dict(others)
        for layout, whole, tried in products:
            places = [each.searchsorted(-(-size // 2**part)) for size, each in zip(whole, tried, strict=True)]
            m, n, k = (int(each[place]) for place, each in zip(places, tried, strict=True))
            _raise_to(least, layout.needs(m, n, k))
        if not found or least != found[-1]:
            found.append(least)
    return found


def _raise_to(least: dict[str, int], needs: Mapping[str, Any]) -> None:
    """Make what is needed at least so much."""
    for ring, need in needs.items():
        least[ring] = max(least.get(ring, 0), int(need))


__all__ = ["divisions_of"]
