"""Messages of which many are equal by the network's symmetry, run once for each class of equal ones.

A *lane* is a link, or a pair of ends between which messages go one after the other. Slots (messages of a pattern) and
lanes are put into classes so that

- slots of a class have the same group, size, step and sums; their routes run through lanes of the same classes, in each
  of which they hold the same place among all slots that use it; and they wait for slots of the same classes;
- lanes of a class have the same bandwidth and latency, and the slots that use them, in the order of their numbers, are
  of the same classes, each at the same hop of its route.

Then equal slots have equal times in every turn, and equal lanes are busy at the same times: what happens next at a lane
depends on what reached it when, and of messages that reach it at once on the order of their numbers, and both are the
same for all lanes of a class. Induction over the times of events needs that nothing takes no time at all, hence the
conditions in `fold`. One slot of each class is run then, over one lane of each class. Where a route crosses several
lanes of one class (each real lane serves several equal messages, at different hops), the one message crosses the one
lane as often: the lane serves the same hops at the same times.

Classes are found by refinement (Hopcroft's and Weisfeiler's coarsest equitable partition): all that look alike are one
class, then those whose neighbours are of different classes are parted, until nothing changes. Numbers in place of
classes are hashes on the way; in the end every slot and lane is compared with the first of its class, entry by entry,
so that no collision of hashes can pass. No topology and no algorithm has a name here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Wiring
from siliconloom.arch.transfers import NONE, Pattern, Transfers
from siliconloom.sim.network.messages import Routes

Int = NDArray[np.int64]
ROUNDS_MOST = 256
"""Refinements after which a network counts as without symmetry."""
WORTH = 2
"""Slots of a class on average, from which on classes are worth it."""


class FoldedNetwork(Struct, frozen=True):
    """One slot of each class, over one link of each class.

    Parameters
    ----------
    pattern, wiring, routes
        Of the classes.
    links
        Class of every link of the whole network; `NONE` for those that nothing crosses.
    slots
        Class of every slot.
    """

    pattern: Pattern
    wiring: Wiring
    routes: Routes
    links: Int
    slots: Int


def fold(wiring: Wiring, pattern: Pattern, routes: Routes, *, worth: float = WORTH) -> FoldedNetwork | None:
    """Classes of equal messages and links; `None` where there are too few equal ones, or no time between events."""
    s, links = pattern.slots, len(wiring.source)
    if not len(s) or not len(routes.links):
        return None
    hops = np.diff(routes.first)[routes.pair].astype(np.int64)
    if wiring.latency[routes.links].min() < 1:
        return None  # a message could reach two links at once
    table = _Table.of(pattern, routes, links)
    if (hops == 0).any() and np.diff(table.first)[:links].max() > 1:
        return None  # entries that take no time, and links at which their order could matter
    classes = _refined(pattern, wiring, table, hops, int(len(s) / worth))
    if classes is None:
        return None
    waiting = _Waiting(s.first, s.waits, pattern.previous)
    if not _equitable(classes, table, _attributes(pattern, hops), _speeds(wiring, table), waiting):
        return None
    return _folded(wiring, pattern, routes, *classes)


class _Table(NamedTuple):
    """Which slots cross which lanes: lane l is crossed by ``slot[first[l]:first[l + 1]]``, each at its ``hop``.

    Slot s crosses ``lane[hop_first[s]:hop_first[s + 1]]``, in each of which it has the place ``place``.
    """

    first: Int
    slot: NDArray[np.int32]
    hop: NDArray[np.int32]
    hop_first: Int
    lane: NDArray[np.int32]
    place: NDArray[np.int32]

    @staticmethod
    def of(pattern: Pattern, routes: Routes, links: int) -> _Table:
        slots, pairs = len(pattern.slots), len(routes.first) - 1
        hop_first = np.zeros(slots + 1, np.int64)
        np.cumsum(1 + np.diff(routes.first)[routes.pair], out=hop_first[1:])
        total = int(hop_first[-1])
        lane, slot, hop, place = (np.empty(total, np.int32) for _ in range(4))
        first = np.zeros(links + pairs + 1, np.int64)
        _cross(routes.pair, routes.first, routes.links, links, hop_first, lane, first, slot, hop, place)
        return _Table(first, slot, hop, hop_first, lane, place)


class _Classes(NamedTuple):
    """The class of every slot and lane, and the first member of each class."""

    slot: Int
    lane: Int
    slot_reps: Int
    lane_reps: Int


class _Attributes(NamedTuple):
    """What of a slot stands in no table of others: its group of turns, bytes, work and so on, and its links."""

    group: Any
    size: Any
    adds: Any
    step: Any
    work: Any
    hops: Any


class _Waiting(NamedTuple):
    """What slots wait for, in their turn (`waits` from `first` on) and of the turn before, or -1."""

    first: Any
    waits: Any
    previous: Any


class _Speeds(NamedTuple):
    """Of every lane; those of pairs have none."""

    bandwidth: Any
    latency: Any


def _attributes(pattern: Pattern, hops: Int) -> _Attributes:
    s = pattern.slots
    group = np.repeat(np.arange(len(pattern.turns)), np.diff(pattern.begin))
    work = np.zeros(len(s), np.int64) if s.work is None else s.work
    return _Attributes(group, s.size, s.adds, s.step, work, hops)


def _speeds(wiring: Wiring, table: _Table) -> _Speeds:
    pairs = len(table.first) - 1 - len(wiring.source)
    return _Speeds(
        np.concatenate([wiring.bandwidth, np.zeros(pairs)]),
        np.concatenate([wiring.latency, np.full(pairs, -1, np.int64)]),
    )


def _refined(pattern: Pattern, wiring: Wiring, table: _Table, hops: Int, most: int) -> _Classes | None:
    """Classes of slots and lanes, and the first of each; `None` when there are more than ``most`` of slots."""
    slot, slots = np.zeros(len(pattern.slots), np.int64), 0
    for column in _attributes(pattern, hops):
        slot = _dense(slot * (int(column_class(column).max(initial=0)) + 1) + column_class(column))[0]
    rate, delay = _speeds(wiring, table)
    lane = column_class(rate)
    lane = _dense(lane * (int(column_class(delay).max(initial=0)) + 1) + column_class(delay))[0]
    lanes = 0
    new_slot, new_lane = np.empty(len(slot), np.int64), np.empty(len(lane), np.int64)
    waiting = _Waiting(pattern.slots.first, pattern.slots.waits, pattern.previous)
    for _ in range(ROUNDS_MOST):
        _refine(slot, lane, table, waiting, new_slot, new_lane)
        slot, slot_reps = _dense(new_slot)
        lane, lane_reps = _dense(new_lane)
        if len(slot_reps) > most:
            return None
        if (len(slot_reps), len(lane_reps)) == (slots, lanes):
            return _Classes(slot, lane, slot_reps, lane_reps)
        slots, lanes = len(slot_reps), len(lane_reps)
    return None


def column_class(column: Any) -> Int:
    """Numbers from 0 in place of the values of a column, equal where they are equal."""
    if len(column) and column.min() == column.max():
        return np.zeros(len(column), np.int64)
    return np.unique(column, return_inverse=True)[1].astype(np.int64)


def _dense(values: Int) -> tuple[Int, Int]:
    """Classes numbered in the order of their first member, and these."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order].astype(np.int64)


