"""Shortest paths of messages over a network's links."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.budget import memory_limit, own_memory, require_memory
from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Wiring
from siliconloom.arch.transfers import Transfers

Int = NDArray[np.int64]
Short = NDArray[np.int32]

UNREACHED = -1
HOP_BYTES = 24
"""Memory of one link of one path, until all are found."""


class Routes(Struct, frozen=True):
    """Links that each message crosses: message i takes ``links[first[pair[i]]:first[pair[i] + 1]]``."""

    pair: Short
    first: Int
    links: Short


def find_routes(wiring: Wiring, transfers: Transfers, *, whole: bool = True) -> Routes:
    """A shortest path for every message; messages between the same ends take the same one.

    Where the topology need not be ``whole``, messages that have no path have no links.

    Raises
    ------
    LoomError
        When a target cannot be reached.
    """
    key = transfers.source.astype(np.int64) * wiring.nodes + transfers.target
    if len(key) > 1 and (key[1:] >= key[:-1]).all():
        found, pair = np.unique(key, return_inverse=True)
    else:
        found, pair = _unique(key, wiring.nodes)
    starts, order = wiring.outgoing()
    incoming = np.argsort(wiring.target, kind="stable")
    into = np.zeros(wiring.nodes + 1, np.int64)
    np.cumsum(np.bincount(wiring.target, minlength=wiring.nodes), out=into[1:])
    by_target = np.argsort(found % wiring.nodes, kind="stable")
    hops, at = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    most = max(memory_limit() - own_memory(), 1 << 24) // HOP_BYTES
    flat, pairs, used = np.empty(1024, np.int32), 0, 0
    while True:
        pairs, used, far = _walk(
            found // wiring.nodes,
            found % wiring.nodes,
            by_target,
            starts,
            order,
            wiring.target,
            into,
            incoming,
            wiring.source,
            wiring.topology.routing == "ecmp",
            hops,
            at,
            flat,
            pairs,
            used,
        )
        if pairs == len(found):
            break
        if used + far > most:
            require_memory(f"the paths of {len(found):,} pairs of chips", most * HOP_BYTES * 2, "fewer chips need less")
        flat = np.concatenate([flat[:used], np.empty(2 * far + used, np.int32)])
    lost = np.flatnonzero(hops == UNREACHED)
    if len(lost) and whole:
        a, b = divmod(int(found[lost[0]]), wiring.nodes)
        raise LoomError(f"no path from {wiring.label(a)} to {wiring.label(b)}: the topology falls apart")
    first = np.zeros(len(found) + 1, np.int64)
    np.cumsum(np.maximum(hops, 0), out=first[1:])
    links = np.empty(first[-1], np.int32)
    _in_order_of_pairs(first, at, flat, links)
    return Routes(pair.astype(np.int32), first, links)


@kernel()
def _in_order_of_pairs(first: Any, at: Any, flat: Any, links: Any) -> None:
    for pair in range(at.size):
        for hop in range(first[pair + 1] - first[pair]):
            links[first[pair] + hop] = flat[at[pair] + hop]


def _unique(key: Int, nodes: int) -> tuple[Int, Int]:
    """As ``np.unique`` with inverse, without sorting when the pairs are few enough to count."""
    if nodes * nodes <= 1 << 25:
        seen = np.zeros(nodes * nodes, np.bool_)
        seen[key] = True
        found = np.flatnonzero(seen)
        place = np.zeros(nodes * nodes, np.int32)
        place[found] = np.arange(len(found), dtype=np.int32)
        return found.astype(np.int64), place[key].astype(np.int64)
    return np.unique(key, return_inverse=True)


@kernel(nogil=True)
def _walk(
    sources: Any,
    targets: Any,
    by_target: Any,
    starts: Any,
    order: Any,
    link_target: Any,
    into: Any,
    incoming: Any,
    link_source: Any,
    ecmp: bool,
    hops: Any,
    first: Any,
    links: Any,
    begin: int,
    used: int,
) -> tuple[int, int, int]:
    """Breadth-first search back from one target after the other as far as its sources, and a walk down from each.

    Fills ``links`` with those of all paths, ``hops`` of them for each pair from ``first`` on. It starts with pair
    ``begin`` of ``by_target``, before which ``used`` links were filled, and gives the pair before which it ended, the
    links filled by then, and the links of that pair for which there was no room.
    """
    nodes = starts.size - 1
    distance = np.full(nodes, -1, np.int64)
    seen = np.full(nodes, -1, np.int64)  # for which target `distance` holds
    queue = np.zeros(nodes, np.int64)
    levels, filled = np.zeros(nodes + 1, np.int64), 0  # place in the queue of the first node at each distance
    choice = np.empty(link_target.size, np.int64)
    last, head, tail = -1, 0, 0
    for turn in range(begin, by_target.size):
        position = by_target[turn]
        target = targets[position]
        if target != last:
            last = target
            seen[target], distance[target] = target, 0
            queue[0] = target
            head, tail = 0, 1
            levels[0], filled = 0, 1
        node = sources[position]
        near = -1  # links from a node next to the source, where that is known before the source is reached
        while seen[node] != target and head < tail:
            nearer = queue[head]
            if into[nearer + 1] - into[nearer] > starts[node + 1] - starts[node]:
                # All nodes as near as this one are known: is the source next to one of them?
                for at in range(starts[node], starts[node + 1]):
                    after = link_target[order[at]]
                    if seen[after] == target and distance[after] == distance[nearer]:
                        near = distance[nearer]
                if near >= 0:
                    break
            head += 1
            for at in range(into[nearer], into[nearer + 1]):
                before = link_source[incoming[at]]
                if seen[before] != target:
                    seen[before], distance[before] = target, distance[nearer] + 1
                    if distance[before] == filled:
                        levels[filled] = tail
                        filled += 1
                    queue[tail] = before
                    tail += 1
        first[position] = used
        if near < 0 and seen[node] != target:
            hops[position] = -1
            continue
        far = near + 1 if near >= 0 else distance[node]
        hops[position] = far
        if used + far > links.size:
            return turn, used, far
        salt = np.uint64(sources[position] * 2654435761 + target * 40503 + 12345)
        while node != target:
            chosen, good = -1, 0
            a, b = levels[far - 1], levels[far] if far < filled else tail
            width = 0
            for i in range(a, b):
                width += into[queue[i] + 1] - into[queue[i]]
                if width >= starts[node + 1] - starts[node]:
                    break
            if width < starts[node + 1] - starts[node]:  # fewer links come to nodes one step nearer than leave here
                for i in range(a, b):
                    for at in range(into[queue[i]], into[queue[i] + 1]):
                        if link_source[incoming[at]] == node:
                            place = good  # in the order of the links
                            while place > 0 and choice[place - 1] > incoming[at]:
                                choice[place] = choice[place - 1]
                                place -= 1
                            choice[place] = incoming[at]
                            good += 1
            else:
                for at in range(starts[node], starts[node + 1]):
                    after = link_target[order[at]]
                    if seen[after] == target and distance[after] == far - 1:
                        choice[good] = order[at]
                        good += 1
                        if not ecmp:
                            break
            chosen = choice[0]
            if ecmp and good > 1:
                mixed = (salt ^ np.uint64(node * 97531)) * np.uint64(0x9E3779B97F4A7C15)
                chosen = choice[np.int64((mixed >> np.uint64(33)) % np.uint64(good))]
            links[used] = chosen
            used += 1
            far -= 1
            node = link_target[chosen]
    return by_target.size, used, 0


def farthest(wiring: Wiring, sources: int = 64) -> int:
    """Links from one of the first ``sources`` chips to the chip farthest from it."""
    first, order = wiring.outgoing()
    return int(_farthest(min(wiring.chips, sources), wiring.chips, first, order, wiring.target))


@kernel()
def _farthest(sources: int, chips: int, first: Any, order: Any, link_target: Any) -> int:
    nodes = first.size - 1
    seen, distance, queue = np.full(nodes, -1, np.int64), np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    most = 0
    for chip in range(sources):
        seen[chip], distance[chip], queue[0] = chip, 0, chip
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            if node < chips:
                most = max(most, distance[node])
            for at in range(first[node], first[node + 1]):
                after = link_target[order[at]]
                if seen[after] != chip:
                    seen[after], distance[after] = chip, distance[node] + 1
                    queue[tail] = after
                    tail += 1
    return most
