"""What tiles of a product compute and move, whatever the clock and however fast memory is: the work of every unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.description import Chip
from siliconloom.arch.layout import sums_room
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import QUEUE_POP
from siliconloom.mapper.chip.gemm_layout import GemmShape, gemm_layout_of
from siliconloom.mapper.chip.gemm_moves import (
    AllMoved,
    GemmMemories,
    Moved,
    Parts,
    PortCycles,
    operand_transfers,
    spread,
)
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.sim.timing.pace import first_load, matmul_pace
from siliconloom.sim.timing.units import vector_cycles

Int = NDArray[np.int64]


class GridPlaces:
    """Some places of a grid, by their numbers, and what values that are broadcast over the grid are there."""

    def __init__(self, grid: tuple[int, ...], some: Int) -> None:
        self.grid, self.some = grid, some
        self.axes = np.array(np.unravel_index(some, grid), np.int64)
        """Their numbers along each axis."""
        self._numbers: dict[tuple[int, ...], Int] = {grid: some}

    def of(self, values: Any) -> Any:
        """What values of the grid, or of some of its axes, are at these places; of a single one that one."""
        if not isinstance(values, np.ndarray) or values.size == 1:
            return values if not isinstance(values, np.ndarray) else values.ravel()
        numbers = self._numbers.get(values.shape)
        if numbers is None:
            every = np.arange(values.size).reshape(values.shape)
            numbers = self._numbers[values.shape] = np.broadcast_to(every, self.grid).ravel()[self.some]
        return values.ravel()[numbers]


class MovedTiles:
    """What moves tiles of a grid: all of them of an operand, one whole tile (``_one``), and the last results."""

    def __init__(self, work: TileWork) -> None:
        a, b, c = "abc"
        rows: dict[int, tuple[str, Moved | AllMoved]] = {
            A_TIME: (a, work.a),
            AGAIN_TIME: (a, work.again),
            A_ONE: (a, work.a_one),
            B_TIME: (b, work.b),
            P_TIME: (b, work.p),
            F_TIME: (b, work.f),
            B_ONE: (b, work.b_one),
            P_ONE: (b, work.p_one),
            C_TIME: (c, work.c),
            C_ONE: (c, work.c_one),
            LAST_STORE: (c, work.c_last),
        }
        self._operands = [rows[row][0] for row in range(TIME_ROWS)]
        self._port = PortCycles(rows[row][1] for row in range(TIME_ROWS))

    def cycles(self, chip: Chip, memories: GemmMemories, places: GridPlaces) -> Int:
        """For which they hold the memory port, a row of `A_TIME` and so on, a column for each place."""
        return self._port.at(chip, [getattr(memories, operand) for operand in self._operands], places.axes)


M, HELD, M_TILES, N_TILES, K_TILES, WHOLE_K, A_BYTES, AGAIN_BYTES, B_BYTES, C_BYTES, P_BYTES, STORES = range(12)
DRAINS, COMPUTE, VECTOR, SEQUENCER, FIRST, EPILOGUE, LAST_EPILOGUE, B_TILE, ALONE, WHOLE_ROWS = range(12, 22)
"""Rows of `TileColumns.whole`: fields of `TileWork`; with the rows that are held, and bytes of all that moves."""
PRODUCT, REST = range(2)
"""Rows of `TileColumns.real`."""
A_TIME, AGAIN_TIME, B_TIME, C_TIME, P_TIME, F_TIME, A_ONE, B_ONE, C_ONE, P_ONE, LAST_STORE, TIME_ROWS = range(12)
"""Rows of `MovedTiles.cycles`: all tiles of A, of what of it comes again for every tile of columns, of B, of results,
of parameters of columns and of functions; one tile of each; the last results."""


class TileColumns(NamedTuple):
    """What `TileWork` says of the tiles at some places of a grid, a column for each.

    ``out`` are cycles until sums leave the array, the same for all.
    """

    shape: GemmShape
    blocks: bool
    out: int
    whole: Int
    real: NDArray[np.float64]
    moved: MovedTiles
    places: GridPlaces


class TileWork(NamedTuple):
    """What tiles of sizes ``m`` x ``n`` x ``k`` compute and move, whatever the clock and however fast memory is.

    The sizes are broadcast: what depends on two of them is worked out for those two only. Cycles of array, vector unit
    and sequencer are of all products of one batch; transfers those of all tiles of an operand, of one whole tile
    (``_one``) and of the last results. ``rest`` is the last tile's product of a depth that is no multiple of theirs.
    """

    shape: GemmShape
    m: Int
    blocks: bool
    m_tiles: Int
    n_tiles: Int
    k_tiles: Int
    whole_k: Int
    a: AllMoved
    again: AllMoved
    """Of A what comes for every tile of columns, where a part of the depth of its rows stays."""
    b: AllMoved
    c: AllMoved
    p: AllMoved
    f: AllMoved
    a_one: Moved
    b_one: Moved
    c_one: Moved | AllMoved
    p_one: Moved
    c_last: Moved
    stores: Int
    drains: Int
    """Parts of a result tile's columns that pass the vector unit, and are stored, one after the other."""
    compute: Int
    vector: Int
    sequencer: Int
    product: Int
    rest: Int
    first: Int
    out: int
    epilogue: Int
    last_epilogue: Int
    b_tile: Int
    """Bytes of a tile of the second operand."""
    alone: Int
    """Where sums of one tile leave those of another no room."""
    passing: Int
    """Columns of a result tile that pass the vector unit at a time, and 0 where all of them do."""

    def at(self, places: GridPlaces, held: Int | None = None) -> TileColumns:
        """The same of the tiles at some places of the grid of sizes, of which so many rows are ``held``, if any."""
        real = np.empty((2, len(places.some)))
        rows = {
            M: self.m,
            HELD: self.m if held is None else held,
            M_TILES: self.m_tiles,
            N_TILES: self.n_tiles,
            K_TILES: self.k_tiles,
            WHOLE_K: self.whole_k,
            A_BYTES: self.a.bytes,
            AGAIN_BYTES: self.again.bytes,
            B_BYTES: self.b.bytes,
            C_BYTES: self.c.bytes,
            P_BYTES: self.p.bytes + self.f.bytes,
            STORES: self.stores,
            DRAINS: self.drains,
            COMPUTE: self.compute,
            VECTOR: self.vector,
            SEQUENCER: self.sequencer,
            FIRST: self.first,
            EPILOGUE: self.epilogue,
            LAST_EPILOGUE: self.last_epilogue,
            B_TILE: self.b_tile,
            ALONE: self.alone,
        }
        whole = spread([rows[row] for row in range(WHOLE_ROWS)], places.axes)
        real[PRODUCT], real[REST] = places.of(self.product), places.of(self.rest)
        return TileColumns(self.shape, self.blocks, self.out, whole, real, MovedTiles(self), places)


