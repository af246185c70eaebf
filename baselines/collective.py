"""Time of NCCL's collectives within a node and between nodes.

A collective is cut into steps around a ring (2(n-1) of all-reduce, n-1 of all-gather and reduce-scatter), each of
which carries an n-th of the message over every link. NCCL has three protocols: LL sends 8-byte words of which half are
flags, LL128 lines of 128 bytes with 120 of data, Simple whole chunks after a fence; the first two wait less and move
less (Hu et al., "Demystifying NCCL", 2025). Where the switch adds (NVLS), each GPU reads the sum of its part and
multicasts it.

Which protocol runs is what NCCL's tuner would choose, by its own table of latencies and bandwidths (`TUNER`, from
NCCL's ``src/graph/tuning.cc``), not what is fastest: where the tuner changes early, the time jumps, as measured times
do. The time of the protocol chosen is ours: waits, steps and shares of the link, fitted.

- An LL step sends what its threads hold in one pass as one channel; from `ONE_CHANNEL` bytes a step on, channels are
  added, which costs some time by itself, until `ALL_CHANNELS`.
- A GPU's own part is copied beside (``local``); messages beyond the caches move a little more slowly (``ramp``,
  ``filled``).
- All-to-all is sends and receives at once on channels of their own: words with flags up to `DIRECT_SMALL` bytes to each
  peer, chunks above; the GPU's own part goes through its memory.

Sizes are nccl-tests': the bytes of a GPU's whole buffer (of all-gather the result, of reduce-scatter the input).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from siliconloom.arch.kernels import kernel

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = 0, 1, 2, 3
LATENCY, LINK, NETWORK = 0, 1, 2
BOUNDS = ("latency", "link", "network")

LL, LL128, SIMPLE, NVLS = 0, 1, 2, 3
TUNER = np.array(
    [
        # base, step inside a node, step between nodes, share of the bandwidth
        [6.6e-6, 0.6e-6, 2.7e-6, 0.5],
        [14.0e-6, 1.9e-6, 4.0e-6, 0.92],
        [8.4e-6, 3.4e-6, 14.0e-6, 1.0],
        [25.0e-6, 0.0, 18.0e-6, 1.0],
    ]
)
"""What NCCL's tuner takes a ring's protocols for, and NVLS: seconds, and the share of the rings' bandwidth."""
LL_MOST = {"volta": 39.0e9, "hopper": 141.0e9, "blackwell": 282.0e9}
"""Bytes per second at which it caps LL in one node, by architecture."""
LL_MOST_ELSE = 87.7e9
LL_MOST_NODES = (39.0e9, 20.4e9)
"""The same across two nodes, and across more (with Intel's processors)."""
RINGS = 0.8
"""Of the links' bandwidth: NVLink's lanes at 20 of 25 GB/s, as NCCL counts them."""
ONE_CHANNEL, ALL_CHANNELS = 1024.0, 8192.0
"""Bytes of a step that LL sends with one channel, and with all."""
DIRECT_SMALL = 16384.0
"""NCCL_P2P_LL_THRESHOLD."""


@kernel(error_model="numpy")
def protocol(
    n: Any, size: Any, around: Any, nodes: Any, rings: Any, most: Any, adds: Any, tuner: Any, last: Any
) -> Any:
    """Walk the tuner's lower envelope up to ``size``.

    ``last`` is filled with the largest size that each protocol is chosen for, at most ``size``; 0 where it is not. The
    protocol of ``size`` is returned.
    """
    steps = around * (n - 1.0)
    far = around * (nodes - 1.0)
    latency, cost = np.empty(4), np.empty(4)
    for p in range(4):
        last[p] = 0.0
        latency[p] = tuner[p, 0] + (steps - far) * tuner[p, 1] + far * tuner[p, 2]
        rate = rings * tuner[p, 3]
        if p == LL:
            rate = min(rate, most)
        cost[p] = steps / (n * rate)
    now = LL
    while True:
        until, after = np.inf, now
        for p in range(now + 1, 4):
            if cost[p] >= cost[now] or (p == NVLS and not adds):
                continue
            crossing = max(0.0, (latency[p] - latency[now]) / (cost[now] - cost[p]))
            if crossing <= until:
                until, after = crossing, p
        if size <= until:
            last[now] = size
            return now
        last[now] = until
        now = after


