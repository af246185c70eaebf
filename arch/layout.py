"""How a matmul's operands lie in local memory, and therefore how mappers, models and circuits count them.

The stationary operand of a weight or input stationary array of R rows and C columns comes in *folds*: panels of C
columns outermost, then blocks of R rows. Every fold but the last of a panel has R rows; the last has the rest, filled
up with zeros to whole beats of ``load_rows`` rows. A row of a fold has C values, whatever the operand's own width. The
moving operand lies row by row, as everything does that the vector unit reads and writes: one unit of the tile
(`row_unit`) says what such a row is filled up to, so that what one of the two has made the other reads as it lies. An
output stationary array has neither: its operands lie as blocks of R rows and panels of C columns of full depth, or the
first one transposed, row by row, as the vector unit transposes it.

An operand may be *narrow*, where its instruction says so. What takes half of a line or less then lies in lines of the
next power of two (`line_values`): rows shorter than `row_unit`, the parameters of no more columns than half of the
lanes, the last panel of C columns, and the last block of R rows where sums stay. So what uses a part of an array or of
the lanes takes as much room as it would with smaller ones. No such line lies over the end of a whole one.

Sums lie in lines of C. Their local addresses count `sums_pitch` bytes to a line, the next power of two, so that a line
is found by a shift whatever C is; the accumulator holds as many lines as it has room for (`sums_lines`). Where C is a
power of two, an instruction may *split* the lines of its last panel: they have C / 2^split sums each, and 2^split of
them lie in a whole one (`sums_split`, `sums_bytes`). What the array has for columns beyond such a line is dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.access import SUM_BYTES
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.pim import CHANNEL_BYTES
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import INDEX_BYTES, SPLIT_BITS, Count, VectorFunction, vector_cost

Values = TypeVar("Values", bound=np.generic)
MOST_SPLIT = (1 << SPLIT_BITS) - 1
"""The power of two by which lines of sums are divided, at most."""


def padded(value: Count, unit: int) -> Count:
    """``value`` rounded up to a multiple of ``unit``."""
    return -(-value // unit) * unit


def is_power(value: int) -> bool:
    """Whether ``value`` is a power of two."""
    return value & value - 1 == 0


def next_power(value: int) -> int:
    """The smallest power of two that is no less than ``value``."""
    return 1 << (value - 1).bit_length()


_POWERS = 1 << np.arange(62, dtype=np.int64)


def line_values(values: Count, line: int, narrow: int = 1) -> Count:
    """Values of the lines in which so many lie: a whole ``line``, or less where these are ``narrow``."""
    if not narrow:
        return np.full_like(values, line) if isinstance(values, np.ndarray) else line
    if isinstance(values, np.ndarray):
        powers: NDArray[np.int64] = _POWERS[np.searchsorted(_POWERS, values)]
        return np.minimum(powers, line)
    return min(next_power(max(values, 1)), line)


def filled_values(values: Count, line: int, narrow: int = 1) -> Count:
    """Values in lines of ``line``, the last of which may be narrow."""
    rest = values % line
    return values - rest + (rest > 0) * line_values(rest, line, narrow)


def row_unit(tile: NpuTile) -> int:
    """Values that a row of int8 operands is filled up to in local memory.

    Lines of the vector unit, and blocks of the array's rows where these are a power of two; where they are none, the
    array reads its blocks from wherever they begin.
    """
    lanes, rows = tile.vector.lanes, tile.array.rows
    return max(lanes, rows) if rows & rows - 1 == lanes & lanes - 1 == 0 else lanes


def row_values(tile: NpuTile, cols: Count, narrow: int = 0) -> Count:
    """Values from row to row of an operand of ``cols`` columns in local memory."""
    unit = row_unit(tile)
    if not narrow:
        return padded(cols, unit)
    if isinstance(cols, np.ndarray):
        return np.where(cols > unit, padded(cols, unit), line_values(cols, unit))
    return -(-cols // unit) * unit if cols > unit else min(1 << (max(cols, 1) - 1).bit_length(), unit)


def written_values(tile: NpuTile, cols: Count) -> Count:
    """Values from the first to the last that the vector unit writes of a row of ``cols`` columns, zeros among them."""
    lanes = tile.vector.lanes
    if isinstance(cols, np.ndarray):
        return np.where(cols > lanes, padded(cols, lanes), line_values(cols, lanes))
    return padded(cols, lanes) if cols > lanes else line_values(cols, lanes)


def bank_line(tile: NpuTile) -> int:
    """Bytes of a line of a scratchpad bank: the widest access of any unit."""
    array, lanes = tile.array, tile.vector.lanes
    sides = next_power(array.rows), next_power(array.load_rows * array.cols), lanes
    channel = 0 if tile.pim is None else tile.pim.dram.organization.request_bytes * tile.element_bytes // CHANNEL_BYTES
    return max(tile.element_bytes * max(sides), tile.dma.bytes_per_cycle, INDEX_BYTES, channel)


def sums_pitch(array: SystolicArray) -> int:
    """Local addresses from line to line of sums."""
    return SUM_BYTES * next_power(array.cols)


def sums_split(array: SystolicArray, cols: Count) -> Count:
    """The most by which the lines of a last panel may be split that has what whole ones leave of so many columns."""
    rest = (cols - 1) % array.cols + 1
    if not is_power(array.cols):
        return 0 * rest
    if isinstance(rest, np.ndarray):
        powers: NDArray[np.int64] = np.searchsorted(_POWERS, rest)
        return np.clip(array.cols.bit_length() - 1 - powers, 0, MOST_SPLIT)
    return min(array.cols.bit_length() - 1 - (rest - 1).bit_length(), MOST_SPLIT)


def sums_line(array: SystolicArray, split: Count) -> Count:
    """Sums of a line that is split."""
    line = array.cols >> split
    return line + (line < 1)


def sums_bytes(array: SystolicArray, cols: Count, beats: Count, split: Count) -> Count:
    """Local addresses of ``beats`` rows of sums of so many columns, the lines of whose last panel are split."""
    pitch = sums_pitch(array)
    last = SUM_BYTES * sums_line(array, split) if is_power(array.cols) else pitch
    return beats * ((cols - 1) // array.cols * pitch + last)


def sums_begin(array: SystolicArray, cols: int, split: int) -> int:
    """What sums of so many columns begin at multiples of: a line, whole where there is more than one panel."""
    return sums_pitch(array) if cols > array.cols else sums_bytes(array, 1, 1, split)


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


def stationary_values(array: SystolicArray, outer: Count, k: Count, narrow: int = 0) -> Count:
    """Values that the stationary operand takes in memory: ``outer`` columns of ``k`` rows."""
    return filled_values(outer, array.cols, narrow) * panel_rows(array, k)


def moving_values(tile: NpuTile, beats: Count, k: Count, narrow: int = 0) -> Count:
    """Values that the moving operand takes in memory: ``beats`` rows of ``k``."""
    return beats * row_values(tile, k, narrow)


def parameter_bytes(tile: NpuTile, function: VectorFunction, cols: int, narrow: int = 0) -> int:
    """Bytes of all parameters of a vector function of so many columns, as they lie in memory.

    Those of columns may be narrow; scalars and tables lie in whole lines.
    """
    lanes, cost = tile.vector.lanes, vector_cost(function, tile.parameter_format)
    line = line_values(cols, lanes, narrow) if cost.setup else lanes
    return tile.parameter_line // lanes * cost.parameter_bytes(cols, line)


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


def first_values(tile: NpuTile, m: Count, k: Count, narrow: int = 0) -> Count:
    """Values that A[m,k] takes of local memory in a product."""
    array = tile.array
    if array.dataflow == "output_stationary":
        return filled_values(m, array.rows, narrow) * k
    if array.dataflow == "input_stationary":
        return stationary_values(array, m, k, narrow)
    return moving_values(tile, m, k, narrow)


def product_values(tile: NpuTile, m: Count, n: Count, k: Count, narrow: int = 0) -> ProductValues:
    """What C[m,n] = A[m,k] B[k,n] takes of local memory: values of A and of B, and lines of C sums."""
    array = tile.array
    if array.dataflow == "output_stationary":
        a, b = (filled_values(size, side, narrow) * k for size, side in ((m, array.rows), (n, array.cols)))
        return ProductValues(a, b, -(-n // array.cols) * m)
    by_input = array.dataflow == "input_stationary"
    outer, beats = (m, n) if by_input else (n, m)
    stays, moves = stationary_values(array, outer, k, narrow), moving_values(tile, beats, k, narrow)
    a, b = (stays, moves) if by_input else (moves, stays)
    return ProductValues(a, b, -(-outer // array.cols) * beats)


def panels_of_sums(
    array: SystolicArray, sums: NDArray[Values], address: int, cols: int, beats: int, split: int = 0
) -> list[NDArray[Values]]:
    """Views of the panels of sums (lines x C) that begin at a local address: ``beats`` rows, those of a line."""
    lines, last = (cols - 1) // array.cols * beats, sums_line(array, split) if split else array.cols
    first = address // sums_pitch(array)
    panels = [sums[first + at : first + at + beats] for at in range(0, lines, beats)]
    begin = (first + lines) * array.cols + address % sums_pitch(array) // SUM_BYTES
    return [*panels, sums.reshape(-1)[begin : begin + beats * last].reshape(beats, last)]


def whole_panels(array: SystolicArray, sums: NDArray[Values], address: int, cols: int, beats: int) -> NDArray[Values]:
    """`panels_of_sums` where no line is split, as one view: panels x beats x C."""
    panels, first = (cols - 1) // array.cols + 1, address // sums_pitch(array)
    return sums[first : first + panels * beats].reshape(panels, beats, array.cols)


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


def packed(array: SystolicArray, operand: NDArray[Values], narrow: int = 0) -> NDArray[Values]:
    """A stationary operand (k x outer) as it lies in memory, from its first value to its last."""
    k, outer = operand.shape
    # only the last fold of a panel is filled up, so the k rows of a panel follow one another
    held = np.zeros((panel_rows(array, k), outer), operand.dtype)
    held[:k] = operand
    return in_lines(held, array.cols, narrow)


def in_lines(operand: NDArray[Values], line: int, narrow: int = 0) -> NDArray[Values]:
    """Rows (k x outer) as panels of ``line`` columns, each row by row, from its first value to its last."""
    k, outer = operand.shape
    whole, rest = outer // line, outer % line
    panels = operand[:, : whole * line].reshape(k, whole, line).transpose(1, 0, 2)
    last = np.zeros((k, line_values(rest, line, narrow) if rest else 0), operand.dtype)
    last[:, :rest] = operand[:, whole * line :]
    return np.concatenate([np.ascontiguousarray(panels).reshape(-1), last.reshape(-1)])


def off_lines(values: NDArray[Values], outer: int, line: int, narrow: int = 0) -> NDArray[Values]:
    """The opposite of `in_lines`: k x whole panels; what lies beside the operand's own columns, zero beyond that."""
    k = len(values) // filled_values(outer, line, narrow)
    whole = outer // line * line
    found = np.zeros((k, padded(outer, line)), values.dtype)
    found[:, :whole] = values[: k * whole].reshape(-1, k, line).transpose(1, 0, 2).reshape(k, whole)
    if whole < outer:
        last = values[k * whole :].reshape(k, -1)
        found[:, whole : whole + last.shape[1]] = last
    return found