@kernel()
def _cross(
    pair: Any,
    route_first: Any,
    route_links: Any,
    links: int,
    hop_first: Any,
    lane: Any,
    first: Any,
    slot: Any,
    hop: Any,
    place: Any,
) -> None:
    """Fill a `_Table`; ``first`` holds zeros."""
    for s in range(pair.size):
        route = pair[s]
        lane[hop_first[s]] = links + route
        for at in range(route_first[route], route_first[route + 1]):
            lane[hop_first[s] + 1 + at - route_first[route]] = route_links[at]
    for at in range(lane.size):
        first[lane[at] + 1] += 1
    for at in range(first.size - 1):
        first[at + 1] += first[at]
    used = np.zeros(first.size - 1, np.int32)
    for s in range(pair.size):
        for at in range(hop_first[s], hop_first[s + 1]):
            here = lane[at]
            place[at] = used[here]
            slot[first[here] + used[here]] = s
            hop[first[here] + used[here]] = at - hop_first[s]
            used[here] += 1


@kernel()
def _mixed(hash: Any, value: Any) -> Any:
    mixed = (hash ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))


@kernel()
def _refine(slot: Any, lane: Any, table: _Table, waiting: _Waiting, new_slot: Any, new_lane: Any) -> None:
    """Hashes of what every lane and slot sees of the others' classes."""
    first, crossing, crossing_hop = table.first, table.slot, table.hop
    hop_first, hop_lane, place = table.hop_first, table.lane, table.place
    wait_first, waits, previous = waiting.first, waiting.waits, waiting.previous
    for here in range(lane.size):
        hash = _mixed(np.uint64(1), lane[here])
        for at in range(first[here], first[here + 1]):
            hash = _mixed(_mixed(hash, slot[crossing[at]]), crossing_hop[at])
        new_lane[here] = np.int64(hash)
    for s in range(slot.size):
        hash = _mixed(np.uint64(2), slot[s])
        for at in range(hop_first[s], hop_first[s + 1]):
            hash = _mixed(_mixed(hash, new_lane[hop_lane[at]]), place[at])
        hash = _mixed(hash, -1 if previous[s] < 0 else slot[previous[s]])
        for at in range(wait_first[s], wait_first[s + 1]):
            hash = _mixed(hash, slot[waits[at]])
        new_slot[s] = np.int64(hash)


