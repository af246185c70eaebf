"""Keys and values in whole numbers that share a scale: what they are, and where their scales lie.

C values of one row of a head, as many as the array has columns (fewer where the head ends), share a *scale*: the
exponent of the largest of them, one byte, as fp32 counts it. It is block floating point with elements of MXINT8 (OCP
Microscaling Formats, version 1.0, sections 5.3.4 and 6.3), or shorter ones of the same kind:

    code        the number over 2^(scale - 127) times 2^places, rounded to the nearest, halves to even, and at most
                2^(places + 1) - 1 of either sign; places is 6 of int8, 2 of int4
    number      code 2^(scale - 127 - places): exact in fp32, and in bf16, but zero below 2^-126; then rounded to the
                array's format as everywhere. No number at all where the scale is 255: where one of the values was
                infinite, or none

A scale is a power of two, so that neither side needs a multiplier, or a divider: the vector unit finds the largest
exponent while a line passes, and shifts; the array's edge adds exponents.

**In memory** a panel is cut into groups. Each has a *header*, p x C bytes (a beat of codes in int8), then its rows in
beats of p x C codes; it has p C rows. Of keys (rows are columns of the head, columns are positions) byte g C + c of a
header is the scale of column c in the g-th C rows of the group; of values (rows are positions) byte r is the scale of
row r. Codes of int4 lie two to a byte: of values neighbours in a row, of keys those of two rows
that follow one another, so that a key takes whole bytes of its own.

**In local memory**, where the vector unit leaves them, a line of w results is followed by their scales, a byte for each
byte of codes: w and w of int8. Of values (`kv_append`) each is that of its C columns, as often as these have bytes; of
keys (`transpose`) each position's own, in every line. Of int4 a line has w / 2 bytes of codes and as many of scales;
of keys a line has w, of which each has a pair of columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import CACHE_SCALED, DataType, Packing
from siliconloom.arch.floats import EXPONENT, FRACTION_BITS, NAN, Words

PLACES = {DataType.INT8: 6, DataType.INT4: 2}
"""Bits of a code behind the point of the largest number of a line."""
NO_NUMBER = 255
"""The scale where one of the values is infinite, or no number."""


def most(dtype: DataType) -> int:
    """The largest code."""
    return (2 << PLACES[dtype]) - 1


def is_scaled(array: SystolicArray, packing: Packing | None) -> bool:
    """Whether what stays in an array is keys or values with scales."""
    return packing is not None and not packing.group and packing.dtype in array.cache_scaled


def keeps_scales(packing: Packing | None) -> bool:
    """Whether results of the vector unit are kept with scales."""
    return packing is not None and packing.dtype in CACHE_SCALED


def group_rows(array: SystolicArray) -> int:
    """Rows of a group, and scales of its header, a byte each."""
    return array.load_rows * array.cols


def result_bytes(packing: Packing) -> int:
    """Bytes of local memory to a result that is kept with scales: its code, and its scale's share."""
    return 1 if packing.dtype is DataType.INT4 and packing.by_rows else 2


def scaled_codes(words: Words, dtype: DataType, together: int) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Codes of rows of fp32 numbers (rows x columns), and their scales, one for so many ``together``."""
    rows, cols = words.shape
    lines = -(-cols // together)
    fields = ((words & EXPONENT) >> np.uint32(FRACTION_BITS)).astype(np.int64)
    padded = np.zeros((rows, lines * together), np.int64)
    padded[:, :cols] = fields
    scales = padded.reshape(rows, lines, together).max(axis=2)
    below = np.repeat(scales, together, axis=1)[:, :cols] - fields
    places = PLACES[dtype]
    significands = (words & np.uint32((1 << FRACTION_BITS) - 1)).astype(np.float64) + 2.0**FRACTION_BITS
    sizes = np.minimum(np.rint(significands * 2.0 ** (places - FRACTION_BITS - below)), most(dtype))
    codes = np.where(fields > 0, np.where(words >> np.uint32(31) > 0, -sizes, sizes), 0)
    return codes.astype(np.int8), scales.astype(np.uint8)


def numbers_of(codes: NDArray[np.int8], scales: NDArray[np.uint8], dtype: DataType) -> Words:
    """Fp32 patterns of what codes and scales, one for each, stand for."""
    with np.errstate(all="ignore"):
        power = scales.astype(np.float64) - 127 - PLACES[dtype]
        exact = codes.astype(np.float64) * 2.0**power
        found = np.where(np.abs(exact) < 2.0**-126, np.copysign(0.0, exact), exact).astype(np.float32)
    words = found.view(np.uint32)
    words = np.where(codes == 0, np.uint32(0), words)
    return np.where(scales == NO_NUMBER, np.uint32(NAN), words).astype(np.uint32)


__all__ = [
    "NO_NUMBER",
    "PLACES",
    "group_rows",
    "is_scaled",
    "keeps_scales",
    "most",
    "numbers_of",
    "result_bytes",
    "scaled_codes",
]
