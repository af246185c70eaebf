"""Time of NCCL's collectives within a node and between nodes.

A collective is cut into steps around a ring (2(n-1) of all-reduce, n-1 of all-gather and reduce-scatter), each of
which carries an n-th of the message over every link. NCCL has three protocols: LL sends 8-byte words of which half are
flags, LL128 lines of 128 bytes with 120 of data, Simple whole chunks after a fence; the first two wait less and move
less (Hu et al., "Demystifying NCCL", 2025). Where the switch adds (NVLS), each GPU reads the sum of its part and
multicasts it: two steps. All-to-all sends each peer its part at once. The fastest is taken, as NCCL's tuner tries to.

Sizes are nccl-tests': the bytes of a GPU's whole buffer (of all-gather the result, of reduce-scatter the input).
"""

from __future__ import annotations

import math
from typing import Any

import numba

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = 0, 1, 2, 3
LATENCY, LINK, NETWORK = 0, 1, 2
BOUNDS = ("latency", "link", "network")

LL_DATA, LL128_DATA = 0.5, 120.0 / 128.0
"""Shares of LL's words and LL128's lines that are data."""


@numba.njit(cache=True, error_model="numpy")  # type: ignore[misc, unused-ignore]
def collective_times(kind: Any, gpus: Any, size: Any, machine: Any, fitted: Any, time: Any, bound: Any) -> None:
    """Fill ``time`` with seconds and ``bound`` with what limits each row.

    Parameters
    ----------
    kind
        `ALL_REDUCE` and so on.
    size
        Bytes, as nccl-tests counts them.
    machine
        Link and network bandwidth of a GPU in bytes/s, network latency in seconds, GPUs of a node, whether the switch
        adds.
    fitted
        `siliconloom.baselines.efficiency.Collective`, in its order.
    """
    link, network, far, per_node, adds = machine[0], machine[1], machine[2], machine[3], machine[4]
    launch, step_ll, step_ll128, step_simple, share, share_ll = fitted[:6]
    copy, share_nvls, step_nvls, share_direct, start = fitted[6:11]
    for i in range(size.size):
        n, s = gpus[i], size[i]
        if n <= 1.0:
            time[i], bound[i] = launch, LATENCY
            continue
        nodes = math.ceil(n / per_node)
        around = 2.0 if kind[i] == ALL_REDUCE else 1.0
        best, why = math.inf, LATENCY
        hops = around * (n - 1.0)
        carried = around * s * (n - 1.0) / n
        rate, where = link, LINK
        wait = 0.0
        if nodes > 1.0:  # the ring leaves each node once; its slowest link sets the pace
            wait = around * (nodes - 1.0) * far
            if network < link:
                rate, where = network, NETWORK
        local = (s / n) / copy
        if kind[i] == ALL_TO_ALL:
            crossing = s * max(0.0, n - per_node) / n
            inside = s * (min(n, per_node) - 1.0) / n
            moved = max(inside / (link * share_direct), crossing / (network * share)) + local
            for protocol in range(2):
                steps = step_ll if protocol == 0 else start + step_simple
                data = share_ll * LL_DATA if protocol == 0 else 1.0
                total = launch + steps + moved / data + (far if nodes > 1.0 else 0.0)
                if total < best:
                    best, why = total, (where if moved > best / 2.0 else LATENCY)
            time[i] = best
            bound[i] = where if moved > 0.5 * best else LATENCY
            continue
        for protocol in range(4):
            if protocol == 0:
                total = launch + hops * step_ll + wait + carried / (rate * share * share_ll * LL_DATA)
            elif protocol == 1:
                total = launch + hops * step_ll128 + wait + carried / (rate * share * LL128_DATA) + local
            elif protocol == 2:
                total = launch + start + hops * step_simple + wait + carried / (rate * share) + local
            else:
                if adds == 0.0 or kind[i] != ALL_REDUCE or nodes > 1.0 or n <= 2.0:
                    continue
                total = launch + 2.0 * step_nvls + s * (1.0 + 1.0 / n) / (rate * share_nvls)
            if total < best:
                best = total
                floor = carried / rate
                why = where if floor > 0.35 * total else LATENCY
        time[i], bound[i] = best, why
