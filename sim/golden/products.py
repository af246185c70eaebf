"""Products of matrices in floating point, as an array adds them up: fold by fold, in the order of its rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.float_kernels import HALF, settled
from siliconloom.arch.floats import Words
from siliconloom.arch.kernels import kernel

TINY = np.float32(2.0**-126)
"""The smallest normal number of fp32: what is below it is a zero of its sign."""
ZERO, NAN = np.float32(0.0), np.float32(np.nan)
Folds = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Numbers of columns in the order in which their products are added, and how many there are to the end of each fold."""


@cache
def folds_of(count: int, depth: int, order: tuple[int, ...]) -> Folds:
    """Those of ``count`` columns, in tiles of ``depth``, by an array that adds its rows in an order."""
    ends, columns, rows = list[int](), list[int](), len(order)
    for start in range(0, count, depth):
        end = min(start + depth, count)
        for first in range(start, end, rows):
            columns += [first + row for row in order if first + row < end]
            ends.append(len(columns))
    return np.array(columns, np.int64), np.array(ends, np.int64)


def folded_product(a: Words, b: Words, folds: Folds, total: Words | None = None) -> Words:
    """A B, every fold summed from +0 on in the order that it is given in, and its sums added to those before.

    As `arch.floats.chain_product` and `arch.floats.float_sum` would have it, bit for bit.

    Parameters
    ----------
    a, b
        Fp32 patterns as `arch.floats.widened` makes them, m x k and k x n: their products are exact but for overflow
        and what is below 2^-126.
    folds
        See `folds_of`.
    total
        Sums before, as they are made here, m x n; without them those of the first fold are.
    """
    left, right = (np.ascontiguousarray(each).view(np.float32) for each in (a, b))
    held = np.zeros((a.shape[0], b.shape[1]), np.float32)
    if total is not None:
        held[:] = total.view(np.float32)
    part = np.zeros(b.shape[1], np.float32)
    add_folds(left, right, *folds, held, part, total is not None)
    return held.view(np.uint32)


@kernel()
def add_folds(
    a: NDArray[np.float32], b: NDArray[np.float32], order: Any, ends: Any, held: Any, part: Any, adds: bool
) -> None:
    """Add the sums of every fold to ``held``; ``part`` is room for those of a row."""
    for row in range(a.shape[0]):
        start = 0
        for fold in range(ends.shape[0]):
            for column in range(b.shape[1]):
                part[column] = ZERO
            for step in range(start, ends[fold]):
                k = order[step]
                factor = a[row, k]
                for column in range(b.shape[1]):
                    product = factor * b[k, column]
                    if not abs(product) >= TINY:
                        product = product * ZERO
                    value = part[column] + product
                    if not abs(value) >= TINY:
                        value = value * ZERO
                    part[column] = value
            for column in range(b.shape[1]):
                value = part[column]
                if adds or fold:
                    value = held[row, column] + value
                    if not abs(value) >= TINY:
                        value = value * ZERO
                if value != value:
                    value = NAN
                held[row, column] = value
            start = ends[fold]


ROOM = 1 << 17
"""Numbers of a second operand that are made at once, so that they stay in a cache."""


def panels_product(
    a: Words, values: NDArray[np.uint16], sizes: tuple[int, int, int], folds: Folds, sums: Any, adds: bool
) -> None:
    """As `folded_product` of an operand in bf16 that lies in panels, into sums where they lie.

    Parameters
    ----------
    a
        The operand that moves: fp32 patterns, m x k.
    values
        The other one as it lies in memory: panels of so many columns, one after the other, of as many rows each; of the
        last one some columns may be missing, which are zeros.
    sizes
        Rows of a panel in memory, columns in all, and columns of the last panel that are there.
    sums
        Patterns in two's complement, panels x m x columns; they are added to, or not.
    """
    rows, columns, last = sizes
    line = sums.shape[2]
    together = max(ROOM // max(a.shape[1] * line, 1), 1)
    wide = np.empty(a.shape[1] * line * min(together, sums.shape[0]), np.float32)
    part = np.empty(line * min(together, sums.shape[0]), np.float32)
    add_panels(np.ascontiguousarray(a).view(np.float32), values, rows, columns, last, *folds, sums, wide, part, adds)


@kernel()
def add_panels(
    a: Any,
    values: Any,
    rows: int,
    columns: int,
    last: int,
    order: Any,
    ends: Any,
    sums: Any,
    wide: Any,
    part: Any,
    adds: bool,
) -> None:
    """Add the sums of every fold to ``sums``, of as many panels at once as ``part`` has room for."""
    panels, count, line = sums.shape
    depth = a.shape[1]
    for begin in range(0, panels, part.shape[0] // line):
        end = min(begin + part.shape[0] // line, panels)
        width = (end - begin) * line
        for panel in range(begin, end):
            there = line if panel < columns // line else last
            for k in range(depth):
                place, held = k * width + (panel - begin) * line, panel * rows * line + k * there
                for column in range(there):
                    word = settled(np.uint32(values[held + column]) << HALF)
                    wide[place + column] = np.uint32(word).view(np.float32)
                for column in range(there, line):
                    wide[place + column] = ZERO
        for row in range(count):
            start = 0
            for fold in range(ends.shape[0]):
                for column in range(width):
                    part[column] = ZERO
                for step in range(start, ends[fold]):
                    k = order[step]
                    factor, place = a[row, k], k * width
                    for column in range(width):
                        product = factor * wide[place + column]
                        if not abs(product) >= TINY:
                            product = product * ZERO
                        value = part[column] + product
                        if not abs(value) >= TINY:
                            value = value * ZERO
                        part[column] = value
                for panel in range(begin, end):
                    for column in range(line):
                        value = part[(panel - begin) * line + column]
                        if adds or fold:
                            before = np.int32(sums[panel, row, column])
                            value = np.int32(before).view(np.float32) + value
                            if not abs(value) >= TINY:
                                value = value * ZERO
                        if value != value:
                            value = NAN
                        sums[panel, row, column] = np.float32(value).view(np.int32)
                start = ends[fold]


__all__ = ["Folds", "folded_product", "folds_of", "panels_product"]