def blocks_of(array: SystolicArray, operand: NDArray[Values], narrow: int = 0) -> NDArray[np.uint8]:
    """Rows (m x k) as an output stationary array takes them: blocks of R rows, each transposed, the last filled up."""
    return in_lines(np.ascontiguousarray(operand.T), array.rows, narrow).view(np.uint8)


def unpacked(
    array: SystolicArray, values: NDArray[Values], k: int, outer: int | None = None, narrow: int = 0
) -> NDArray[Values]:
    """The opposite of `packed`: k x whole panels, what lies beside the operand's own columns included."""
    outer = len(values.reshape(-1)) // panel_rows(array, k) if outer is None else outer
    # only the last fold of a panel is filled up, so the k rows of a panel follow one another
    return off_lines(values.reshape(-1), outer, array.cols, narrow)[:k]


__all__ = [
    "INDEX_BYTES",
    "MOST_SPLIT",
    "ProductValues",
    "bank_line",
    "blocks_of",
    "fold_beats",
    "filled_values",
    "first_values",
    "fold_tile",
    "in_lines",
    "is_power",
    "line_values",
    "moving_values",
    "next_power",
    "off_lines",
    "packed",
    "padded",
    "product_values",
    "panel_beats",
    "panel_rows",
    "panels_of_sums",
    "row_unit",
    "row_values",
    "stationary_values",
    "sums_begin",
    "sums_bytes",
    "sums_line",
    "sums_lines",
    "sums_pitch",
    "sums_room",
    "sums_split",
    "unpacked",
    "whole_panels",
    "window_of",
    "written_values",
]
