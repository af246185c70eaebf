"""Messages as fluids: every message flows at its max-min fair rate over its whole path at once.

Rates are found by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all flows grow together
until a link is full, its flows stop there, the others grow on. They are found anew whenever flows begin or end, so the
cost follows how often that happens, not bytes or links' queues. A message has arrived its path's latencies after its
last byte left. Messages between the same two ends go one after the other, as over one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Transfers
from siliconloom.sim.network.messages import NetworkRun, Routes, deadlock_text, find_routes

SAME = 1e-9
"""Relative difference of times that are taken as one."""
OPEN, STOPPING, STOPPED = 0, 1, 2


def run_flows(
    wiring: Wiring,
    transfers: Transfers,
    endpoint: Endpoint,
    routes: Routes | None = None,
    *,
    watch: Callable[[NDArray[Any]], None] = lambda _: None,
) -> NetworkRun:
    """Run every message as a flow; raises `LoomError` for messages that wait for each other.

    ``watch`` is handed the times at which messages are done, negative until they are, before they are run.
    """
    routes = routes or find_routes(wiring, transfers)
    count = len(transfers)
    order = np.argsort(transfers.waits, kind="stable")
    waiter = np.repeat(np.arange(count), np.diff(transfers.first))[order]
    dependants = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(transfers.waits, minlength=count), out=dependants[1:])
    done = np.full(count, -1.0)
    watch(done)
    delay = np.zeros(len(routes.first) - 1)
    hops = np.diff(routes.first)
    np.add.at(delay, np.repeat(np.arange(len(hops)), hops), wiring.latency[routes.links] * 1e-12)
    after = delay[routes.pair] + endpoint.delay * 1e-12
    after = after + np.where(transfers.adds, 2.0 * transfers.size / endpoint.memory, 0.0)
    work = 0.0 if transfers.work is None else transfers.work * 1e-12
    after = np.where(hops[routes.pair] == 0, work, after)
    finished = _flow(
        transfers.size,
        after,
        np.diff(transfers.first),
        dependants,
        waiter,
        routes.pair,
        routes.first,
        routes.links,
        wiring.bandwidth,
        done,
    )
    picoseconds = np.where(done >= 0, np.ceil(done * 1e12 - 1e-3), -1).astype(np.int64)
    if finished < count:
        raise LoomError(deadlock_text(wiring, transfers, picoseconds))
    lengths = hops[routes.pair]
    message = np.repeat(np.arange(count), lengths)
    offset = np.arange(len(message)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    links = routes.links[routes.first[routes.pair[message]] + offset]
    carried = np.bincount(links, weights=transfers.size[message], minlength=len(wiring.source))
    busy = np.round(carried / wiring.bandwidth * 1e12).astype(np.int64)
    return NetworkRun(picoseconds, busy, carried.astype(np.float64))


@kernel(nogil=True)
def _flow(
    size: Any,
    after: Any,
    waiting: Any,
    dependants: Any,
    waiter: Any,
    pair: Any,
    first: Any,
    links: Any,
    bandwidth: Any,
    done: Any,
) -> int:
    count = size.size
    left = size.copy()
    rate = np.zeros(count)
    ready = np.zeros(count)
    active = np.empty(count, np.int64)
    flows = 0
    # Messages that may start, by time; and those on their way, until they count as arrived.
    soon = np.empty(count, np.int64)
    coming = 0
    for message in range(count):
        if waiting[message] == 0:
            soon[coming] = message
            coming += 1
    now, finished = 0.0, 0
    room, users = np.empty(bandwidth.size), np.empty(bandwidth.size, np.int64)
    state = np.zeros(count, np.int8)
    taken = np.zeros(first.size - 1, np.bool_)
    while flows > 0 or coming > 0:
        # What crosses no link is done as soon as its time is known.
        i = 0
        while i < coming:
            message = soon[i]
            if first[pair[message]] < first[pair[message] + 1]:
                i += 1
                continue
            coming -= 1
            soon[i] = soon[coming]
            done[message] = ready[message] + after[message]
            finished += 1
            for at in range(dependants[message], dependants[message + 1]):
                follower = waiter[at]
                ready[follower] = max(ready[follower], done[message])
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    soon[coming] = follower
                    coming += 1
        if flows == 0 and coming == 0:
            break
        # Start what is due.
        if flows == 0:
            earliest = np.inf
            for i in range(coming):
                earliest = min(earliest, ready[soon[i]])
            now = max(now, earliest)
        kept = 0
        for i in range(coming):
            message = soon[i]
            if ready[message] <= now * (1.0 + SAME) + 1e-18 and not taken[pair[message]]:
                taken[pair[message]] = True
                active[flows] = message
                flows += 1
            else:
                soon[kept] = message
                kept += 1
        coming = kept
        # Progressive filling.
        room[:] = bandwidth
        users[:] = 0
        for i in range(flows):
            state[i] = OPEN
            route = pair[active[i]]
            for at in range(first[route], first[route + 1]):
                users[links[at]] += 1
        open_flows = flows
        while open_flows > 0:
            level = np.inf
            for i in range(flows):
                if state[i] == OPEN:
                    route = pair[active[i]]
                    for at in range(first[route], first[route + 1]):
                        level = min(level, room[links[at]] / users[links[at]])
            for i in range(flows):
                if state[i] == OPEN:
                    route = pair[active[i]]
                    for at in range(first[route], first[route + 1]):
                        if room[links[at]] / users[links[at]] <= level * (1.0 + SAME):
                            state[i] = STOPPING
            for i in range(flows):
                if state[i] == STOPPING:
                    state[i] = STOPPED
                    rate[active[i]] = level
                    open_flows -= 1
                    route = pair[active[i]]
                    for at in range(first[route], first[route + 1]):
                        room[links[at]] = max(room[links[at]] - level, 0.0)
                        users[links[at]] -= 1
        # To the next end or start.
        step = np.inf
        for i in range(flows):
            message = active[i]
            step = min(step, left[message] / rate[message] if rate[message] > 0.0 else 0.0)
        for i in range(coming):
            if ready[soon[i]] > now * (1.0 + SAME) + 1e-18:
                step = min(step, ready[soon[i]] - now)
        step = max(step, 0.0)
        now += step
        kept = 0
        for i in range(flows):
            message = active[i]
            left[message] -= rate[message] * step
            if left[message] <= size[message] * 1e-9:
                done[message] = now + after[message]
                finished += 1
                taken[pair[message]] = False
                for at in range(dependants[message], dependants[message + 1]):
                    follower = waiter[at]
                    ready[follower] = max(ready[follower], done[message])
                    waiting[follower] -= 1
                    if waiting[follower] == 0:
                        soon[coming] = follower
                        coming += 1
            else:
                active[kept] = message
                kept += 1
        flows = kept
    return finished
