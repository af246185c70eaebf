"""Time of a matrix product on a GPU: tiles in waves over the multiprocessors, against L2 and DRAM.

A product of (m, k) by (k, n) is cut into output tiles; each multiprocessor works on one tile at a time, so the last
wave may be partly empty (tile and wave quantisation; NVIDIA, "Matrix Multiplication Background"). A library holds
kernels of many tile sizes, and may cut k into splits that are summed afterwards; the fastest one is taken, as its
heuristics try to. What limits a kernel is the slowest of the tensor cores, the L2's bandwidth and the DRAM's; near
the crossing they hinder each other, so that the three are joined by a norm rather than a maximum.

Weights may be stored as codes (W4A16, W8A16): fewer bytes from DRAM and L2, the same arithmetic, and instructions of
the CUDA cores beside the tensor cores that make operands of codes, in every tile anew (`baselines.dequantization`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.kernels import kernel

Float = NDArray[np.float64]

K_BYTES = 128.0
"""Depth of a step of the main loop: the 128 bytes that one shared-memory row holds."""
SPLITS = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0])
LEAST_SPLIT_BYTES = 512.0
"""Shortest k of a split, in bytes."""

COMPUTE, L2, DRAM, LAUNCH, DEQUANTIZE = 0, 1, 2, 3, 4
BOUNDS = ("compute", "l2", "memory", "launch", "dequantization")


def tiles(rows: tuple[int, ...], columns: tuple[int, ...], most: int) -> Float:
    """Tile sizes (bm, bn) of a kernel library, both ways round, of at most ``most`` accumulators, largest first."""
    found = {(a, b) for a in rows for b in columns if a * b <= most}
    found |= {(b, a) for a, b in found}
    return np.array(sorted(found, key=lambda s: (-s[0] * s[1], s)), np.float64)


TILES = {
    # mma.sync with operands in registers: powers of two, at most 256 accumulators per thread of 8 warps.
    "mma": tiles((64, 128, 256), (16, 32, 64, 128, 256), 128 * 256),
    # wgmma: 64 rows a warp group, columns in steps of 8 (PTX ISA, wgmma); libraries hold about every 16th and 32nd.
    "wgmma": tiles((64, 128, 192, 256), (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256), 128 * 256),
}


@kernel(error_model="numpy")
def gemm_times(
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    element: Any,
    stored: Any,
    dequantize: Any,
    rate: Any,
    output: Any,
    shapes: Any,
    splits: Any,
    machine: Any,
    fitted: Any,
    time: Any,
    bound: Any,
) -> None:
    """Fill ``time`` with seconds and ``bound`` with what limits each row.

    Parameters
    ----------
    element, output
        Bytes of an operand's and of a result's element.
    stored
        Bytes of a weight in memory, its share of scales with it; ``element`` where it is an operand.
    dequantize
        Cycles of a multiprocessor in which a weight's code becomes an operand; 0 where it is one.
    rate
        Floating-point operations per cycle of one multiprocessor's tensor cores in the row's precision.
    shapes, splits
        Tile sizes, and in how many parts k may be cut.
    machine
        Multiprocessors, clock in Hz, DRAM bytes/s, L2 bytes.
    fitted
        `siliconloom.baselines.efficiency.GemmEfficiency`, in its order.
    """
    sms, clock, dram, l2 = machine[0], machine[1], machine[2], machine[3]
    launch, tile_loss, mainloop, wave, tail, stream, l2_rate, reduction, norm = fitted[:9]
    l2_all = l2_rate * clock * sms
    for i in range(m.size):
        best, why = math.inf, 0
        rows, columns, depth = m[i], n[i], k[i]
        step = K_BYTES / element[i]
        weights = batch[i] * columns * depth * stored[i]
        narrower = stored[i] / element[i]
        inputs = batch[i] * rows * depth * element[i]
        results = batch[i] * rows * columns * output[i]
        moved = weights + results
        if inputs > l2 / 2.0:  # a smaller one was just made, and lies there
            moved += inputs
        from_dram = moved / (dram * stream)
        for t in range(shapes.shape[0]):
            bm, bn = shapes[t, 0], shapes[t, 1]
            area = batch[i] * math.ceil(rows / bm) * math.ceil(columns / bn)
            per_step = 2.0 * bm * bn * (1.0 + tile_loss * (1.0 / bm + 1.0 / bn)) / (rate[i] * mainloop)
            if launch + area * depth * per_step / (sms * clock) >= best:  # with every multiprocessor busy to the end
                continue
            for s in splits:
                if s > 1 and depth / s * element[i] < LEAST_SPLIT_BYTES:
                    break
                blocks = area * s
                part = math.ceil(depth / s / step) * step
                full = math.floor(blocks / sms)
                rest = blocks / sms - full
                waves = full + 0.0
                if rest > 0.0:
                    waves = 1.0 if full == 0.0 else full + tail + (1.0 - tail) * rest
                compute = (waves * per_step * part + math.ceil(waves) * wave) / clock
                if launch + compute >= best:  # nothing of what is added below is negative
                    continue
                through_l2 = waves * (bm + bn * narrower) * part * element[i] / (l2_rate * clock)
                unpacking = waves * bn * part * dequantize[i] / clock
                after = 0.0
                if s > 1:
                    after = reduction * 2.0 * s * batch[i] * rows * columns * 4.0 / l2_all
                slowest = max(compute, through_l2, from_dram, unpacking)
                if launch + slowest + after >= best:
                    continue
                busy = (compute**norm + through_l2**norm + from_dram**norm + unpacking**norm) ** (1.0 / norm)
                total = launch + busy + after
                if total < best:
                    best = total
                    why = COMPUTE
                    if through_l2 > compute and through_l2 > from_dram:
                        why = L2
                    if from_dram >= compute and from_dram >= through_l2:
                        why = DRAM
                    if unpacking > compute and unpacking > through_l2 and unpacking > from_dram:
                        why = DEQUANTIZE
                    if launch > busy:
                        why = LAUNCH
        time[i] = best
        bound[i] = why