@kernel()
def _equitable(classes: _Classes, table: _Table, of_slots: _Attributes, speeds: _Speeds, waiting: _Waiting) -> bool:
    """Tell whether every slot and lane is what the first of its class is, and the order of classes that of numbers."""
    slot, lane, slot_reps, lane_reps = classes
    first, crossing, crossing_hop = table.first, table.slot, table.hop
    hop_first, hop_lane, place = table.hop_first, table.lane, table.place
    group, size, adds, step, work, hops = of_slots
    wait_first, waits, previous = waiting
    bandwidth, latency = speeds
    for s in range(slot.size):
        r = slot_reps[slot[s]]
        if s == r:
            continue
        if group[s] != group[r] or size[s] != size[r] or adds[s] != adds[r] or step[s] != step[r]:
            return False
        if work[s] != work[r] or hops[s] != hops[r] or (previous[s] < 0) != (previous[r] < 0):
            return False
        if previous[s] >= 0 and slot[previous[s]] != slot[previous[r]]:
            return False
        for at in range(hops[s] + 1):
            a, b = hop_first[s] + at, hop_first[r] + at
            if lane[hop_lane[a]] != lane[hop_lane[b]] or place[a] != place[b]:
                return False
        if wait_first[s + 1] - wait_first[s] != wait_first[r + 1] - wait_first[r]:
            return False
        for at in range(wait_first[s + 1] - wait_first[s]):
            if slot[waits[wait_first[s] + at]] != slot[waits[wait_first[r] + at]]:
                return False
    for here in range(lane.size):
        r = lane_reps[lane[here]]
        if here == r:
            # The first of each class stands for it: their order must be that of the slots that they stand for here.
            last = np.int64(-1)
            for at in range(first[here], first[here + 1]):
                number = slot_reps[slot[crossing[at]]]
                if number < last:
                    return False
                last = number
            continue
        if bandwidth[here] != bandwidth[r] or latency[here] != latency[r]:
            return False
        if first[here + 1] - first[here] != first[r + 1] - first[r]:
            return False
        for at in range(first[here + 1] - first[here]):
            a, b = first[here] + at, first[r] + at
            if slot[crossing[a]] != slot[crossing[b]] or crossing_hop[a] != crossing_hop[b]:
                return False
    return True


def _folded(
    wiring: Wiring, pattern: Pattern, routes: Routes, slot: Int, lane: Int, slot_reps: Int, lane_reps: Int
) -> FoldedNetwork:
    s, links = pattern.slots, len(wiring.source)
    crossed = np.zeros(links, bool)
    crossed[routes.links] = True
    link = np.full(links, NONE)
    kept = np.unique(lane[:links][crossed])
    number = np.full(len(lane_reps), NONE)
    number[kept] = np.arange(len(kept))
    link[crossed] = number[lane[:links][crossed]]
    of_pair = lane[links:]
    pairs, pair = np.unique(of_pair[routes.pair[slot_reps]], return_inverse=True)
    ways = [routes.links[routes.first[p] : routes.first[p + 1]] for p in (lane_reps[pairs] - links).tolist()]
    first = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum([len(way) for way in ways], out=first[1:])
    waits = [np.unique(slot[s.waits[s.first[r] : s.first[r + 1]]]) for r in slot_reps.tolist()]
    wait_first = np.zeros(len(slot_reps) + 1, np.int64)
    np.cumsum([len(each) for each in waits], out=wait_first[1:])
    slots = Transfers(
        s.source[slot_reps],
        s.target[slot_reps],
        s.size[slot_reps],
        s.adds[slot_reps],
        wait_first,
        np.concatenate([np.zeros(0, np.int32), *waits]).astype(np.int32),
        s.step[slot_reps],
        None if s.work is None else s.work[slot_reps],
    )
    before = pattern.previous[slot_reps]
    folded = Pattern(
        pattern.turns,
        np.searchsorted(slot_reps, pattern.begin).astype(np.int64),
        slots,
        np.where(before < 0, NONE, slot[before]),
        pattern.always,
        pattern.whole,
    )
    reps = lane_reps[kept]
    narrow = replace(
        wiring,
        source=wiring.source[reps],
        target=wiring.target[reps],
        bandwidth=wiring.bandwidth[reps],
        latency=wiring.latency[reps],
    )
    ways_of = np.concatenate([np.zeros(0, np.int64), *(link[way] for way in ways)]).astype(np.int32)
    return FoldedNetwork(folded, narrow, Routes(pair.astype(np.int32), first, ways_of), link, slot)
