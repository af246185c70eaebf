"""An execution trace as one table of messages and work: every node of every rank, after all that it waits for.

A rank's work is done by its processors, the chip and the host, each one thing at a time in the order in which it could
begin. A message leaves when all that its send waits for is done, and is there for the receive that it matches: same two
ranks, same tag, first come first matched. The collectives of a group are matched in the order in which its ranks come
to them, and follow each other on every rank. What a rank does first, of several things that wait for nothing, is what
has the lower id.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.execution_trace import CollectiveKind, ExecutionTrace, NodeKind, TraceNode
from siliconloom.arch.network import Wiring
from siliconloom.arch.transfers import NONE, Transfers
from siliconloom.mapper.network.communication import Choose, MessageTable, place_collective
from siliconloom.mapper.network.rendezvous import Call, Meeting

Place = tuple[int, int]
"""A rank, and the place of one of its nodes among them."""
SHOWN = 6
ALL = "all ranks"


class PlacedNode(Struct, frozen=True):
    """A node in the table: the entry after which it begins (or `NONE`), and the one that ends it.

    ``waits`` are the places of all that it waits for, other ranks' nodes among them: of a collective of all members.
    ``call`` is a collective as its rank calls it.
    """

    rank: int
    node: TraceNode
    began: int
    ended: int
    waits: tuple[Place, ...]
    algorithm: str = ""
    call: Call | None = None


def lower_trace(
    trace: ExecutionTrace,
    wiring: Wiring,
    choose: Choose,
    processor: Callable[[int, int], int],
    work: Callable[[int, TraceNode], int],
) -> tuple[Transfers, dict[Place, PlacedNode]]:
    """The table of a trace, and where each node stands in it, in the order in which they can happen.

    Parameters
    ----------
    processor
        Node of the network that does a rank's work: of its chip (0), of its host (1).
    work
        Picoseconds of a rank's node.

    Raises
    ------
    LoomError
        For nodes that wait for each other, ranks that disagree on a collective, messages that nobody sends.
    """
    waits = _waits(trace)
    shared = _meetings(trace, waits)
    table = MessageTable()
    placed: dict[Place, PlacedNode] = {}

    def began(place: Place) -> int:
        ends = {placed[each].ended for each in waits[place]}
        if len(ends) < 2:
            return ends.pop() if ends else NONE
        return table.one(place[0], place[0], 0.0, 0, sorted(ends))

    for members in _ordered(trace, waits, shared):
        rank, node = members[0][0], _node(trace, members[0])
        entries = [began(place) for place in members]
        algorithm, calls = "", list[Call | None]([None])
        if node.kind is NodeKind.COLLECTIVE:
            meeting = _meeting(trace, members)
            calls = list(meeting.calls)
            algorithm, ended = place_collective(table, meeting, tuple(entries), wiring, choose)
        elif node.kind is NodeKind.COMPUTE:
            target = processor(rank, int(node.on_host))
            ended = (table.one(rank, target, float(work(rank, node)), 0, entries),)
        elif node.kind is NodeKind.SEND:
            ended = (table.one(rank, node.peer, float(node.size), 0, entries),)
        else:
            ended = (table.one(rank, rank, 0.0, 0, entries),)
        earlier = tuple(dict.fromkeys(each for place in members for each in waits[place]))
        for place, entry, end, call in zip(members, entries, ended, calls, strict=True):
            placed[place] = PlacedNode(place[0], _node(trace, place), entry, end, earlier, algorithm, call)
    if not placed:
        raise LoomError(f"{trace.name}: no rank has a node")
    return table.transfers(), placed


def _node(trace: ExecutionTrace, place: Place) -> TraceNode:
    return trace.ranks[place[0]][place[1]]


def _text(trace: ExecutionTrace, place: Place) -> str:
    return trace.node_text(place[0], _node(trace, place))


def _waits(trace: ExecutionTrace) -> dict[Place, list[Place]]:
    """What each node waits for on its own rank."""
    found = {}
    for rank, nodes in enumerate(trace.ranks):
        places = {node.id: (rank, at) for at, node in enumerate(nodes)}
        for at, node in enumerate(nodes):
            found[rank, at] = [places[each] for each in node.waits]
    return found


def _alone(places: range, waits: dict[Place, list[Place]], rank: int) -> Iterator[Place]:
    """A rank's nodes in the order in which it comes to them: of those that can begin, the lowest id first."""
    left = {(rank, at): len(waits[rank, at]) for at in places}
    after = defaultdict(list)
    for place in left:
        for each in waits[place]:
            after[each].append(place)
    ready = [place for place, count in left.items() if not count]
    while ready:
        place = heapq.heappop(ready)
        yield place
        for each in after[place]:
            left[each] -= 1
            if not left[each]:
                heapq.heappush(ready, each)


