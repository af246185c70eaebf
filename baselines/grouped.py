"""Time of the products of a mixture of experts in one kernel: clusters of tiles over the multiprocessors.

The kernel is the one that PyTorch has on Hopper (CUTLASS's grouped product, which walks the tiles of all experts).
A thread block makes tiles of 64 x 128, or of 128 x 256 where experts have more than 128 rows on average and as many
columns, and blocks are launched in pairs along the rows, which share the weights that they load. An expert's rows are
therefore filled up to pairs of tiles: with 64 rows or fewer half of all blocks have nothing to do, which is why short
batches load weights no faster from an H200 than from an H100.

Rows are dealt evenly, or by chance: each token's go to as many different experts, all equally likely. Then experts
without a row load nothing, and the mean number of pairs is that of a binomial distribution.
"""

from __future__ import annotations

import math
from typing import Any

from siliconloom.arch.kernels import kernel
from siliconloom.baselines.gemm import COMPUTE, DEQUANTIZE, DRAM, L2, LAUNCH

PAIR = 2.0
"""Thread blocks of a cluster, along the rows."""
SMALL, LARGE = (64.0, 128.0), (128.0, 256.0)
"""Rows and columns of a tile."""
FEW = 128.0
"""Rows of an expert, or columns, up to which tiles are small."""


@kernel()
def pairs_of(rows: Any, groups: Any, chance: Any, tall: Any, used: Any) -> Any:
    """Stacks of ``tall`` rows that all groups fill together; their expected number where rows are dealt by chance.

    Of tokens that use a group with probability p = ``used`` / groups, ceil(r / tall) has the mean of P(r > j tall) over
    j = 0, 1, ... (binomial distribution, summed term by term).
    """
    if not chance or groups <= used:
        least = math.floor(rows / groups)
        more = rows - least * groups
        return (groups - more) * math.ceil(least / tall) + more * math.ceil((least + 1.0) / tall)
    p = used / groups
    rows = rows / used
    mean = rows * p
    spread = 8.0 * math.sqrt(mean * (1.0 - p)) + 16.0
    low, high = max(0.0, math.floor(mean - spread)), min(rows, math.ceil(mean + spread))
    total = 0.0
    r = low
    log = math.lgamma(rows + 1.0) - math.lgamma(r + 1.0) - math.lgamma(rows - r + 1.0)
    log += r * math.log(p) + (rows - r) * math.log1p(-p)
    share = math.exp(log)
    while r <= high:
        total += share * math.ceil(r / tall)
        share *= (rows - r) / (r + 1.0) * p / (1.0 - p)
        r += 1.0
    return groups * total


@kernel(error_model="numpy")
def grouped_times(
    m: Any,
    n: Any,
    k: Any,
    groups: Any,
    active: Any,
    chance: Any,
    used: Any,
    element: Any,
    stored: Any,
    dequantize: Any,
    rate: Any,
    output: Any,
    machine: Any,
    fitted: Any,
    time: Any,
    bound: Any,
) -> None:
    """Fill ``time`` with seconds and ``bound`` with what limits each row.

    Parameters
    ----------
    m, groups, active
        Rows in all, experts that they are dealt to, and of these the number that have a row (its mean).
    chance, used
        Whether rows are dealt by chance, and how many of them are of one token.
    element, stored, output
        Bytes of an operand's element, of a weight in memory and of a result's element.
    dequantize
        Cycles of a multiprocessor in which a weight's code becomes an operand; 0 where it is one.
    rate
        Floating-point operations per cycle of one multiprocessor's tensor cores in the row's precision.
    machine
        Multiprocessors, clock in Hz, DRAM bytes/s, L2 bytes.
    fitted
        `siliconloom.baselines.efficiency.GroupedEfficiency`, in its order.
    """
    sms, clock, dram, l2 = machine[0], machine[1], machine[2], machine[3]
    launch, mainloop, _, wave, load, stream, norm = fitted[:7]
    slots = math.floor(sms / PAIR)
    for i in range(m.size):
        small = math.floor(m[i] / groups[i]) <= FEW or n[i] <= FEW
        bm, bn = SMALL if small else LARGE
        pairs = pairs_of(m[i], groups[i], chance[i], PAIR * bm, used[i]) * math.ceil(n[i] / bn)
        waves = math.ceil(pairs / slots)
        compute = waves * (2.0 * bm * bn * k[i] / (rate[i] * mainloop) + wave) / clock
        loads = waves * (bm * element[i] + bn * stored[i]) * k[i] / (load * clock)
        unpacking = waves * bn * k[i] * dequantize[i] / clock
        moved = active[i] * n[i] * k[i] * stored[i] + m[i] * n[i] * output[i]
        inputs = m[i] * k[i] * element[i]
        if inputs > l2 / 2.0:  # a smaller one was just made, and lies there
            moved += inputs
        from_dram = moved / (dram * stream)
        busy = (compute**norm + loads**norm + from_dram**norm + unpacking**norm) ** (1.0 / norm)
        time[i] = launch + busy
        why, most = COMPUTE, compute
        if loads > most:
            why, most = L2, loads
        if from_dram >= most:
            why, most = DRAM, from_dram
        if unpacking > most:
            why = DEQUANTIZE
        if launch > busy:
            why = LAUNCH
        bound[i] = why
