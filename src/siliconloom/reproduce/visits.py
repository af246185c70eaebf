"""Jobs that visit nodes one after the other, in whatever order nodes come to do them.

A node does one visit at a time: when it becomes free, the one that has waited longest; jobs that begin there come after
those that arrive from elsewhere. What arrives at the very moment at which the node becomes free comes too late for that
turn. A node has room for so many jobs: a visit that takes room waits, and lets others pass, until there is some. Unlike
`siliconloom.sim.system.streams` no order is given, so what fails is not a circle of tasks but nodes full of jobs that
cannot go on. Times are picoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError

Int = NDArray[np.int64]
SHOWN = 4


class Stay(Struct, frozen=True):
    """One visit: how long it takes, how long the node rests after it, the room that it takes (1) or gives back (-1).

    Room is taken at the visit's start and given back at its end.
    """

    node: int
    duration: int
    rest: int = 0
    room: int = 0


class ExpertJob(Struct, frozen=True):
    """Visits in order, from when on the first one may be, and the job that must be done before it."""

    name: str
    stays: tuple[Stay, ...]
    ready: int = 0
    after: int | None = None


class VisitRun(Struct, frozen=True):
    """Start and end of every visit of each job, and the most jobs that held room at each node."""

    start: tuple[tuple[int, ...], ...]
    end: tuple[tuple[int, ...], ...]
    most: tuple[int, ...]

    @property
    def finish(self) -> int:
        """Picoseconds until all is done."""
        return max((ends[-1] for ends in self.end), default=0)


FREE, ARRIVAL = 0, 1
"""Kinds of events, in the order in which those of one moment are looked at."""


class _Node(Struct):
    room: int
    busy: bool = False
    held: int = 0
    most: int = 0
    waiting: list[tuple[bool, int, int]] = field(default_factory=list)  # begins here, since, job


def run_visits(jobs: Sequence[ExpertJob], delays: Int, room: Sequence[int]) -> VisitRun:
    """Run all jobs.

    Parameters
    ----------
    delays
        From each node (row) to each (column), between the end of a visit and the arrival for the next one.
    room
        Jobs that each node holds at most.

    Raises
    ------
    LoomError
        When nodes full of jobs keep each other from going on, naming some.
    """
    nodes = [_Node(most) for most in room]
    start: list[list[int]] = [[] for _ in jobs]
    end: list[list[int]] = [[] for _ in jobs]
    followers: dict[int, list[int]] = {}
    events: list[tuple[int, int, int, int]] = []  # time, kind, job, node
    for number, job in enumerate(jobs):
        if job.after is None:
            heapq.heappush(events, (job.ready, ARRIVAL, number, job.stays[0].node))
        else:
            followers.setdefault(job.after, []).append(number)
    giving: dict[int, list[tuple[int, int]]] = {}  # room that comes back at a node, and when

    def begin(now: int, at: int) -> None:
        node = nodes[at]
        if node.busy:
            return
        node.held -= sum(amount for when, amount in giving.get(at, []) if when <= now)
        giving[at] = [back for back in giving.get(at, []) if back[0] > now]
        able = [w for w in node.waiting if jobs[w[2]].stays[len(start[w[2]])].room <= node.room - node.held]
        if not able:
            return
        chosen = min(able)
        node.waiting.remove(chosen)
        number = chosen[2]
        job, place = jobs[number], len(start[number])
        stay = job.stays[place]
        node.busy = True
        if stay.room > 0:
            node.held += stay.room
            node.most = max(node.most, node.held)
        done = now + stay.duration
        start[number].append(now)
        end[number].append(done)
        if stay.room < 0:
            giving[at].append((done, -stay.room))
        heapq.heappush(events, (done + stay.rest, FREE, number, at))
        if place + 1 < len(job.stays):
            to = job.stays[place + 1].node
            heapq.heappush(events, (done + int(delays[at, to]), ARRIVAL, number, to))
        for other in followers.get(number, []) if place + 1 == len(job.stays) else []:
            heapq.heappush(events, (max(done, jobs[other].ready), ARRIVAL, other, jobs[other].stays[0].node))

    while events:
        now, kind = events[0][:2]
        touched: dict[int, None] = {}
        while events and events[0][:2] == (now, kind):
            _, _, number, at = heapq.heappop(events)
            touched[at] = None
            if kind == FREE:
                nodes[at].busy = False
            else:
                nodes[at].waiting.append((not start[number], now, number))
        for at in touched:
            begin(now, at)
    stuck = [number for number, job in enumerate(jobs) if len(end[number]) < len(job.stays)]
    if stuck:
        raise LoomError(_full(jobs, stuck, start, room))
    return VisitRun(tuple(map(tuple, start)), tuple(map(tuple, end)), tuple(node.most for node in nodes))


def _full(jobs: Sequence[ExpertJob], stuck: list[int], start: list[list[int]], room: Sequence[int]) -> str:
    held = [n for n in stuck if jobs[n].after not in stuck]
    names = []
    for number in held[:SHOWN]:
        at = jobs[number].stays[len(start[number])].node
        names.append(f"{jobs[number].name} for room at node {at} (of {room[at]})")
    more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
    return f"deadlock: {len(stuck)} of {len(jobs)} jobs never end; these wait: {', '.join(names)}{more}"
