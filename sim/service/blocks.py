"""Memory of keys and values in blocks, and the tree of prefixes that requests share (RadixAttention, vLLM).

A replica's blocks are free, held by one request, or cached: complete blocks of a prefix that stays after its requests
have ended. Cached blocks that no request uses are taken back, those that were used longest ago first, and of a path
its end first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec import Struct

from siliconloom.arch.requests import Segment


class PrefixNode(Struct, eq=False):
    """A segment of a prefix: its tokens from ``start`` to ``start + tokens``, of which complete blocks are cached.

    Parameters
    ----------
    users
        Requests that run on it, or on what follows it.
    children
        Nodes that follow it.
    used
        When it was used last, counted in uses.
    place
        Its own number among all nodes that were made, from 1.
    """

    place: int
    parent: PrefixNode | None
    number: int
    start: int
    tokens: int
    blocks: int
    users: int = 0
    children: int = 0
    used: int = 0


class BlockPool:
    """Blocks of one replica.

    Parameters
    ----------
    blocks
        How many there are.
    block
        Tokens of one.
    """

    def __init__(self, blocks: int, block: int) -> None:
        self.blocks, self.block = blocks, block
        self.free = blocks
        self.cached = 0
        """Blocks of nodes, whether requests run on them or not."""
        self.idle = 0
        """Of which no request runs on."""
        self._nodes: dict[tuple[int, int], PrefixNode] = {}
        self._clock = self._made = 0
        self._oldest: list[tuple[int, int, PrefixNode]] = []
        self._pushed = 0

    @property
    def available(self) -> int:
        """Blocks that can be had: free ones, and cached ones that nobody uses."""
        return self.free + self.idle

    def take(self, count: int) -> None:
        """Hold ``count`` blocks, which must be available."""
        short = count - self.free
        if short > 0:
            self._reclaim(short)
        self.free -= count
        assert self.free >= 0

    def give(self, count: int) -> None:
        """Free blocks that were held."""
        self.free += count
        assert self.free + self.cached <= self.blocks

    def match(self, path: Sequence[Segment]) -> tuple[PrefixNode | None, int]:
        """The last node of the longest cached beginning of ``path``, and its tokens."""
        node: PrefixNode | None = None
        above, tokens = 0, 0
        for number, length in path:
            found = self._nodes.get((above, number))
            if found is None:
                break
            node, above = found, found.place
            tokens = found.start + min(found.tokens, length)
            if found.tokens < length:
                break
        return node, tokens

    def enter(self, node: PrefixNode | None) -> None:
        """A request runs on ``node`` and all that leads to it."""
        self._clock += 1
        while node is not None:
            if node.users == 0:
                self.idle -= node.blocks
            node.users += 1
            node.used = self._clock
            node = node.parent

    def leave(self, node: PrefixNode | None) -> None:
        """A request that ran on ``node`` has ended, or was preempted."""
        self._clock += 1
        while node is not None:
            node.users -= 1
            node.used = self._clock
            if node.users == 0:
                self.idle += node.blocks
                if node.children == 0:
                    self._push(node)
            node = node.parent

    def extend(self, node: PrefixNode | None, path: Sequence[Segment], held: int) -> tuple[PrefixNode | None, int]:
        """Cache what a request has made behind ``node``, of its whole ``path``, out of its ``held`` blocks.

        The request runs on what is new, and on what another one has made meanwhile, in place of its own blocks.

        Returns
        -------
        node
            The last one that the request runs on.
        held
            Blocks that are its own still.
        """
        end = 0 if node is None else node.start + node.tokens
        at = 0
        for number, length in path:
            start, at = at, at + length
            if at <= end:
                continue
            if node is not None and start < end:  # the end of a segment was taken back, and is made anew
                blocks = at // self.block - node.start // self.block - node.blocks
                if blocks > held:
                    return node, held
                node.tokens, node.blocks = length, node.blocks + blocks
                self.cached += blocks
                held, end = held - blocks, at
                continue
            key = (0 if node is None else node.place, number)
            blocks = at // self.block - start // self.block
            known = self._nodes.get(key)
            if blocks > held or (known is not None and known.tokens < length):
                return node, held
            if known is not None:  # another request made the same meanwhile: one of both is enough
                if known.users == 0:
                    self.idle -= known.blocks
                known.users += 1
                known.used = self._clock
                self.give(blocks)
                held, node, end = held - blocks, known, at
                continue
            self._made += 1
            made = PrefixNode(self._made, node, number, start, length, blocks, 1, 0, self._clock)
            self._nodes[key] = made
            if node is not None:
                node.children += 1
            self.cached += blocks
            held -= blocks
            node, end = made, at
        return node, held

    def _push(self, node: PrefixNode) -> None:
        self._pushed += 1
        heapq.heappush(self._oldest, (node.used, self._pushed, node))

    def _reclaim(self, count: int) -> None:
        """Take back cached blocks until ``count`` are free beyond those that are."""
        while count > 0:
            used, _, node = heapq.heappop(self._oldest)
            if node.users or node.children or node.used != used or node.blocks < 0:
                continue
            taken = min(count, node.blocks)
            node.blocks -= taken
            self.cached -= taken
            self.idle -= taken
            self.free += taken
            count -= taken
            if node.blocks == 0:
                parent = node.parent
                del self._nodes[(0 if parent is None else parent.place, node.number)]
                node.blocks = -1
                if parent is not None:
                    parent.children -= 1
                    if parent.children == 0 and parent.users == 0:
                        self._push(parent)
            else:
                end = (node.start // self.block + node.blocks) * self.block
                node.tokens = end - node.start
                self._push(node)

    def check(self, held: int) -> None:
        """Every block is free, cached, or held by a request."""
        if self.free + self.cached + held != self.blocks or not 0 <= self.idle <= self.cached:
            raise AssertionError(
                f"of {self.blocks} blocks {self.free} are free, {self.cached} cached and {held} held: a bug"
            )


def path_blocks(node: PrefixNode | None) -> int:
    """Blocks of a node and of all that leads to it; some may be held twice, where they were cut and made again."""
    blocks = 0
    while node is not None:
        blocks += node.blocks
        node = node.parent
    return blocks


def idle_blocks(node: PrefixNode | None) -> int:
    """Those of them that nobody uses yet: they are no longer available to whoever takes them up."""
    idle = 0
    while node is not None:
        if node.users == 0:
            idle += node.blocks
        node = node.parent
    return idle


__all__ = ["BlockPool", "PrefixNode", "idle_blocks", "path_blocks"]
