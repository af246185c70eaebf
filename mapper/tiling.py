"""Choice of a GEMM's tiles: every candidate is costed, the cheapest that fits the buffers is taken.

The cost of a candidate is the largest of what each unit needs when double buffering hides the rest (array, memory
port, vector unit, sequencer, and the turn-around of each double buffer), plus the first operand tile, the pipeline's
fill and the last result tile, which nothing hides. Among candidates of nearly equal time the one that moves the
fewest bytes wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, Memory, NpuTile, SystolicArray
from siliconloom.mapper.builder import SLOTS
from siliconloom.mapper.layout import Layout

SLACK = 1.01
"""Among tilings within one per cent of the fastest, the one that moves the fewest bytes is taken."""

Order = Literal["n_outer", "m_outer"]
Int = NDArray[np.int64]


@dataclass(frozen=True)
class GemmShape:
    """What one tile of the chip computes: ``batch`` products C[m,n] = A[m,k] B[k,n] and their epilogue.

    ``output_share`` is results stored per result computed (one half after a gated activation); ``vector_passes`` the
    vector unit's passes over each result, ``residual`` whether a tile of equal shape is added from memory.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: DataType
    weight: bool
    bias: bool
    output_halved: bool
    vector_passes: int
    residual: bool


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


@dataclass(frozen=True)
class GemmMemories:
    """Memory levels of the moving operand A, of B, and of results and residual.

    With ``whole_transfers`` a transfer counts as long as its level takes for it, rounding and idle ports included;
    without, rows that adjoin count their bytes, which is the same where rows are long against the level's accesses.
    """

    a: Memory
    b: Memory
    c: Memory
    whole_transfers: bool = True


