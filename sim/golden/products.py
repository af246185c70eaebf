"""Products of matrices in floating point, as an array adds them up: fold by fold, in the order of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.floats import Words, flushed
from siliconloom.arch.kernels import kernel

TINY = np.float32(2.0**-126)
"""The smallest normal number of fp32: what is below it is a zero of its sign."""
ZERO = np.float32(0.0)


def folded_product(a: Words, b: Words, folds: Sequence[Sequence[int]], total: Words | None = None) -> Words:
    """A B, every fold summed from +0 on in the order that it is given in, and its sums added to those before.

    As `arch.floats.chain_product` and `arch.floats.float_sum` would have it, bit for bit.

    Parameters
    ----------
    a, b
        Fp32 patterns as `arch.floats.widened` makes them, m x k and k x n: their products are exact but for overflow
        and what is below 2^-126.
    folds
        Numbers of columns of ``a``, of each fold.
    total
        Sums before, m x n; without them those of the first fold are.
    """
    order = np.array([k for fold in folds for k in fold], np.int64)
    ends = np.cumsum([len(fold) for fold in folds])
    left, right = (np.ascontiguousarray(each).view(np.float32) for each in (a, b))
    held = np.zeros((a.shape[0], b.shape[1]), np.float32)
    if total is not None:
        held[:] = flushed(total).view(np.float32)
    part = np.zeros(b.shape[1], np.float32)
    with np.errstate(all="ignore"):
        add_folds(left, right, order, ends, held, part, total is not None)
    return flushed(held.view(np.uint32))


@kernel()
def add_folds(
    a: NDArray[np.float32], b: NDArray[np.float32], order: Any, ends: Any, held: Any, part: Any, adds: bool
) -> None:
    """Add the sums of every fold to ``held``; ``part`` is room for those of a row."""
    for row in range(a.shape[0]):
        start = 0
        for fold in range(ends.shape[0]):
            for column in range(b.shape[1]):
                part[column] = ZERO
            for step in range(start, ends[fold]):
                k = order[step]
                factor = a[row, k]
                for column in range(b.shape[1]):
                    product = factor * b[k, column]
                    if not abs(product) >= TINY:
                        product = product * ZERO
                    value = part[column] + product
                    if not abs(value) >= TINY:
                        value = value * ZERO
                    part[column] = value
            for column in range(b.shape[1]):
                value = part[column]
                if adds or fold:
                    value = held[row, column] + value
                    if not abs(value) >= TINY:
                        value = value * ZERO
                held[row, column] = value
            start = ends[fold]


__all__ = ["folded_product"]
