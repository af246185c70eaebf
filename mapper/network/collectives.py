"""Collectives as algorithms: which chip sends what to which, and what must be there before.

Sizes are nccl-tests': of all-reduce, reduce-scatter and broadcast the input of a chip, of all-gather its result, of
all-to-all all that a chip has for all. Of n chips every chip has one n-th, where an algorithm scatters.

Sources: ring (Patarasuk and Yuan, 2009); halving-doubling (Thakur, Rabenseifner and Gropp, 2005), with the surplus over
a power of two folded onto partners; trees (`siliconloom.mapper.network.trees`); hierarchical (reduce-scatter in each
dimension in turn, then back); in-switch reduction (SHARP, Graham et al., 2016); all-to-all
(`siliconloom.mapper.network.exchange`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Pattern, Transfers
from siliconloom.mapper.network.book import NONE, Book, Int
from siliconloom.mapper.network.exchange import direct_exchange, equal_parts, hierarchical_exchange, ring_exchange
from siliconloom.mapper.network.trees import PIECES_MOST, binomial_tree, double_tree

Short = NDArray[np.int32]

Size = float | NDArray[np.float64]

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_receive")
DIRECT_MOST = 1024
"""Chips up to which all send to all within one step, when the algorithm is chosen by cost."""
PAIR_BYTES = 160
"""Memory that a message from each chip to each takes until it has been run."""
GATHER_BYTES = 160
"""The same for what comes back."""
DIRECT_SUMS_MOST = 256
"""The same for all-reduce, whose choice is to take no longer than its run."""


def collective(operation: str, algorithm: str, wiring: Wiring, size: Size) -> Transfers:
    """Every message of a collective over all chips of ``wiring``; see `pattern`."""
    return pattern(operation, algorithm, wiring, size).transfers()


def pattern(operation: str, algorithm: str, wiring: Wiring, size: Size) -> Pattern:
    """Messages of a collective over all chips of ``wiring``, those that come again written down once.

    ``size`` are bytes, or of all-to-all what each chip (row) has for each (column).

    Raises
    ------
    NotSupported
        When the algorithm does not do the operation, or not on this topology.
    LoomError
        When writing it down takes more memory than there may be.
    """
    maker = _MAKERS.get((operation, algorithm))
    if maker is None:
        known = ", ".join(algorithms(operation))
        raise NotSupported(f"{operation} by {algorithm}; there are {known}")
    if (why := _unfit(operation, algorithm, wiring)) is not None:
        raise NotSupported(f"{algorithm}: {why}")
    n = wiring.chips
    if (algorithm == "direct" and operation != "send_receive") or operation == "all_to_all":
        need = n * n * (PAIR_BYTES + (GATHER_BYTES if operation == "all_reduce" else 0))
        key = f"{operation} by {algorithm} over {n:,} chips"
        require_memory(key, need, "every chip has a message of its own for every other; fewer --chips need less")
    book = Book()
    if isinstance(size, np.ndarray):
        EXCHANGES[algorithm](book, wiring, size)
    else:
        maker(book, wiring, float(size))
    return book.pattern()


def algorithms(operation: str) -> list[str]:
    """Algorithms that do ``operation``."""
    return [name for done, name in _MAKERS if done == operation]


def candidates(operation: str, wiring: Wiring) -> list[str]:
    """Algorithms for ``operation`` that this topology allows and that are worth a look."""
    found = [n for n in algorithms(operation) if n != "double_tree" and _unfit(operation, n, wiring) is None]
    if wiring.chips > (DIRECT_SUMS_MOST if operation == "all_reduce" else DIRECT_MOST) and len(found) > 1:
        wide = ("direct", "hierarchical") if operation == "all_to_all" else ("direct",)
        found = [name for name in found if name not in wide]
    return found


def cost(wiring: Wiring, found: Pattern, pair: Short, first: Int, links: Short, endpoint: Endpoint) -> float:
    """Seconds by the alpha-beta model: step after step, its busiest link, its longest path, its sums.

    Steps do not overlap in it, so it is an upper bound for the algorithms of steps and rough for pipelined ones.
    """
    slots = found.slots
    if not len(slots):
        return 0.0  # nothing to send
    hops = np.diff(first)
    turns = np.repeat(found.turns, np.diff(found.begin))
    order = np.argsort(slots.step, kind="stable")
    steps = int((slots.step + turns).max())
    load, wait, added = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    delay = np.zeros(len(hops))
    np.add.at(delay, np.repeat(np.arange(len(hops)), hops), wiring.latency[links] * 1e-12)
    adding = np.where(slots.adds, 2.0 * slots.size / endpoint.memory, 0.0)
    starts = np.searchsorted(slots.step[order], np.arange(steps + 1))
    _load(
        order,
        starts,
        turns,
        int(turns.max()),
        slots.size,
        adding,
        pair,
        first,
        links,
        wiring.bandwidth,
        delay,
        load,
        wait,
        added,
    )
    return float((load + wait + added + endpoint.delay * 1e-12).sum())


@kernel()
def _load(
    order: Any,
    starts: Any,
    turns: Any,
    most: int,
    size: Any,
    adding: Any,
    pair: Any,
    first: Any,
    links: Any,
    bandwidth: Any,
    delay: Any,
    load: Any,
    wait: Any,
    added: Any,
) -> None:
    """Per step its busiest link's time, longest path and longest sum; slots are in ``order`` of their first step."""
    busy = np.zeros(bandwidth.size)
    for step in range(load.size):
        for write in range(2):  # then take back what was put there
            for begun in range(max(step - most + 1, 0), step + 1):
                for at in range(starts[begun], starts[begun + 1]):
                    slot = order[at]
                    if begun + turns[slot] <= step:
                        continue
                    route = pair[slot]
                    for hop in range(first[route], first[route + 1]):
                        link = links[hop]
                        busy[link] = 0.0 if write else busy[link] + size[slot] / bandwidth[link]
                        load[step] = max(load[step], busy[link])
                    wait[step] = max(wait[step], delay[route])
                    added[step] = max(added[step], adding[slot])


