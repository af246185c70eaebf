"""Choice of attention's tiles: every candidate is costed with the durations that the simulator uses."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.layout import first_values, padded, row_values
from siliconloom.arch.scaled import group_rows, is_scaled
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT
from siliconloom.mapper.chip.attention_estimate import (
    AttentionCosts,
    AttentionTiling,
    TilingSizes,
    carries,
    softmax_functions,
)
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.attention_places import most_heads
from siliconloom.mapper.chip.builder import SLOTS
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.operands import packing_of
from siliconloom.workloads import Attention

KEPT = 3
"""Candidates of each layout that are looked at again."""


NEAR = 1.1
"""The best with every other tile of keys is looked at, too, where it takes at most so many times as long as the best:
estimates of tiles of one size err alike."""


MOST_SUMMED = (2**31 - 1) // (127 * 128)
"""Keys whose values, times powers of at most 127, sums of 32 bits hold whatever they are."""


def choose_attention_tilings(
    chip: Chip, layouts: Sequence[Layout], shape: Attention, held: int, objective: Objective = ESTIMATED
) -> list[list[AttentionTiling]]:
    """For each layout the cheapest tilings that fit its buffers, the best first; for ``held`` see `AttentionLayout`."""
    costs, made = AttentionCosts(chip, shape, held), AttentionLayout.of(chip, shape)
    most_keys, most_queries = (max(sizes) for sizes in zip(*((p.keys, p.queries) for p in costs.parts), strict=True))
    by_rows = carries(shape) and most_keys <= COLUMN_LIMIT
    tilings = [
        TilingSizes(queries, keys, heads, whole, resident)
        for whole in ((True, False) if by_rows else (False,))
        for keys in dict.fromkeys(
            min(padded(k, key_unit(costs.tile, shape, whole)), most_keys) for k in _halvings(most_keys)
        )
        if keys < most_keys or not whole
        for queries in (_between(most_queries) if whole else _halvings(most_queries))
        for heads in _halvings(most_heads(shape))
        if queries * heads <= ROW_LIMIT
        for resident in ((False, True) if costs.may_stay(queries, keys, heads) else (False,))
    ]
    sizes = {keys: _cached_tiles(made, keys, most_keys) for _, keys, *_ in tilings}
    rooms: dict[bool, NDArray[np.int64]] = {}
    names: dict[bool, list[str]] = {}
    for apart in {layout.values > 0 for layout in layouts}:
        needs = [
            _needs(made, queries * heads, most_keys if whole else keys, *sizes[keys], apart=apart)
            for queries, keys, heads, whole, _ in tilings
        ]
        rings = list(needs[0]) if needs else []
        rooms[apart] = np.array([[*need.values()] for need in needs], np.int64).reshape(len(needs), -1)
        names[apart] = rings
    fits = {
        layout: (rooms[layout.values > 0] <= [getattr(layout, ring) for ring in names[layout.values > 0]]).all(axis=1)
        for layout in layouts
    }
    known: dict[bool, dict[int, AttentionTiling]] = {}
    for apart in rooms:
        some = np.flatnonzero(np.any([fits[layout] for layout in layouts if (layout.values > 0) == apart], axis=0))
        numbers = some.tolist()
        known[apart] = dict(zip(numbers, costs.of([tilings[n] for n in numbers], apart=apart), strict=True))
    found: list[list[AttentionTiling]] = []
    for layout in layouts:
        fitting = [known[layout.values > 0][number] for number in np.flatnonzero(fits[layout]).tolist()]
        cost = objective.of_tiling
        limit = objective.slack * min(map(cost, fitting), default=0)
        fast = [tiling for tiling in fitting if cost(tiling) <= limit]
        frugal = min(fast, key=lambda t: (t.read_bytes + t.write_bytes, t.cycles), default=None)
        others = sorted((t for t in fitting if t != frugal), key=cost)
        kept = [frugal, *others[: KEPT - 1]] if frugal else []
        firsts = {(t.keys, t.whole, t.resident): t for t in reversed(others) if cost(t) <= NEAR * limit}
        found.append(list(dict.fromkeys([*kept, *sorted(firsts.values(), key=cost)])))
    return found


def attention_needs(
    chip: Chip, shape: Attention, queries: int, keys: int, heads: int, whole: bool, most_keys: int, *, apart: bool
) -> dict[str, int]:
    """Bytes that tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`.

    ``most_keys`` are those that some part of the queries reads. Values have a ring of their own where they lie
    ``apart``.
    """
    made = AttentionLayout.of(chip, shape)
    return _needs(
        made, queries * heads, most_keys if whole else keys, *_cached_tiles(made, keys, most_keys), apart=apart
    )


def _cached_tiles(made: AttentionLayout, keys: int, most_keys: int) -> tuple[int, int]:
    """Bytes of a slot that holds a tile of keys, and of one that holds a tile of values."""
    if not made.shape.values_in_keys:
        return made.key_tile(keys), made.value_tile(keys)
    return made.key_tile(keys) * (SLOTS if keys < most_keys else 1), 0


def _needs(made: AttentionLayout, rows: int, row: int, keys: int, values: int, *, apart: bool) -> dict[str, int]:
    """As `attention_needs`: ``row`` is that of sums, and of probabilities; ``keys`` and ``values`` a tile of them."""
    tile, shape, size = made.tile, made.shape, made.shape.precision.size
    scores, context = (first_values(tile, rows, depth, narrow=1) for depth in (shape.head_dim, row))
    queries, powers = rows * made.q_local(), rows * size(row_values(tile, row, narrow=1))
    needs = {
        "weights": keys if apart else max(keys, values),
        "moving": max(size(scores), queries),
        "partial": made.sums(rows, row),
        "probabilities": max(size(context), powers),
        "context": made.sums(rows, shape.v_head_dim),
        "results": rows * made.o_local(),
        "constants": made.constants,
    }
    if apart and values:
        needs["values"] = values
    if made.turned:
        del needs["moving"]
        needs |= {"vector": queries, "queries": made.turned_bytes(rows, shape.head_dim)}
        needs |= {"powers": powers, "probabilities": made.turned_bytes(rows, row)}
    return needs


def attention_tiling(
    chip: Chip,
    shape: Attention,
    held: int,
    queries: int,
    keys: int,
    heads: int,
    whole: bool,
    resident: bool,
    *,
    apart: bool,
) -> AttentionTiling:
    """A tiling of these sizes with what it should take; values have a ring of their own where they lie ``apart``."""
    (only,) = AttentionCosts(chip, shape, held).of([TilingSizes(queries, keys, heads, whole, resident)], apart=apart)
    return only


def _between(total: int) -> list[int]:
    """Its halvings and sizes between them, of which room for whole rows of sums leaves few."""
    between = (part << n for part in (3, 5, 7) for n in range(total.bit_length()))
    return sorted({*_halvings(total), *(size for size in between if size < total)}, reverse=True)


def key_unit(tile: NpuTile, shape: Attention, whole: bool) -> int:
    """What tiles of keys are multiples of: whole panels, and whole folds where rows of sums are whole.

    Where values have scales they are whole groups of these.
    """
    cols = group_rows(tile.array) if is_scaled(tile.array, packing_of(shape, keys=False)) else tile.array.cols
    return lcm(cols, tile.array.rows) if whole else cols


def _halvings(total: int) -> list[int]:
    sizes, size = [total], total
    while size > 1:
        size = -(-size // 2)
        sizes.append(size)
    return sizes


__all__ = [
    "KEPT",
    "MOST_SUMMED",
    "NEAR",
    "AttentionTiling",
    "attention_needs",
    "attention_tiling",
    "carries",
    "choose_attention_tilings",
    "key_unit",
    "softmax_functions",
]
