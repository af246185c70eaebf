"""What a ring's reduce-scatter and all-gather computes, bit for bit: NumPy, in the order in which the chips add."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.ring import RingEngine


def all_reduced(engine: RingEngine, buffers: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The buffer that every chip has in the end.

    Share c starts on chip c and is added up chip by chip, c + 1, c + 2, ...; the order matters where sums saturate.
    """
    chips = len(buffers)
    shares = [buffer.reshape(chips, -1) for buffer in buffers]
    result = np.empty_like(shares[0])
    for share in range(chips):
        total = shares[share][share]
        for step in range(1, chips):
            total = added(engine.operand, shares[(share + step) % chips][share], total)
        result[share] = total
    return result.reshape(-1)


def added(operand: DataType, a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Element by element ``a`` + ``b``: int8 saturates, int32 is modulo 2^32."""
    if operand == DataType.INT8:
        total = a.view(np.int8).astype(np.int16) + b.view(np.int8)
        return np.clip(total, -128, 127).astype(np.int8).view(np.uint8)
    total32 = a.copy().view(np.uint32) + b.copy().view(np.uint32)
    return total32.view(np.uint8)
