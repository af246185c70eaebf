"""Digits that a digit-serial element works through: their recoding, how many are not zero, and what to expect.

An operand is its sign and its magnitude, which has two bits d_i for each digit of radix four. A digit of three becomes
-1 and one more for the next digit: c_1 = (d_0 = 3), c_i = (d_(i-1) = 3) or (the high bit of d_(i-1) and c_(i-1)), and
digit i is d_i + c_i modulo four, where three stands for -1. So digits are -1, 0, 1 and 2, and all change their sign
where the operand is negative. After "Exploring the Performance Improvement of Tensor Processing Engines through
Transformation in the Bit-weight Dimension of MACs" (HPCA 2025).

A beat of operands takes as many steps as that of its operands that has most digits which are not zero, one at least.
Operands of a distribution are independent, so the steps of a beat are the largest of independent counts, whose
distribution is the power of one's: no figure here is fitted or drawn.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import DataType

Digits = NDArray[np.int64]
Chances = NDArray[np.float64]


def place_bits(bits: int) -> int:
    """Width of the number of a digit of an operand."""
    return (bits // 2 - 1).bit_length()


def digits_of(values: Digits, bits: int) -> Digits:
    """Digits of whole numbers of ``bits`` bits, of any shape, lowest first along a new last axis."""
    magnitude, sign = np.abs(values), np.where(values < 0, -1, 1)
    made, carry = np.zeros((*values.shape, bits // 2), np.int64), np.zeros(values.shape, np.int64)
    for place in range(bits // 2):
        two = magnitude >> 2 * place & 3
        digit = two + carry & 3
        made[..., place] = np.where(digit == 3, -1, digit) * sign
        carry = ((two == 3) | ((two >= 2) & (carry == 1))).astype(np.int64)
    return made


def digit_counts(values: Digits, bits: int) -> Digits:
    """Digits of each value that are not zero."""
    counts: Digits = np.count_nonzero(digits_of(values, bits), axis=-1)
    return counts


def chances_of(dtype: DataType, sigma: float | None) -> tuple[Digits, Chances]:
    """Values of a format of whole numbers and how probable each is.

    All alike, or those of a normal distribution about zero with standard deviation ``sigma``, truncated at the format's
    ends and rounded to whole numbers: both ends have half of the others' width.
    """
    values = np.arange(-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
    if sigma is None:
        return values, np.full(len(values), 1 / len(values))
    edges = np.clip(np.append(values - 0.5, np.inf), values[0], values[-1]) / (sigma * math.sqrt(2))
    below = np.array([math.erfc(-edge) if edge < 0 else 2 - math.erfc(edge) for edge in edges.tolist()])
    chances = np.diff(below)
    return values, chances / chances.sum()


@cache
def count_chances(dtype: DataType, sigma: float | None) -> tuple[float, ...]:
    """How probable an operand is to have so many digits that are not zero: none, one, and so on."""
    values, chances = chances_of(dtype, sigma)
    found = np.bincount(digit_counts(values, dtype.bits), weights=chances, minlength=dtype.bits // 2 + 1)
    return tuple(found.tolist())


def mean_digits(dtype: DataType, sigma: float | None) -> float:
    """Digits of an operand that are not zero, on average."""
    return sum(count * chance for count, chance in enumerate(count_chances(dtype, sigma)))


@cache
def step_chances(dtype: DataType, sigma: float | None, operands: int) -> tuple[float, ...]:
    """How probable a beat of so many operands is to take so many steps: none (never), one, and so on."""
    below = np.cumsum(count_chances(dtype, sigma))
    most = (below / below[-1]) ** operands
    most[0] = 0.0
    return tuple(np.diff(most, prepend=0.0).tolist())


@cache
def expected_steps(array: SystolicArray, rows: int, k: int, least: int) -> float:
    """Expected cycles of a fold's operands, of ``rows`` rows and sums of ``k`` products; ``least`` where that is more.

    Beats take one step at least, so that ``least`` only counts where there are fewer beats: then the steps of all of
    them have a distribution, which is found beat by beat.
    """
    assert array.circuit_format is not None
    full, rest = divmod(k, array.depth)
    beats = [array.depth] * full + [rest] * (rest > 0)
    if len(beats) >= least:
        return full * _mean(array, rows * array.depth) + (_mean(array, rows * rest) if rest else 0.0)
    total = np.ones(1)
    for operands in beats:
        total = np.convolve(total, step_chances(array.circuit_format, array.operand_sigma, rows * operands))
    return float(np.maximum(np.arange(len(total)), least) @ total)


def _mean(array: SystolicArray, operands: int) -> float:
    assert array.circuit_format is not None
    chances = step_chances(array.circuit_format, array.operand_sigma, operands)
    return sum(steps * chance for steps, chance in enumerate(chances))


def beat_steps(array: SystolicArray, a: Digits) -> Digits:
    """Steps of the beats of one fold: A's rows in the array, and all that is summed, one beat for ``depth`` of it."""
    assert array.circuit_format is not None
    counts = digit_counts(a, array.circuit_format.bits)
    short = -counts.shape[1] % array.depth
    counts = np.pad(counts, ((0, 0), (0, short))).reshape(len(counts), -1, array.depth)
    steps: Digits = np.maximum(counts.max(axis=(0, 2)), 1)
    return steps


__all__ = [
    "beat_steps",
    "chances_of",
    "count_chances",
    "digit_counts",
    "digits_of",
    "expected_steps",
    "mean_digits",
    "place_bits",
    "step_chances",
]
