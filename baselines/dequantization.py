"""Instructions that make a 16-bit operand of a weight's code, beside the tensor cores.

A kernel for packed weights (MARLIN; Frantar et al., 2024) brings codes to the registers of a warp, where instructions
of the CUDA cores make of them what the tensor cores take. They are counted in vLLM's ``csrc/quantization/marlin/
dequant.h`` for four weights at a time: logic or byte permutations put a code into the fraction of a 16-bit number, a
subtraction or multiply-add of two numbers at once takes away what that number stands for. In groups the scales of
their columns follow, by one permutation that doubles a scale and two multiplications. The code of eight weights
of four bits is one word, whose other half is shifted down. A code in fp4_e2m1 or fp8 has its sign and its other bits
put where a 16-bit number has them, two at once, and is multiplied by what the exponents' biases differ by, where that
is not a part of the scale.

Of four-bit codes beside operands in int8 (W4A8) half a word is masked, the other half shifted and masked, and four
weights are four bytes of a word. A group's scale and offset are one multiply-add and one exclusive or of such a word
(LiquidGEMM; Hu et al., 2025: two arithmetic instructions for four elements).

Rates are a description's: integer instructions and 16-bit arithmetic per cycle of a multiprocessor. All of them share
the issue of its four schedulers, one warp instruction a cycle each (CUDA C++ Programming Guide, compute capabilities
7.x to 9.0).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.operations import (
    CACHES,
    PRECISIONS,
    WEIGHT_FORMATS,
    CacheStored,
    Operations,
    Precision,
    WeightFormat,
)

ISSUE = 128
"""Instructions of threads that a multiprocessor's four schedulers issue in a cycle."""
FOUR = 4
"""Weights that the counts are of."""


class Instructions(NamedTuple):
    """Instructions of a thread for four weights: integer ones, those on two 16-bit numbers, those on one fp32."""

    integer: float
    half: float
    single: float = 0.0


UNPACKED: dict[tuple[str, Precision], Instructions] = {
    (CacheStored.FP8, Precision.FP16): Instructions(7, 2),
    (CacheStored.FP8, Precision.BF16): Instructions(7, 2),
    (WeightFormat.INT4, Precision.FP16): Instructions(2 + 0.5, 2),
    (WeightFormat.INT4, Precision.BF16): Instructions(2 + 1 + 0.5, 2),
    (WeightFormat.INT8, Precision.FP16): Instructions(2, 2),
    (WeightFormat.INT8, Precision.BF16): Instructions(4 + 2, 0, 4),
    (WeightFormat.INT4, Precision.INT8): Instructions(1.5, 0),
    (WeightFormat.MXFP4, Precision.FP16): Instructions(7 + 0.5, 2),
    (WeightFormat.MXFP4, Precision.BF16): Instructions(7 + 0.5, 2),
    (WeightFormat.MXFP8, Precision.FP16): Instructions(7, 0),
    (WeightFormat.MXFP8, Precision.BF16): Instructions(7, 0),
}
SCALED, SCALED_IN_BYTES = Instructions(1, 2), Instructions(2, 0)
"""What a group's scale takes, of operands of 16 bits and of eight."""


def unpacking_cycles(gpu: Gpu, operations: Operations) -> NDArray[np.float64]:
    """Cycles of one multiprocessor in which a weight's code becomes an operand, in every row; 0 of other rows.

    A column that has one scale is multiplied with it in the end, as a part of storing the result.

    Raises
    ------
    NotSupported
        Of a GPU whose description has no rate of integer instructions, or none of 16-bit arithmetic.
    """
    found = np.zeros(len(operations))
    packed = operations.packed()
    rows = zip(operations.weights[packed].tolist(), operations.dtype[packed].tolist(), strict=True)
    cycles = [_cycles(gpu, WEIGHT_FORMATS[stored], PRECISIONS[dtype]) for stored, dtype in rows]
    if cycles:
        grouped = (operations.group[packed] > 0) & (operations.group[packed] < operations.k[packed])
        found[packed] = np.where(grouped, [scaled for _, scaled in cycles], [plain for plain, _ in cycles])
    return found


def expansion_cycles(gpu: Gpu, operations: Operations, as_kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Cycles of one multiprocessor in which an element of a cache becomes an operand, in every row; 0 of other rows.

    Those of weights' codes: instructions are the same, and an offset is added by the one that multiplies. What is not
    read from a cache takes none, nor do rows that are multiplied ``as_kept``.

    Raises
    ------
    NotSupported
        As `unpacking_cycles`.
    """
    found = np.zeros(len(operations))
    read = operations.reads_cache() & ~as_kept
    rows = zip(operations.cache[read].tolist(), operations.dtype[read].tolist(), strict=True)
    cycles = [_cycles(gpu, CACHES[stored], PRECISIONS[dtype], "keys and values") for stored, dtype in rows]
    if cycles:
        codes = operations.cache[read] != CACHES.index(CacheStored.FP8)
        found[read] = np.where(codes, [scaled for _, scaled in cycles], [plain for plain, _ in cycles])
    return found


def _cycles(gpu: Gpu, stored: str, dtype: Precision, what: str = "weights") -> tuple[float, float]:
    """Of one element: without a scale, and with one."""
    in_bytes = dtype is Precision.INT8
    half_key = "fp32" if in_bytes else dtype.value
    if gpu.integer is None or half_key not in gpu.vector or "fp32" not in gpu.vector:
        lacking = "integer" if gpu.integer is None else f"vector.{half_key if half_key not in gpu.vector else 'fp32'}"
        rule = f"{what} in {stored} with {dtype} operands on {gpu.name}, whose description has no {lacking}"
        raise NotSupported(f"{rule}: instructions a cycle that make operands of codes")
    half, single = gpu.vector[half_key] / 4, gpu.vector["fp32"] / 2
    plain = UNPACKED[stored, dtype]
    scaled = Instructions(*(a + b for a, b in zip(plain, SCALED_IN_BYTES if in_bytes else SCALED, strict=True)))
    of_pipes = [
        max(i.integer / gpu.integer, i.half / half + i.single / single, sum(i) / ISSUE) / FOUR for i in (plain, scaled)
    ]
    return of_pipes[0], of_pipes[1]
