"""A communication program as one table of messages and work: every operator in the order in which it can happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.network import Wiring
from siliconloom.arch.transfers import Transfers
from siliconloom.mapper.network.book import NONE
from siliconloom.mapper.network.collectives import Size, collective
from siliconloom.mapper.network.rendezvous import Call, Key, Meeting

Int = NDArray[np.int64]
Choose = Callable[[str, str, Wiring, Callable[[Transfers], Transfers], Size], str]
"""Operation, wanted algorithm, the group's wiring, how its messages look in the whole one, bytes: the algorithm."""


class ProgramOperator(Struct, frozen=True):
    """One operator in the table: for each of its calls the entry after which it began (or `NONE`) and its last one."""

    meeting: Meeting
    algorithm: str
    began: tuple[int, ...]
    ended: tuple[int, ...]


class MessageTable(Struct):
    """Entries in blocks with ragged waits, one after the other; collectives that come again are made once."""

    known: dict[tuple[object, ...], tuple[str, Transfers]] = field(default_factory=dict)
    parts: list[Transfers] = field(default_factory=list)
    count: int = 0

    def add(self, part: Transfers) -> int:
        """Entries whose waits are numbers of the whole table; the first one's number."""
        self.parts.append(part)
        self.count += len(part)
        return self.count - len(part)

    def one(self, source: int, target: int, size: float, work: int, waits: Sequence[int]) -> int:
        there = np.array(sorted({w for w in waits if w != NONE}), np.int32)
        ends = np.array([source], np.int32), np.array([target], np.int32)
        return self.add(
            Transfers(
                *ends,
                np.array([size]),
                np.zeros(1, bool),
                np.array([0, len(there)]),
                there,
                np.zeros(1, np.int32),
                np.array([work]),
            )
        )

    def transfers(self) -> Transfers:
        starts = np.cumsum([0] + [len(p.waits) for p in self.parts])
        firsts = [p.first[1:] + start for p, start in zip(self.parts, starts, strict=False)]
        works = [np.zeros(len(p), np.int64) if p.work is None else p.work for p in self.parts]
        return Transfers(
            np.concatenate([p.source for p in self.parts]),
            np.concatenate([p.target for p in self.parts]),
            np.concatenate([p.size for p in self.parts]),
            np.concatenate([p.adds for p in self.parts]),
            np.concatenate([np.zeros(1, np.int64), *firsts]),
            np.concatenate([p.waits for p in self.parts]),
            np.concatenate([p.step for p in self.parts]),
            np.concatenate(works),
        )


class _Front(Struct):
    """Where a stream is: what its current step waits for, and what of that step is done."""

    position: int = 0
    before: int = NONE
    after: list[int] = field(default_factory=list)


def lower(meetings: list[Meeting], wiring: Wiring, choose: Choose) -> tuple[Transfers, list[ProgramOperator]]:
    """The table of a program, and where each operator stands in it."""
    table = MessageTable()
    fronts: dict[Key, _Front] = {}
    operators: list[ProgramOperator] = []

    def enter(call: Call) -> int:
        front = fronts.setdefault(call.key, _Front())
        if call.position != front.position:
            front.position = call.position
            front.before = (
                front.after[0] if len(front.after) == 1 else table.one(call.rank, call.rank, 0, 0, front.after)
            )
            front.after = []
        return front.before

    for meeting in meetings:
        began = tuple(enter(call) for call in meeting.calls)
        first, algorithm = meeting.calls[0], ""
        ended: tuple[int, ...]
        if meeting.kind == "compute":
            ended = (table.one(first.rank, first.rank, 0.0, first.time, began),)
        elif meeting.kind == "send":
            assert isinstance(first.bytes, float)
            sent = table.one(first.rank, first.peer, first.bytes, 0, began)
            ended = (sent, sent)
        else:
            algorithm, ended = place_collective(table, meeting, began, wiring, choose)
        for call, last in zip(meeting.calls, ended, strict=True):
            fronts[call.key].after.append(last)
        operators.append(ProgramOperator(meeting, algorithm, began, ended))
    return table.transfers(), operators


def group_wiring(wiring: Wiring, ranks: tuple[int, ...]) -> Wiring:
    """What an algorithm needs to know of the system for a group of its ranks: the group's chips numbered from 0.

    The whole system in order keeps its shape. Leaves are kept where the ranks are named leaf by leaf. Links are the
    whole system's.
    """
    if ranks == tuple(range(wiring.chips)):
        return wiring
    leaf = np.repeat(np.arange(len(wiring.leaves)), wiring.leaves)
    leaves: tuple[int, ...] = ()
    if len(leaf):
        mine = leaf[np.array(ranks)]
        cuts = np.flatnonzero(np.diff(mine)) + 1
        if len(cuts) + 1 == len(np.unique(mine)):
            leaves = tuple(np.diff([0, *cuts.tolist(), len(ranks)]).tolist())
    return Wiring(
        len(ranks),
        len(ranks) + 1,
        wiring.source,
        wiring.target,
        wiring.bandwidth,
        wiring.latency,
        wiring.topology,
        leaves=leaves,
    )