def sample(found: Pattern) -> list[tuple[Pattern, int]]:
    """What to cost a collective by, and how often it comes: of groups whose turns are alike, one turn of each.

    So that choosing an algorithm for thousands of chips does not walk through millions of messages. Groups of the same
    steps (two rings at once) are taken together. Where a turn takes several steps (pieces), all is kept.
    """
    kinds: dict[tuple[int, int], list[int]] = {}
    for group, (a, b) in enumerate(itertools.pairwise(found.begin.tolist())):
        steps = found.slots.step[a:b]
        if steps.min() < steps.max():
            return [(found, 1)]
        kinds.setdefault((int(steps[0]), int(found.turns[group])), []).append(group)
    spans = sorted((first, first + turns) for first, turns in kinds)
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        return [(found, 1)]
    return [(found.once(groups), turns) for (_, turns), groups in kinds.items()]


def lower_bound(operation: str, wiring: Wiring, size: float, *, in_switch: bool, hops: int) -> float:
    """Seconds that no algorithm can beat: what must enter and leave chips, and how far the farthest are apart.

    ``hops`` are the links to the farthest chip that must learn something: of a chip from any other, of the root of a
    broadcast; a neighbour's of send-receive. They take that many of the smallest latency. A chip's own input is
    needed elsewhere and others' within it: all-reduce moves at least the whole input in and out of every chip, and
    without sums in the network 2 (n - 1) inputs in all.
    """
    n = wiring.chips
    if n == 1:
        return 0.0
    out = np.bincount(wiring.source, weights=wiring.bandwidth, minlength=wiring.nodes)[:n]
    into = np.bincount(wiring.target, weights=wiring.bandwidth, minlength=wiring.nodes)[:n]
    part = size * (n - 1) / n
    if operation == "all_reduce":
        found = max(size / out.min(), size / into.min())
        if not in_switch:
            found = max(found, 2 * (n - 1) * size / out.sum())
    elif operation == "all_gather":
        found = part / into.min()
    elif operation == "reduce_scatter":
        found = part / out.min() if not in_switch else size / out.min()
    elif operation == "all_to_all":
        found = max(part / out.min(), part / into.min())
    else:  # the root of a broadcast, every chip of send-receive
        found = size / (out[0] if operation == "broadcast" else out.min())
    latency = float(wiring.latency.min()) * 1e-12
    return float(max(found, hops * latency))


def _unfit(operation: str, algorithm: str, wiring: Wiring) -> str | None:
    if algorithm == "in_switch" and wiring.topology.kind != "switch":
        return f"needs chips behind one switch that adds, not a {wiring.topology.kind}"
    if algorithm == "in_switch" and not wiring.topology.adds:
        return "needs a switch that adds; the description does not say that this one does (topology.adds: true)"
    if algorithm == "hierarchical" and len(_dimensions(wiring)) < 2:
        if len(wiring.leaves) < 2 or max(wiring.leaves) < 2:
            return "needs two dimensions: a mesh, a torus, or leaves of several chips"
        if operation != "all_to_all":
            other = "; double_tree takes any" if operation == "all_reduce" else ""
            return f"needs leaves of equal sizes for {operation} (got {sorted(set(wiring.leaves))}){other}"
    return None


