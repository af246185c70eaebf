"""Numbers of an array in int4, int8 or int16 between elements in fp32: whole numbers that share an exponent.

Elements become operands as they enter the array, in the cycle in which a beat does; no peak is looked for beforehand,
and no scale lies in memory. It is block floating point: as MXINT8 has it (OCP Microscaling Formats, version 1.0,
sections 5.3.4 and 6.3) with eight bits, and so with four and sixteen. Blocks are found on the way (Rouhani et al.,
"Pushing the limits of narrow precision inferencing at cloud scale with Microsoft Floating Point", NeurIPS 2020, has the
same idea):

- *What stays*: the values of a row of a fold, as many as its panel has columns, share the exponent of the largest of
  them, ``top``. So every row k of a panel has an exponent of its own, and row k is
  b[k, c] = code[k, c] 2^(top[k] - 127 - places); places is two less than the bits of a code.
- *What moves*: the R values of a row in a fold, each times the power of two of the row of the fold that it meets, share
  the exponent of the largest of these products, ``level``. So a row is quantised anew for every fold, by its own peak.
- *Sums* of products of codes are exact whole numbers: of 16 bits in int4, 24 in int8 and 40 in int16, or fewer. Times
  2^(level - `CodeFormat.shift`) they are rounded once to an fp32 number, halves to even, which up to 24 bits are exact;
  beyond the largest one they are infinite, and what is below 2^-126 before it is rounded is a zero of its sign.

A code is the number over its power of two, rounded to the nearest, halves to even, and at most 7, 127 or 32,767. Codes
that lie in memory as such, weights, are the whole numbers that they are: their ``top`` is `CodeFormat.unit`.

An infinity, or no number, among the values of a row of a fold that stays makes all sums of the fold in its panel no
numbers; one among those of a row that moves makes the row's. A subnormal number is a zero.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import EXPONENT, FRACTION_BITS, Words, flushed
from siliconloom.arch.kernels import kernel, part

MOST_ROWS = 1024
"""Rows of the tallest array."""
SPAN = 2048
"""Columns whose sums are worked on at a time."""
Codes = NDArray[np.float32]
"""Whole numbers, as fp32, which has all of them."""
WholeNumbers = NDArray[np.signedinteger[Any]]
"""Codes as they lie in memory, one to a number (`CodeFormat.stored`)."""


class CodeFormat(Struct, frozen=True, dict=True):
    """Whole numbers of so many bits, in two's complement, as which numbers share an exponent."""

    bits: int

    @property
    def places(self) -> int:
        """Bits of a code behind the point of the largest number of a block."""
        return self.bits - 2

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits - 1) - 1

    @property
    def unit(self) -> int:
        """The exponent, as fp32 counts it, of a block whose codes are the numbers themselves."""
        return 127 + self.places

    @property
    def shift(self) -> int:
        """What the exponents of two blocks add up to where products of codes are the products."""
        return 2 * self.unit

    @property
    def furthest(self) -> int:
        """Places below the largest number of a block from which on a code is zero."""
        return self.places + 2

    @property
    def sum_bits(self) -> int:
        """Bits of the size of a sum of as many products as an array can have rows, by codes of either sign."""
        return (self.most * (self.most + 1) * MOST_ROWS).bit_length()

    @property
    def stored(self) -> type[np.signedinteger[Any]]:
        """Whole numbers that hold a code."""
        return np.int8 if self.bits <= 8 else np.int16

    @property
    def exact(self) -> type[np.floating[Any]]:
        """Numbers in which sums of products are exact."""
        return np.float32 if self.sum_bits <= FRACTION_BITS + 1 else np.float64

    @cached_property
    def powers(self) -> NDArray[np.float64]:
        """What whole numbers are to be multiplied by, by the exponent that a row shares."""
        return np.asarray(2.0 ** (np.arange(2 * 255 + 1) - self.shift))


CODE_FORMATS = {dtype: CodeFormat(dtype.bits) for dtype in (DataType.INT4, DataType.INT8, DataType.INT16)}
"""Formats of operands that share exponents."""


def in_memory(codes: WholeNumbers, dtype: DataType) -> NDArray[np.uint8]:
    """Bytes of codes in the order in which they lie: two to a byte in int4, the first one in the low bits."""
    flat = codes.reshape(-1)
    if dtype is DataType.INT4:
        return np.asarray(flat[0::2].astype(np.uint8) & 15 | flat[1::2].astype(np.uint8) << 4, np.uint8)
    return np.ascontiguousarray(flat, f"<i{dtype.bits // 8}").view(np.uint8)


def from_memory(held: NDArray[np.uint8], dtype: DataType) -> WholeNumbers:
    """The opposite of `in_memory`."""
    if dtype is DataType.INT4:
        return (np.stack([held << 4, held & 0xF0], axis=-1).reshape(-1).view(np.int8) >> 4).astype(np.int8)
    return np.ascontiguousarray(held).view(f"<i{dtype.bits // 8}")


def fields(words: Words) -> NDArray[np.int64]:
    """Exponents of fp32 patterns, as they count them; 0 of zeros."""
    return ((words & EXPONENT) >> np.uint32(FRACTION_BITS)).astype(np.int64)


def codes_of(words: Words, below: NDArray[np.int64], form: CodeFormat) -> Codes:
    """Codes of numbers whose exponents are so many places ``below`` that of their block."""
    with np.errstate(all="ignore"):
        significands = (words & np.uint32((1 << FRACTION_BITS) - 1) | np.uint32(1 << FRACTION_BITS)).astype(np.float32)
        places = np.minimum(below, form.furthest) + (FRACTION_BITS - form.places)
        found = np.minimum(np.rint(significands * (2.0**-places).astype(np.float32)), np.float32(form.most))
    found = np.where((fields(words) > 0) & (below < form.furthest), found, np.float32(0))
    return np.where(words >> np.uint32(31) > 0, -found, found).astype(np.float32)


