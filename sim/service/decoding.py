"""The requests of a replica that are at their answers, which every step makes a token longer.

What is kept of them does not change from step to step, so that steps are counted and not gone through: a request's
*offset* is its tokens in the cache less the count of steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from siliconloom.sim.service.live import LiveRequest


class DecodingRequests:
    """How many requests are at their answers, how long they are, what blocks they take, and when they end.

    Parameters
    ----------
    block
        Tokens of a block.

    Members
    -------
    count
        Requests that are at their answers.
    step
        Steps that were taken so far.
    offsets
        How many requests have each offset.
    """

    def __init__(self, block: int) -> None:
        self.count = self.step = 0
        self.offsets: dict[int, int] = {}
        self._block, self._sum = block, 0
        self._due = [0] * block
        """How many requests have each offset, modulo a block."""
        self._ends: list[tuple[int, int]] = []
        """A heap of the steps in which requests have all of their tokens, and their numbers."""

    @property
    def mean(self) -> float:
        """Tokens of a request in the cache."""
        return (self._sum + self.count * self.step) / self.count

    @property
    def next_end(self) -> int:
        """Steps until a request ends."""
        return self._ends[0][0] - self.step

    @property
    def empty(self) -> bool:
        """Whether nothing is counted of any request."""
        return not (self.count or any(self._due))

    def length(self, each: LiveRequest) -> int:
        """Its tokens in the cache."""
        return each.base + self.step - each.began

    def made(self, each: LiveRequest) -> int:
        """Tokens of its answer so far."""
        return each.generated + self.step - each.began

    def enter(self, each: LiveRequest) -> None:
        """A request is at its answer, behind the tokens that it was to put into the cache before."""
        each.deciding, each.began, each.base, each.ready = True, self.step, each.target, False
        self.count += 1
        self._count(each, 1)
        self._push_end(each)

    def leave(self, each: LiveRequest) -> int:
        """It no longer is; returns its tokens in the cache."""
        each.deciding = False
        self.count -= 1
        self._count(each, -1)
        return self.length(each)

    def lengthen(self, each: LiveRequest, more: int) -> None:
        """It has more tokens than steps give it."""
        self._count(each, -1)
        each.base += more
        each.generated += more
        self._count(each, 1)
        self._push_end(each)

    def needed(self, each: LiveRequest, more: int) -> int:
        """Blocks that so many tokens more begin."""
        length = self.length(each)
        return -(-(length + more) // self._block) - -(-length // self._block)

    def begun(self, ahead: int = 0) -> int:
        """Blocks that the next step begins, or one that is so many steps ahead of it."""
        return self._due[-(self.step + ahead) % self._block]

    def taken(self, number: int) -> int:
        """Blocks that the next ``number`` steps begin."""
        rounds, rest = divmod(number, self._block)
        return rounds * self.count + sum(map(self.begun, range(rest)))

    def within(self, number: int, free: int) -> int:
        """How many of the next ``number`` steps begin no more than ``free`` blocks."""
        if number * self.count // self._block + self.count <= free:
            return number
        taken = 0
        for ahead in range(number):
            taken += self.begun(ahead)
            if taken > free:
                return ahead
        return number

    def grow(self, number: int) -> None:
        """Take so many steps."""
        self.step += number

    def ended(self, running: Mapping[int, LiveRequest]) -> Iterator[LiveRequest]:
        """Those of the running requests, by number, that have all of their tokens; each is told once."""
        while self._ends and self._ends[0][0] <= self.step:
            _, number = heapq.heappop(self._ends)
            last = running.get(number)
            if last is not None and last.deciding and self.made(last) >= last.output:
                yield last

    def forget_end(self, each: LiveRequest) -> None:
        """A request goes before its end."""
        self._ends = [end for end in self._ends if end[1] != each.number]
        heapq.heapify(self._ends)

    def _push_end(self, each: LiveRequest) -> None:
        heapq.heappush(self._ends, (each.began + each.output - each.generated, each.number))

    def _count(self, each: LiveRequest, change: int) -> None:
        offset = each.base - each.began
        self._sum += change * offset
        self._due[offset % self._block] += change
        left = self.offsets.get(offset, 0) + change
        if left:
            self.offsets[offset] = left
        else:
            del self.offsets[offset]


__all__ = ["DecodingRequests"]
