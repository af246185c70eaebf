"""Time of norms, activations and additions on a GPU.

A kernel takes a launch, and the longer of its bytes and its arithmetic. Bytes come from the last cache where they fit
it, as a kernel's operands were written by the one before, and otherwise from the DRAM, of whose bandwidth each kind of
kernel reaches a share. Arithmetic limits kinds of many instructions an element: exponentials, error functions. Kinds
that sum a row before they write it have a block of threads a row, so that even a single row takes as long as a block
needs for its columns, and for joining the sums of its threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.efficiency import Elementwise
from siliconloom.baselines.operations import OPS, Op, Operations
from siliconloom.baselines.roofline import compulsory_bytes

Float = NDArray[np.float64]

SUMMED = (Op.RMSNORM, Op.LAYERNORM, Op.SOFTMAX)
STEEP = 8.0
"""How sharply bytes leave the last cache around its size: a repeated kernel finds all of them there, or none."""
JOINED = 4.0
"""Exponent by which bytes and arithmetic, which overlap, are joined."""
_KINDS = [str(op) for op in OPS]


def elementwise_times(gpu: Gpu, fitted: Elementwise, o: Operations) -> tuple[Float, list[str]]:
    """Seconds of every row, and what bounds it: ``launch`` (its sums joined in it), ``memory`` or ``compute``."""
    moved = compulsory_bytes(o)
    multiprocessor_cycles = gpu.multiprocessors * gpu.clock
    busy = moved / (gpu.memory_bandwidth * fitted.by_kind("", _KINDS, 1.0)[o.op])
    if fitted.kept:
        fits = 1.0 / (1.0 + (moved / (fitted.kept * gpu.l2_bytes)) ** STEEP)
        busy = busy * (1.0 - fits) + moved / (fitted.l2_rate * multiprocessor_cycles) * fits
    rates = fitted.by_kind("elements_", _KINDS, 0.0)[o.op] * multiprocessor_cycles
    elements = o.m.astype(np.float64) * o.n
    work = np.divide(elements, rates, out=np.zeros(len(o)), where=rates > 0)
    longer = np.where(work > busy, "compute", "memory")
    busy = (busy**JOINED + work**JOINED) ** (1.0 / JOINED)
    row = o.among(*SUMMED) * fitted.reduce + fitted.by_kind("columns_", _KINDS, 0.0)[o.op] * o.n / gpu.clock
    return fitted.launch + row + busy, np.where(busy > fitted.launch + row, longer, "launch").tolist()


__all__ = ["elementwise_times"]
