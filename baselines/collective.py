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
    launch, step_ll, share_ll, wait_ll128, step_ll128, share_ll128 = fitted[:6]
    wait_simple, step_simple, share_simple, local_rate = fitted[6:10]
    wait_nvls, share_nvls, wait_direct, share_direct, ramp = fitted[10:15]
    for i in range(size.size):
        n, s = gpus[i], size[i]
        if n <= 1.0:
            time[i], bound[i] = launch, LATENCY
            continue
        nodes = math.ceil(n / per_node)
        around = 2.0 if kind[i] == ALL_REDUCE else 1.0
        hops = around * (n - 1.0)
        carried = around * s * (n - 1.0) / n
        rate, where, wait = link, LINK, 0.0
        if nodes > 1.0:  # as many rings as a node has GPUs, each with its own port; the slowest link sets the pace
            wait = around * (nodes - 1.0) * far
            if network * (n / nodes) < link:
                rate, where = network * (n / nodes), NETWORK
        local = (s / n) / local_rate
        if kind[i] == ALL_TO_ALL:
            inside = s * (min(n, per_node) - 1.0) / n
            crossing = s * max(0.0, n - per_node) / n
            moved = max(inside / (link * share_direct), crossing / (network * share_direct)) + local
            small = launch + step_ll + moved / (share_ll / share_direct)
            large = launch + wait_direct + moved
            total = min(small, large) + (far if nodes > 1.0 else 0.0)
            time[i], bound[i] = total, where if moved > 0.5 * total else LATENCY
            continue
        total = launch + hops * step_ll + carried / (rate * share_ll)
        total = min(total, launch + wait_ll128 + hops * step_ll128 + carried / (rate * share_ll128))
        # Chunks of Simple grow with the message: a small one does not fill its channels.
        full = carried / (rate * share_simple) + local
        total = min(total, launch + wait_simple + hops * step_simple + full + ramp * math.sqrt(full * wait_simple))
        if adds > 0.0 and kind[i] == ALL_REDUCE and nodes == 1.0 and n > 2.0:
            full = s * (1.0 + 1.0 / n) / (rate * share_nvls)
            total = min(total, launch + wait_nvls + full + ramp * math.sqrt(full * wait_nvls))
        total += wait
        time[i], bound[i] = total, where if carried / rate > 0.35 * total else LATENCY
