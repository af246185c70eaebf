"""The numbers of floating-point circuits, bit for bit: patterns in, patterns out.

One rule holds in arrays, vector units and memories that compute: an fp32 number below 2^-126 is a zero of its sign, as
operand and as result, and every NaN is 0x7FC00000. Formats with a shorter exponent (fp16, fp8) keep their subnormal
numbers, as those are normal in fp32; bf16 has the exponent of fp32, so its subnormal numbers are zeros. Products are
rounded to fp32 once (those of fp16 and fp8 are exact, those of bf16 exact but for overflow and numbers below 2^-126),
every sum once, to the nearest, halves to even.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType, FloatLayout
from siliconloom.arch.float_kernels import add, flush, multiply, narrow_bf16, round_bf16, widen_bf16

Words = NDArray[np.uint32]
"""Bit patterns of fp32, or int32 modulo 2^32."""
Numbers = NDArray[np.float32]
Patterns = NDArray[np.integer]
"""Bit patterns of a format, in integers of any width that holds them."""
NAN = np.uint32(0x7FC00000)
EXPONENT = np.uint32(0x7F800000)
SIGN = np.uint32(0x80000000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
FRACTION_BITS = 23
BIAS = 127


def flushed(bits: Words) -> Words:
    """Fp32 patterns with subnormal numbers made zeros of their sign, and every NaN the canonical one."""
    bits = np.asarray(bits)
    found = np.empty(bits.shape, np.float32)
    flush(_flat(bits, bits.shape), found.reshape(-1))
    return found.view(np.uint32)


def float_sum(a: Words, b: Words) -> Words:
    """Sums of fp32 patterns, whose shapes are broadcast."""
    return _paired(add, a, b)


def float_product(a: Words, b: Words) -> Words:
    """Products of fp32 patterns, rounded to 24 bits before what is below 2^-126 becomes zero; shapes are broadcast."""
    return _paired(multiply, a, b)


def _paired(operation: Callable[[Numbers, Numbers, Numbers], None], a: Words, b: Words) -> Words:
    a, b = np.asarray(a), np.asarray(b)
    shape = a.shape if a.shape == b.shape else np.broadcast(a, b).shape
    found = np.empty(shape, np.float32)
    operation(_flat(a, shape), _flat(b, shape), found.reshape(-1))
    return found.view(np.uint32)


def _flat(words: Words, shape: tuple[int, ...]) -> Numbers:
    """Numbers of patterns that are broadcast to a shape, one after the other."""
    return in_a_row(words, shape, np.uint32).view(np.float32)


def in_a_row(patterns: Patterns, shape: tuple[int, ...], kind: type[np.integer]) -> Patterns:
    """Patterns that are broadcast to a shape, as kernels take them: of one type that may be written to."""
    if patterns.shape == shape and patterns.dtype == kind and patterns.flags.carray:
        return patterns.reshape(-1)
    if patterns.dtype.kind not in "ui":
        raise TypeError(f"patterns of numbers are integers, not {patterns.dtype}")
    spread = np.empty(shape, kind)
    spread[...] = patterns
    return spread.reshape(-1)


def tree_sum(products: Words) -> Words:
    """Sums over the last axis, adjacent pairs first; its length is a power of two."""
    found = flushed(products)
    while found.shape[-1] > 1:
        found = float_sum(found[..., ::2], found[..., 1::2])
    return found[..., 0]


def chain_product(a: Words, b: Words, total: Words | None = None) -> Words:
    """A B with every sum begun at ``total``, or +0, and one product added after the other, in the order of k.

    Parameters
    ----------
    a, b
        Fp32 patterns, m x k and k x n.
    total
        Sums before, m x n.
    """
    held = np.zeros((a.shape[0], b.shape[1]), np.uint32) if total is None else total
    for k in range(a.shape[1]):
        held = float_sum(held, float_product(a[:, k : k + 1], b[k : k + 1]))
    return held


def widened(patterns: Patterns, dtype: DataType) -> Words:
    """Fp32 patterns of the numbers that patterns of ``dtype`` stand for, exact; those of fp32 as they are."""
    found = np.asarray(patterns)
    if dtype is DataType.FP32:
        return found.astype(np.uint32)
    if found.dtype.kind != "u" or 8 * found.dtype.itemsize != dtype.bits:
        found = found.astype(np.int64) & ((1 << dtype.bits) - 1)
    if dtype is DataType.BF16:
        words = np.empty(found.shape, np.uint32)
        widen_bf16(in_a_row(found, found.shape, np.uint16), words.reshape(-1))
        return words
    return _every_number(dtype).take(found)


def rounded(words: Words, dtype: DataType) -> Words:
    """Fp32 patterns of the numbers of ``dtype`` nearest to others: `widened` of `narrowed`."""
    if dtype is DataType.BF16:
        found = np.empty(np.shape(words), np.uint32)
        round_bf16(in_a_row(words, found.shape, np.uint32), found.reshape(-1))
        return found
    return widened(narrowed(words, dtype), dtype)


@cache
def _every_number(dtype: DataType) -> Words:
    """Fp32 patterns by the patterns of ``dtype``."""
    layout = dtype.layout
    raw = np.arange(1 << dtype.bits)
    fraction = raw & ((1 << layout.fraction_bits) - 1)
    field = raw >> layout.fraction_bits & ((1 << layout.exponent_bits) - 1)
    sign = (raw >> (dtype.bits - 1)).astype(np.uint32) << np.uint32(31)
    wide = fraction << (FRACTION_BITS - layout.fraction_bits)
    normal = ((field - layout.bias + BIAS) << FRACTION_BITS | wide).astype(np.uint32)
    smallest = 2.0 ** (1 - layout.bias - layout.fraction_bits)
    below = (fraction * smallest).astype(np.float32).view(np.uint32) if layout.keeps_subnormals else np.uint32(0)
    found = np.where(field == 0, below, normal).astype(np.uint32) | sign
    infinite, nan = _special(layout, field, fraction)
    found = np.where(infinite, sign | EXPONENT, found)
    return np.where(nan, NAN, found).astype(np.uint32)


def patterns_of(values: NDArray[np.floating], dtype: DataType) -> Patterns:
    """Patterns of the numbers of ``dtype`` nearest to real ones, by way of fp32."""
    return narrowed(np.asarray(values).astype(np.float32).view(np.uint32), dtype)


def values_of(patterns: Patterns, dtype: DataType) -> NDArray[np.float32]:
    """The numbers that patterns of ``dtype`` stand for."""
    return widened(patterns, dtype).view(np.float32)


def _special(layout: FloatLayout, field: Patterns, fraction: Patterns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which patterns are infinities, and which are no numbers."""
    top = (field == (1 << layout.exponent_bits) - 1) & layout.nans
    if layout.infinities:
        return top & (fraction == 0), top & (fraction != 0)
    return np.zeros_like(top), top & (fraction == (1 << layout.fraction_bits) - 1)


