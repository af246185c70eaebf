"""Slower memories below a replica's own, in which keys and values of prefixes stay longer: host, CXL, SSD.

Every prefix that is cached is written to each of them as well, beside the steps (as LMCache and Mooncake's store do),
and each keeps what was used last. A request takes what lies in its replica's own memory from there, what follows from
the first of the others that has it, and computes the rest. Bringing takes its replica's time, as swapping does.
"""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.arch.requests import Segment
from siliconloom.sim.service.blocks import BlockPool


class SpillTiers:
    """The slower memories of one replica.

    Parameters
    ----------
    tiers
        Of each, the fastest first: blocks that it has room for, and seconds to bring a token's keys and values.
    block
        Tokens of a block.
    """

    def __init__(self, tiers: Sequence[tuple[int, float]], block: int) -> None:
        self._tiers, self._block = tuple(tiers), block
        self._pools = [BlockPool(blocks, block) for blocks, _ in tiers]
        self.brought = [0] * len(self._tiers)
        """Tokens whose keys and values were brought from each."""

    def beyond(self, path: Sequence[Segment], known: int, most: int) -> tuple[int, float]:
        """Tokens of a prompt that need not be computed, where ``known`` lie above, and seconds to bring them.

        They are whole blocks, ``most`` at most.
        """
        parts = self._parts(path, known, most)
        return known + sum(parts), sum(part * each for part, (_, each) in zip(parts, self._tiers, strict=True))

    def bring(self, path: Sequence[Segment], known: int, most: int) -> None:
        """They are brought; what they lie in was used."""
        for at, part in enumerate(self._parts(path, known, most)):
            self.brought[at] += part
            if part:
                node, _ = self._pools[at].match(path)
                self._pools[at].enter(node)
                self._pools[at].leave(node)

    def store(self, path: Sequence[Segment]) -> None:
        """Keep a prefix that is cached above."""
        total = sum(length for _, length in path)
        for pool in self._pools:
            node, known = pool.match(path)
            pool.enter(node)
            held = min(total // self._block - known // self._block, pool.available)
            pool.take(held)
            node, left = pool.extend(node, path, held)
            pool.give(left)
            pool.leave(node)

    def clear(self) -> None:
        """The replica is lost, with all that was near it."""
        self._pools = [BlockPool(blocks, self._block) for blocks, _ in self._tiers]

    def check(self) -> None:
        """Raise `AssertionError` where a block was lost."""
        for pool in self._pools:
            pool.check(0)

    def _parts(self, path: Sequence[Segment], known: int, most: int) -> list[int]:
        found = []
        for pool in self._pools:
            there = min(pool.match(path)[1], most) // self._block * self._block if path else 0
            found.append(max(there - known, 0))
            known += found[-1]
        return found


__all__ = ["SpillTiers"]
