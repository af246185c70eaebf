"""Messages over links, one event for each link that a message crosses.

Every directed link serves its messages one after the other, in the order in which their heads arrive (ties: the lower
message first), and takes size / bandwidth for each. With cut-through a head goes on after the link's latency while its
tail still follows, and a message leaves a faster link no sooner than its tail has come; with store-and-forward it goes
on when all of it has arrived. Queues are as long as need be. An entry from a chip to itself crosses no link and takes
its ``work``. Times are picoseconds.

The one kernel with events also knows chips that fall behind and links that lose bandwidth, fail and come back
(`Disturbed`; `sim.network.disturbed` makes it): without any of these it is given empty tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.quantity import format_si
from siliconloom.arch.transfers import Transfers
from siliconloom.sim.network.routes import Routes, farthest, find_routes
from siliconloom.sim.timing.changes import work_end

__all__ = [
    "Disturbed",
    "NetworkRun",
    "Outcome",
    "Routes",
    "deadlock_text",
    "farthest",
    "find_routes",
    "Turns",
    "links_of",
    "messages_of",
    "new_outcome",
    "run_events",
    "run_in_order",
    "run_transfers",
]

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Short = NDArray[np.int32]


class NetworkRun(Struct, frozen=True):
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


class Messages(NamedTuple):
    """Of every message: its ends, bytes, whether it is added where it arrives, its work if any has some, its route."""

    source: Short
    target: Short
    size: Float
    adds: NDArray[np.bool_]
    work: Int
    pair: Short


class Links(NamedTuple):
    """Of every directed link its picoseconds a byte and its latency; what a message takes where it ends."""

    per_byte: Float
    latency: Int
    whole: bool
    """Store-and-forward instead of cut-through."""
    delay: int
    add_per_byte: float


class Turns(NamedTuple):
    """Groups of messages, one after the other, each ``turns`` times; see `arch.transfers.Pattern`."""

    turns: Int
    begin: Int
    previous: Int
    always: NDArray[np.bool_]


class Disturbed(NamedTuple):
    """What changes while messages run; times are picoseconds.

    ``chips`` and ``rates`` are factors of chips and of links from times on (`sim.timing.changes`), ``outages`` say from
    when to when a link is down. From each of ``epochs`` on other routes hold, ``pairs`` of them. What was lost leaves
    its source again ``timeout`` later.
    """

    epochs: Int
    pairs: int
    chips: tuple[Int, Int, Float]
    rates: tuple[Int, Int, Float]
    outages: tuple[Int, Int, Int]
    timeout: int


class Outcome(NamedTuple):
    """What is found: of messages when they are done and how often they were sent again, of links `NetworkRun`'s."""

    done: Int
    busy: Int
    carried: Float
    again: Int


def new_outcome(messages: int, links: int) -> Outcome:
    """Nothing is done yet."""
    done = np.full(messages, -1, np.int64)
    return Outcome(done, np.zeros(links, np.int64), np.zeros(links), np.zeros(messages, np.int64))


def once(messages: int) -> Turns:
    """One group of messages that come once."""
    return Turns(np.ones(1, np.int64), np.array([0, messages]), np.zeros(0, np.int64), np.zeros(1, np.bool_))


def messages_of(transfers: Transfers, routes: Routes) -> Messages:
    """Columns of a table of messages, each with the number of its route."""
    t = transfers
    work = np.zeros(0, np.int64) if t.work is None else t.work
    return Messages(t.source, t.target, t.size, t.adds, work, routes.pair)


def links_of(wiring: Wiring, endpoint: Endpoint) -> Links:
    """Columns of links, and what chips do at a message's end."""
    whole = wiring.topology.forwarding == "store_and_forward"
    return Links(1e12 / wiring.bandwidth, wiring.latency, whole, endpoint.delay, 2e12 / endpoint.memory)


