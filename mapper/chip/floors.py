"""Cycles and bytes that one operator cannot do without, whatever the tiling: folds, passes, traffic of finite buffers.

Cycles are those of one tile that works alone; an operator's are shared evenly by a chip's tiles at best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.packing import header_lines, worked_rows
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import ROW_LIMIT, VectorFunction
from siliconloom.workloads import Attention, Gemm, Operator, Vector

SOFTMAXES = (VectorFunction.SOFTMAX, VectorFunction.SOFTMAX_ONLINE, VectorFunction.SOFTMAX_MERGED)
"""Functions of which attention makes one on every score."""
GRID = 1.02
"""Panel sizes that are looked at lie this far apart at most; between two of them the better end of each term counts."""


def array_floor(array: SystolicArray, operator: Operator) -> int:
    """Cycles of the array: beats of whole folds, or the loads of their stationary operand if those take longer.

    A beat goes past one fold of at most R x C stationary values, and an output tile is at most R x C sums, however the
    dimensions are cut; loads bring p rows a cycle, each fold at least once.
    """
    rows, cols = array.rows, array.cols
    if isinstance(operator, Gemm):
        return operator.batch * _product_floor(array, operator)
    if isinstance(operator, Attention) and operator.banked:
        return 0
    if type(operator) is not Attention:
        return -(-operator.macs // array.products)
    # Under a mask queries see different numbers of keys, so only the sum over all (query, key) pairs is rounded.
    pairs, deep, wide = operator.batch * operator.heads * operator.pairs, operator.head_dim, operator.v_head_dim
    if array.dataflow == "weight_stationary":
        keys, heads = operator.kv_read, operator.batch * operator.kv_heads
        beats = -(-pairs * -(-deep // rows) // cols) + -(-pairs * -(-wide // cols) // rows)
        loads = -(-keys // cols) * -(-deep // array.load_rows) + -(-wide // cols) * -(-keys // array.load_rows)
        return max(beats, heads * loads)
    return pairs * max(deep, rows) // (rows * cols) + pairs * -(-wide // cols) // rows


def _product_floor(array: SystolicArray, operator: Gemm) -> int:
    m, n, k, rows, cols = operator.m, operator.n, operator.k, array.rows, array.cols
    if array.dataflow == "output_stationary":
        return -(-m // rows) * -(-n // cols) * max(-(-k // array.depth), rows)
    outer, beats = (n, m) if array.dataflow == "weight_stationary" else (m, n)
    k = int(worked_rows(array, k, operator.stored_as))
    loads = -(-k // array.load_rows)
    if operator.packing is not None and operator.packing.group:
        loads += -(-k // operator.packing.group) * header_lines(array, operator.packing.dtype)
    beats *= -(-k // rows)
    return -(-outer // cols) * (beats + loads if array.load_port == "shared" else max(beats, loads))


def vector_floor(tile: NpuTile, operator: Operator, fused: Sequence[Vector] = ()) -> int:
    """Cycles of the vector unit for an operator and what is computed on its results before they leave the tile.

    Sums reach the scratchpad through the vector unit only, so every product makes one pass over its results at least.
    """
    slot = tile.vector.slot
    if isinstance(operator, Vector):
        return _function_floor(tile, operator)
    if isinstance(operator, Attention):
        results = 0 if operator.banked else operator.batch * operator.heads * operator.q_len * operator.v_head_dim
        passes = min(tile.vector.cost_of(function).passes for function in SOFTMAXES)
        return -(-(passes * operator.vector_elements + results) // slot)
    if not isinstance(operator, Gemm):
        return 0
    own = 0 if fused else -(-operator.batch * operator.m * operator.n // slot)
    return own + sum(_function_floor(tile, v) for v in fused)


def _function_floor(tile: NpuTile, operator: Vector) -> int:
    if operator.banked:
        return 0
    cost, lanes = tile.vector.cost_of(operator.function, tile.parameter_format), tile.vector.lanes
    if not cost.by_row:
        each = cost.slot_cycles(lanes, operator.counted)
        if cost.serial and tile.vector.together > 1:  # as few as where no rows are left over
            slots = -(-operator.rows * operator.cols * (tile.vector.together + lanes) // tile.vector.together)
            return -(-operator.passes * slots // lanes)
        slots = operator.passes * each * operator.rows * operator.cols
        return -(-slots // (lanes if cost.recurs else tile.vector.slot))
    row = operator.precision.size(operator.cols)
    held = min(ROW_LIMIT, max(tile.scratchpad.capacity // (row * (operator.inputs + operator.outputs)), 1))
    passes = cost.passes + cost.rounds(operator.cols, operator.counted)
    groups, blocks = -(-operator.rows // tile.vector.sublanes), -(-operator.cols // lanes)
    return operator.passes * (
        blocks * (passes * groups + cost.setup * -(-operator.rows // held)) + cost.row_cycles * groups
    )


def read_floor(tile: NpuTile, operator: Gemm) -> int:
    """Bytes of A and B that one execution reads, of however many tiles.

    No tile reads what another one holds, so that one tile that does the parts of all, one after the other, reads as
    much as they do together: its scratchpad and its accumulator count.

    Results are complete before they leave the accumulator of P sums, so a result tile is at most P. Take panels of
    ``x`` rows of A, of which the scratchpad S keeps as much as it holds while B goes by: what is kept is read once,
    the rest once for every result tile along n, and B once for every panel. Panels of B likewise; the least of all
    panel sizes counts (as in Orojenesis, Huang et al., ISCA 2024, with what is partly kept besides).
    """
    a, b = operator.precision.size(operator.m * operator.k), operator.matrix_bytes
    sums = max(tile.accumulator.capacity // operator.precision.accumulator.size(1), 1)
    least = _least_read(operator.m, operator.n, a, b, tile.scratchpad.capacity, sums)
    return operator.batch * max(least, a + b)


@lru_cache(maxsize=1 << 12)
def _least_read(m: int, n: int, a: int, b: int, room: int, sums: int) -> int:
    """Of a product of operands of ``a`` and ``b`` bytes, with so many bytes of scratchpad and so many sums."""

    def with_panels(total: int, kept: int, other: int, across: int) -> float:
        at = _grid(total)
        row = max(kept / total, 1)  # of A all bytes; of B what is stored of a column, and no more in a scratchpad
        share = np.minimum(1.0, room / (row * at[:-1]))
        again = share + (1 - share) * np.maximum(1.0, across * at[:-1] / sums)
        return float((kept * again + other * np.maximum(1.0, total / at[1:])).min())

    return int(min(with_panels(m, a, b, n), with_panels(n, b, a, m)))


@lru_cache(maxsize=256)
def _grid(total: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sizes from 1 to ``total``, each pair of neighbours at most a factor `GRID` apart, or one; the first one twice."""
    steps = int(np.log(max(total, 2)) / np.log(GRID)) + 2
    sizes = np.floor(GRID ** np.arange(steps))
    sizes = np.append(sizes[sizes < total], total)
    kept = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    return np.take(sizes, np.append(0, kept))


__all__ = ["array_floor", "read_floor", "vector_floor"]
