"""Messages as fluids: every message flows at its max-min fair rate over its whole path at once.

Rates are found by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all flows grow together
until a link is full, its flows stop there, the others grow on. They are found anew whenever flows begin or end, so the
cost follows how often that happens, not bytes or links' queues. A message has arrived its path's latencies after its
last byte left. Messages between the same two ends go one after the other, as over one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel, part
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Transfers
from siliconloom.sim.network.messages import NetworkRun, Routes, deadlock_text, find_routes

SAME = 1e-9
"""Relative difference of times that are taken as one."""
OPEN, STOPPING, STOPPED = 0, 1, 2
"""`Flows.state`."""
FLOWING, COMING = range(2)
"""Entries of `Flows.count`."""


class Sent(NamedTuple):
    """Of every message: bytes, and seconds from its last byte leaving to its being done."""

    size: Any
    after: Any


class Waits(NamedTuple):
    """Who waits for whom: `waiter` from ``dependants[message]`` on are those that wait for a message."""

    waiting: Any
    """Messages that each still waits for."""
    dependants: Any
    waiter: Any


class Paths(NamedTuple):
    """See `sim.network.routes.Routes`."""

    pair: Any
    first: Any
    links: Any


class Flows(NamedTuple):
    """Messages in mid-run; arrays are changed in place."""

    left: Any
    """Bytes of each message that have not left."""
    rate: Any
    ready: Any
    """When all that a message waits for so far is there."""
    active: Any
    """Messages that flow, as many as `count` says."""
    state: Any
    """Of each of these: whether it still grows."""
    soon: Any
    """Messages that may start at their time, as many as `count` says."""
    count: Any
    room: Any
    """Per link: what its flows have left of it, and how many of them still grow."""
    users: Any
    taken: Any
    """Per route: whether a message is on it."""


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
    waits = Waits(np.diff(transfers.first), dependants, waiter)
    paths = Paths(routes.pair, routes.first, routes.links)
    finished = _flow(Sent(transfers.size, after), waits, paths, wiring.bandwidth, done)
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
def _flow(sent: Sent, waits: Waits, paths: Paths, bandwidth: Any, done: Any) -> int:
    """Run all flows; how many messages are done in the end."""
    messages, links = sent.size.size, bandwidth.size
    flows = Flows(
        sent.size.copy(),
        np.zeros(messages),
        np.zeros(messages),
        np.empty(messages, np.int64),
        np.zeros(messages, np.uint8),
        np.empty(messages, np.int64),
        np.zeros(2, np.int64),
        np.empty(links),
        np.empty(links, np.int64),
        np.zeros(paths.first.size - 1, np.bool_),
    )
    now, finished = 0.0, 0
    for message in range(messages):
        if waits.waiting[message] == 0:
            _await(flows, message)
    while flows.count[FLOWING] > 0 or flows.count[COMING] > 0:
        finished += _finish_local(sent, waits, paths, flows, done)
        if flows.count[FLOWING] == 0 and flows.count[COMING] == 0:
            break
        now = _start_due(paths, flows, now)
        _find_rates(paths, flows, bandwidth)
        step = _next_change(flows, now)
        now += step
        finished += _flow_on(sent, waits, paths, flows, now, step, done)
    return finished


@part()
def _await(flows: Flows, message: Any) -> None:
    """All that a message waits for is there: it may start at its time."""
    flows.soon[flows.count[COMING]] = message
    flows.count[COMING] += 1


@part()
def _release(waits: Waits, flows: Flows, message: Any, done: Any) -> None:
    """A message is done: those that wait for it have one less to wait for."""
    for at in range(waits.dependants[message], waits.dependants[message + 1]):
        follower = waits.waiter[at]
        flows.ready[follower] = max(flows.ready[follower], done[message])
        waits.waiting[follower] -= 1
        if waits.waiting[follower] == 0:
            _await(flows, follower)


@part()
def _finish_local(sent: Sent, waits: Waits, paths: Paths, flows: Flows, done: Any) -> Any:
    """What crosses no link is done as soon as its time is known; how many messages that are."""
    finished, i = 0, 0
    while i < flows.count[COMING]:
        message = flows.soon[i]
        if paths.first[paths.pair[message]] < paths.first[paths.pair[message] + 1]:
            i += 1
            continue
        flows.count[COMING] -= 1
        flows.soon[i] = flows.soon[flows.count[COMING]]
        done[message] = flows.ready[message] + sent.after[message]
        finished += 1
        _release(waits, flows, message, done)
    return finished


@part()
def _start_due(paths: Paths, flows: Flows, now: Any) -> Any:
    """Start what is due, or what comes first when nothing flows; the time then."""
    if flows.count[FLOWING] == 0:
        earliest = np.inf
        for i in range(flows.count[COMING]):
            earliest = min(earliest, flows.ready[flows.soon[i]])
        now = max(now, earliest)
    kept = 0
    for i in range(flows.count[COMING]):
        message = flows.soon[i]
        if flows.ready[message] <= now * (1.0 + SAME) + 1e-18 and not flows.taken[paths.pair[message]]:
            flows.taken[paths.pair[message]] = True
            flows.active[flows.count[FLOWING]] = message
            flows.count[FLOWING] += 1
        else:
            flows.soon[kept] = message
            kept += 1
    flows.count[COMING] = kept
    return now


@part()
def _find_rates(paths: Paths, flows: Flows, bandwidth: Any) -> None:
    """Progressive filling: all open flows grow to the level at which a link is full, and those of that link stop."""
    first, links, pair = paths.first, paths.links, paths.pair
    active, state, room, users = flows.active, flows.state, flows.room, flows.users
    count = flows.count[FLOWING]
    for link in range(bandwidth.size):
        room[link], users[link] = bandwidth[link], 0
    for i in range(count):
        state[i] = OPEN
        route = pair[active[i]]
        for at in range(first[route], first[route + 1]):
            users[links[at]] += 1
    open_flows = count
    while open_flows > 0:
        level = np.inf
        for i in range(count):
            if state[i] == OPEN:
                route = pair[active[i]]
                for at in range(first[route], first[route + 1]):
                    level = min(level, room[links[at]] / users[links[at]])
        for i in range(count):
            if state[i] == OPEN:
                route = pair[active[i]]
                for at in range(first[route], first[route + 1]):
                    if room[links[at]] / users[links[at]] <= level * (1.0 + SAME):
                        state[i] = STOPPING
        for i in range(count):
            if state[i] == STOPPING:
                state[i] = STOPPED
                flows.rate[active[i]] = level
                open_flows -= 1
                route = pair[active[i]]
                for at in range(first[route], first[route + 1]):
                    room[links[at]] = max(room[links[at]] - level, 0.0)
                    users[links[at]] -= 1


@part()
def _next_change(flows: Flows, now: Any) -> Any:
    """Seconds to the next end or start."""
    step = np.inf
    for i in range(flows.count[FLOWING]):
        message = flows.active[i]
        step = min(step, flows.left[message] / flows.rate[message] if flows.rate[message] > 0.0 else 0.0)
    for i in range(flows.count[COMING]):
        if flows.ready[flows.soon[i]] > now * (1.0 + SAME) + 1e-18:
            step = min(step, flows.ready[flows.soon[i]] - now)
    return max(step, 0.0)


@part()
def _flow_on(sent: Sent, waits: Waits, paths: Paths, flows: Flows, now: Any, step: Any, done: Any) -> Any:
    """Let all flows go on for ``step``, up to ``now``; how many messages that ended."""
    active, left = flows.active, flows.left
    finished, kept = 0, 0
    for i in range(flows.count[FLOWING]):
        message = active[i]
        left[message] -= flows.rate[message] * step
        if left[message] <= sent.size[message] * SAME:
            done[message] = now + sent.after[message]
            finished += 1
            flows.taken[paths.pair[message]] = False
            _release(waits, flows, message, done)
        else:
            active[kept] = message
            kept += 1
    flows.count[FLOWING] = kept
    return finished
