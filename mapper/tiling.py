"""Choice of a GEMM's tiles: every candidate is costed, the cheapest that fits the buffers is taken.

The cost is that of `mapper.gemm_cost`; among candidates of nearly equal time the one that moves the fewest bytes wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.mapper.builder import LONGEST_ROW
from siliconloom.mapper.gemm_cost import PARAMETER_BYTES, GemmCosts, GemmMemories, GemmShape, Order, gemm_costs
from siliconloom.mapper.layout import Layout

SLACK = 1.005
"""Among tilings within half a per cent of the fastest, the one that moves the fewest bytes is taken."""

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
    chip: Chip, layouts: Sequence[Layout], shape: GemmShape, memories: GemmMemories | None = None
) -> list[list[GemmTiling]]:
    """For each layout the cheapest tilings that fit it, the best first; candidates are costed once for all of them.

    One of each kind: either order of the outer loops, with and without an operand that stays.
    Operands and results lie in the nearest memory level unless ``memories`` says otherwise.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if memories is None:
        memories = GemmMemories(chip.nearest, chip.nearest, chip.nearest)
    array = tile.array
    m, n, k = (
        grid.ravel()
        for grid in np.meshgrid(
            _sizes(shape.m, 1),
            2 * _sizes(shape.n // 2, array.cols) if shape.output_halved else _sizes(shape.n, array.cols),
            _sizes(shape.k, array.rows),
            indexing="ij",
        )
    )
    fits = np.array([_fits(layout, shape, m, n, k) for layout in layouts])
    some = fits.any(axis=0)
    if not some.any():
        return [[] for _ in layouts]
    m, n, k, fits = m[some], n[some], k[some], fits[:, some]
    orders: tuple[Order, ...] = ("n_outer", "m_outer")
    costs = [gemm_costs(chip, memories, shape, m, n, k, order) for order in orders]
    found: list[list[GemmTiling]] = []
    whole = k == shape.k
    for fit in fits:
        found.append([])
        for order, cost in zip(orders, costs, strict=True):
            for kind in (fit & whole, fit & ~whole):
                if kind.any():
                    found[-1].append(_best(cost, kind, m, n, k, order, shape.k))
        found[-1].sort(key=lambda tiling: tiling.cycles)
    return found


def _best(cost: GemmCosts, among: NDArray[np.bool_], m: Int, n: Int, k: Int, order: Order, total: int) -> GemmTiling:
    """Of those that are nearly the fastest, the one that moves the fewest bytes."""
    near = np.flatnonzero(among & (cost.cycles <= SLACK * cost.cycles[among].min()))
    moved = cost.reads[near] + cost.writes[near]
    least = near[moved == moved.min()]
    pick = int(least[np.argmin(cost.cycles[least])])
    values = (v[pick] for v in (cost.reads, cost.writes, cost.array, cost.port, cost.vector, cost.cycles))
    return GemmTiling(int(m[pick]), int(n[pick]), int(k[pick]), order, bool(k[pick] == total), *map(int, values))


def _fits(layout: Layout, shape: GemmShape, m: Int, n: Int, k: Int) -> NDArray[np.bool_]:
    bits, wide = shape.dtype.bits, shape.dtype.accumulator.bits // 8
    outputs = n // 2 if shape.output_halved else n
    fits = (
        (-(-k * n * bits // 8) <= layout.weights)
        & (-(-m * k * bits // 8) <= layout.moving)
        & (m * n * wide <= layout.partial)
        & (-(-m * outputs * bits // 8) <= layout.results)
        & (PARAMETER_BYTES * n <= layout.constants)
    )
    if shape.weight:  # such a tile is one row of a transfer
        fits &= -(-k * n * bits // 8) <= LONGEST_ROW
    if shape.residual:
        fits &= -(-m * outputs * bits // 8) <= layout.vector
    return fits


def _sizes(total: int, grain: int) -> Int:
    """Candidate tile sizes along a dimension: powers of two and even divisions, in multiples of ``grain``.

    Half and a quarter of ``grain``, too: a small tile may suit the other units, and a smaller array would take it.
    """
    sizes = {total}
    size = max(grain // 4, 1)
    while size < total:
        sizes.add(size)
        size *= 2
    for parts in range(2, 17):
        even = -(-total // parts)
        sizes.add(min(total, -(-even // grain) * grain))
    return np.array(sorted(sizes), np.int64)
