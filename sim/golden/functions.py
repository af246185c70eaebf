"""What the vector unit computes, in NumPy integers: bit exact with ``rtl.npu.vector``.

Matrices are int64 arrays of shape (rows, columns); results are clipped to int8 by the caller. Rounding is to the
nearest, halves to even, throughout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.numerics import (
    CLOSING_BITS,
    EXP2,
    EXP2_BITS,
    EXP2_ONE,
    FALL,
    MANTISSA_BITS,
    NORM_BITS,
    ONE,
    RECIPROCAL_SHIFT,
    RECIPROCALS,
    ROOT_SHIFT,
    ROOTS,
    ROPE_BITS,
)
from siliconloom.arch.vector import RISE_LIMIT

Integers = NDArray[np.int64]
WIDE = 1 << 23
"""Between the two multipliers a value saturates to 24 bits."""
LOWEST = -(WIDE >> EXP2_BITS)
"""Maximum of a row of which nothing is seen."""
Carried = tuple[Integers, Integers]
"""Of each row the peak so far, and the total: in floating point its fp32 pattern."""
_EXP2 = np.array(EXP2, np.int64)


def _line(table: dict[int, int]) -> Integers:
    return np.array([table.get(i, 0) for i in range(257)], np.int64)


_RECIPROCALS, _ROOTS = _line(RECIPROCALS), _line(ROOTS)


def half_even(value: Integers, shift: Integers | int) -> Integers:
    """``value`` / 2^``shift``, rounded; ``shift`` is at most 63."""
    shift = np.minimum(np.asarray(shift, np.int64), 54)  # |value| < 2^53: any larger shift gives zero as well
    floor = value >> shift
    rest = value - (floor << shift)
    half = (np.int64(1) << shift) >> 1
    return np.asarray(floor + ((shift > 0) & ((rest > half) | ((rest == half) & (floor & 1 == 1)))))


def requantize(sums: Integers, bias: Integers, multiplier: Integers, shift: Integers) -> Integers:
    """(sums + bias) * multiplier / 2^shift per column."""
    return half_even((sums + bias) * multiplier, shift)


def scaled_sum(a: Integers, b: Integers, multipliers: tuple[int, int], shift: int) -> Integers:
    """(a * m0 + b * m1) / 2^shift."""
    return half_even(a * multipliers[0] + b * multipliers[1], shift)


def scaled_product(a: Integers, b: Integers, multiplier: int, shift: int) -> Integers:
    """A * b * m0 / 2^shift."""
    return half_even(a * b * multiplier, shift)


def rotate(a: Integers, turns: Integers) -> Integers:
    """Rotate neighbours (2i, 2i + 1) by the angles whose cosines and sines lie at the same places of ``turns``."""
    even, odd, cosine, sine = a[:, 0::2], a[:, 1::2], turns[:, 0::2], turns[:, 1::2]
    result = np.empty_like(a)
    result[:, 0::2] = half_even(even * cosine - odd * sine, ROPE_BITS)
    result[:, 1::2] = half_even(even * sine + odd * cosine, ROPE_BITS)
    return result


def normalize(x: Integers, gamma: Integers, bias: Integers, shift: Integers, *, centred: bool) -> Integers:
    """(z * gamma + bias) / 2^shift per column, z = (x - mean) / deviation in 1/256; a row that is constant gives z = 0.

    ``centred`` is layer normalisation; without it the mean counts as zero: root-mean-square normalisation.
    """
    count = x.shape[1]
    first = x.sum(1) * centred
    square = count * (x * x).sum(1) - first * first
    top = _top_bit(square)
    even = top & ~1
    root = _interpolated(_ROOTS, (square << 14) >> even) * (square > 0)
    places = ROOT_SHIFT - NORM_BITS - 7 + (top >> 1)
    z = half_even(x * (count * root)[:, None] - (first * root)[:, None], places[:, None])
    return half_even(np.clip(z, -WIDE, WIDE - 1) * gamma + bias, shift)


def softmax(
    sums: Integers, multiplier: int, shift: int, valid: Integers, lanes: int, *, rounding: tuple[int, int] = (1, 128)
) -> Integers:
    """Probabilities of each row, in 1/127, over its first ``valid`` columns; the others get zero.

    A value counts as the power of two whose exponent is value * multiplier / 2^shift, in 1/256. The sum is taken block
    by block of ``lanes`` columns, relative to the largest exponent so far, rounded up to an integer. ``rounding`` is
    what powers and reciprocals are rounded by before their last bits are cut off; another than the circuit's shows what
    a run would notice.
    """
    seen = np.arange(sums.shape[1]) < valid[:, None]
    return _probabilities(sums, multiplier, shift, seen, lanes, rounding)


def top_k(values: Integers, count: int, multiplier: int, shift: int, lanes: int) -> Integers:
    """The `softmax` of each row over its ``count`` largest values, of equal ones those of the lower columns."""
    order = np.argsort(-values, axis=1, kind="stable")
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order[:, :count], True, axis=1)
    return _probabilities(values, multiplier, shift, chosen, lanes, (1, 128))


def weighted_sum(rows: Integers, weights: Integers, multiplier: int, shift: int) -> Integers:
    """Rows of shape (m, k, columns), each times its weight of shape (m, k), added up and rounded once."""
    return half_even((rows * weights[:, :, None]).sum(1) * multiplier, shift)


def _probabilities(
    values: Integers, multiplier: int, shift: int, seen: NDArray[np.bool_], lanes: int, rounding: tuple[int, int]
) -> Integers:
    """As `softmax`, over those elements of each row that are ``seen``."""
    exponent = np.clip(half_even(values * multiplier, shift), -WIDE, WIDE - 1)
    peak, total = _reduced(exponent, seen, lanes, rounding[0])
    top = _top_bit(total)
    scale = _interpolated(_RECIPROCALS, (total << (MANTISSA_BITS - 1)) >> top, rounding[1]) * (total > 0)
    places = RECIPROCAL_SHIFT - (MANTISSA_BITS - 1) + top
    return half_even(np.where(seen, _power(exponent, peak, rounding[0]), 0) * scale[:, None], places[:, None])


def _reduced(
    exponent: Integers, seen: NDArray[np.bool_], lanes: int, rounding: int, before: Carried | None = None
) -> Carried:
    """Each row's largest exponent, rounded up to an integer, and the sum of its powers below that."""
    rows, cols = exponent.shape
    peak, total = before or (np.full(rows, LOWEST), np.zeros(rows, np.int64))
    for start in range(0, cols, lanes):
        part, within = exponent[:, start : start + lanes], seen[:, start : start + lanes]
        highest = np.where(within, -(-part >> EXP2_BITS), LOWEST).max(1)
        fresh = start == 0 and before is None
        higher = highest if fresh else np.maximum(peak, highest)
        total = total if fresh else total >> np.minimum(higher - peak, RISE_LIMIT)
        total = total + np.where(within, _power(part, higher, rounding), 0).sum(1)
        peak = higher
    return peak, total


