"""How fast matmul instructions of one shape follow one another: what the mapper costs its tilings with.

Everything is `sim.timing.systolic.gemm_run` and the constants of `arch.timing` put together, for arrays of shapes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import Packing
from siliconloom.arch.packing import loads, worked_rows
from siliconloom.arch.timing import LOADER_GAP
from siliconloom.sim.timing.systolic import fold_pace, gemm_run

Int = NDArray[np.int64]


def matmul_pace(array: SystolicArray, m: Int, n: Int, k: Int, packing: Packing | None = None) -> Int:
    """Cycles from a matmul's first tile becoming active to that of an equal one right behind it.

    A matmul leaves its queue only when the last tile of the one before is active, so the loads of its own first tile
    hide behind no more than that tile's beats.
    """
    rows, cols = array.rows, array.cols
    if array.dataflow == "output_stationary":
        folds = -(-m // rows) * -(-n // cols)
        last = rows + array.products_apart
        apart: Int = (folds - 1) * np.maximum(k, rows) + np.maximum(k + array.operand_latency, last)
        return apart
    outer, beats = (n, m) if array.dataflow == "weight_stationary" else (m, n)
    load, k = loads(array, k, packing), np.asarray(worked_rows(array, k, packing))
    paced: Int = -(-outer // cols) * (
        load.few * fold_pace(array, load.short, beats)
        + load.many * fold_pace(array, load.long, beats)
        + np.where(k % rows > 0, fold_pace(array, load.rest, beats), 0)
    )
    first = load.first
    between = fold_pace(array, first + LOADER_GAP + array.operand_latency, beats)
    pace: Int = paced - fold_pace(array, first, beats) + np.maximum(between, beats + array.products_apart)
    return pace


def product_pace(array: SystolicArray, m: int, n: int, k: int, packing: Packing | None = None) -> int:
    """`matmul_pace` of one shape."""
    run = gemm_run(array, m, n, k, packing)
    if array.dataflow == "output_stationary":
        return run.advance + max(k + array.operand_latency, array.rows + array.products_apart)
    first, beats = run.first_load + LOADER_GAP + array.operand_latency, run.stream_beats
    return run.advance + max(int(fold_pace(array, first, beats)), beats + array.products_apart)


def first_load(array: SystolicArray, k: Int, packing: Packing | None = None) -> Int:
    """Cycles from a matmul leaving its queue to its first tile being active, or its first beat (output stationary)."""
    if array.dataflow == "output_stationary":
        return np.full_like(k, array.operand_latency)
    first: Int = array.operand_latency + loads(array, k, packing).first
    return first