def _dimensions(wiring: Wiring) -> tuple[int, ...]:
    """Chips along each dimension, the last one nearest."""
    if len(wiring.shape) > 1:
        return tuple(s for s in wiring.shape if s > 1)
    leaves = wiring.leaves
    if len(leaves) > 1 and leaves[0] > 1 and len(set(leaves)) == 1:
        return (len(leaves), leaves[0])
    return (wiring.chips,)


def _order(wiring: Wiring) -> Int:
    """Chips in a circle of near neighbours: boustrophedon through the dimensions of a grid."""
    shape = wiring.shape
    order = np.arange(wiring.chips)
    if len(shape) < 2:
        return order
    grid = order.reshape(shape)
    for axis in range(len(shape) - 1, 0, -1):
        flat = grid.reshape(prod(shape[:axis]), -1)
        flat[1::2] = flat[1::2, ::-1]
        grid = flat.reshape(*shape[:axis], -1)
    return np.ascontiguousarray(grid.reshape(-1))


def _ring_steps(book: Book, order: Int, size: float, steps: int, adds: bool, begin: int, last: Int | None) -> Int:
    """``steps`` times every chip sends what it just received to the next; the numbers of the last step."""
    book.group(steps)
    before = np.roll(np.arange(len(order)), 1)
    waits = () if last is None else (last[before],)
    return book.add(order, np.roll(order, -1), size, adds, begin, *waits, previous=book.count + before)


def _ring_reduce(book: Book, order: Int, size: float, begin: int = 0, last: Int | None = None) -> Int:
    return _ring_steps(book, order, size / len(order), len(order) - 1, True, begin, last)


def _ring_gather(book: Book, order: Int, size: float, begin: int = 0, last: Int | None = None) -> Int:
    return _ring_steps(book, order, size / len(order), len(order) - 1, False, begin, last)