def _meetings(trace: ExecutionTrace, waits: dict[Place, list[Place]]) -> dict[Place, tuple[Place, ...]]:
    """All members' nodes of every collective, in the group's order; adds to ``waits`` what ranks make each other wait.

    A receive waits for its send, and a rank's collective for the one before it in its group.
    """
    sent: dict[tuple[int, int, int], deque[Place]] = defaultdict(deque)
    wanted: dict[tuple[int, int, int], deque[Place]] = defaultdict(deque)
    rooms: dict[str, dict[int, list[Place]]] = defaultdict(dict)
    for rank, nodes in enumerate(trace.ranks):
        order = list(_alone(range(len(nodes)), waits, rank))
        if len(order) < len(nodes):
            raise _circle(trace, waits, {(rank, at) for at in range(len(nodes))} - set(order))
        for place in order:
            node = _node(trace, place)
            if node.kind is NodeKind.SEND:
                sent[rank, node.peer, node.tag].append(place)
            elif node.kind is NodeKind.RECEIVE:
                wanted[node.peer, rank, node.tag].append(place)
            elif node.kind is NodeKind.COLLECTIVE:
                rooms[node.group].setdefault(rank, []).append(place)
    for key in sorted({*sent, *wanted}):
        for one, other in zip(sent[key], wanted[key], strict=False):
            size, expected = _node(trace, one).size, _node(trace, other).size
            if size != expected:
                raise LoomError(f"{_text(trace, other)} expects {expected:,} B; {_text(trace, one)} sends {size:,} B")
            waits[other].append(one)
        over = [*sent[key]][len(wanted[key]) :] or [*wanted[key]][len(sent[key]) :]
        if over:
            kind = _node(trace, over[0]).kind
            peer = "no receive of it" if kind is NodeKind.SEND else "no send to it"
            raise LoomError(f"{_text(trace, over[0])}: rank {_node(trace, over[0]).peer} has {peer} (tag {key[2]})")
    shared = {}
    for group, calls in rooms.items():
        members = trace.members(group)
        most = max(len(each) for each in calls.values())
        for turn in range(most):
            missing = [rank for rank in members if len(calls.get(rank, ())) <= turn]
            there = tuple(calls[rank][turn] for rank in members if rank not in missing)
            if missing:
                first = _text(trace, there[0])
                raise LoomError(f"{first}: deadlock: rank {missing[0]} never comes to it (group {group or ALL})")
            _agree(trace, there)
            for place in there:
                shared[place] = there
                if turn:
                    waits[place].append(calls[place[0]][turn - 1])
    return shared


def _agree(trace: ExecutionTrace, members: tuple[Place, ...]) -> None:
    """Raise `LoomError` where ranks come to different collectives at the same time."""
    first = _node(trace, members[0])
    for place in members[1:]:
        node = _node(trace, place)
        if (node.collective, node.size) != (first.collective, first.size):
            both = [
                f"{_text(trace, p)} is {n.collective.name.lower() if n.collective is not None else ''} of {n.size:,} B"
                for p, n in ((members[0], first), (place, node))
            ]
            raise LoomError(
                f"deadlock: ranks disagree on a collective of group {first.group or ALL}: {', '.join(both)}"
            )


def _ordered(
    trace: ExecutionTrace, waits: dict[Place, list[Place]], shared: dict[Place, tuple[Place, ...]]
) -> Iterator[tuple[Place, ...]]:
    """Nodes, collectives with all of their members, each after all that it waits for."""
    unit = {place: shared.get(place, (place,)) for place in waits}
    left = dict.fromkeys(unit.values(), 0)
    after = defaultdict(list)
    for place, earlier in waits.items():
        for each in earlier:
            left[unit[place]] += 1
            after[unit[each]].append(unit[place])
    ready = [(members[0][1], members) for members, count in left.items() if not count]
    heapq.heapify(ready)
    done: set[Place] = set()
    while ready:
        _, members = heapq.heappop(ready)
        done.update(members)
        yield members
        for others in after[members]:
            left[others] -= 1
            if not left[others]:
                heapq.heappush(ready, (others[0][1], others))
    stuck = set(waits) - done
    if stuck:
        joined = {place: [w for member in unit[place] for w in waits[member]] for place in stuck}
        raise _circle(trace, joined, stuck)


def _circle(trace: ExecutionTrace, waits: dict[Place, list[Place]], stuck: set[Place]) -> LoomError:
    """Nodes that wait for each other, in one line."""
    at = min(stuck)
    trail: list[Place] = []
    while at not in trail:
        trail.append(at)
        at = next(each for each in waits[at] if each in stuck)
    circle = trail[trail.index(at) :]
    more = f" and {len(circle) - SHOWN} more" if len(circle) > SHOWN else ""
    names = ", ".join(_text(trace, place) for place in circle[:SHOWN])
    return LoomError(f"deadlock: {len(stuck)} nodes never begin; these wait for each other: {names}{more}")


def _meeting(trace: ExecutionTrace, members: tuple[Place, ...]) -> Meeting:
    """A collective as programs have it; its bytes are a member's whole buffer, which of an all-gather is its result."""
    first = _node(trace, members[0])
    kind = first.collective
    assert kind is not None
    group = tuple(rank for rank, _ in members)
    size = first.size * len(group) if kind is CollectiveKind.ALL_GATHER else first.size
    calls = [
        Call(
            kind.name.lower(),
            rank,
            "main",
            0,
            (f"rank {rank}", f"node {_node(trace, (rank, at)).id}"),
            bytes=float(size),
            where=first.group or ALL,
            group=group,
            algorithm="auto",
            root=group[0],
        )
        for rank, at in members
    ]
    return Meeting(tuple(calls))


__all__ = ["PlacedNode", "lower_trace"]