def undisturbed(links: int, chips: int) -> Disturbed:
    """Nothing ever changes."""
    none = np.zeros(0, np.int64)
    of_links, of_chips = np.zeros(links + 1, np.int64), np.zeros(chips + 1, np.int64)
    factors = np.zeros(0)
    return Disturbed(
        np.zeros(1, np.int64), 0, (of_chips, none, factors), (of_links, none, factors), (of_links, none, none), 0
    )


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
    outcome = new_outcome(len(transfers), len(wiring.source))
    watch(outcome.done)
    if not exact:
        sent, links = messages_of(transfers, routes), links_of(wiring, endpoint)
        waits = transfers.first, transfers.waits
        if run_in_order(once(len(transfers)), sent, *waits, routes.first, routes.links, links, outcome) >= 0:
            return NetworkRun(outcome.done, outcome.busy, outcome.carried)
        outcome.done[:], outcome.busy[:], outcome.carried[:] = -1, 0, 0.0
    return run_events(wiring, transfers, endpoint, routes, undisturbed(len(wiring.source), wiring.nodes), outcome)


def run_events(
    wiring: Wiring, transfers: Transfers, endpoint: Endpoint, routes: Routes, disturbed: Disturbed, outcome: Outcome
) -> NetworkRun:
    """Run every message with a queue of events; ``routes`` are those of each of the disturbances' epochs in turn.

    Raises
    ------
    LoomError
        When failures leave a message without a path for good, or messages wait for each other in a circle.
    """
    count = len(transfers)
    dependants = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(transfers.waits, minlength=count), out=dependants[1:])
    followers = np.empty(len(transfers.waits), np.int32)
    invert(transfers.first, transfers.waits, dependants[:-1].copy(), followers)
    left = np.diff(transfers.first).astype(np.int32)
    sent, links = messages_of(transfers, routes), links_of(wiring, endpoint)
    finished, lost = _run(sent, left, dependants, followers, routes.first, routes.links, links, disturbed, outcome)
    if lost >= 0:
        a, b = int(transfers.source[lost]), int(transfers.target[lost])
        last = format_si(float(disturbed.epochs[-1]) * 1e-12, "s")
        raise LoomError(f"no path from {wiring.label(a)} to {wiring.label(b)} after the failures of links up to {last}")
    if finished < count:
        raise LoomError(deadlock_text(wiring, transfers, outcome.done))
    return NetworkRun(outcome.done, outcome.busy, outcome.carried)


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
def run_in_order(
    turns: Any, messages: Any, first: Any, waits: Any, route_first: Any, route_links: Any, links: Any, outcome: Any
) -> Any:
    """As `_run`, message by message and turn by turn; when the last one is there.

    It is -1 when a link would serve a later message before an earlier one. ``outcome.done`` holds each message's last
    turn. Of what a message waits for in its own turn, messages before it have their time.
    """
    size, adds, work, pair = messages.size, messages.adds, messages.work, messages.pair
    done, busy, carried = outcome.done, outcome.busy, outcome.carried
    per_byte, latency, whole = links.per_byte, links.latency, links.whole
    delay, add_per_byte, previous = links.delay, links.add_per_byte, turns.previous
    free = np.zeros(per_byte.size, np.int64)
    latest = np.zeros(per_byte.size, np.int64)
    # each message's turn before the present one; where there is none, zeroing it takes as long as half of all the rest
    again = False
    for group in range(turns.turns.size):
        again |= turns.turns[group] > 1
    then = np.zeros(size.size if again else 0, np.int64)
    finish: Any = 0
    for group in range(turns.turns.size):
        a, b = turns.begin[group], turns.begin[group + 1]
        for turn in range(turns.turns[group]):
            every = turn == 0 or turns.always[group]
            if turn > 0:
                for message in range(a, b):
                    then[message] = done[message]
            for message in range(a, b):
                head = np.int64(0)
                if turn > 0 and previous[message] >= 0:
                    head = then[previous[message]]
                for at in range(first[message], first[message + 1]):
                    before = waits[at]
                    if before >= message:
                        return -1
                    if every or before >= a:
                        head = max(head, done[before])
                route = pair[message]
                tail = head
                if route_first[route] == route_first[route + 1]:
                    tail += work[message] if work.size else 0
                else:
                    for at in range(route_first[route], route_first[route + 1]):
                        link = route_links[at]
                        if head < latest[link]:
                            return -1
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
                finish = max(finish, tail)
    return finish


