"""Functions that the vector unit computes by tables, number by number, as machine code.

What they compute, and what their words mean, stands in `sim.golden.float_functions`. Arguments are flat arrays of one
length: fp32 patterns, or integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from siliconloom.arch.kernels import kernel, part
from siliconloom.arch.numerics import EXP2, EXP2_ONE, LOG2_BITS, RECIPROCALS

FURTHEST = 1 << 15
"""What exponents of powers saturate at."""
_EXP2 = np.array([*EXP2, 1 << (EXP2_ONE - 1)], np.int64)
_RECIPROCALS = np.array([RECIPROCALS.get(i, 0) for i in range(257)], np.int64)
SIGN, EXPONENT, MAGNITUDE, NAN = (np.uint32(word) for word in (0x80000000, 0x7F800000, 0x7FFFFFFF, 0x7FC00000))
ONE, ZERO = np.float32(1.0), np.uint32(0)
HIDDEN, FRACTION = 1 << 23, (1 << 23) - 1
SCALE, MOST = 2.0**LOG2_BITS, float(FURTHEST << LOG2_BITS)


@part()
def _fixed(word: Any) -> Any:
    """A number in 1/2^16, halves away from zero, saturated to `FURTHEST`; no number is the least one."""
    if word & MAGNITUDE > EXPONENT:
        return np.int64(-MOST)
    real = np.float64(np.uint32(word).view(np.float32)) * SCALE
    if real >= 0.0:
        return np.int64(min(np.floor(real + 0.5), MOST - 1.0))
    return np.int64(max(-np.floor(0.5 - real), -MOST))


@part()
def _power(exponent: Any, peak: Any) -> Any:
    """2^(exponent / 2^16 - peak); zero below the smallest normal number, infinity beyond the largest."""
    below = (peak << LOG2_BITS) - exponent
    index, low = below >> 8 & 255, below & 255
    value = (_EXP2[index] << 8) - (_EXP2[index] - _EXP2[index + 1]) * low
    one = value >> 23  # only of a whole exponent
    field = 126 + one - (below >> LOG2_BITS)
    if field < 1:
        return ZERO
    if field > 254:
        return EXPONENT
    return np.uint32(field << 23 | ((value << 1) * (1 - one) & FRACTION))


@part()
def _reciprocal(word: Any) -> Any:
    """1 / x of a positive number; 0 of zero and of infinity."""
    wide: Any = np.int64(word)
    field = wide >> 23 & 255
    if word & MAGNITUDE > EXPONENT:
        return NAN
    if field == 0 or field == 255:
        return ZERO
    significand = wide & FRACTION | HIDDEN
    index, low = significand >> 16, significand & 0xFFFF
    value = (_RECIPROCALS[index] << 16) - (_RECIPROCALS[index] - _RECIPROCALS[min(index + 1, 256)]) * low
    # the table's are 127 times too large, and should be 128 times
    value += (value >> 7) + (value >> 14) + (value >> 21)
    rounded = (value + 128) >> 8
    field = 253 - field + (rounded >> 24)
    if field < 1:
        return ZERO
    if field > 254:
        return EXPONENT
    return np.uint32(field << 23 | rounded & FRACTION)


@kernel()
def fixed(words: Any, found: Any) -> None:
    """Fill ``found`` with numbers in 1/2^16."""
    for i in range(words.shape[0]):
        found[i] = _fixed(words[i])


@kernel()
def powers_of_fixed(exponents: Any, peaks: Any, found: Any) -> None:
    """Fill ``found`` with 2^(exponent / 2^16 - peak)."""
    for i in range(exponents.shape[0]):
        found[i] = _power(exponents[i], peaks[i])


@kernel()
def powers(words: Any, peaks: Any, found: Any) -> None:
    """Fill ``found`` with powers of two whose exponents are numbers less their peaks; NaN where one is none."""
    for i in range(words.shape[0]):
        found[i] = NAN if words[i] & MAGNITUDE > EXPONENT else _power(_fixed(words[i]), peaks[i])


@kernel()
def reciprocals(words: Any, found: Any) -> None:
    """Fill ``found`` with the reciprocals of positive numbers."""
    for i in range(words.shape[0]):
        found[i] = _reciprocal(words[i])


@kernel()
def sigmoids(words: Any, found: Any) -> None:
    """Fill ``found`` with 1 / (1 + 2^exponent)."""
    for i in range(words.shape[0]):
        word = words[i]
        if word & MAGNITUDE > EXPONENT:
            found[i] = NAN
        else:
            total = np.uint32(_power(_fixed(word), 0)).view(np.float32) + ONE  # never below the smallest normal number
            found[i] = _reciprocal(np.float32(total).view(np.uint32))


__all__ = ["FURTHEST", "fixed", "powers", "powers_of_fixed", "reciprocals", "sigmoids"]