def tile_work(
    chip: Chip, memories: GemmMemories, shape: GemmShape, sizes: tuple[Int, Int, Int], held: Int | None = None
) -> TileWork:
    """Of tiles of these sizes; of the memories it matters what an access moves, and how addresses are striped.

    Of the depth of rows that stay so much is ``held``.
    """
    m, n, k = sizes
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    array = oriented(tile).array
    layout = gemm_layout_of(tile, shape)
    columns = np.maximum(n // shape.halves, 1)
    m_parts, n_parts, k_parts = _parts(shape.m, m), _parts(shape.n, n), _parts(shape.k, k)
    m_tiles, n_tiles, k_tiles = (-(-total // size) for total, size in ((shape.m, m), (shape.n, n), (shape.k, k)))
    a, b, c, p, extra = operand_transfers(chip, memories, shape, layout, (m, n, k), (m_tiles, n_tiles, k_tiles))
    passing, one = layout.passing(m, columns), np.ones_like(n)
    c_parts, drains = _passed(shape.stored_n, columns, passing), -(-columns // passing)
    compute, vector = _work(tile, array, shape, m_parts, n_parts, k_parts), _passes(tile, shape, m_parts, c_parts)
    results = m_tiles * n_tiles
    product = compute / (results * k_tiles)
    last_m = np.where(m_parts[1][0] > 0, m_parts[1][0], m)
    last_c = np.where(shape.stored_n % columns > 0, shape.stored_n % columns, columns)
    last_c = np.where(last_c % passing > 0, last_c % passing, np.minimum(passing, last_c))
    tile_parts = [(passing, columns // passing), (columns % passing, (columns % passing > 0).astype(np.int64))]
    sums = SLOTS * shape.halves * layout.sums(m, columns)
    return TileWork(
        shape,
        m,
        layout.blocks,
        m_tiles,
        n_tiles,
        k_tiles,
        k_tiles == 1,
        a.total(m_parts, k_parts),
        AllMoved([]) if held is None else a.total(m_parts, [(k, k_parts[0][1] - held // k), k_parts[1]]),
        b.total(k_parts, n_parts),
        c.total(m_parts, c_parts),
        p.total([(one, one)], _parts(shape.stored_n, columns)),
        extra.total([(one, n_tiles)], [(np.full_like(n, layout.function_bytes), one)]),
        a.one(m, k),
        b.one(k, n),
        c.total([(m, np.ones_like(m))], tile_parts) if np.any(drains > 1) else c.one(m, columns),
        p.one(one, columns),
        c.one(last_m, last_c),
        drains * c.instructions(m, passing),
        drains,
        compute,
        vector,
        results * _issued(tile, shape, k_tiles, 1 + layout.apart(columns), drains),
        product,
        np.where(shape.k % k > 0, product * k_tiles * (shape.k % k) / shape.k, product),
        first_load(array, k, shape.packing),
        array.output_latency + array.accumulator_write,
        sum(many * _epilogue(shape, tile, m, wide) for wide, many in tile_parts) + QUEUE_POP,
        _epilogue(shape, tile, last_m, last_c) + QUEUE_POP,
        np.asarray(layout.b_tile(n, k)),
        np.asarray(sums > sums_room(tile)),
        np.where(drains > 1, passing, 0),
    )


def _work(tile: NpuTile, array: SystolicArray, shape: GemmShape, m_parts: Parts, n_parts: Parts, k_parts: Parts) -> Int:
    """Cycles of the array for all tiles, whole ones and rests."""
    compute: Int = np.zeros((1, 1, 1), np.int64)
    m_some, n_some, k_some = ([part for part in parts if part[1].any()] for parts in (m_parts, n_parts, k_parts))
    for tall, m_count in m_some:
        for wide, n_count in n_some:
            for deep, k_count in k_some:
                pace = matmul_pace(array, tall, shape.whole_n(array, wide), np.maximum(deep, 1), shape.packing)
                compute = compute + m_count * n_count * k_count * pace
    return compute


def _passes(tile: NpuTile, shape: GemmShape, m_parts: Parts, c_parts: Parts) -> Int:
    """Cycles of the vector unit for all result tiles, whose columns pass in such parts."""
    vector: Int = np.zeros((1, 1, 1), np.int64)
    m_some, c_some = ([part for part in parts if part[1].any()] for parts in (m_parts, c_parts))
    for tall, m_count in m_some:
        for wide, c_count in c_some:
            vector = vector + m_count * c_count * _epilogue(shape, tile, tall, wide)
    return vector


def _passed(total: int, columns: Int, passing: Int) -> Parts:
    """Of all tiles of so many columns the parts that pass at a time, and the rests of whole tiles and of the last."""
    full, over = total // columns, total % columns
    rest, last = columns % passing, over % passing
    whole = full * (columns // passing) + over // passing
    return [(passing, whole), (rest, full * (rest > 0)), (last, (last > 0).astype(np.int64))]


def _issued(tile: NpuTile, shape: GemmShape, k_tiles: Int, products: Int, drains: Int) -> Int:
    """Cycles of the sequencer for a result tile, of so many products for each tile along the depth.

    Its columns pass in so many parts.
    """
    issue, loop, whole = tile.sequencer.issue_cycles, tile.sequencer.loop_cycles, k_tiles == 1
    loads = 2 - whole.astype(np.int64)
    for_tiles = k_tiles * ((products + loads) * issue + np.where(whole, 0, loop))
    passed = drains * (len(shape.passes) + 1 + shape.residual) * issue + np.where(drains > 1, drains * loop, 0)
    return np.asarray(for_tiles + passed + loop, np.int64)


def _epilogue(shape: GemmShape, tile: NpuTile, m: Int, columns: Int) -> Int:
    """Vector cycles of a result tile of ``m`` rows and so many columns."""
    total = np.zeros((1, 1, 1), np.int64)
    for each in shape.passes:
        total = total + vector_cycles(tile.vector, each.function, m, columns, dtype=tile.parameter_format)
    return total


def _parts(total: int, size: Int) -> Parts:
    """Size and number of the full tiles along a dimension, and of the rest."""
    full, rest = total // size, total % size
    return [(size, full), (rest, (rest > 0).astype(np.int64))]


__all__ = ["GridPlaces", "MovedTiles", "TileColumns", "TileWork", "tile_work"]
