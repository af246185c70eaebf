"""Numbers of an array in int8 between elements in fp32: whole numbers of seven bits that share an exponent.

Elements become operands as they enter the array, in the cycle in which a beat does; no peak is looked for beforehand,
and no scale lies in memory. It is block floating point, as MXINT8 has it (OCP Microscaling Formats, version 1.0,
sections 5.3.4 and 6.3), with blocks that are found on the way (Rouhani et al., "Pushing the limits of narrow precision
inferencing at cloud scale with Microsoft Floating Point", NeurIPS 2020, has the same idea):

- *What stays*: the values of a row of a fold, as many as its panel has columns, share the exponent of the largest of
  them, ``top``. So every row k of a panel has an exponent of its own, and row k is
  b[k, c] = code[k, c] 2^(top[k] - 127 - `PLACES`).
- *What moves*: the R values of a row in a fold, each times the power of two of the row of the fold that it meets, share
  the exponent of the largest of these products, ``level``. So a row is quantised anew for every fold, by its own peak.
- *Sums* of products of codes are whole numbers of 24 bits or fewer, exact. Times 2^(level - `SHIFT`) they are fp32
  numbers, exact but for overflow (infinity) and what is below 2^-126 (a zero of its sign).

A code is the number over its power of two, rounded to the nearest, halves to even, and at most 127. Codes that lie in
memory as such, weights in int8, are the whole numbers that they are: their ``top`` is `UNIT`.

An infinity, or no number, among the values of a row of a fold that stays makes all sums of the fold in its panel no
numbers; one among those of a row that moves makes the row's. A subnormal number is a zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.floats import EXPONENT, FRACTION_BITS, Words, flushed
from siliconloom.arch.kernels import kernel, part

PLACES = 6
"""Bits of a code behind the point of the largest number of a block."""
MOST = 127
"""The largest code."""
UNIT = 127 + PLACES
"""The exponent, as fp32 counts it, of a block whose codes are the numbers themselves."""
SHIFT = 2 * UNIT
"""What the exponents of two blocks add up to where products of codes are the products."""
FURTHEST = PLACES + 2
"""Places below the largest number of a block from which on a code is zero."""
POWERS = 2.0 ** (np.arange(2 * 255 + 1) - SHIFT)
"""What whole numbers are to be multiplied by, by the exponent that a row shares."""
SPAN = 2048
"""Columns whose sums are worked on at a time."""
Codes = NDArray[np.float32]
"""Whole numbers, as fp32: their products add up exactly."""


def fields(words: Words) -> NDArray[np.int64]:
    """Exponents of fp32 patterns, as they count them; 0 of zeros."""
    return ((words & EXPONENT) >> np.uint32(FRACTION_BITS)).astype(np.int64)


def codes_of(words: Words, below: NDArray[np.int64]) -> Codes:
    """Codes of numbers whose exponents are so many places ``below`` that of their block."""
    with np.errstate(all="ignore"):
        significands = (words & np.uint32((1 << FRACTION_BITS) - 1) | np.uint32(1 << FRACTION_BITS)).astype(np.float32)
        places = np.minimum(below, FURTHEST) + (FRACTION_BITS - PLACES)
        found = np.minimum(np.rint(significands * (2.0**-places).astype(np.float32)), np.float32(MOST))
    found = np.where((fields(words) > 0) & (below < FURTHEST), found, np.float32(0))
    return np.where(words >> np.uint32(31) > 0, -found, found).astype(np.float32)


def staying(words: Words) -> tuple[Codes, NDArray[np.int64]]:
    """Codes of rows of a fold in one panel (rows x C), and the exponent of each row."""
    own = fields(words)
    tops = own.max(axis=1)
    return codes_of(words, tops[:, None] - own), tops


def moving(words: Words, tops: NDArray[np.int64]) -> tuple[Codes, NDArray[np.int64], NDArray[np.bool_]]:
    """Codes of rows (m x rows of a fold) that meet rows with these exponents.

    Returns them with the exponent of each row, and which of them are no numbers.
    """
    own = fields(words)
    level = np.where((own > 0) & (tops > 0), own + tops, 0)
    levels = level.max(axis=1)
    odd = (own == 255).any(axis=1) | bool((tops == 255).any())
    below = np.where(level > 0, levels[:, None] - level, FURTHEST)
    return codes_of(words, below), levels, odd


def shared_product(
    a: Words, b: Words | NDArray[np.int8], rows: int, cols: int, depth: int, total: Words | None = None
) -> Words:
    """A B in fp32, fold by fold: of ``rows`` rows, in panels of ``cols`` columns.

    Parameters
    ----------
    a
        Elements, m x k.
    b
        Elements, k x n, or codes.
    rows, cols
        Of the array.
    depth
        Rows of ``b`` after which a fold begins anew, whatever the one before had: a tile's.
    total
        Sums before, m x n; without them those of the first fold are.
    """
    held = np.zeros((a.shape[0], b.shape[1]), np.float32)
    if total is not None:
        held[:] = total.view(np.float32)
    adds = total is not None
    for start in range(0, a.shape[1], depth):
        for first in range(start, min(start + depth, a.shape[1]), rows):
            end = min(first + rows, start + depth, a.shape[1])
            left, right = a[:, first:end], b[first:end]
            if b.dtype == np.int8:
                sums = np.zeros(min(SPAN, b.shape[1]), np.float32)
                add_codes(np.ascontiguousarray(left, np.uint32), right, held, POWERS, sums, adds)
            else:
                moves, stays = (np.ascontiguousarray(each, np.uint32) for each in (left, right))
                codes, sums = np.zeros((end - first, cols), np.float32), np.zeros(cols, np.float32)
                add_elements(moves, stays, held, POWERS, codes, sums, adds)
            adds = True
    return flushed(held.view(np.uint32))


def factors(levels: NDArray[np.int64], odd: NDArray[np.bool_]) -> NDArray[np.float64]:
    """What whole numbers of each row are to be multiplied by."""
    return np.where(odd, np.nan, 2.0 ** (levels - SHIFT).astype(np.float64))


@part()
def settled(total: Any, power: Any, before: Any, adds: bool) -> Any:
    """A fold's sum, times its power of two, and added to what was there before."""
    smallest = np.float32(2.0**-126)
    value = np.float32((np.float64(total) + 0.0) * power)  # a sum that is zero has no sign
    if abs(value) < smallest:
        value = value * np.float32(0)
    if adds:
        value = before + value
        if abs(value) < smallest:
            value = value * np.float32(0)
    return value


