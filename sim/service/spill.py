"""Slower memories below a replica's own, in which keys and values of prefixes stay longer: host, CXL, SSD, a store.

Every prefix that is cached is written to each of them as well, beside the steps (as LMCache and Mooncake's store do),
and each keeps what was used last. A request takes what lies in its replica's own memory from there, what follows from
the first of the others that has it, and computes the rest. Bringing takes its replica's time, as swapping does.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from siliconloom.arch.requests import Segment
from siliconloom.sim.service.blocks import BlockPool


class SlowMemory:
    """One of them: of a replica, or ``shared`` by all.

    Replicas whose steps overlap are simulated one after the other. What one of them writes to a shared memory at the
    end of a step is there for those whose steps begin then or later: until somebody asks so late it waits.

    Parameters
    ----------
    blocks, block
        Blocks that it has room for, and tokens of a block.
    token_s
        Seconds to bring a token's keys and values.
    """

    def __init__(self, blocks: int, block: int, token_s: float, *, shared: bool = False) -> None:
        self.blocks, self.token_s, self.shared = blocks, token_s, shared
        self._block, self._pool = block, BlockPool(blocks, block)
        self._written: list[tuple[float, int, tuple[Segment, ...]]] = []
        """A heap of what was written to a shared one: when, in which order, and what."""
        self._order = 0

    def found(self, path: Sequence[Segment], now: float) -> int:
        """Tokens of a prefix that are there."""
        self._settle(now)
        return self._pool.match(path)[1] if path else 0

    def use(self, path: Sequence[Segment]) -> None:
        """What lies there of a prefix is brought, and goes later than others."""
        node, _ = self._pool.match(path)
        self._pool.enter(node)
        self._pool.leave(node)

    def store(self, path: Sequence[Segment], when: float) -> None:
        """Keep a prefix that is cached above from then on."""
        if not self.shared:
            self._keep(path)
            return
        self._order += 1
        heapq.heappush(self._written, (when, self._order, tuple(path)))

    def clear(self) -> None:
        """The replica is lost, with all that was near it."""
        if not self.shared:
            self._pool = BlockPool(self.blocks, self._block)

    def check(self) -> None:
        """Raise `AssertionError` where a block was lost."""
        self._pool.check(0)

    def _settle(self, now: float) -> None:
        while self._written and self._written[0][0] <= now:
            self._keep(heapq.heappop(self._written)[2])

    def _keep(self, path: Sequence[Segment]) -> None:
        pool, total = self._pool, sum(length for _, length in path)
        node, known = pool.match(path)
        pool.enter(node)
        held = min(total // self._block - known // self._block, pool.available)
        pool.take(held)
        node, left = pool.extend(node, path, held)
        pool.give(left)
        pool.leave(node)


class SpillTiers:
    """The slower memories of one replica, the fastest first."""

    def __init__(self, tiers: Sequence[SlowMemory], block: int) -> None:
        self._tiers, self._block = tuple(tiers), block
        self.brought = [0] * len(self._tiers)
        """Tokens whose keys and values were brought from each."""
        self.shared = any(tier.shared for tier in self._tiers)
        """Whether another replica may store what is found here."""

    def beyond(self, path: Sequence[Segment], known: int, most: int, now: float) -> tuple[int, float]:
        """Tokens of a prompt that need not be computed, where ``known`` lie above, and seconds to bring them.

        They are whole blocks, ``most`` at most.
        """
        parts = self._parts(path, known, most, now)
        return known + sum(parts), sum(part * tier.token_s for part, tier in zip(parts, self._tiers, strict=True))

    def bring(self, path: Sequence[Segment], known: int, most: int, now: float) -> None:
        """They are brought; what they lie in was used."""
        for at, part in enumerate(self._parts(path, known, most, now)):
            self.brought[at] += part
            if part:
                self._tiers[at].use(path)

    def store(self, path: Sequence[Segment], when: float) -> None:
        """Keep a prefix that is cached above from then on."""
        for tier in self._tiers:
            tier.store(path, when)

    def clear(self) -> None:
        """The replica is lost, with all that was near it."""
        for tier in self._tiers:
            tier.clear()

    def check(self) -> None:
        """Raise `AssertionError` where a block was lost."""
        for tier in self._tiers:
            tier.check()

    def _parts(self, path: Sequence[Segment], known: int, most: int, now: float) -> list[int]:
        found = []
        for tier in self._tiers:
            there = min(tier.found(path, now), most) // self._block * self._block
            found.append(max(there - known, 0))
            known += found[-1]
        return found


__all__ = ["SlowMemory", "SpillTiers"]
