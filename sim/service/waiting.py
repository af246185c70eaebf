"""Requests that wait, in the order in which they are to be taken up."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

PROMPT_WEIGHT, ANSWER_WEIGHT = 1.0, 2.0
"""What a token of a prompt and of an answer count as service (Virtual Token Counter: Sheng et al., OSDI 2024)."""


class Queued(Protocol):
    """What a queue looks at in a request."""

    rank: float
    order: int
    client: int


Waiting = TypeVar("Waiting", bound=Queued)


class RequestQueue(Generic[Waiting]):
    """By rank and then by order; ``fair``, first whose client has had least.

    A client that comes back has no claim on what it did not ask for: its count begins at the least of those that wait.
    """

    def __init__(self, *, fair: bool) -> None:
        self._fair = fair
        self._heaps: dict[int, list[tuple[float, int, Waiting]]] = {}
        self._served: dict[int, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, request: Waiting) -> None:
        client = request.client if self._fair else 0
        heap = self._heaps.setdefault(client, [])
        if self._fair and not heap:
            least = min((self._served[other] for other, each in self._heaps.items() if each), default=0.0)
            self._served[client] = max(self._served.get(client, 0.0), least)
        heapq.heappush(heap, (request.rank, request.order, request))
        self._count += 1

    def first(self) -> Waiting:
        """Who is next."""
        return self._heaps[self._next()][0][2]

    def pop(self) -> Waiting:
        self._count -= 1
        return heapq.heappop(self._heaps[self._next()])[2]

    def serve(self, client: int, amount: float) -> None:
        """Count what a client got."""
        if self._fair:
            self._served[client] = self._served.get(client, 0.0) + amount

    def _next(self) -> int:
        if not self._fair:
            return 0
        return min((name for name, heap in self._heaps.items() if heap), key=lambda name: (self._served[name], name))


__all__ = ["ANSWER_WEIGHT", "PROMPT_WEIGHT", "RequestQueue"]
