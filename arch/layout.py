"""How a matmul's operands lie in local memory, and therefore how mappers, models and circuits count them.

The stationary operand of a weight or input stationary array of R rows and C columns comes in *folds*: panels of C
columns outermost, then blocks of R rows. Every fold but the last of a panel has R rows; the last has the rest, filled
up with zeros to whole beats of ``load_rows`` rows. A row of a fold has C values, whatever the operand's own width. The
moving operand lies row by row, as everything does that the vector unit reads and writes: one unit of the tile
(`row_unit`) says what such a row is filled up to, so that what one of the two has made the other reads as it lies. An
output stationary array has neither: its operands lie as blocks of R rows and panels of C columns of full depth, or the
first one transposed, row by row, as the vector unit transposes it.

Sums lie in lines of C. Their local addresses count `sums_pitch` bytes to a line, the next power of two, so that a line
is found by a shift whatever C is; the accumulator holds as many lines as it has room for (`sums_lines`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.access import SUM_BYTES
from siliconloom.arch.description import NpuTile, SystolicArray
from siliconloom.arch.vector import INDEX_BYTES, Count, VectorFunction, vector_cost

Values = TypeVar("Values", bound=np.generic)


def padded(value: Count, unit: int) -> Count:
    """``value`` rounded up to a multiple of ``unit``."""
    return -(-value // unit) * unit


def is_power(value: int) -> bool:
    """Whether ``value`` is a power of two."""
    return value & value - 1 == 0


def next_power(value: int) -> int:
    """The smallest power of two that is no less than ``value``."""
    return 1 << (value - 1).bit_length()


def row_unit(tile: NpuTile) -> int:
    """Values that a row of int8 operands is filled up to in local memory.

    Lines of the vector unit, and blocks of the array's rows where these are a power of two; where they are none, the
    array reads its blocks from wherever they begin.
    """
    lanes, rows = tile.vector.lanes, tile.array.rows
    return max(lanes, rows) if is_power(rows) and is_power(lanes) else lanes


def row_values(tile: NpuTile, cols: Count) -> Count:
    """Values from row to row of an operand of ``cols`` columns in local memory."""
    return padded(cols, row_unit(tile))


def sums_pitch(array: SystolicArray) -> int:
    """Local addresses from line to line of sums."""
    return SUM_BYTES * next_power(array.cols)


def sums_lines(tile: NpuTile) -> int:
    """Lines of C sums that the accumulator holds."""
    return tile.accumulator.capacity // (SUM_BYTES * tile.array.cols)


def sums_room(tile: NpuTile) -> int:
    """Local addresses of the accumulator."""
    return sums_lines(tile) * sums_pitch(tile.array)


def fold_beats(array: SystolicArray, rows_used: Count) -> Count:
    """Beats that load the ``rows_used`` rows of one fold, at most R."""
    return -(-rows_used // array.load_rows)


def panel_beats(array: SystolicArray, k: Count) -> Count:
    """Beats that load all folds of one panel of ``k`` rows."""
    return k // array.rows * fold_beats(array, array.rows) + fold_beats(array, k % array.rows)


def panel_rows(array: SystolicArray, k: Count) -> Count:
    """Rows that a panel of ``k`` rows takes in memory: its folds, the last one filled up to whole beats."""
    return panel_beats(array, k) * array.load_rows


def stationary_values(array: SystolicArray, outer: Count, k: Count) -> Count:
    """Values that the stationary operand takes in memory: ``outer`` columns of ``k`` rows."""
    return padded(outer, array.cols) * panel_rows(array, k)


def moving_values(tile: NpuTile, beats: Count, k: Count) -> Count:
    """Values that the moving operand takes in memory: ``beats`` rows of ``k``."""
    return beats * row_values(tile, k)


def parameter_bytes(tile: NpuTile, function: VectorFunction, cols: int) -> int:
    """Bytes of all parameters of a vector function of so many columns, as they lie in memory."""
    lanes = tile.vector.lanes
    cost = vector_cost(function, tile.parameter_format)
    return tile.parameter_line // lanes * cost.parameter_bytes(cols, lanes)


def window_of(bus: int, width: int) -> int:
    """What a row of ``width`` bytes of a transfer begins at multiples of, on both sides of a DMA of ``bus`` bytes.

    A row longer than the bus begins at the bus's multiples, a shorter one stays within a window of the next power of
    two.
    """
    return bus if width > bus else 1 << (width - 1).bit_length()


class ProductValues(NamedTuple):
    """What a product takes of local memory: values of both operands, and lines of C sums."""

    a: Any
    b: Any
    lines: Any


def product_values(tile: NpuTile, m: Count, n: Count, k: Count) -> ProductValues:
    """What C[m,n] = A[m,k] B[k,n] takes of local memory: values of A and of B, and lines of C sums."""
    array = tile.array
    if array.dataflow == "output_stationary":
        a, b = -(-m // array.rows) * k * array.rows, -(-n // array.cols) * k * array.cols
        return ProductValues(a, b, -(-n // array.cols) * m)
    by_input = array.dataflow == "input_stationary"
    outer, beats = (m, n) if by_input else (n, m)
    stays, moves = stationary_values(array, outer, k), moving_values(tile, beats, k)
    a, b = (stays, moves) if by_input else (moves, stays)
    return ProductValues(a, b, -(-outer // array.cols) * beats)


def fold_tile(array: SystolicArray, fold: NDArray[Values]) -> NDArray[Values]:
    """A fold (at most R x C) as it lies in memory: filled up with zeros, a row of it in each row."""
    held = np.zeros((fold_beats(array, fold.shape[0]) * array.load_rows, array.cols), fold.dtype)
    held[: fold.shape[0], : fold.shape[1]] = fold
    return held


def summing_order(array: SystolicArray) -> list[int]:
    """Rows of a fold in the order in which an array that keeps an operand adds their products, from top to bottom.

    With ``load_rows`` of p, R/p rows are p load chains below one another; row r of a fold is row r // p of chain r % p.
    The order counts where sums are rounded. An output stationary array adds in the order of the beats.
    """
    groups = array.load_rows
    return [row * groups + chain for chain in range(groups) for row in range(array.rows // groups)]


def packed(array: SystolicArray, operand: NDArray[Values]) -> NDArray[Values]:
    """A stationary operand (k x outer) as it lies in memory, from its first value to its last."""
    k, outer = operand.shape
    # only the last fold of a panel is filled up, so the k rows of a panel follow one another
    held = np.zeros((panel_rows(array, k), padded(outer, array.cols)), operand.dtype)
    held[:k, :outer] = operand
    panels = held.reshape(len(held), -1, array.cols).transpose(1, 0, 2)
    return np.ascontiguousarray(panels).reshape(-1)


def blocks_of(array: SystolicArray, operand: NDArray[Values]) -> NDArray[np.uint8]:
    """Rows (m x k) as an output stationary array takes them: blocks of R rows, each transposed, the last filled up."""
    m, k = operand.shape
    held = np.zeros((padded(m, array.rows), k), operand.dtype)
    held[:m] = operand
    return np.ascontiguousarray(held.reshape(-1, array.rows, k).transpose(0, 2, 1)).reshape(-1).view(np.uint8)


def unpacked(array: SystolicArray, values: NDArray[Values], k: int) -> NDArray[Values]:
    """The opposite of `packed`: k x whole panels, columns beyond the operand's own included."""
    height = panel_rows(array, k)
    # only the last fold of a panel is filled up, so the k rows of a panel follow one another
    panels = values.reshape(-1, height, array.cols)[:, :k]
    return np.concatenate(list(panels), axis=1)


__all__ = [
    "INDEX_BYTES",
    "ProductValues",
    "blocks_of",
    "fold_beats",
    "fold_tile",
    "is_power",
    "moving_values",
    "next_power",
    "packed",
    "padded",
    "product_values",
    "panel_beats",
    "panel_rows",
    "row_unit",
    "row_values",
    "stationary_values",
    "sums_lines",
    "sums_pitch",
    "sums_room",
    "unpacked",
    "window_of",
]