def choose_tilings(
    chip: Chip, layouts: Sequence[Layout], shape: GemmShape, memories: GemmMemories | None = None
) -> list[GemmTiling | None]:
    """For each layout the cheapest tiling that fits it, or ``None``; candidates are costed once for all of them.

    Operands and results lie in the nearest memory level unless ``memories`` says otherwise.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if memories is None:
        memories = GemmMemories(chip.nearest, chip.nearest, chip.nearest, whole_transfers=chip.nearest.channels > 1)
    array = tile.array
    m, n, k = (
        grid.ravel()
        for grid in np.meshgrid(
            _sizes(shape.m, 1),
            _sizes(shape.n, 2 * array.cols if shape.output_halved else array.cols),
            _sizes(shape.k, array.rows),
            indexing="ij",
        )
    )
    fits = np.array([_fits(layout, shape, m, n, k) for layout in layouts])
    some = fits.any(axis=0)
    if not some.any():
        return [None] * len(layouts)
    m, n, k, fits = m[some], n[some], k[some], fits[:, some]
    orders: tuple[Order, ...] = ("n_outer", "m_outer")
    costs = [_cost(chip, tile, memories, shape, m, n, k, order) for order in orders]
    found: list[GemmTiling | None] = []
    for fit in fits:
        if not fit.any():
            found.append(None)
            continue
        limit = SLACK * min(int(cost.cycles[fit].min()) for cost in costs)
        picks = []
        for order, cost in zip(orders, costs, strict=True):
            moved = np.where(fit & (cost.cycles <= limit), cost.reads + cost.writes, np.iinfo(np.int64).max)
            pick = int(np.lexsort((cost.cycles, moved))[0])
            picks.append((int(moved[pick]), int(cost.cycles[pick]), order, cost, pick))
        _, _, order, cost, pick = min(picks, key=lambda p: p[:2])
        found.append(
            GemmTiling(
                int(m[pick]),
                int(n[pick]),
                int(k[pick]),
                order,
                bool(k[pick] == shape.k),
                int(cost.reads[pick]),
                int(cost.writes[pick]),
                int(cost.array[pick]),
                int(cost.port[pick]),
                int(cost.vector[pick]),
                int(cost.cycles[pick]),
            )
        )
    return found


def _fits(layout: Layout, shape: GemmShape, m: Int, n: Int, k: Int) -> NDArray[np.bool_]:
    bits, wide = shape.dtype.bits, shape.dtype.accumulator.bits // 8
    outputs = n // 2 if shape.output_halved else n
    fits = (
        (-(-k * n * bits // 8) <= layout.weights)
        & (-(-m * k * bits // 8) <= layout.moving)
        & (m * n * wide <= layout.partial)
        & (-(-m * outputs * bits // 8) <= layout.results)
    )
    if shape.residual:
        fits &= -(-m * outputs * bits // 8) <= layout.vector
    if shape.bias:
        fits &= 4 * n <= layout.constants
    return fits


@dataclass(frozen=True)
class _Costs:
    reads: Int
    writes: Int
    array: Int
    port: Int
    vector: Int
    cycles: Int


def _cost(
    chip: Chip, tile: NpuTile, memories: GemmMemories, shape: GemmShape, m: Int, n: Int, k: Int, order: Order
) -> _Costs:
    bits, a, b, c = shape.dtype.bits, memories.a, memories.b, memories.c
    rates = [
        min(memory.total_bandwidth / chip.clock / chip.tile_count, tile.dma.bytes_per_cycle) for memory in (a, b, c)
    ]
    rate = rates[0]
    b_slow, c_slow = rate / rates[1], rate / rates[2]  # how much longer a byte takes than one of A; 1 in one level
    m_tiles, n_tiles, k_tiles = (-(-total // size) for total, size in ((shape.m, m), (shape.n, n), (shape.k, k)))
    whole_k = k_tiles == 1
    a_bytes = _row_bytes(shape.m, shape.k, k, k_tiles, bits, a.access_bytes)
    if shape.weight:
        b_bytes = np.full_like(m, -(-shape.k * shape.n * bits // 8))
    else:
        b_bytes = _row_bytes(shape.k, shape.n, n, n_tiles, bits, b.access_bytes)
    a_times = n_tiles if order == "n_outer" else np.where(whole_k, 1, n_tiles)
    b_times = np.where(whole_k, 1, m_tiles) if order == "n_outer" else m_tiles
    stored = shape.n // 2 if shape.output_halved else shape.n
    columns = np.maximum(n // 2, 1) if shape.output_halved else n
    c_bytes = _row_bytes(shape.m, stored, columns, n_tiles, bits, c.access_bytes)
    bias = 4 * shape.n * shape.bias * (m_tiles if order == "m_outer" else np.ones_like(m))
    reads: Int = (a_bytes * a_times + b_bytes * b_times + bias + c_bytes * shape.residual) * shape.batch
    writes = c_bytes * shape.batch
    a_held, b_held, c_held = a_bytes, b_bytes, c_bytes
    if memories.whole_transfers:
        a_held, c_held = _held(a, shape.m, shape.k, m, k, bits), _held(c, shape.m, stored, m, columns, bits)
        b_held = _held_tiles(b, shape, n, k, bits) if shape.weight else _held(b, shape.k, shape.n, k, n, bits)
    held = a_held * a_times + (b_held * b_times + bias) * b_slow + c_held * (1 + shape.residual) * c_slow
    port = shape.batch * held / rate
    compute = shape.batch * _array_cycles(tile.array, shape, m, n, k)
    slots = shape.vector_passes * -(-m * n // tile.vector.lanes) + tile.vector.latency
    vector = shape.batch * m_tiles * n_tiles * slots
    results = shape.batch * m_tiles * n_tiles
    products = results * k_tiles
    sequencer = products * (3 * tile.sequencer.issue_cycles + tile.sequencer.loop_cycles)
    latency, store_latency = chip.cycles(max(a.latency, b.latency)), chip.cycles(c.latency)
    array = tile.array
    fill = array.rows // array.load_rows + array.rows + array.cols + array.multiply_stages
    # A slot of a double buffer is busy from the start of its load until the product that reads it is done, so each
    # pair of products takes at least that long; the same holds for result tiles between array, vector unit and store.
    both = m * k + k * n * b_slow
    inner = np.where(whole_k, m * k if order == "n_outer" else k * n * b_slow, both) * bits / 8 / rate
    product = compute / products
    operand_turn = products * (latency + inner + product + fill) / SLOTS
    partial_turn = results * (product * k_tiles + fill + slots) / SLOTS
    stored_tile = m * np.maximum(n // (1 + shape.output_halved), 1) * c_slow * bits / 8 / rate
    result_turn = results * (slots + stored_tile) / SLOTS
    paced = np.maximum.reduce([compute, port, vector, sequencer, operand_turn, partial_turn, result_turn])
    first = both * bits / 8 / rate + latency
    last = slots + stored_tile + store_latency
    cycles = paced + first + fill + last
    return _Costs(reads, writes, compute, port.astype(np.int64), vector, np.ceil(cycles).astype(np.int64))


def _array_cycles(array: SystolicArray, shape: GemmShape, m: Int, n: Int, k: Int) -> Int:
    """Cycles for which the array is paced by its beats or its stationary loads, all tiles, exact."""
    total = np.zeros_like(m)
    for m_size, m_count in _parts(shape.m, m):
        for n_size, n_count in _parts(shape.n, n):
            for k_size, k_count in _parts(shape.k, k):
                total += m_count * n_count * k_count * _paced(array, m_size, n_size, k_size)
    return total


def _parts(total: int, size: Int) -> list[tuple[Int, Int]]:
    full, rest = total // size, total % size
    return [(size, full), (rest, (rest > 0).astype(np.int64))]


def _paced(array: SystolicArray, m: Int, n: Int, k: Int) -> Int:
    rows, cols = array.rows, array.cols
    if array.dataflow == "output_stationary":
        return -(-m // rows) * -(-n // cols) * np.maximum(k, rows)
    outer, beats = (n, m) if array.dataflow == "weight_stationary" else (m, n)
    full, rest = k // rows, k % rows
    tail = np.where(rest > 0, np.maximum(-(-rest // array.load_rows), beats), 0)
    return -(-outer // cols) * (full * np.maximum(rows // array.load_rows, beats) + tail)


def _row_bytes(rows: int, width: int, tile_width: Int, tiles: Int, bits: int, grain: int) -> Int:
    """Bytes moved for a matrix read in column tiles: partial rows round up to the memory's access size."""
    whole = -(-rows * width * bits // 8)
    piece = -(-tile_width * bits // (8 * grain)) * grain
    rest = -(-(width - (tiles - 1) * tile_width) * bits // (8 * grain)) * grain
    pieces = rows * ((tiles - 1) * piece + rest)
    return np.where(tiles == 1, whole, pieces).astype(np.int64)


def _held(memory: Memory, rows: int, width: int, row_tile: Int, col_tile: Int, bits: int) -> Int:
    """What `striped_bytes` says of all transfers of a matrix in tiles; rows as wide as the matrix adjoin."""
    total = np.zeros_like(row_tile)
    for tall, many in _parts(rows, row_tile):
        for wide, count in _parts(width, col_tile):
            joined = _striped(memory, -(-tall * wide * bits // 8))
            total += many * count * np.where(wide == width, joined, tall * _striped(memory, -(-wide * bits // 8)))
    return total


def _held_tiles(memory: Memory, shape: GemmShape, n: Int, k: Int, bits: int) -> Int:
    """The same for parameters, which lie tile by tile."""
    total = np.zeros_like(n)
    for wide, many in _parts(shape.n, n):
        for deep, count in _parts(shape.k, k):
            total += many * count * _striped(memory, -(-wide * deep * bits // 8))
    return total


def _striped(memory: Memory, size: Int) -> Int:
    """`striped_bytes` of one row, for arrays."""
    moved = -(-size // memory.access_bytes) * memory.access_bytes
    if memory.channels == 1:
        return moved
    rounds, rest = moved // (memory.channels * memory.stripe), moved % (memory.channels * memory.stripe)
    return memory.channels * (rounds * memory.stripe + np.minimum(rest, memory.stripe))


def _sizes(total: int, grain: int) -> Int:
    """Candidate tile sizes along a dimension: powers of two and even divisions, in multiples of ``grain``."""
    sizes = {total}
    size = grain
    while size < total:
        sizes.add(size)
        size *= 2
    for parts in range(2, 17):
        even = -(-total // parts)
        sizes.add(min(total, -(-even // grain) * grain))
    return np.array(sorted(sizes), np.int64)
