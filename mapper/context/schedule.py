"""A context-parallel attention written out in steps: blocks that are computed, messages that pass meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.mapper.context.tokens import Shard, pairs_of, shard_tokens

Int = NDArray[np.int64]


class Kind(StrEnum):
    """What a message carries."""

    Q = "q"
    KV = "kv"
    OUT = "out"
    """A partial result with its log-sum-exp, which the target merges with its own."""
    STATE = "state"
    """Of linear attention: the sum of k v^T, and in the backward pass of q do^T."""
    DO = "do"
    """Gradient of the result; with its log-sum-exp and row sums where the target lacks them."""
    DQ = "dq"
    DKV = "dkv"


RESULTS = (Kind.OUT, Kind.DQ, Kind.DKV)
"""Partial sums: the target adds them to its own, the source forgets them."""


class ContextBlock(Struct, frozen=True):
    """Attention of some queries to some keys, on one rank in one step.

    Parameters
    ----------
    heads
        Query heads that the rank does.
    pairs
        (Query, key) pairs that the mask admits, of each head.
    """

    step: int
    rank: int
    queries: Shard
    keys: Shard
    heads: range
    pairs: int


class ScheduleMessage(Struct, frozen=True):
    """What one rank sends another; it may leave when its step begins, and is there for the next one.

    An input leaves as soon as the source has it. A partial result leaves when the source has done its blocks of the
    steps before.

    Parameters
    ----------
    shard, heads
        Tokens, and query heads, that it is of.
    elements
        Numbers that it carries.
    """

    step: int
    source: int
    target: int
    kind: Kind
    shard: Shard
    heads: range
    elements: int


class Sizes(Struct, frozen=True):
    """Heads and their width, and how many numbers of each kind a token has."""

    heads: int
    kv_heads: int
    head_dim: int

    def kv_of(self, heads: range) -> int:
        """Key heads that a run of query heads needs."""
        group = self.heads // self.kv_heads
        return (heads[-1]) // group - heads[0] // group + 1

    def width(self, kind: Kind, heads: range, *, statistics: bool = True) -> int:
        """Numbers of one token; ``statistics`` counts log-sum-exps and row sums that go along."""
        if kind in (Kind.KV, Kind.DKV):
            return 2 * self.kv_of(heads) * self.head_dim
        more = {Kind.OUT: 1, Kind.DO: 2}.get(kind, 0) if statistics else 0
        return len(heads) * (self.head_dim + more)


class Schedule(Struct, frozen=True):
    """Steps of all ranks.

    Parameters
    ----------
    holders
        Tokens that each rank holds before and after.
    blocks, messages
        By step.
    backward
        Blocks are those of the backward pass: five products for the forward pass's two.
    """

    scheme: str
    ranks: int
    sizes: Sizes
    causal: bool
    backward: bool
    holders: tuple[Shard, ...]
    blocks: tuple[ContextBlock, ...]
    messages: tuple[ScheduleMessage, ...]

    @property
    def steps(self) -> int:
        """Steps with a block or a message."""
        steps = [block.step + 1 for block in self.blocks] + [message.step + 1 for message in self.messages]
        return max(steps, default=0)

    @property
    def pairs(self) -> Int:
        """(Query, key) pairs of all heads that each rank does."""
        found = np.zeros(self.ranks, np.int64)
        for block in self.blocks:
            found[block.rank] += block.pairs * len(block.heads)
        return found

    @property
    def tokens(self) -> Int:
        """Tokens that each rank holds."""
        return np.array([shard_tokens(shard) for shard in self.holders], np.int64)

    @property
    def sent(self) -> Int:
        """Numbers that each rank sends."""
        return self._volume("source")

    @property
    def received(self) -> Int:
        """Numbers that each rank receives."""
        return self._volume("target")

    def _volume(self, end: str) -> Int:
        found = np.zeros(self.ranks, np.int64)
        for message in self.messages:
            found[getattr(message, end)] += message.elements
        return found


class ScheduleDraft:
    """Collects the blocks and messages of a schedule; leaves out those with nothing in them."""

    def __init__(self, ranks: int, sizes: Sizes, *, causal: bool, backward: bool) -> None:
        self.ranks, self.sizes, self.causal, self.backward = ranks, sizes, causal, backward
        self.blocks: list[ContextBlock] = []
        self.messages: list[ScheduleMessage] = []
        self.all_heads = range(sizes.heads)

    def attend(self, step: int, rank: int, queries: Shard, keys: Shard, heads: range | None = None) -> None:
        """A block, if the mask admits any of its pairs."""
        pairs = pairs_of(queries, keys, causal=self.causal)
        if pairs:
            self.blocks.append(ContextBlock(step, rank, queries, keys, heads or self.all_heads, pairs))

    def send(
        self,
        step: int,
        source: int,
        target: int,
        kind: Kind,
        shard: Shard,
        heads: range | None = None,
        *,
        statistics: bool = True,
    ) -> None:
        """A message, if it has tokens and somewhere to go."""
        heads = heads or self.all_heads
        elements = shard_tokens(shard) * self.sizes.width(kind, heads, statistics=statistics)
        if elements and source != target:
            self.messages.append(ScheduleMessage(step, source, target, kind, shard, heads, elements))

    def finish(self, scheme: str, holders: Iterable[Shard]) -> Schedule:
        """The schedule, blocks and messages by step."""
        return Schedule(
            scheme,
            self.ranks,
            self.sizes,
            self.causal,
            self.backward,
            tuple(holders),
            tuple(sorted(self.blocks, key=lambda b: b.step)),
            tuple(sorted(self.messages, key=lambda m: m.step)),
        )
