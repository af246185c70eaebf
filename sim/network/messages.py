"""Messages over links, one event for each link that a message crosses.

Every directed link serves its messages one after the other, in the order in which their heads arrive (ties: the lower
message first), and takes size / bandwidth for each. With cut-through a head goes on after the link's latency while its
tail still follows, and a message leaves a faster link no sooner than its tail has come; with store-and-forward it goes
on when all of it has arrived. Queues are as long as need be. An entry from a chip to itself crosses no link and takes
its ``work``. Times are picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Transfers
from siliconloom.sim.network.routes import Routes, farthest, find_routes

__all__ = [
    "NetworkRun",
    "Routes",
    "deadlock_text",
    "farthest",
    "find_routes",
    "invert",
    "push",
    "run_transfers",
    "sink",
]

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Short = NDArray[np.int32]


@dataclass(frozen=True)
class NetworkRun:
    """What came of the messages.

    Parameters
    ----------
    done
        When each message has arrived, and been added where it is, in picoseconds.
    busy
        Picoseconds that each link carried something.
    carried
        Bytes over each link.
    """

    done: Int
    busy: Int
    carried: Float

    @property
    def finish(self) -> int:
        """Picoseconds until the last message is there."""
        return int(self.done.max(initial=0))


def run_transfers(
    wiring: Wiring,
    transfers: Transfers,
    endpoint: Endpoint,
    routes: Routes | None = None,
    *,
    exact: bool = False,
    watch: Callable[[NDArray[Any]], None] = lambda _: None,
) -> NetworkRun:
    """Run every message over every link.

    Where every link is seen to serve its messages in the order of their numbers, which is the order in which they are
    written down, each message's times follow from those before it, and no queue of events is kept. The moment that a
    message reaches a link before one with a lower number did, all is run again with events; ``exact`` does so at once.
    ``watch`` is handed the times at which messages are done, negative until they are, before they are run.

    Raises
    ------
    LoomError
        When messages wait for each other in a circle, naming one of them.
    """
    routes = routes or find_routes(wiring, transfers)
    count = len(transfers)
    done = np.full(count, -1, np.int64)
    watch(done)
    busy, carried = np.zeros(len(wiring.source), np.int64), np.zeros(len(wiring.source))
    per_byte = 1e12 / wiring.bandwidth
    work = np.zeros(0, np.int64) if transfers.work is None else transfers.work
    machine = (
        work,
        routes.pair,
        routes.first,
        routes.links,
        per_byte,
        wiring.latency,
        wiring.topology.forwarding == "store_and_forward",
        endpoint.delay,
        2e12 / endpoint.memory,
        done,
        busy,
        carried,
    )
    if not exact and _run_in_order(transfers.size, transfers.adds, transfers.first, transfers.waits, *machine):
        return NetworkRun(done, busy, carried)
    done[:], busy[:], carried[:] = -1, 0, 0.0
    dependants = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(transfers.waits, minlength=count), out=dependants[1:])
    followers = np.empty(len(transfers.waits), np.int32)
    invert(transfers.first, transfers.waits, dependants[:-1].copy(), followers)
    left = np.diff(transfers.first).astype(np.int32)
    finished = _run(transfers.size, transfers.adds, left, dependants, followers, *machine)
    if finished < count:
        raise LoomError(deadlock_text(wiring, transfers, done))
    return NetworkRun(done, busy, carried)


def deadlock_text(wiring: Wiring, transfers: Transfers, done: Int) -> str:
    """One line that names a circle of messages that wait for each other."""
    at = int(np.flatnonzero(done < 0)[0])
    seen: dict[int, int] = {}
    trail: list[int] = []
    while at not in seen:
        seen[at] = len(trail)
        trail.append(at)
        waits = transfers.waits[transfers.first[at] : transfers.first[at + 1]]
        at = int(waits[done[waits] < 0][0])
    circle = trail[seen[at] :]
    ends = [(int(transfers.source[i]), int(transfers.target[i])) for i in circle[:6]]
    names = [f"{wiring.label(a)} to {wiring.label(b)}" for a, b in ends]
    more = f" and {len(circle) - 6} more" if len(circle) > 6 else ""
    unsent = int((done < 0).sum())
    return f"deadlock: {unsent} messages never leave; these wait for each other: {', '.join(names)}{more}"


@kernel()
def invert(first: Any, waits: Any, place: Any, followers: Any) -> None:
    for message in range(first.size - 1):
        for at in range(first[message], first[message + 1]):
            before = waits[at]
            followers[place[before]] = message
            place[before] += 1


@kernel()
def push(times: Any, keys: Any, size: int, time: Any, key: int) -> None:
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if times[above] < time or (times[above] == time and keys[above] <= key):
            break
        times[at], keys[at] = times[above], keys[above]
        at = above
    times[at], keys[at] = time, key


@kernel()
def sink(times: Any, keys: Any, size: int) -> None:
    """Put the last of ``size`` + 1 entries in place of the first."""
    time, key = times[size], keys[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            times[right] < times[below] or (times[right] == times[below] and keys[right] < keys[below])
        ):
            below = right
        if time < times[below] or (time == times[below] and key <= keys[below]):
            break
        times[at], keys[at] = times[below], keys[below]
        at = below
    times[at], keys[at] = time, key


@kernel(nogil=True)
def _run_in_order(
    size: Any,
    adds: Any,
    first: Any,
    waits: Any,
    work: Any,
    pair: Any,
    route_first: Any,
    route_links: Any,
    per_byte: Any,
    latency: Any,
    whole: bool,
    delay: int,
    add_per_byte: float,
    done: Any,
    busy: Any,
    carried: Any,
) -> bool:
    """As `_run`, message by message; false when a link would serve a later message before an earlier one."""
    free = np.zeros(per_byte.size, np.int64)
    latest = np.zeros(per_byte.size, np.int64)
    for message in range(size.size):
        head = np.int64(0)
        for at in range(first[message], first[message + 1]):
            before = waits[at]
            if before >= message:
                return False
            head = max(head, done[before])
        route = pair[message]
        if route_first[route] == route_first[route + 1]:
            done[message] = head + (work[message] if work.size else 0)
            continue
        tail = head
        for at in range(route_first[route], route_first[route + 1]):
            link = route_links[at]
            if head < latest[link]:
                return False
            latest[link] = head
            start = max(head, free[link])
            serial = np.int64(np.ceil(size[message] * per_byte[link]))
            end = start + serial
            if not whole and at > route_first[route] and tail > end:
                end = tail
            free[link] = end
            busy[link] += serial
            carried[link] += size[message]
            tail = end + latency[link]
            head = tail if whole else start + latency[link]
        tail += delay
        if adds[message]:
            tail += np.int64(np.ceil(size[message] * add_per_byte))
        done[message] = tail
    return True


@kernel(nogil=True)
def _run(
    size: Any,
    adds: Any,
    left: Any,
    dependants: Any,
    followers: Any,
    work: Any,
    pair: Any,
    route_first: Any,
    route_links: Any,
    per_byte: Any,
    latency: Any,
    whole: bool,
    delay: int,
    add_per_byte: float,
    done: Any,
    busy: Any,
    carried: Any,
) -> int:
    count = size.size
    free = np.zeros(per_byte.size, np.int64)
    hop = np.zeros(count, np.int16)
    ready = np.zeros(count, np.int64)  # until it starts, when all that it waits for so far is there; then its tail
    room = 1024
    times, keys = np.empty(room, np.int64), np.empty(room, np.int64)
    entries = 0
    for message in range(count):
        if left[message] == 0:
            if entries == room:
                room *= 2
                grown_times, grown_keys = np.empty(room, np.int64), np.empty(room, np.int64)
                grown_times[:entries], grown_keys[:entries] = times[:entries], keys[:entries]
                times, keys = grown_times, grown_keys
            push(times, keys, entries, 0, message)
            entries += 1
    finished = 0
    while entries > 0:
        now, message = times[0], keys[0]
        entries -= 1
        if entries > 0:
            sink(times, keys, entries)
        route = pair[message]
        at = route_first[route] + hop[message]
        arrived = now
        if at < route_first[route + 1]:
            link = route_links[at]
            start = max(now, free[link])
            serial = np.int64(np.ceil(size[message] * per_byte[link]))
            end = start + serial
            if not whole and hop[message] > 0 and ready[message] > end:
                end = ready[message]
            free[link] = end
            busy[link] += serial
            carried[link] += size[message]
            hop[message] += 1
            arrived = end + latency[link]
            if at + 1 < route_first[route + 1]:
                ready[message] = arrived
                push(times, keys, entries, arrived if whole else start + latency[link], message)
                entries += 1
                continue
        if hop[message] == 0:
            arrived += work[message] if work.size else 0
        else:
            arrived += delay
            if adds[message]:
                arrived += np.int64(np.ceil(size[message] * add_per_byte))
        done[message] = arrived
        finished += 1
        for place in range(dependants[message], dependants[message + 1]):
            follower = followers[place]
            if arrived > ready[follower]:
                ready[follower] = arrived
            left[follower] -= 1
            if left[follower] == 0:
                if entries == room:
                    room *= 2
                    grown_times, grown_keys = np.empty(room, np.int64), np.empty(room, np.int64)
                    grown_times[:entries], grown_keys[:entries] = times[:entries], keys[:entries]
                    times, keys = grown_times, grown_keys
                push(times, keys, entries, ready[follower], follower)
                entries += 1
    return finished