def _ring(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    order, last = _order(wiring), None
    if both[0]:
        last = _ring_reduce(book, order, size)
    if both[1]:
        _ring_gather(book, order, size, begin=wiring.chips - 1 if both[0] else 0, last=last)


def _two_rings(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    """Half of the data each way around."""
    for order in (_order(wiring), _order(wiring)[::-1]):
        last = _ring_reduce(book, order, size / 2) if both[0] else None
        if both[1]:
            _ring_gather(book, order, size / 2, begin=wiring.chips - 1 if both[0] else 0, last=last)


def _halving(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    n = wiring.chips
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    surplus, chips = power + np.arange(extra), np.arange(power)
    step, part = 0, size if both[0] else size / power
    heard: list[Int] = []  # what has come to each chip, step by step; all of it is in what the chip sends next

    def exchange(distance: int, adds: bool) -> None:
        nonlocal step
        sent = book.add(chips, chips ^ distance, part, adds, step, *heard)
        heard.append(sent[chips ^ distance])
        step += 1

    if extra:  # the surplus chips hand their input to partners, and get the result from them
        given = size if both[0] else size / n
        sent = book.add(surplus, surplus - power, given, both[0], step)
        heard.append(np.concatenate([sent, np.full(power - extra, NONE)]))
        step += 1
    distances = [1 << bit for bit in range(power.bit_length() - 1)]
    for distance in distances if both[0] else ():  # the largest parts go the shortest way
        part /= 2
        exchange(distance, True)
    for distance in reversed(distances) if both[1] else ():
        exchange(distance, False)
        part *= 2
    if extra:
        result = size if both[1] else size / n
        book.add(np.arange(extra), surplus, result, False, step, *(h[:extra] for h in heard))


def _pairs(n: int) -> tuple[Int, Int]:
    """Every chip to every other, each starting with its own successor so that no target is hit by all at once."""
    source = np.tile(np.arange(n), n - 1)
    target = (source + np.repeat(np.arange(1, n), n)) % n
    return source, target


def _direct(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    n = wiring.chips
    source, target = _pairs(n)
    if both == (True, False):
        book.add(source, target, size / n, True, 0)
        return
    waits: list[Int] = []
    step = 0
    if both[0]:
        sent = book.add(source, target, size / n, True, 0).reshape(n - 1, n)
        # What chip c received came from c - 1, c - 2, ...; all of it must be there before it passes its sum on.
        chips = np.arange(n)
        parts = [sent[shift - 1][(chips - shift) % n] for shift in range(1, n)]
        waits = [np.tile(book.add(chips, chips, 0.0, False, 0, *parts), n - 1)]
        step = 1
    book.add(source, target, size / n, False, step, *waits)


def _hierarchical(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    """Reduce-scatter along each dimension, nearest first, on what the one before left; all-gather the other way."""
    sides = _dimensions(wiring)
    chips = np.arange(wiring.chips)
    heard: list[Int] = []
    step, part = 0, size
    order = list(range(len(sides) - 1, -1, -1))
    phases = [(axis, True) for axis in order] if both[0] else []
    if both[1]:
        phases += [(axis, False) for axis in reversed(order)]
        if not both[0]:
            part = size / wiring.chips
    for axis, adds in phases:
        side, stride = sides[axis], prod(sides[axis + 1 :])
        place = chips // stride % side
        following = chips + np.where(place + 1 < side, stride, -(side - 1) * stride)
        before = np.empty_like(chips)
        before[following] = chips
        book.group(side - 1, always=True, whole=not adds)
        each = part / side if adds else part
        sent = book.add(chips, following, each, adds, step, *heard, previous=book.count + before)
        step += side - 1
        arrived = sent[before]  # with the last turn, and so with all before it
        heard = [arrived] if adds else [*heard, arrived]  # a sum has all that came; a gathered part is one of many
        part = part / side if adds else part * side


def _in_switch(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    """Every chip sends its input up, the switch sends the sum down as soon as a piece of all is there."""
    n, switch = wiring.chips, wiring.chips
    pieces = int(min(max(size / 65536, 1), PIECES_MOST))
    chips = np.arange(n)
    hub = np.full(n, switch)
    share = size if both[1] else size / n
    book.group(pieces)
    sent = book.add(chips, hub, size / pieces if both[0] else size / n / pieces, False, 0)
    whole = book.add(hub[:1], hub[:1], 0.0, False, 0, *sent[:, None])
    book.add(hub, chips, share / pieces, False, 1, np.full(n, whole[0]))


def _broadcast_ring(book: Book, wiring: Wiring, size: float) -> None:
    order = _order(wiring)
    n = wiring.chips
    pieces = int(min(max(size / 65536, 1), PIECES_MOST))
    book.group(pieces)
    number = book.count + np.arange(n - 1)
    chain = np.concatenate([[NONE], number[:-1]])
    book.add(order[:-1], order[1:], size / pieces, False, np.arange(n - 1), chain, previous=number)


def _send_receive(book: Book, wiring: Wiring, size: float) -> None:
    order = _order(wiring)
    book.add(order, np.roll(order, -1), size, False, 0)


Maker = Callable[[Book, Wiring, float], None]
SCATTER, GATHER, REDUCE = (True, False), (False, True), (True, True)


EXCHANGES: dict[str, Callable[[Book, Wiring, NDArray[np.float64]], None]] = {
    "direct": direct_exchange,
    "ring": ring_exchange,
    "hierarchical": hierarchical_exchange,
}


def _equal(maker: Callable[[Book, Wiring, NDArray[np.float64]], None]) -> Maker:
    return lambda book, wiring, size: maker(book, wiring, equal_parts(wiring.chips, size))


def _both(maker: Callable[..., None], both: tuple[bool, bool]) -> Maker:
    return lambda book, wiring, size: maker(book, wiring, size, both=both)


_MAKERS: dict[tuple[str, str], Maker] = {
    **{
        (operation, name): _both(maker, both)
        for operation, both in (("all_reduce", REDUCE), ("all_gather", GATHER), ("reduce_scatter", SCATTER))
        for name, maker in (
            ("ring", _ring),
            ("bidirectional_ring", _two_rings),
            ("halving_doubling", _halving),
            ("direct", _direct),
            ("hierarchical", _hierarchical),
        )
    },
    ("all_reduce", "tree"): _both(binomial_tree, REDUCE),
    ("all_reduce", "in_switch"): _both(_in_switch, REDUCE),
    ("broadcast", "tree"): _both(binomial_tree, GATHER),
    ("broadcast", "ring"): _broadcast_ring,
    ("all_reduce", "double_tree"): double_tree,
    **{("all_to_all", name): _equal(maker) for name, maker in EXCHANGES.items()},
    ("send_receive", "direct"): _send_receive,
    ("send_receive", "ring"): _send_receive,
}
