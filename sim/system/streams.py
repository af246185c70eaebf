"""Tasks on streams: each stream does its tasks in a given order, each when what it waits for is done.

A stream is whatever does one thing at a time: a chip's compute, its link in one direction. With the order given the
times are longest paths, found in one pass; a circle among them is a deadlock. A stream may become slower at given
times. Times are picoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel
from siliconloom.sim.timing.changes import Changes, read_changes, work_end

Int = NDArray[np.int64]


class Tasks(Struct):
    """Tasks written down in the order in which each stream does them.

    `add` gives a task's number; what it waits for may be added later (`wait`).
    """

    names: list[str] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    edges: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, name: str, stream: int, duration: int) -> int:
        """A task at the end of a stream's list."""
        self.names.append(name)
        self.stream.append(stream)
        self.duration.append(duration)
        return len(self.stream) - 1

    def wait(self, task: int, earlier: int, lag: int = 0) -> None:
        """``task`` starts no sooner than ``lag`` after ``earlier`` is done."""
        self.edges.append((task, earlier, lag))

    def __len__(self) -> int:
        return len(self.stream)


class StreamRun(Struct, frozen=True):
    """Start and end of every task."""

    start: Int
    end: Int

    @property
    def finish(self) -> int:
        """Picoseconds until all is done."""
        return int(self.end.max(initial=0))


def run_tasks(tasks: Tasks, changes: Changes | None = None) -> StreamRun:
    """Times of all tasks, on streams that slow down by ``changes``.

    Raises
    ------
    LoomError
        When tasks wait for each other in a circle, naming it.
    """
    count = len(tasks)
    stream = np.array(tasks.stream, np.int64)
    order = np.argsort(stream, kind="stable")
    previous = np.full(count, -1, np.int64)
    same = stream[order][1:] == stream[order][:-1] if count else np.zeros(0, bool)
    previous[order[1:][same]] = order[:-1][same]
    edges = np.array(tasks.edges, np.int64).reshape(-1, 3)
    edges = np.concatenate(
        [
            edges,
            np.stack(
                [np.flatnonzero(previous >= 0), previous[previous >= 0], np.zeros((previous >= 0).sum(), np.int64)],
                axis=1,
            ),
        ]
    )
    by_earlier = edges[np.argsort(edges[:, 1], kind="stable")]
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(edges[:, 1], minlength=count), out=first[1:])
    left = np.bincount(edges[:, 0], minlength=count)
    start, end = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    duration = np.array(tasks.duration, np.int64)
    slow = changes or read_changes(int(stream.max(initial=-1)) + 1, [])
    done = _times(
        duration,
        first,
        by_earlier[:, 0].copy(),
        by_earlier[:, 2].copy(),
        left,
        stream,
        slow.first,
        slow.at,
        slow.factor,
        start,
        end,
    )
    if done < count:
        raise LoomError(_circle(tasks, edges, end))
    return StreamRun(start, end)


@kernel()
def _times(
    duration: Any,
    first: Any,
    later: Any,
    lag: Any,
    left: Any,
    stream: Any,
    slow_first: Any,
    slow_at: Any,
    slow_factor: Any,
    start: Any,
    end: Any,
) -> int:
    queue = np.empty(duration.size, np.int64)
    tail = 0
    for task in range(duration.size):
        if left[task] == 0:
            queue[tail] = task
            tail += 1
    head = 0
    while head < tail:
        task = queue[head]
        head += 1
        end[task] = work_end(slow_first, slow_at, slow_factor, stream[task], start[task], duration[task])
        for at in range(first[task], first[task + 1]):
            follower = later[at]
            start[follower] = max(start[follower], end[task] + lag[at])
            left[follower] -= 1
            if left[follower] == 0:
                queue[tail] = follower
                tail += 1
    return head


def _circle(tasks: Tasks, edges: Int, end: Int) -> str:
    stuck = set(np.flatnonzero(end < 0).tolist())
    needs: dict[int, int] = {}
    for task, earlier, _ in edges.tolist():
        if task in stuck and earlier in stuck:
            needs.setdefault(task, earlier)
    at = next(iter(needs))
    trail: list[int] = []
    while at not in trail:
        trail.append(at)
        at = needs[at]
    circle = [tasks.names[t] for t in trail[trail.index(at) :]]
    shown = ", ".join(circle[:6]) + (f" and {len(circle) - 6} more" if len(circle) > 6 else "")
    return f"deadlock: {len(stuck)} tasks never start; these wait for each other: {shown}"
