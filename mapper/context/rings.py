"""Schemes in which blocks of tokens go round or are fetched: ring attention, TokenRing, LightSeq.

Sources: ring attention (Liu et al., 2023), striped attention (Brandon et al., 2023), TokenRing (Wang et al., 2024),
LightSeq / DistFlashAttn (Li et al., 2023, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.mapper.context.schedule import Kind, ScheduleDraft
from siliconloom.mapper.context.tokens import Shard


def ring(
    draft: ScheduleDraft,
    shards: Sequence[Shard],
    *,
    members: Sequence[int] | None = None,
    heads: range | None = None,
    begin: int = 0,
) -> int:
    """Keys and values go round, each rank attends with what it just received; the step after the last block.

    In the backward pass the gradients of keys and values go round a step behind them, and one step further: home.

    Parameters
    ----------
    members
        Ranks of the ring, in its order.
    begin
        Step of the first block.
    """
    n = len(shards)
    members = members or range(n)
    for step in range(n):
        for place, rank in enumerate(members):
            following = members[(place + 1) % n]
            keys = shards[(place - step) % n]
            draft.attend(begin + step, rank, shards[place], keys, heads)
            if step < n - 1:
                draft.send(begin + step, rank, following, Kind.KV, keys, heads)
            if draft.backward:
                draft.send(begin + step + 1, rank, following, Kind.DKV, keys, heads)
    return begin + n


def token_ring(draft: ScheduleDraft, shards: Sequence[Shard]) -> None:
    """Keys and values stay; queries go round, and each partial result goes home while the next is computed.

    In the backward pass queries go round with the gradients of their results, and their own gradients go home.
    """
    n = len(shards)
    for step in range(n):
        for rank in range(n):
            owner = (rank - step) % n
            following = (rank + 1) % n
            draft.attend(step, rank, shards[owner], shards[rank])
            if step < n - 1:
                draft.send(step, rank, following, Kind.Q, shards[owner])
                if draft.backward:
                    draft.send(step, rank, following, Kind.DO, shards[owner])
            draft.send(step + 1, rank, owner, Kind.DQ if draft.backward else Kind.OUT, shards[owner])


def lightseq(draft: ScheduleDraft, shards: Sequence[Shard]) -> None:
    """Causal attention of contiguous runs, in half a ring's steps: who has no keys left to see does another's block.

    In step t a rank w >= t attends with the keys of w - t; a rank w < t, which has none, with its own keys for the
    queries of w + n - t, and sends the result there. What a step needs is fetched during the one before. With an even
    number of ranks half of them are idle in the last step.
    """
    n = len(shards)
    back = draft.backward
    for rank in range(n):
        draft.attend(0, rank, shards[rank], shards[rank])
    for step in range(1, n // 2 + 1):
        for rank in range(n):
            if rank >= step:
                owner = rank - step
                draft.send(step - 1, owner, rank, Kind.KV, shards[owner])
                draft.attend(step, rank, shards[rank], shards[owner])
                if back:
                    draft.send(step + 1, rank, owner, Kind.DKV, shards[owner])
            elif 2 * step < n:
                helped = rank + n - step
                draft.send(step - 1, helped, rank, Kind.Q, shards[helped])
                if back:
                    draft.send(step - 1, helped, rank, Kind.DO, shards[helped])
                draft.attend(step, rank, shards[helped], shards[rank])
                draft.send(step + 1, rank, helped, Kind.DQ if back else Kind.OUT, shards[helped])
