"""Numbers by the rule of `arch.floats`, element by element, as machine code.

Arguments are flat arrays of one length: of fp32 numbers, or of patterns. What is below 2^-126 is a zero of its sign, as
operand and as result, and a NaN that comes out is the canonical one, 0x7FC00000.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from siliconloom.arch.kernels import kernel, part

TINY = np.float32(2.0**-126)
"""The smallest normal number of fp32."""
ROUNDS_UP = 2.0**-126 - 2.0**-151
"""From here on a number of 24 bits is rounded to the smallest normal one; a subnormal one is from 2^-151 below this."""
ZERO, NAN = np.float32(0.0), np.float32(np.nan)
SIGN, EXPONENT, MAGNITUDE, QUIET = (np.uint32(w) for w in (0x80000000, 0x7F800000, 0x7FFFFFFF, 0x7FC00000))
HALF, ONE, BELOW_HALF = np.uint32(16), np.uint32(1), np.uint32(0x7FFF)


@part()
def operand(value: Any) -> Any:
    """What a circuit takes a number for: what is below the smallest normal one as a zero of its sign."""
    return value if abs(value) >= TINY else value * ZERO


@part()
def settled(word: Any) -> Any:
    """A pattern of fp32 as a circuit takes it: what is below the smallest normal number is a zero, NaN the one NaN."""
    if word & EXPONENT == 0:
        return np.uint32(word & SIGN)
    if word & MAGNITUDE > EXPONENT:
        return QUIET
    return np.uint32(word)


@part()
def short_bf16(word: Any) -> Any:
    """The pattern of the number in bf16 nearest to an fp32 pattern, halves to even."""
    whole = settled(word)
    return (whole + BELOW_HALF + (whole >> HALF & ONE)) >> HALF  # what is cut off carries


@kernel()
def flush(numbers: Any, found: Any) -> None:
    """Fill ``found`` with the numbers themselves."""
    for i in range(numbers.shape[0]):
        value = numbers[i]
        if not abs(value) >= TINY:  # zeros, what is below, and what is no number
            value = value * ZERO
            if value != value:
                value = NAN
        found[i] = value


@kernel()
def add(a: Any, b: Any, found: Any) -> None:
    """Fill ``found`` with sums, rounded once."""
    for i in range(a.shape[0]):
        x, y = operand(a[i]), operand(b[i])
        value = x + y
        if not abs(value) >= TINY:
            value = value * ZERO
            if value != value:
                value = NAN
        found[i] = value


@kernel()
def multiply(a: Any, b: Any, found: Any) -> None:
    """Fill ``found`` with products, rounded to 24 bits before what is below 2^-126 becomes zero."""
    for i in range(a.shape[0]):
        x, y = operand(a[i]), operand(b[i])
        value = x * y
        if not abs(value) > TINY:
            if not abs(value) >= TINY or abs(np.float64(x) * np.float64(y)) < ROUNDS_UP:
                value = value * ZERO
            if value != value:
                value = NAN
        found[i] = value


@kernel()
def widen_bf16(patterns: Any, found: Any) -> None:
    """Fill ``found`` with the fp32 patterns of numbers in bf16, which is their upper half."""
    for i in range(patterns.shape[0]):
        found[i] = settled(np.uint32(patterns[i]) << HALF)


@kernel()
def narrow_bf16(words: Any, found: Any) -> None:
    """Fill ``found`` with the patterns of numbers in bf16 nearest to fp32 patterns, halves to even."""
    for i in range(words.shape[0]):
        found[i] = short_bf16(words[i])


@kernel()
def round_bf16(words: Any, found: Any) -> None:
    """Fill ``found`` with the fp32 patterns of what `narrow_bf16` gives."""
    for i in range(words.shape[0]):
        found[i] = short_bf16(words[i]) << HALF


__all__ = ["add", "flush", "multiply", "narrow_bf16", "round_bf16", "settled", "widen_bf16"]
