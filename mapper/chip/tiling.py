"""Choice of a GEMM's tiles: every candidate is costed, the cheapest that fits the buffers is taken.

The cost is that of `mapper.chip.gemm_cost`; among candidates of nearly equal time the one that moves the fewest bytes
wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.mapper.chip.builder import LONGEST_ROW
from siliconloom.mapper.chip.gemm_cost import ORDERS, PARAMETER_BYTES, GemmMemories, GemmShape, Order, gemm_costs
from siliconloom.mapper.chip.layout import Layout

SLACK = 1.0025
"""Among tilings within a quarter of a per cent of the fastest, the one that moves the fewest bytes is taken."""

FINE = 8
"""Even divisions are also rounded up to multiples of this, which is a small part of any array."""

Int = NDArray[np.int64]


@dataclass(frozen=True)
class GemmTiling:
    """Tile sizes, the order of the outer loops, what it moves and what it should take.

    ``resident`` says that the operand of the outer loop stays in its buffer while the inner loop runs.
    """

    m: int
    n: int
    k: int
    order: Order
    resident: bool
    read_bytes: int
    write_bytes: int
    array_cycles: int
    memory_cycles: int
    vector_cycles: int
    cycles: int


def choose_tilings(
    chip: Chip, layouts: Sequence[Layout], shape: GemmShape, memories: GemmMemories | None = None, kept: int = 3
) -> list[list[GemmTiling]]:
    """For each layout the cheapest tilings that fit it, the best first; candidates are costed once for all of them.

    ``kept`` of each kind, and the most frugal: either order of the outer loops, with and without an operand that stays.
    Operands and results lie in the nearest memory level unless ``memories`` says otherwise.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if memories is None:
        memories = GemmMemories(chip.nearest, chip.nearest, chip.nearest)
    array = tile.array
    sizes = (
        _sizes(shape.m, 1),
        2 * _sizes(shape.n // 2, array.cols) if shape.output_halved else _sizes(shape.n, array.cols),
        _sizes(shape.k, array.rows),
    )
    if not layouts:
        return []
    sizes = _trimmed(layouts, shape, *sizes)
    if not all(map(len, sizes)):
        return [[] for _ in layouts]
    m, n, k = np.ix_(*sizes)
    whole = np.broadcast_to(k == shape.k, (len(sizes[0]), len(sizes[1]), len(sizes[2])))
    fits = [_fits(layout, shape, m, n, k) for layout in layouts]
    if not any(fit.any() for fit in fits):
        return [[] for _ in layouts]
    costs = gemm_costs(chip, memories, shape, m, n, k)
    tables = {order: [np.broadcast_to(v, whole.shape).ravel() for v in astuple(c)] for order, c in costs.items()}
    made: dict[tuple[Order, int], GemmTiling] = {}
    found: list[list[GemmTiling]] = []
    for fit in fits:
        picks = dict.fromkeys(
            (order, pick)
            for kind in (np.flatnonzero(fit & whole), np.flatnonzero(fit & ~whole))
            for order in ORDERS
            for pick in (_best(tables[order], kind, kept) if len(kind) else ())
        )
        for order, pick in picks:
            if (order, pick) not in made:
                places = np.unravel_index(pick, whole.shape)
                tall, wide, deep = (int(each[place]) for each, place in zip(sizes, places, strict=True))
                costed = (int(values[pick]) for values in tables[order])
                made[order, pick] = GemmTiling(tall, wide, deep, order, deep == shape.k, *costed)
        found.append(sorted((made[pick] for pick in picks), key=lambda tiling: tiling.cycles))
    return found


def gemm_tiling(
    chip: Chip, shape: GemmShape, memories: GemmMemories, sizes: tuple[int, int, int], order: Order, resident: bool
) -> GemmTiling:
    """A tiling of these sizes (m, n, k) with what it should take; that of an operand that stays where k is whole."""
    costs = gemm_costs(chip, memories, shape, *np.ix_(*(np.array([size], np.int64) for size in sizes)))[order]
    return GemmTiling(*sizes, order, resident, *(int(np.ravel(values)[0]) for values in astuple(costs)))


def _best(costs: Sequence[Int], among: Int, kept: int) -> list[int]:
    """The few fastest; before them, of those that are nearly the fastest the one that moves the fewest bytes."""
    reads, writes, *_, cycles = costs
    taken = cycles[among]
    near = among[taken <= SLACK * taken.min()]
    moved = reads[near] + writes[near]
    least = near[moved == moved.min()]
    few = among if len(among) <= kept else among[np.argpartition(taken, kept - 1)[:kept]]
    return [int(least[np.argmin(cycles[least])]), *map(int, few)]


def _trimmed(layouts: Sequence[Layout], shape: GemmShape, m: Int, n: Int, k: Int) -> tuple[Int, Int, Int]:
    """The sizes without those that fit no layout even with the least of the other two."""
    rooms = (max(getattr(layout, each.name) for layout in layouts) for each in fields(Layout))
    widest = Layout(*rooms)
    return (
        m[_fits(widest, shape, m, n[:1], k[:1])],
        n[_fits(widest, shape, m[:1], n, k[:1])],
        k[_fits(widest, shape, m[:1], n[:1], k)],
    )


def gemm_needs(shape: GemmShape, m: Int, n: Int, k: Int) -> dict[str, Int]:
    """Bytes that tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`."""
    bits, wide = shape.dtype.bits, shape.dtype.accumulator.bits // 8
    outputs = n // 2 if shape.output_halved else n
    needs = {
        "weights": -(-k * n * bits // 8),
        "moving": -(-m * k * bits // 8),
        "partial": m * n * wide,
        "results": -(-m * outputs * bits // 8),
        "constants": PARAMETER_BYTES * n,
    }
    return needs | ({"vector": needs["results"]} if shape.residual else {})


def _fits(layout: Layout, shape: GemmShape, m: Int, n: Int, k: Int) -> NDArray[np.bool_]:
    needs = gemm_needs(shape, m, n, k)
    fits: Any = True
    for ring, need in needs.items():
        room = getattr(layout, ring)
        if ring == "weights" and shape.weight:  # such a tile is one row of a transfer
            room = min(room, LONGEST_ROW)
        fits = fits & (need <= room)
    return np.asarray(fits, np.bool_)


def _sizes(total: int, grain: int) -> Int:
    """Candidate tile sizes along a dimension: powers of two and even divisions, in multiples of ``grain`` or of few.

    A smaller array must not have a candidate that a larger one lacks. Powers of two begin below any array, and of its
    sizes that cut the dimension into as many tiles, the finely rounded one needs the least room and the fewest folds.
    """
    sizes = {total}
    size = FINE // 2
    while size < total:
        sizes.add(size)
        size *= 2
    for parts in range(2, 17):
        even = -(-total // parts)
        sizes |= {min(total, -(-even // each) * each) for each in (min(FINE, grain), grain)}
    return np.array(sorted(sizes), np.int64)
