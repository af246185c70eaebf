"""Functions of fp32 patterns that the vector unit computes by tables: bit exact with ``rtl.cells.float_functions``.

Tables are those of `arch.numerics`, linear in between. Sums and products around them are those of `arch.floats`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.floats import (
    EXPONENT,
    FRACTION_BITS,
    NAN,
    SIGN,
    Words,
    float_product,
    float_sum,
    in_a_row,
    tree_sum,
)
from siliconloom.arch.numerics import GELU_CUBE, GELU_SLOPE, LOG2_BITS, ROOTS, SILU_SLOPE, TANH_LEAST, TANH_SLOPE
from siliconloom.arch.vector import RISE_LIMIT
from siliconloom.sim.golden import tables

Integers = NDArray[np.int64]
LOWEST = -(1 << 15)
"""Peak of a row of which nothing is seen."""
_ROOTS = np.array([ROOTS.get(i, 0) for i in range(257)], np.int64)
ZERO, MINUS_ZERO = np.uint32(0), SIGN
UNIT, _SILU_SLOPE, _GELU_SLOPE, _GELU_CUBE, _TANH_SLOPE, _TWO, _MINUS_UNIT = (
    np.array(word, np.uint32)
    for word in (0x3F800000, SILU_SLOPE, GELU_SLOPE, GELU_CUBE, TANH_SLOPE, 0x40000000, 0xBF800000)
)


def is_nan(words: Words) -> NDArray[np.bool_]:
    """Which patterns are no numbers."""
    return (words & ~SIGN) > EXPONENT


def fixed(words: Words) -> Integers:
    """Numbers in 1/2^16, halves away from zero, saturated to `tables.FURTHEST`; no number is the least one."""
    found = np.empty(np.shape(words), np.int64)
    tables.fixed(in_a_row(words, found.shape, np.uint32), found.reshape(-1))
    return found


def rounded_up(exponent: Integers) -> Integers:
    """Exponents in 1/2^16, rounded up to integers."""
    return -(-exponent >> LOG2_BITS)


def power(exponent: Integers, peak: Integers) -> Words:
    """2^(exponent / 2^16 - peak); zero below the smallest normal number, infinity beyond the largest."""
    found = np.empty(np.broadcast_shapes(np.shape(exponent), np.shape(peak)), np.uint32)
    flat = in_a_row(exponent, found.shape, np.int64), in_a_row(peak, found.shape, np.int64)
    tables.powers_of_fixed(*flat, found.reshape(-1))
    return found


def power_of(words: Words, peak: Integers) -> Words:
    """`power` of numbers as exponents; NaN where one is no number. Shapes are broadcast."""
    found = np.empty(np.broadcast_shapes(np.shape(words), np.shape(peak)), np.uint32)
    flat = in_a_row(words, found.shape, np.uint32), in_a_row(peak, found.shape, np.int64)
    tables.powers(*flat, found.reshape(-1))
    return found


def lowered(words: Words, places: Integers | int) -> Words:
    """Numbers over 2^``places``: exact, zeros of their sign below the smallest normal number."""
    field = (words & EXPONENT).astype(np.int64) >> FRACTION_BITS
    smaller = (words - (np.asarray(places).astype(np.uint32) << np.uint32(FRACTION_BITS))).astype(np.uint32)
    found = np.where(field > places, smaller, words & SIGN)
    return np.where(field == 255, words, found).astype(np.uint32)


def reciprocal(words: Words) -> Words:
    """1 / x of positive numbers; 0 of zero and of infinity."""
    found = np.empty(np.shape(words), np.uint32)
    tables.reciprocals(in_a_row(words, found.shape, np.uint32), found.reshape(-1))
    return found


def reciprocal_root(words: Words) -> Words:
    """1 / sqrt(x) of positive numbers; 0 of all others, and NaN of what is no finite number."""
    field, significand = _parts(words)
    wide = significand << (2 - (field & 1))
    index, low = wide >> 18, wide & 0x3FFFF
    value = (_ROOTS[index] << 18) - (_ROOTS[index] - _ROOTS[np.minimum(index + 1, 256)]) * low
    rounded = (value + 512) >> 10
    carry = rounded >> (FRACTION_BITS + 1)
    half = (field + 1 >> 1) - 64
    found = _packed(126 - half + carry, rounded)
    found = np.where((words >> np.uint32(31) > 0) | (field == 0), ZERO, found)
    return np.where(field == 255, NAN, found).astype(np.uint32)


def normalize(
    x: Words, multiplier: Words, bias: Words, epsilon: Words, lanes: int, *, centred: bool, stages: int = 1
) -> Words:
    """(x * scale - offset) * multiplier + bias per column, of rows of mean zero and deviation one.

    ``centred`` is layer normalisation; without it the mean counts as zero. The deviation's square has ``epsilon`` added
    to it. A row that is constant, with no epsilon, gives the bias; one with an infinity or a NaN gives NaN. Blocks of
    lanes are added up in as many partial sums as an addition has ``stages`` (`row_sums`).
    """
    rows, cols = x.shape
    wide = np.zeros((rows, -(-cols // lanes) * lanes), np.uint32)
    wide[:, :cols] = x
    blocks = wide.reshape(rows, -1, lanes)
    first, second = (row_sums(tree_sum(part), stages) for part in (blocks, float_product(blocks, blocks)))
    first = first if centred else 0 * first
    count = np.array([cols], np.float32).view(np.uint32)
    square = float_sum(float_product(second, count), float_product(first, first) ^ SIGN)
    root = reciprocal_root(float_sum(square, float_product(float_product(count, count), epsilon)))
    scale, offset = float_product(root, count), float_product(first, root)
    z = float_sum(float_product(x, scale[:, None]), offset[:, None] ^ SIGN)
    return float_sum(float_product(z, multiplier), bias)


def row_sums(parts: Words, stages: int, peaks: Integers | None = None, before: Carried | None = None) -> Words:
    """Sums of rows, of the sums of their blocks: in as many partial sums as an addition has stages.

    Each partial sum begins with +0 and has every so many-th block, in their order. They are put together as a tree, at
    first those that are half of their number apart: which of them the row's last block is in makes no difference then,
    and blocks of nothing behind it make none either.

    Parameters
    ----------
    parts
        Sums of blocks, shape (rows, blocks), at least one.
    stages
        Partial sums; a power of two.
    peaks
        The exponent that counts as zero in each block: a sum is lowered by as much as that has risen since, by at most
        `RISE_LIMIT` each time.
    before
        Peak and total that the first block goes on from.
    """
    rows, blocks = parts.shape
    peaks = np.zeros((rows, blocks), np.int64) if peaks is None else peaks
    none = np.zeros(rows, np.uint32)
    made: list[Words] = []
    for block in range(blocks):
        since, older = peaks[:, block], none
        if block >= stages:
            since, older = peaks[:, block - stages], made[block - stages]
        elif block == 0 and before is not None:
            since, older = before
        made.append(float_sum(_risen(older, since, peaks[:, block]), parts[:, block]))
    first = range(max(blocks - stages, 0), blocks)
    left = [_risen(made[block], peaks[:, block], peaks[:, -1]) for block in first]
    left += [none] * (stages - len(left))
    while half := len(left) // 2:
        left = [float_sum(a, b) for a, b in zip(left[:half], left[half:], strict=True)]
    return left[0]


def _risen(sums: Words, since: Integers, peak: Integers) -> Words:
    """Sums below a peak, below one that has risen."""
    return lowered(sums, np.minimum(peak - since, RISE_LIMIT))


Carried = tuple[Integers, Words]
"""Of each row the peak so far, and the total."""


def reduced(
    t: Words, seen: NDArray[np.bool_], lanes: int, before: Carried | None = None, *, stages: int = 1
) -> Carried:
    """Each row's largest exponent, rounded up to an integer, and the sum of its powers below that (`row_sums`)."""
    rows, cols = t.shape
    wide = -(-cols // lanes) * lanes
    words, within = np.zeros((rows, wide), np.uint32), np.zeros((rows, wide), bool)
    words[:, :cols], within[:, :cols] = t, seen
    blocks = (rows, -1, lanes)
    highest = np.where(within, rounded_up(fixed(words)), LOWEST).reshape(blocks).max(2)
    if before is not None:
        highest[:, 0] = np.maximum(highest[:, 0], before[0])
    peaks = np.maximum.accumulate(highest, axis=1)
    powers = power_of(words.reshape(blocks), peaks[:, :, None])
    sums = tree_sum(np.where(within.reshape(blocks), powers, ZERO))
    return peaks[:, -1], row_sums(sums, stages, peaks, before)


def powers_of(t: Words, peak: Integers) -> Words:
    """Powers of two of each row, below its peak; NaN where an exponent is none."""
    return power_of(t, peak[:, None])


def softmax(t: Words, seen: NDArray[np.bool_], lanes: int, *, stages: int = 1) -> Words:
    """Probabilities of each row over what is seen of it; the others get zero. A NaN that is seen makes its row NaN."""
    peak, total = reduced(t, seen, lanes, stages=stages)
    found = float_product(powers_of(t, peak), reciprocal(total)[:, None])
    return np.where(seen, found, ZERO).astype(np.uint32)


def activation(x: Words, *, cubic: bool) -> Words:
    """X by the sigmoid of x (SiLU), or of a polynomial of x that is ``cubic`` (GELU, the form with a tanh)."""
    exponent = float_product(x, _GELU_SLOPE if cubic else _SILU_SLOPE)
    if cubic:
        exponent = float_sum(float_product(float_product(x, x), float_product(x, _GELU_CUBE)), exponent)
    sigmoid = _sigmoid(exponent)
    # an infinity times nothing is nothing
    left = np.where(((x & EXPONENT) == EXPONENT) & (sigmoid == 0), x & SIGN, x)
    return float_product(left, sigmoid)


def tanh(x: Words) -> Words:
    """Twice the sigmoid of 2x, less one; x where that is small."""
    large = float_sum(float_product(_sigmoid(float_product(x, _TANH_SLOPE)), _TWO), _MINUS_UNIT)
    small = (x & EXPONENT) < TANH_LEAST << FRACTION_BITS
    return np.where(small, float_product(x, UNIT), large).astype(np.uint32)


def _sigmoid(exponent: Words) -> Words:
    """1 / (1 + 2^exponent)."""
    found = np.empty(np.shape(exponent), np.uint32)
    tables.sigmoids(in_a_row(exponent, found.shape, np.uint32), found.reshape(-1))
    return found


def order_of(words: Words) -> Integers:
    """Numbers as integers, the larger the earlier they come: no number first, zeros of both signs alike."""
    size = np.where((words & EXPONENT) == 0, 0, words & ~SIGN).astype(np.int64)
    return np.where(is_nan(words), np.int64(1) << 32, np.where(words >> np.uint32(31) > 0, -size, size))


def _parts(words: Words) -> tuple[Integers, Integers]:
    """Exponents with their bias, and significands."""
    wide = words.astype(np.int64)
    return wide >> FRACTION_BITS & 255, wide & ((1 << FRACTION_BITS) - 1) | 1 << FRACTION_BITS


def _packed(field: Integers, fraction: Integers) -> Words:
    """Positive numbers from exponents of any size, and the lower bits of significands."""
    inside = field << FRACTION_BITS | fraction & ((1 << FRACTION_BITS) - 1)
    return np.where(field < 1, 0, np.where(field > 254, int(EXPONENT), inside)).astype(np.uint32)


__all__ = [
    "Carried",
    "activation",
    "fixed",
    "is_nan",
    "lowered",
    "normalize",
    "order_of",
    "power",
    "power_of",
    "powers_of",
    "reciprocal",
    "reciprocal_root",
    "reduced",
    "rounded_up",
    "row_sums",
    "softmax",
    "tanh",
]
