"""Messages over links while chips fall behind and links lose bandwidth, fail and come back.

The rules are those of `siliconloom.sim.network.messages`, and without disturbances so are the times. A chip's work and
sums take its factor longer while it is slow, a link's messages while it has less bandwidth. What is on a link or waits
for it when it fails is lost, as is what reaches it later; the whole message leaves its source again ``timeout`` after
that. What leaves takes a shortest path over the links that work then, or waits for the first moment at which there is
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.quantity import format_si
from siliconloom.arch.transfers import Transfers
from siliconloom.sim.network.messages import NetworkRun, Routes, deadlock_text, find_routes, invert, push, sink
from siliconloom.sim.timing.changes import Changes, read_changes, work_end

Int = NDArray[np.int64]
FOREVER = 2**62


@dataclass(frozen=True)
class Disturbance:
    """One change from ``at`` on (picoseconds): of a chip's or a link's factor, or a link's failure or return.

    ``link`` is the number of one directed link.
    """

    at: int
    chip: int = -1
    link: int = -1
    factor: float = 1.0
    failed: bool | None = None


def run_disturbed(
    wiring: Wiring, transfers: Transfers, endpoint: Endpoint, disturbances: Sequence[Disturbance], *, timeout: int
) -> tuple[NetworkRun, Int]:
    """Run every message; also how often each one was sent again.

    Raises
    ------
    LoomError
        When failures leave a message without a path for good, or messages wait for each other in a circle.
    """
    count, links = len(transfers), len(wiring.source)
    chips = read_changes(wiring.nodes, [(d.chip, d.at, d.factor) for d in disturbances if d.chip >= 0])
    rates = read_changes(links, [(d.link, d.at, d.factor) for d in disturbances if d.link >= 0 and d.failed is None])
    down_first, down, up = _outages(links, disturbances)
    epochs, routes, pairs = _epochs(wiring, transfers, disturbances)
    done = np.full(count, -1, np.int64)
    busy, carried, again = np.zeros(links, np.int64), np.zeros(links), np.zeros(count, np.int64)
    dependants = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(transfers.waits, minlength=count), out=dependants[1:])
    followers = np.empty(len(transfers.waits), np.int32)
    invert(transfers.first, transfers.waits, dependants[:-1].copy(), followers)
    work = np.zeros(count, np.int64) if transfers.work is None else transfers.work
    finished, lost = _run(
        transfers.source,
        transfers.target,
        transfers.size,
        transfers.adds,
        np.diff(transfers.first).astype(np.int32),
        dependants,
        followers,
        work,
        routes.pair,
        routes.first,
        routes.links,
        epochs,
        pairs,
        1e12 / wiring.bandwidth,
        wiring.latency,
        wiring.topology.forwarding == "store_and_forward",
        endpoint.delay,
        2e12 / endpoint.memory,
        *_columns(chips),
        *_columns(rates),
        down_first,
        down,
        up,
        timeout,
        done,
        busy,
        carried,
        again,
    )
    if lost >= 0:
        a, b = int(transfers.source[lost]), int(transfers.target[lost])
        last = format_si(float(epochs[-1]) * 1e-12, "s")
        raise LoomError(f"no path from {wiring.label(a)} to {wiring.label(b)} after the failures of links up to {last}")
    if finished < count:
        raise LoomError(deadlock_text(wiring, transfers, done))
    return NetworkRun(done, busy, carried), again


def _columns(changes: Changes) -> tuple[Any, Any, Any]:
    return changes.first, changes.at, changes.factor


def _outages(links: int, disturbances: Sequence[Disturbance]) -> tuple[Int, Int, Int]:
    """For each link when it goes down and comes up again."""
    spans: list[tuple[int, int, int]] = []
    since: dict[int, int] = {}
    for each in sorted((d for d in disturbances if d.failed is not None), key=lambda d: d.at):
        if each.failed:
            since.setdefault(each.link, each.at)
        elif each.link in since:
            spans.append((each.link, since.pop(each.link), each.at))
    spans = sorted(spans + [(link, at, FOREVER) for link, at in since.items()])
    first = np.zeros(links + 1, np.int64)
    np.cumsum(np.bincount([s[0] for s in spans], minlength=links), out=first[1:])
    return first, np.array([s[1] for s in spans], np.int64), np.array([s[2] for s in spans], np.int64)


def _epochs(wiring: Wiring, transfers: Transfers, disturbances: Sequence[Disturbance]) -> tuple[Int, Routes, int]:
    """Times from which other links work, the routes of each such time one after the other, and pairs in each."""
    changes = sorted((d for d in disturbances if d.failed is not None), key=lambda d: d.at)
    times = sorted({0, *(d.at for d in changes)})
    found: list[Routes] = []
    for time in times:
        works = np.ones(len(wiring.source), bool)
        for each in changes:
            if each.at <= time:
                works[each.link] = not each.failed
        kept = np.flatnonzero(works)
        rest = replace(
            wiring,
            source=wiring.source[kept],
            target=wiring.target[kept],
            bandwidth=wiring.bandwidth[kept],
            latency=wiring.latency[kept],
        )
        routes = find_routes(rest, transfers, whole=False)
        found.append(Routes(routes.pair, routes.first, kept[routes.links].astype(np.int32)))
    offsets = np.cumsum([0] + [len(r.links) for r in found])
    first = np.concatenate([np.zeros(1, np.int64)] + [r.first[1:] + o for r, o in zip(found, offsets, strict=False)])
    links = np.concatenate([r.links for r in found])
    return np.array(times, np.int64), Routes(found[0].pair, first, links), len(found[0].first) - 1


@kernel()
def _run(
    source: Any,
    target: Any,
    size: Any,
    adds: Any,
    left: Any,
    dependants: Any,
    followers: Any,
    work: Any,
    pair: Any,
    route_first: Any,
    route_links: Any,
    epochs: Any,
    pairs: int,
    per_byte: Any,
    latency: Any,
    whole: bool,
    delay: int,
    add_per_byte: float,
    chip_first: Any,
    chip_at: Any,
    chip_factor: Any,
    rate_first: Any,
    rate_at: Any,
    rate_factor: Any,
    down_first: Any,
    down: Any,
    up: Any,
    timeout: int,
    done: Any,
    busy: Any,
    carried: Any,
    again: Any,
) -> Any:
    """Messages done, and one that has no path any more, or -1."""
    count = size.size
    free = np.zeros(per_byte.size, np.int64)
    hop, route = np.zeros(count, np.int16), np.zeros(count, np.int64)
    tail, ready = np.zeros(count, np.int64), np.zeros(count, np.int64)
    times, keys = np.empty(count, np.int64), np.empty(count, np.int64)  # no message is in the queue twice
    entries = 0
    for message in range(count):
        if left[message] == 0:
            push(times, keys, entries, 0, message)
            entries += 1
    finished = 0
    while entries > 0:
        now, message = times[0], keys[0]
        entries -= 1
        if entries > 0:
            sink(times, keys, entries)
        if source[message] == target[message]:
            arrived = work_end(chip_first, chip_at, chip_factor, source[message], now, work[message])
        else:
            if hop[message] == 0:
                epoch = np.searchsorted(epochs, now, side="right") - 1
                chosen = epoch * pairs + pair[message]
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
            serial = np.int64(np.ceil(size[message] * per_byte[link]))
            end = work_end(rate_first, rate_at, rate_factor, link, start, serial)
            lost = np.int64(-1)
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
                push(times, keys, entries, lost + timeout, message)
                entries += 1
                continue
            busy[link] += end - start
            if not whole and hop[message] > 0 and tail[message] > end:
                end = tail[message]
            free[link] = end
            carried[link] += size[message]
            hop[message] += 1
            arrived = end + latency[link]
            if at + 1 < route_first[route[message] + 1]:
                tail[message] = arrived
                push(times, keys, entries, arrived if whole else start + latency[link], message)
                entries += 1
                continue
            arrived += delay
            if adds[message]:
                summed = np.int64(np.ceil(size[message] * add_per_byte))
                arrived = work_end(chip_first, chip_at, chip_factor, target[message], arrived, summed)
        done[message] = arrived
        finished += 1
        for place in range(dependants[message], dependants[message + 1]):
            follower = followers[place]
            if arrived > ready[follower]:
                ready[follower] = arrived
            left[follower] -= 1
            if left[follower] == 0:
                push(times, keys, entries, ready[follower], follower)
                entries += 1
    return finished, -1
