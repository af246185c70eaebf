"""Time of norms, activations and additions on a GPU: bytes over the DRAM's or the L2's rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

PASSES = {
    "rmsnorm": 2.0, "layernorm": 2.0, "softmax": 2.0, "silu_mul": 3.0, "gelu": 2.0, "add": 3.0, "rope": 2.0,
    "embedding": 2.0,
}  # fmt: skip
"""Elements of m x n read and written; SwiGLU's gate reads two halves of 2n columns, n each."""


def elementwise_times(
    moved: Float, dram: float, l2: float, fitted: NDArray[np.float64]
) -> tuple[Float, NDArray[np.bool_]]:
    """Seconds of kernels that move ``moved`` bytes, and whether the memory rather than the launch bounds each."""
    launch, stream, cached = fitted[:3]
    rate = np.where(moved <= l2 / 2.0, dram * stream * cached, dram * stream)
    busy = moved / rate
    return launch + busy, busy > launch