def softmax_online(
    sums: Integers, multiplier: int, shift: int, valid: Integers, lanes: int, before: Carried | None = None
) -> tuple[Integers, Carried, Integers]:
    """A tile of columns of a `softmax`: powers in 1/127 of their rows' peaks, which are not yet divided by totals.

    Parameters
    ----------
    sums, multiplier, shift, valid, lanes
        As for `softmax`; ``valid`` may be below zero.
    before
        Peaks and totals that the tiles before have left; none for the first one.

    Returns
    -------
    tuple
        The powers; peaks and totals with this tile; by how much each peak has risen, at most `RISE_LIMIT`.
    """
    seen = np.arange(sums.shape[1]) < valid[:, None]
    exponent = np.clip(half_even(sums * multiplier, shift), -WIDE, WIDE - 1)
    peak, total = _reduced(exponent, seen, lanes, 1, before)
    rise = 0 * peak if before is None else np.minimum(peak - before[0], RISE_LIMIT)
    powers = half_even(np.where(seen, _power(exponent, peak, 1), 0) * ONE, EXP2_ONE)
    return powers, (peak, total), rise


def rescaled(sums: Integers, rise: Integers) -> Integers:
    """Older sums of a row, in steps of its new peak."""
    return half_even(sums, rise[:, None])


def requantize_rows(sums: Integers, total: Integers, bias: Integers, multiplier: Integers, shift: Integers) -> Integers:
    """(z * multiplier + bias) / 2^(shift + 7) per column, z = sums over the totals of their rows, in 1/128.

    With these parameters `requantize` makes the same of sums over probabilities that `softmax` has divided.
    """
    top = _top_bit(total)
    found = _interpolated(_RECIPROCALS, (total << (MANTISSA_BITS - 1)) >> top) * (total > 0)
    # tables have 127 of them, results are in 1/128: 128/127 is 1 + 2^-7 + 2^-14, but for 5e-7
    scale, places = found + (found >> 7) + (found >> 14), np.maximum(top - FALL, 0)
    z = np.clip(half_even(sums * scale[:, None], places[:, None]), -WIDE, WIDE - 1)
    return half_even(z * multiplier + bias, shift + CLOSING_BITS)


def _power(exponent: Integers, peak: Integers, rounding: int) -> Integers:
    """2^(exponent/256 - peak), in 1/2^15, rounded, halves up: cutting off would add up over a long row."""
    below = (peak[:, None] << EXP2_BITS) - exponent
    twice = (2 * _EXP2[below & ((1 << EXP2_BITS) - 1)]) >> np.minimum(below >> EXP2_BITS, 63)
    return np.asarray((twice + rounding) >> 1)


def _top_bit(value: Integers) -> Integers:
    """Place of the highest bit that is set; zero for zero."""
    found = np.zeros_like(value)
    for step in (32, 16, 8, 4, 2, 1):
        higher = value >> (found + step) > 0
        found = found + step * higher
    return found


def _interpolated(table: Integers, mantissa: Integers, rounding: int = 128) -> Integers:
    """As `arch.numerics.interpolated`, for arrays."""
    index, low = mantissa >> 8, mantissa & 255
    return np.asarray(table[index] - (((table[index] - table[np.minimum(index + 1, 256)]) * low + rounding) >> 8))