def narrowed(words: Words, dtype: DataType) -> Patterns:
    """Patterns of the numbers of ``dtype`` nearest to fp32 patterns, halves to even, in bytes or words of its width.

    Beyond the largest number there is infinity, or NaN in a format that has no infinities, or the largest number where
    there is no NaN either. Results below the smallest normal number are subnormal where the format keeps them, and
    zeros of their sign otherwise; every NaN is a quiet one with no other bit of its fraction set (E4M3: all ones), and
    the largest number where there is none.
    """
    layout = dtype.layout
    if dtype is DataType.BF16:
        words = np.asarray(words)
        short = np.empty(words.shape, np.uint16)
        narrow_bf16(in_a_row(words, words.shape, np.uint32), short.reshape(-1))
        return short
    flat = flushed(np.asarray(words, np.uint32))
    if dtype is DataType.FP32:
        return flat
    if dtype is DataType.FP16:
        with np.errstate(over="ignore"):
            half = flat.view(np.float32).astype(np.float16).view(np.uint16)
        return np.where(flat == NAN, np.uint16(0x7E00), half)
    sign = (flat >> np.uint32(31)).astype(np.int64) << (dtype.bits - 1)
    magnitude = (flat & ~SIGN).astype(np.int64)
    field = magnitude >> FRACTION_BITS
    below = np.maximum(1 - layout.bias + BIAS - field, 0)  # places by which a number is under the normal ones
    significand = magnitude & ((1 << FRACTION_BITS) - 1) | np.where(field > 0, 1 << FRACTION_BITS, 0)
    drop = np.minimum(FRACTION_BITS - layout.fraction_bits + below, FRACTION_BITS + 2)
    kept = significand >> drop
    rest = significand & ((1 << drop) - 1)
    half = np.where(drop > 0, 1 << np.maximum(drop - 1, 0), 1)
    kept += (rest > half) | ((rest == half) & (kept & 1 == 1))
    # a carry out of the fraction raises the exponent, and out of the subnormal numbers makes the smallest normal one
    exponent = np.where(below > 0, 0, field - BIAS + layout.bias - 1)
    rounded = (exponent << layout.fraction_bits) + kept
    if not layout.keeps_subnormals:
        rounded = np.where(rounded < 1 << layout.fraction_bits, 0, rounded)
    top = ((1 << layout.exponent_bits) - 1) << layout.fraction_bits
    infinity = top if layout.infinities else top | ((1 << layout.fraction_bits) - 1)
    rounded = np.where((magnitude == EXPONENT) | (rounded > infinity), infinity, rounded)
    quiet = top | (1 << (layout.fraction_bits - 1)) if layout.infinities else infinity
    return np.where(flat == NAN, quiet, rounded | sign).astype(f"u{-(-dtype.bits // 8)}")


__all__ = [
    "NAN",
    "Patterns",
    "Words",
    "chain_product",
    "float_product",
    "float_sum",
    "flushed",
    "in_a_row",
    "narrowed",
    "rounded",
    "patterns_of",
    "tree_sum",
    "values_of",
    "widened",
]