@kernel(nogil=True)
def _run(
    messages: Any,
    left: Any,
    dependants: Any,
    followers: Any,
    route_first: Any,
    route_links: Any,
    links: Any,
    disturbed: Any,
    outcome: Any,
) -> Any:
    """Messages done, and one that has no path any more, or -1.

    A message is in the queue once: when all that it waits for is there, and at every link that it reaches.
    """
    size, pair, source = messages.size, messages.pair, messages.source
    done, busy, carried, again = outcome.done, outcome.busy, outcome.carried, outcome.again
    whole, latency, epochs = links.whole, links.latency, disturbed.epochs
    chip_first, chip_at, chip_factor = disturbed.chips
    rate_first, rate_at, rate_factor = disturbed.rates
    down_first, down, up = disturbed.outages
    calm = rate_at.size == 0 and down.size == 0
    count = size.size
    free = np.zeros(latency.size, np.int64)
    hop, route = np.zeros(count, np.int16), np.zeros(count, np.int64)
    ready = np.zeros(count, np.int64)  # until it starts, when all that it waits for so far is there; then its tail
    room = 1024
    times, keys = np.empty(room, np.int64), np.empty(room, np.int64)
    entries = 0
    for message in range(count):
        if left[message] == 0:
            if entries == room:
                room *= 2
                grown_times, grown_keys = np.empty(room, np.int64), np.empty(room, np.int64)
                for entry in range(entries):
                    grown_times[entry], grown_keys[entry] = times[entry], keys[entry]
                times, keys = grown_times, grown_keys
            push(times, keys, entries, 0, message)
            entries += 1
    finished = 0
    while entries > 0:
        now, message = times[0], keys[0]
        entries -= 1
        if entries > 0:
            sink(times, keys, entries)
        if source[message] == messages.target[message]:
            of_work = messages.work[message] if messages.work.size else 0
            arrived = work_end(chip_first, chip_at, chip_factor, source[message], now, of_work)
        else:
            if hop[message] == 0:
                epoch, later = 0, 0 if calm else epochs.size
                while epoch + 1 < later:
                    middle = (epoch + later) // 2
                    if epochs[middle] <= now:
                        epoch = middle
                    else:
                        later = middle
                chosen = epoch * disturbed.pairs + pair[message]
                if route_first[chosen] == route_first[chosen + 1]:
                    if epoch + 1 == epochs.size:
                        return finished, message
                    push(times, keys, entries, epochs[epoch + 1], message)
                    entries += 1
                    continue
                route[message] = chosen
            at = route_first[route[message]] + hop[message]
            link = route_links[at]
            start: Any = max(now, free[link])
            serial = np.int64(np.ceil(size[message] * links.per_byte[link]))
            end: Any = start + serial
            lost = np.int64(-1)
            if not calm:
                end = work_end(rate_first, rate_at, rate_factor, link, start, serial)
                for span in range(down_first[link], down_first[link + 1]):
                    if down[span] < max(end, start + 1) and up[span] > now:
                        lost = max(now, down[span])
                        break
            if lost >= 0:
                if lost > start:
                    busy[link] += lost - start
                    free[link] = max(free[link], lost)
                again[message] += 1
                hop[message] = 0
                push(times, keys, entries, lost + disturbed.timeout, message)
                entries += 1
                continue
            busy[link] += end - start
            if not whole and hop[message] > 0 and ready[message] > end:
                end = ready[message]
            free[link] = end
            carried[link] += size[message]
            hop[message] += 1
            arrived = end + latency[link]
            if at + 1 < route_first[route[message] + 1]:
                ready[message] = arrived
                push(times, keys, entries, arrived if whole else start + latency[link], message)
                entries += 1
                continue
            arrived += links.delay
            if messages.adds[message]:
                summed = np.int64(np.ceil(size[message] * links.add_per_byte))
                arrived = work_end(chip_first, chip_at, chip_factor, messages.target[message], arrived, summed)
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
                    for entry in range(entries):
                        grown_times[entry], grown_keys[entry] = times[entry], keys[entry]
                    times, keys = grown_times, grown_keys
                push(times, keys, entries, ready[follower], follower)
                entries += 1
    return finished, -1