def staying(words: Words, form: CodeFormat) -> tuple[Codes, NDArray[np.int64]]:
    """Codes of rows of a fold in one panel (rows x C), and the exponent of each row."""
    own = fields(words)
    tops = own.max(axis=1)
    return codes_of(words, tops[:, None] - own, form), tops


def moving(
    words: Words, tops: NDArray[np.int64], form: CodeFormat
) -> tuple[Codes, NDArray[np.int64], NDArray[np.bool_]]:
    """Codes of rows (m x rows of a fold) that meet rows with these exponents.

    Returns them with the exponent of each row, and which of them are no numbers.
    """
    own = fields(words)
    level = np.where((own > 0) & (tops > 0), own + tops, 0)
    levels = level.max(axis=1)
    odd = (own == 255).any(axis=1) | bool((tops == 255).any())
    below = np.where(level > 0, levels[:, None] - level, form.furthest)
    return codes_of(words, below, form), levels, odd


def shared_product(
    a: Words,
    b: Words | WholeNumbers,
    rows: int,
    cols: int,
    depth: int,
    total: Words | None = None,
    form: CodeFormat = CODE_FORMATS[DataType.INT8],
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
    form
        Of the codes.
    """
    held = np.zeros((a.shape[0], b.shape[1]), np.float32)
    if total is not None:
        held[:] = total.view(np.float32)
    adds = total is not None
    for start in range(0, a.shape[1], depth):
        for first in range(start, min(start + depth, a.shape[1]), rows):
            end = min(first + rows, start + depth, a.shape[1])
            left, right = a[:, first:end], b[first:end]
            if is_coded(b):
                sums = np.zeros(min(SPAN, b.shape[1]), form.exact)
                moves = np.ascontiguousarray(left, np.uint32)
                add_codes(moves, right, held, form.powers, sums, form.places, adds)
            else:
                moves, stays = (np.ascontiguousarray(each, np.uint32) for each in (left, right))
                codes, sums = np.zeros((end - first, cols), form.exact), np.zeros(cols, form.exact)
                add_elements(moves, stays, held, form.powers, codes, sums, form.places, adds)
            adds = True
    return flushed(held.view(np.uint32))


def is_coded(values: NDArray[Any]) -> bool:
    """Whether what stays is codes, and not patterns of elements, which have no sign of their own."""
    return values.dtype.kind == "i"


def factors(levels: NDArray[np.int64], odd: NDArray[np.bool_], form: CodeFormat) -> NDArray[np.float64]:
    """What whole numbers of each row are to be multiplied by."""
    return np.where(odd, np.nan, 2.0 ** (levels - form.shift).astype(np.float64))


@part()
def settled(total: Any, power: Any, before: Any, adds: bool) -> Any:
    """A fold's sum, times its power of two, and added to what was there before."""
    smallest = np.float32(2.0**-126)
    exact = (np.float64(total) + 0.0) * power  # a sum that is zero has no sign
    if abs(exact) < smallest:
        exact = exact * 0.0
    value = np.float32(exact)
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
def code(word: Any, below: Any, places: Any) -> Any:
    """The code of a number whose exponent is so many places ``below`` that of its block."""
    if below >= places + 2 or field(word) == 0:
        return np.float32(0)
    drop = FRACTION_BITS - places + below
    significand = np.int64(word) & (1 << FRACTION_BITS) - 1 | 1 << FRACTION_BITS
    kept, rest, half = significand >> drop, significand & (1 << drop) - 1, 1 << drop - 1
    kept += rest > half or (rest == half and kept & 1 == 1)
    size = np.float32(min(kept, (2 << places) - 1))
    return -size if np.int64(word) >> 31 & 1 else size


@kernel()
def add_codes(a: Any, b: Any, held: Any, powers: Any, sums: Any, places: Any, adds: bool) -> None:
    """Add the sums of a fold of codes in memory to ``held``: as `moving` and `add_fold` say.

    ``sums`` is room for some columns of a row; ``powers`` and ``places`` are those of a `CodeFormat`.
    """
    depth, cols, unit = b.shape[0], b.shape[1], 127 + places
    factors = np.zeros(depth + 3, sums.dtype)  # four at a time
    for beat in range(a.shape[0]):
        level = np.int64(0)
        for row in range(depth):
            level = max(level, field(a[beat, row]))
        for row in range(depth):
            factors[row] = code(a[beat, row], level - field(a[beat, row]), places)
        power = np.nan if level == 255 else powers[level + unit] if level > 0 else powers[0]
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
def add_elements(a: Any, b: Any, held: Any, powers: Any, stays: Any, sums: Any, places: Any, adds: bool) -> None:
    """Add the sums of a fold of elements to ``held``, panel by panel: as `staying`, `moving` and `add_fold` say.

    ``stays`` (rows x C) and ``sums`` (C) are room for a panel's codes and a row's sums; ``powers`` and ``places`` are
    those of a `CodeFormat`.
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
                stays[row, column] = code(word, top - field(word), places)
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
                    factor = code(a[beat, row], level - own - tops[row], places)
                    if factor != 0:
                        for column in range(wide):
                            sums[column] += factor * stays[row, column]
            power = np.nan if odd else powers[level]
            for column in range(wide):
                held[beat, panel + column] = settled(sums[column], power, held[beat, panel + column], adds)


__all__ = [
    "CODE_FORMATS",
    "CodeFormat",
    "Codes",
    "WholeNumbers",
    "add_fold",
    "codes_of",
    "factors",
    "fields",
    "from_memory",
    "in_memory",
    "is_coded",
    "moving",
    "shared_product",
    "staying",
]
