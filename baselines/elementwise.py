"""Time of norms, activations and additions on a GPU: a launch, and bytes at the share of the DRAM that kernels reach.

A norm reads a row, sums it, and reads it again from registers or cache: kernels of serving stacks with one block a row
reach a third to three quarters of the bandwidth, plain additions nearly nine tenths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def elementwise_times(moved: Float, share: Float, dram: float, launch: float) -> tuple[Float, NDArray[np.bool_]]:
    """Seconds of kernels that move ``moved`` bytes, and whether the memory rather than the launch bounds each.

    ``share`` is the part of the bandwidth ``dram`` (bytes per second) that each row's kind of kernel reaches.
    """
    busy = moved / (dram * share)
    return launch + busy, busy > launch
