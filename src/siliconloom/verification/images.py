"""Main memory of the programs that are compared: where what lies in it, and random content."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import patterns_of
from siliconloom.arch.word import WORD_BYTES

Bytes = NDArray[np.uint8]
MEMORY_BYTES = 1 << 17
"""Main memory that a random program uses: operands below, results above the middle, the program at the end."""
PROGRAM_WORDS = 64
"""Instructions for which there is room in memory."""
PROGRAM_BASE = MEMORY_BYTES - PROGRAM_WORDS * WORD_BYTES
"""Where the program begins."""
RESULTS = MEMORY_BYTES // 2
"""Where results begin."""


def random_image(
    numbers: np.random.Generator, dtype: DataType = DataType.INT8, size: int = MEMORY_BYTES, odd: float = 1 / 16
) -> Bytes:
    """Random bytes for a memory, by default for all that random programs use.

    Floating-point numbers are alike in size, so that sums round; half of them are few different ones, so that sums
    cancel. A share of ``odd`` is any pattern, or a special one. A sum that meets an infinity shows nothing else, so it
    must be small where sums are long.
    """
    if dtype.is_integer:
        return numbers.integers(0, 256, size).astype(np.uint8)
    count = -(-size * 8 // dtype.bits)
    real = numbers.standard_normal(count) * 2.0 ** numbers.integers(-3, 2, count)
    real = np.where(numbers.random(count) < 0.5, numbers.integers(-4, 5, count) / 2, real)
    found = patterns_of(real, dtype)
    any_ = numbers.integers(0, 1 << dtype.bits, count).astype(found.dtype)
    special = patterns_of(np.array([np.inf, -np.inf, np.nan, -0.0, 2.0**-126, -(2.0**-126)]), dtype)
    kind = numbers.random(count)
    found = np.where(kind < 0.8 * odd, any_, np.where(kind > 1 - 0.2 * odd, numbers.choice(special, count), found))
    return found.view(np.uint8)[:size]


__all__ = ["Bytes", "MEMORY_BYTES", "PROGRAM_BASE", "PROGRAM_WORDS", "RESULTS", "random_image"]
