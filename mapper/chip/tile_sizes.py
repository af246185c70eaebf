"""Sizes of tiles that are tried along the dimensions of a product, and which a tile may have."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.layout import is_power, next_power, sums_room
from siliconloom.arch.packing import may_be_narrow
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.gemm_layout import GemmShape, gemm_layout_of
from siliconloom.mapper.chip.layout import LARGE
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.transfers import lowest

FINE = 8
"""Even divisions are also rounded up to multiples of this."""

PARTED = 16
"""Tiles of a part of the array are looked at where both slots of a whole one take more than this part of buffers."""

FOLDS = 2
"""Of a depth of so many folds or fewer the first half of one is tried: it is there sooner."""

HALVES = 4
"""Sizes of so many grains and less may be whole ones and a half, as whole ones are of an array of half the size."""

Int = NDArray[np.int64]


def grains(tile: NpuTile, shape: GemmShape) -> tuple[int, int, int]:
    """What tiles of m, n and k are multiples of, where they are not the whole dimension: panels and folds are whole.

    So are groups of packed weights, and turns of a pattern of zeros; folds are whole of what an array does not skip.

    Those of n are of results' columns, where a gated activation halves them.
    """
    array = oriented(tile).array
    if array.dataflow == "output_stationary":
        return shape.block or array.rows, array.cols, 1
    group = shape.packing.group if shape.packing and shape.packing.group else 1
    if shape.packing is not None and (sparse := shape.packing.sparsity) is not None:
        turn, most = sparse.of * sparse.block, sparse.kept * sparse.block
        skips = array.sparsity is not None and array.sparsity.skips
        return 1, array.cols, turn * array.rows // gcd(array.rows, most) if skips else lcm(array.rows, turn)
    return 1, array.cols, lcm(array.rows, group)


def is_part(tile: NpuTile, shape: GemmShape, key: str, size: int) -> bool:
    """Whether a tile may use so much of a grain of m, n or k only: half of it, a quarter and so on; or halves of it.

    Those of n are of results' columns, as `grains` are. Of columns where their panels may be narrow; of depth whole
    beats, and groups of packed weights.
    """
    array, grain = oriented(tile).array, dict(zip("mnk", grains(tile, shape), strict=True))[key]
    if size > grain and grain % 2 == 0 and size % (grain // 2) == 0:
        size = grain // 2
    if grain % size or not is_power(grain // size):
        return False
    if key == "k" and shape.packing is not None and shape.packing.sparsity is not None:
        return False
    if key == "n":
        return shape.packed and may_be_narrow(array, shape.packing) and is_power(grain)
    return key == "m" or size % max(array.load_rows, shape.packing.group if shape.packing else 1) == 0


@lru_cache(maxsize=1 << 12)
def candidates(tile: NpuTile, shape: GemmShape, *, parts: bool = True, halves: bool = True) -> tuple[Int, Int, Int]:
    """Sizes of tiles to try along m, n and k; with ``parts`` also those that use a part of the array only.

    Without ``halves`` of folds where few of these are the whole depth: they save time, not room, and take more
    instructions.
    """
    m, n, k = grains(tile, shape)
    bus, layout, bits = tile.dma.bytes_per_cycle, gemm_layout_of(tile, shape), shape.dtype.bits
    beat = max(bus * 8 // bits, 1)
    rows = max(1, *(bus // lowest(row) for row in (layout.a_row, layout.c_row)))
    columns = _sizes(shape.stored_n, n, beat)
    low, slim, shallow = _partial(tile, shape, (m, n, k), halves=halves) if parts else ([], [], [])
    tall = with_sizes(_sizes(shape.m, m, rows), _between(low, m, shape.m))
    return (
        tall[tall <= shape.most_m],
        shape.halves * with_sizes(columns, _between(slim, n, shape.stored_n)),
        with_sizes(_sizes(shape.k, k, beat), _between(shallow, k, shape.k)),
    )


def _between(parts: list[int], grain: int, total: int) -> list[int]:
    """Parts of a grain, and where half of it is one of them the first sizes that are whole ones and a half."""
    if 2 * max(parts, default=0) != grain:
        return parts
    return [*parts, *(size for size in range(grain + grain // 2, HALVES * grain, grain) if size < total)]


def with_sizes(sizes: Int, others: list[int]) -> Int:
    return np.array(sorted({*sizes.tolist(), *others}), np.int64) if others else sizes


def _partial(
    tile: NpuTile, shape: GemmShape, whole: tuple[int, int, int], *, halves: bool
) -> tuple[list[int], list[int], list[int]]:
    """Rows, columns, and depths of tiles that use a part of the array: half of its lines, a quarter and so on.

    They are looked at where a tile for ``whole`` lines takes a good part of the buffers: a larger array would leave
    less room for all else otherwise, while half of it is as good as the smaller one. So is half of a fold where few of
    them are the whole depth. Panels that have no halves of a power of two stay whole.
    """
    layout, (m, n, k) = gemm_layout_of(tile, shape), whole
    low, shallow = set[int](), set[int]()
    columns, beat = n, oriented(tile).array.load_rows
    if layout.blocks:
        low |= set(_low(tile, shape, m))
    beat = 2 * max(beat, shape.packing.group if shape.packing else 1)
    if shape.packing is not None and shape.packing.sparsity is not None:
        beat = 2 * k  # turns of a pattern stay whole
    slim = _slim(tile, shape, n)
    if halves and shape.k <= FOLDS * k and k % beat == 0 and k // 2 < shape.k:
        shallow.add(k // 2)
    while True:
        needs = layout.needs(m, shape.halves * columns, k)
        largest = max(int(need) for ring, need in needs.items() if ring not in ("partial", "constants"))
        if SLOTS * PARTED * largest <= tile.scratchpad.capacity or (
            m % 2 and k % beat and columns == min(slim, default=columns)
        ):
            return sorted(low), slim, sorted(shallow)
        if m % 2 == 0:
            m //= 2
            low |= {m} if m < shape.m else set()
        columns = max((size for size in slim if size < columns), default=columns)
        if k % beat == 0:
            k //= 2
            shallow |= {k} if k < shape.k else set()


def _slim(tile: NpuTile, shape: GemmShape, panel: int) -> list[int]:
    """Parts of a panel's columns, down to those of which tiles of the whole depth take little of the buffers.

    Of few panels one is a good part of the product: half of it is a tile to look at then, too. Where sums of as many
    rows as the array has do not fit, half of a panel leaves room for twice the rows, and a quarter for four times.
    """
    layout, found, columns = gemm_layout_of(tile, shape), list[int](), panel
    if not shape.packed or not layout.narrow or not is_power(panel):
        return found
    rows, room = min(tile.array.rows, shape.m), sums_room(tile)
    few = min(panel, next_power(shape.stored_n)) // 2 if shape.stored_n <= HALVES * panel else columns
    while columns > 1 and (
        columns > few
        or SLOTS * shape.halves * layout.sums(rows, columns) >= room
        or SLOTS * LARGE * layout.b_tile(shape.halves * columns, shape.k) > tile.scratchpad.capacity
    ):
        columns //= 2
        found += [columns] if columns < shape.stored_n else []
    return found


def _low(tile: NpuTile, shape: GemmShape, block: int) -> list[int]:
    """Parts of a block's rows, as `_slim` of a panel's columns.

    They are looked at where a block of the whole depth takes much of the scratchpad, or the accumulator has no room for
    all columns' sums of one.
    """
    layout, found, rows, room = gemm_layout_of(tile, shape), list[int](), block, sums_room(tile)
    while rows % 2 == 0 and (
        SLOTS * shape.halves * layout.sums(rows, shape.stored_n) >= room
        or SLOTS * LARGE * layout.needs(rows, shape.halves, shape.k)["moving"] > tile.scratchpad.capacity
    ):
        rows //= 2
        found += [rows] if rows < shape.m else []
    return found


def _sizes(total: int, grain: int, beat: int) -> Int:
    """Candidate tile sizes along a dimension: powers of two and even divisions, in multiples of ``grain``.

    Those that are also multiples of ``beat`` begin where a long row of a transfer may; where grains are no powers of
    two these are few, and those of half a beat are tried, too, as a bus of half the width has them.
    """
    sizes = {total}
    beats = {lcm(grain, beat)} | (set() if is_power(grain) else {lcm(grain, max(beat // 2, 1))})
    for size in {grain, *beats}:
        while size < total:
            sizes.add(size)
            size *= 2
    for parts in range(2, 17):
        even = -(-total // parts)
        sizes |= {min(total, -(-even // each) * each) for each in (grain, lcm(grain, FINE), *beats)}
    return np.array(sorted(sizes), np.int64)


__all__ = ["FINE", "candidates", "grains", "is_part", "with_sizes"]