@kernel()
def add_fold(sums: Any, powers: Any, held: Any, adds: bool) -> None:
    """Add a fold's sums, each row times its power of two, to those that are there."""
    for row in range(sums.shape[0]):
        power = powers[row]
        for column in range(sums.shape[1]):
            held[row, column] = settled(sums[row, column], power, held[row, column], adds)


@part()
def field(word: Any) -> Any:
    """The exponent of a pattern."""
    return np.int64(word) >> FRACTION_BITS & 255


@part()
def code(word: Any, below: Any) -> Any:
    """The code of a number whose exponent is so many places ``below`` that of its block."""
    if below >= FURTHEST or field(word) == 0:
        return np.float32(0)
    drop = FRACTION_BITS - PLACES + below
    significand = np.int64(word) & (1 << FRACTION_BITS) - 1 | 1 << FRACTION_BITS
    kept, rest, half = significand >> drop, significand & (1 << drop) - 1, 1 << drop - 1
    kept += rest > half or (rest == half and kept & 1 == 1)
    size = np.float32(min(kept, MOST))
    return -size if np.int64(word) >> 31 & 1 else size


@kernel()
def add_codes(a: Any, b: Any, held: Any, powers: Any, sums: Any, adds: bool) -> None:
    """Add the sums of a fold of codes in memory to ``held``: as `moving` and `add_fold` say.

    ``sums`` is room for some columns of a row; ``powers`` is `POWERS`.
    """
    depth, cols = b.shape[0], b.shape[1]
    factors = np.zeros(depth + 3, np.float32)  # four at a time
    for beat in range(a.shape[0]):
        level = np.int64(0)
        for row in range(depth):
            level = max(level, field(a[beat, row]))
        for row in range(depth):
            factors[row] = code(a[beat, row], level - field(a[beat, row]))
        power = np.nan if level == 255 else powers[level + UNIT] if level > 0 else powers[0]
        for start in range(0, cols, sums.shape[0]):
            wide = min(sums.shape[0], cols - start)
            for column in range(wide):
                sums[column] = np.float32(0)
            for row in range(0, depth, 4):
                one, two, three, four = factors[row], factors[row + 1], factors[row + 2], factors[row + 3]
                b1, b2, b3, b4 = (
                    b[row],
                    b[min(row + 1, depth - 1)],
                    b[min(row + 2, depth - 1)],
                    b[min(row + 3, depth - 1)],
                )
                for column in range(wide):
                    at = start + column
                    first = one * np.float32(b1[at]) + two * np.float32(b2[at])
                    sums[column] += first + (three * np.float32(b3[at]) + four * np.float32(b4[at]))
            for column in range(wide):
                held[beat, start + column] = settled(sums[column], power, held[beat, start + column], adds)


@kernel()
def add_elements(a: Any, b: Any, held: Any, powers: Any, stays: Any, sums: Any, adds: bool) -> None:
    """Add the sums of a fold of elements to ``held``, panel by panel: as `staying`, `moving` and `add_fold` say.

    ``stays`` (rows x C) and ``sums`` (C) are room for a panel's codes and a row's sums; ``powers`` is `POWERS`.
    """
    depth, cols = b.shape[0], sums.shape[0]
    tops = np.zeros(depth, np.int64)
    for panel in range(0, b.shape[1], cols):
        wide, fold_odd = min(cols, b.shape[1] - panel), False
        for row in range(depth):
            top = np.int64(0)
            for column in range(wide):
                top = max(top, field(b[row, panel + column]))
            tops[row] = top
            fold_odd = fold_odd or top == 255
            for column in range(wide):
                word = b[row, panel + column]
                stays[row, column] = code(word, top - field(word))
        for beat in range(a.shape[0]):
            level, odd = np.int64(0), fold_odd
            for row in range(depth):
                own = field(a[beat, row])
                odd = odd or own == 255
                if own > 0 and tops[row] > 0:
                    level = max(level, own + tops[row])
            for column in range(wide):
                sums[column] = np.float32(0)
            for row in range(depth):
                own = field(a[beat, row])
                if own > 0 and tops[row] > 0:
                    factor = code(a[beat, row], level - own - tops[row])
                    if factor != 0:
                        for column in range(wide):
                            sums[column] += factor * stays[row, column]
            power = np.nan if odd else powers[level]
            for column in range(wide):
                held[beat, panel + column] = settled(sums[column], power, held[beat, panel + column], adds)


__all__ = [
    "FURTHEST",
    "MOST",
    "PLACES",
    "SHIFT",
    "UNIT",
    "Codes",
    "add_fold",
    "codes_of",
    "factors",
    "fields",
    "moving",
    "shared_product",
    "staying",
]