@kernel(error_model="numpy")
def collective_times(
    kind: Any, gpus: Any, size: Any, machine: Any, tuner: Any, fitted: Any, time: Any, bound: Any
) -> None:
    """Fill ``time`` with seconds and ``bound`` with what limits each row.

    Parameters
    ----------
    kind
        `ALL_REDUCE` and so on.
    size
        Bytes, as nccl-tests counts them.
    machine
        Link and network bandwidth of a GPU in bytes/s, network latency in seconds, GPUs of a node, whether the switch
        adds, bandwidth of a GPU's memory, LL's cap in one node, in two and in more.
    tuner
        `TUNER`.
    fitted
        `siliconloom.baselines.efficiency.CollectiveEfficiency`, in its order.
    """
    link, network, far, per_node, adds, memory = machine[0], machine[1], machine[2], machine[3], machine[4], machine[5]
    launch, step_ll, share_ll, pair_ll, spread, spread_each = fitted[:6]
    wait_ll128, step_ll128, share_ll128, wait_simple, step_simple, share_simple, local = fitted[6:13]
    wait_nvls, share_nvls, step_direct, share_small, fill_direct, wait_direct, share_direct = fitted[13:20]
    ramp, filled = fitted[20:22]
    last = np.empty(4)
    for i in range(size.size):
        n, s = gpus[i], size[i]
        if n <= 1.0:
            time[i], bound[i] = launch, LATENCY
            continue
        nodes = math.ceil(n / per_node)
        if kind[i] == ALL_TO_ALL:
            inside = (min(n, per_node) - 1.0) / n
            crossing = max(0.0, n - per_node) / n
            moved = max(inside / (link * share_direct), crossing / (network * share_direct)) + 2.0 / (n * memory)
            small = launch + step_direct + min(s / n, DIRECT_SMALL) / (link * share_small)
            total, where = small, LINK
            if s > n * DIRECT_SMALL:
                full = s * moved
                total = max(small, launch + max(fill_direct, wait_direct + full + ramp * full / (full + filled)))
            if crossing / network > inside / link:
                where = NETWORK
            total += far if nodes > 1.0 else 0.0
            time[i], bound[i] = total, where if s * moved > 0.5 * total else LATENCY
            continue
        around = 2.0 if kind[i] == ALL_REDUCE else 1.0
        hops = around * (n - 1.0)
        rate, where, wait = link, LINK, 0.0
        if nodes > 1.0:  # as many rings as a node has GPUs, each with its own port; the slowest link sets the pace
            wait = around * (nodes - 1.0) * far
            if network * (n / nodes) < link:
                rate, where = network * (n / nodes), NETWORK
        switch = adds > 0.0 and kind[i] == ALL_REDUCE and nodes == 1.0 and n > 2.0
        most = machine[6] if nodes == 1.0 else machine[7] if nodes == 2.0 else machine[8]
        chosen = protocol(n, s, around, nodes, rate * RINGS, most, switch, tuner, last)
        total = 0.0
        for p in range(chosen + 1):  # a longer message takes no less than the longest of the protocol before
            b = last[p]
            if b <= 0.0 and p != chosen:
                continue
            carried = hops * b / n
            if p == LL:
                channels = math.log(max(b / n, ONE_CHANNEL) / ONE_CHANNEL) / math.log(ALL_CHANNELS / ONE_CHANNEL)
                more = min(channels, 1.0) * (spread + spread_each * (n - 2.0))
                alone = 1.0 - (1.0 - pair_ll) / (n - 1.0)
                found = launch + hops * step_ll + more + carried / (rate * share_ll * alone)
            elif p == LL128:
                found = launch + wait_ll128 + hops * step_ll128 + carried / (rate * share_ll128)
            elif p == SIMPLE:
                full = carried / (rate * share_simple) + (b / n) / (local * memory)
                found = launch + wait_simple + hops * step_simple + full + ramp * full / (full + filled)
            else:
                full = b * (1.0 + 1.0 / n) / (rate * share_nvls)
                found = launch + wait_nvls + full + ramp * full / (full + filled)
            total = max(total, found)
        total += wait
        time[i], bound[i] = total, where if hops * s / n / rate > 0.35 * total else LATENCY
