"""Which requests that get their next tokens begin with the same cached blocks, so that attention may read them once.

Requests run on nodes of a replica's tree of prefixes (`siliconloom.sim.service.blocks`). Those on one node have its
complete blocks in common, but for a last one that is made once more where a whole prompt lies in the cache.
"""

from __future__ import annotations

from siliconloom.sim.service.blocks import PrefixNode
from siliconloom.sim.service.costs import SharedPart


class SharedPrefixes:
    """The requests of one replica that are at their answers, by the nodes that they run on.

    Parameters
    ----------
    block
        Tokens of a block.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._entered: dict[int, list[tuple[PrefixNode, int]]] = {}
        """Of each request, its nodes and how many blocks of each it has in common with others there."""
        self._on: dict[PrefixNode, dict[int, int]] = {}
        """Of each node, how many requests have how many of its blocks."""
        self._several: dict[PrefixNode, int] = {}
        """How many requests are on a node, where they are several."""
        self._parts: tuple[SharedPart, ...] | None = ()

    def enter(self, number: int, node: PrefixNode | None, blocks: int) -> None:
        """A request comes to its answer, of whose tokens so many complete blocks lie on ``node`` and before it."""
        mine: list[tuple[PrefixNode, int]] = []
        while node is not None:
            start = node.start // self._block
            covered = min(start + node.blocks, blocks) - start
            if covered > 0:
                mine.append((node, covered))
                here = self._on.setdefault(node, {})
                here[covered] = here.get(covered, 0) + 1
                self._count(node)
            node = node.parent
        self._entered[number] = mine

    def leave(self, number: int) -> None:
        """A request is no longer at its answer."""
        for node, covered in self._entered.pop(number):
            here = self._on[node]
            here[covered] -= 1
            if not here[covered]:
                del here[covered]
            self._count(node)
            if not here:
                del self._on[node]

    def _count(self, node: PrefixNode) -> None:
        requests = sum(self._on[node].values())
        if requests > 1:
            self._several[node] = requests
            self._parts = None
        elif node in self._several:
            del self._several[node]
            self._parts = None

    @property
    def parts(self) -> tuple[SharedPart, ...]:
        """What several requests have in common; nodes in a row that the same ones are on are one part."""
        if self._parts is None:
            part_of: dict[PrefixNode, int] = {}
            requests: list[int] = []
            tokens: list[int] = []
            for node in sorted(self._several, key=lambda n: (n.start, n.place)):
                above = node.parent
                while above is not None and above not in self._on:  # shorter than a block
                    above = above.parent
                at = -1 if above is None else part_of.get(above, -1)
                if at < 0 or requests[at] != self._several[node]:
                    at = len(requests)
                    requests.append(self._several[node])
                    tokens.append(0)
                part_of[node] = at
                tokens[at] += min(self._on[node]) * self._block
            self._parts = tuple(SharedPart(t, r) for t, r in zip(tokens, requests, strict=True))
        return self._parts


__all__ = ["SharedPrefixes"]