def place_collective(
    table: MessageTable, meeting: Meeting, began: tuple[int, ...], wiring: Wiring, choose: Choose
) -> tuple[str, tuple[int, ...]]:
    """Write a collective's messages down; its algorithm, and of each call the entry that ends it.

    ``began`` are the entries, or `NONE`, after which each call begins.
    """
    call = meeting.calls[0]
    ranks = call.group
    if call.kind == "broadcast":
        at = ranks.index(call.root)
        ranks = ranks[at:] + ranks[:at]
    entry = dict(zip((c.rank for c in meeting.calls), began, strict=True))
    before = np.array([entry[rank] for rank in ranks])
    size: Size = np.array(call.bytes) if isinstance(call.bytes, tuple) else call.bytes
    square = isinstance(size, np.ndarray)
    empty = not (size - np.diag(np.diag(size))).any() if square else size == 0 and call.kind != "barrier"
    if len(ranks) == 1 or empty:
        ends = {rank: table.one(rank, rank, 0, 0, [entry[rank]]) for rank in ranks}
        return "none", tuple(ends[c.rank] for c in meeting.calls)
    group = group_wiring(wiring, ranks)
    chips = np.array([*ranks, wiring.chips])  # after the members the switch of all, for sums in it

    def placed(part: Transfers) -> Transfers:
        if group is wiring:
            return part
        ends = chips[part.source].astype(np.int32), chips[part.target].astype(np.int32)
        return Transfers(*ends, part.size, part.adds, part.first, part.waits, part.step, part.work)

    told = (call.kind, call.algorithm, ranks, id(call.bytes) if isinstance(call.bytes, tuple) else call.bytes)
    if told not in table.known:
        table.known[told] = _make(call, group, placed, size, choose)
    algorithm, made = table.known[told]
    begin = table.add(placed(_after(made, before, table.count)))
    last = _last(made, len(ranks), begin)
    ends = {rank: table.one(rank, rank, 0, 0, last[i] or [entry[rank]]) for i, rank in enumerate(ranks)}
    return algorithm, tuple(ends[c.rank] for c in meeting.calls)


def _make(
    call: Call, group: Wiring, placed: Callable[[Transfers], Transfers], size: Size, choose: Choose
) -> tuple[str, Transfers]:
    """Algorithm and messages, numbered within the group."""
    if call.kind == "barrier":  # Hensgen, Finkel and Manber's rounds, as those of halving and doubling
        return "halving_doubling", collective("all_reduce", "halving_doubling", group, 0.0)
    try:
        algorithm = choose(call.kind, call.algorithm, group, placed, size)
        return algorithm, collective(call.kind, algorithm, group, size)
    except NotSupported as error:
        place = ".".join(map(str, (*call.path, call.kind)))
        raise NotSupported(f"{str(error).removeprefix('not supported: ')} ({place})") from None


def _after(made: Transfers, before: Int, offset: int) -> Transfers:
    """Messages that also wait until their source and their target have begun."""
    count = len(made)
    number = np.repeat(np.arange(count), np.diff(made.first))
    members = len(before)
    entries = np.append(before, NONE)  # a switch has none
    source, target = entries[np.minimum(made.source, members)], entries[np.minimum(made.target, members)]
    target = np.where(target == source, NONE, target)
    owners = np.concatenate([number, np.flatnonzero(source != NONE), np.flatnonzero(target != NONE)])
    waits = np.concatenate([made.waits + offset, source[source != NONE], target[target != NONE]])
    order = np.argsort(owners, kind="stable")
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=count), out=first[1:])
    return Transfers(
        made.source, made.target, made.size, made.adds, first, waits[order].astype(np.int32), made.step, made.work
    )


def _last(made: Transfers, members: int, begin: int) -> list[list[int]]:
    """For each member the messages that it sends or gets."""
    number = np.flatnonzero(made.source != made.target)
    ends = np.concatenate([made.source[number], made.target[number]])
    both = np.concatenate([number, number]) + begin
    order = np.argsort(ends, kind="stable")
    cuts = np.searchsorted(ends[order], np.arange(members + 1))
    return [both[order[a:b]].tolist() for a, b in pairwise(cuts.tolist())]
