"""Choice of attention's tiles: every candidate is costed with the durations that the simulator uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.layout import first_values, padded, row_values, sums_room
from siliconloom.arch.scaled import group_rows, is_scaled
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT
from siliconloom.mapper.chip.attention_estimate import (
    AttentionCosts,
    AttentionTiling,
    TilingSizes,
    carries,
    softmax_functions,
)
from siliconloom.mapper.chip.attention_layout import AttentionLayout, may_stay
from siliconloom.mapper.chip.attention_places import most_heads, query_parts
from siliconloom.mapper.chip.layout import LARGE, Layout
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.operands import packing_of
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.workloads import Attention

Int = NDArray[np.int64]

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
    costs, made = AttentionCosts.of_chip(chip, shape, held), AttentionLayout.of(chip, shape)
    most_keys, most_queries = (max(sizes) for sizes in zip(*((p.keys, p.queries) for p in costs.parts), strict=True))
    by_rows = carries(shape) and most_keys <= COLUMN_LIMIT
    tilings = [
        TilingSizes(queries, keys, heads, whole, resident)
        for whole in ((True, False) if by_rows else (False,))
        for keys in dict.fromkeys(
            [
                *(min(padded(k, key_unit(costs.tile, shape, whole)), most_keys) for k in _halvings(most_keys)),
                *(() if whole else _cuts(made)),
            ]
        )
        if keys < most_keys or not whole
        for queries in (_between(most_queries) if whole else _halvings(most_queries))
        for heads in _halvings(most_heads(shape))
        if queries * heads <= ROW_LIMIT
        for resident in ((False, True) if not made.cuts(keys) and may_stay(made, queries, keys, heads) else (False,))
    ]
    found: list[list[AttentionTiling]] = [[] for _ in layouts]
    for apart in {layout.values > 0 for layout in layouts}:
        places = [place for place, layout in enumerate(layouts) if (layout.values > 0) == apart]
        some = [layouts[place] for place in places]
        fits = _fits(made, tilings, most_keys, some, apart=apart)
        numbers = np.flatnonzero(fits.any(axis=0)).tolist()
        known = dict(zip(numbers, costs.of([tilings[number] for number in numbers], apart=apart), strict=True))
        cost = {number: objective.of_tiling(tiling) for number, tiling in known.items()}
        cheapest = sorted(numbers, key=cost.__getitem__)
        alike: dict[bytes, list[AttentionTiling]] = {}
        for place, fit in zip(places, fits, strict=True):
            under = fit.tobytes()
            if under not in alike:
                inside = fit.tolist()
                order = [number for number in cheapest if inside[number]]
                alike[under] = [known[number] for number in _picked(order, known, cost)]
            found[place] = alike[under]
    return found


def _fits(
    made: AttentionLayout, tilings: Sequence[TilingSizes], most_keys: int, layouts: Sequence[Layout], *, apart: bool
) -> NDArray[np.bool_]:
    """Which tilings fit each of the layouts: a row for each of these."""
    sizes = {keys: _cached_tiles(made, keys, most_keys) for keys in {each.keys for each in tilings}}
    columns = [(e.queries * e.heads, most_keys if e.whole else e.keys, *sizes[e.keys]) for e in tilings]
    needs = _needs(made, *np.array(columns, np.int64).T, apart=apart)
    rooms = np.array([[getattr(layout, ring) for ring in needs] for layout in layouts], np.int64)
    return np.asarray((rooms[:, None] >= np.array(list(needs.values())).T).all(axis=2))


def _picked(order: Sequence[int], known: Mapping[int, AttentionTiling], cost: Mapping[int, float]) -> list[int]:
    """Of tilings, the cheapest first: of those that cost the least that which moves fewest bytes, and others.

    These are the `KEPT` cheapest, the cheapest of each kind that is `NEAR`, and the fastest.
    """
    if not order:
        return []
    limit = cost[order[0]]
    fast = (number for number in order if cost[number] <= limit)
    frugal = min(fast, key=lambda n: (known[n].read_bytes + known[n].write_bytes, known[n].cycles))
    others = [number for number in order if number != frugal]
    firsts = {
        ((t := known[number]).keys, t.whole, t.resident): number
        for number in reversed(others)
        if cost[number] <= NEAR * limit
    }
    fastest = min(order, key=lambda number: known[number].cycles)
    kinds = sorted(firsts.values(), key=cost.__getitem__)
    return list(dict.fromkeys([frugal, *others[: KEPT - 1], *kinds, fastest]))


def attention_needs(
    chip: Chip, shape: Attention, queries: int, keys: int, heads: int, whole: bool, most_keys: int, *, apart: bool
) -> dict[str, int]:
    """Bytes that tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`.

    ``most_keys`` are those that some part of the queries reads. Values have a ring of their own where they lie
    ``apart``.
    """
    made, row = AttentionLayout.of(chip, shape), most_keys if whole else keys
    tiles = _cached_tiles(made, keys, most_keys)
    needs = _needs(made, *(np.array([each], np.int64) for each in (queries * heads, row, *tiles)), apart=apart)
    return {ring: int(need[0]) for ring, need in needs.items()}


def _cached_tiles(made: AttentionLayout, keys: int, most_keys: int) -> tuple[int, int]:
    """Bytes of a slot that holds a tile of keys, and of one that holds a tile of values."""
    if made.cuts(keys) and made.may_cut(keys):
        return made.cut_tile(keys), made.value_tile(keys)
    if not made.shape.values_in_keys:
        return made.key_tile(keys), made.value_tile(keys)
    return made.key_tile(keys) * (SLOTS if keys < most_keys else 1), 0


def _needs(made: AttentionLayout, rows: Int, row: Int, keys: Int, values: Int, *, apart: bool) -> dict[str, Int]:
    """As `attention_needs`: ``row`` is that of sums, and of probabilities; ``keys`` and ``values`` a tile of them."""
    tile, shape = made.tile, made.shape

    def size(elements: Int) -> Int:
        return -(-elements * shape.precision.bits // 8)

    depth = np.full_like(rows, shape.head_dim)
    scores, context = (size(first_values(tile, rows, each, narrow=1)) for each in (depth, row))
    queries, powers = rows * made.q_local(), rows * size(row_values(tile, row, narrow=1))
    needs = {
        "weights": keys if apart else np.maximum(keys, values),
        "moving": np.maximum(scores, queries),
        "partial": made.sums(rows, row),
        "probabilities": np.maximum(context, powers),
        "context": made.sums(rows, np.full_like(rows, shape.v_head_dim)),
        "results": rows * made.o_local(),
        "constants": np.full_like(rows, made.constants),
    }
    if apart and not shape.values_in_keys:
        needs["values"] = values
    if made.turned:
        del needs["moving"]
        needs |= {"vector": queries, "queries": made.turned_bytes(rows, depth)}
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


def _cuts(made: AttentionLayout) -> list[int]:
    """Keys of tiles that are parts of a block, down to those of which sums of as many rows as the array has are few.

    Half of a block leaves the accumulator room for twice the rows, and a quarter for four times. Nor are tiles a large
    part of the scratchpad then.
    """
    rows = min(made.array.rows, max(part.queries for part in query_parts(made.shape)))
    keys, found = made.block, list[int]()
    while keys % 2 == 0 and (
        SLOTS * SLOTS * made.sums(rows, keys) > sums_room(made.tile)
        or SLOTS * LARGE * made.cut_tile(keys) >= made.tile.scratchpad.capacity
    ):
        keys //= 2
        found += [keys] if made.may_cut(keys) else []
    return found


def fewest_keys(chip: Chip, shape: Attention, panel: int) -> int:
    """Keys of the smallest tile that is tried where so many of the array's columns are used: a block, or a part."""
    assert isinstance(chip.tile, NpuTile)
    made = AttentionLayout.of(chip, shape)
    whole = min(chip.tile.array.cols, shape.kv_len)
    if panel >= made.block:
        return whole
    return min((keys for keys in _cuts(made) if keys >= panel), default=whole)


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
    "fewest_keys",
    "key_unit",
    "softmax_functions",
]
