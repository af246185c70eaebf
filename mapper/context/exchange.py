"""Schemes that exchange all at once: Ulysses, USP's hybrid of it and a ring, gathered keys, LASP-2's states.

Sources: DeepSpeed-Ulysses (Jacobs et al., 2023), USP (Fang and Zhao, 2024), Llama 3 (2024, section 3.3.2: keys and
values are gathered), LASP-2 (Sun et al., 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from siliconloom.arch.errors import LoomError
from siliconloom.mapper.context.rings import ring
from siliconloom.mapper.context.schedule import ContextBlock, Kind, ScheduleDraft, ScheduleMessage
from siliconloom.mapper.context.tokens import Shard, pairs_of, split


def hybrid(draft: ScheduleDraft, shards: Sequence[Shard], ulysses: int) -> list[Shard]:
    """Rings of keys between groups of ``ulysses`` ranks that have a share of the heads each; what each rank holds.

    Rank r u + i is the i-th of group r. One shard is Ulysses alone.

    Raises
    ------
    LoomError
        When the heads cannot be shared evenly, or key heads neither shared nor copied.
    """
    heads, kv_heads = draft.sizes.heads, draft.sizes.kv_heads
    if heads % ulysses:
        raise LoomError(f"ulysses: {heads} heads cannot be shared by {ulysses} ranks evenly")
    if max(kv_heads, ulysses) % min(kv_heads, ulysses):
        raise LoomError(f"ulysses: {kv_heads} key heads can neither be shared by {ulysses} ranks nor be copied evenly")
    share = heads // ulysses
    groups = [range(r * ulysses, (r + 1) * ulysses) for r in range(len(shards))]
    own = [parts for shard in shards for parts in split(shard, ulysses)]
    of = [range(i * share, (i + 1) * share) for i in range(ulysses)]
    # Queries, keys and log-sum-exps of a rank's heads are kept for the backward pass.
    inputs = (Kind.DO,) if draft.backward else (Kind.Q, Kind.KV)
    results = (Kind.DQ, Kind.DKV) if draft.backward else (Kind.OUT,)
    for kind, shift, group in product(inputs, range(1, ulysses), groups):
        for i, source in enumerate(group):  # each starts with its successor, so that no rank is hit by all at once
            place = (i + shift) % ulysses
            draft.send(0, source, group[place], kind, own[source], of[place], statistics=False)
    end = 1
    for i in range(ulysses):
        end = ring(draft, shards, members=[group[i] for group in groups], heads=of[i], begin=1)
    if draft.backward and len(groups) > 1:  # the ring brings gradients of keys home first
        end += 1
    for kind, shift, group in product(results, range(1, ulysses), groups):
        for i, source in enumerate(group):
            target = group[(i + shift) % ulysses]
            draft.send(end, source, target, kind, own[target], of[i], statistics=False)
    return own


def all_gather(draft: ScheduleDraft, shards: Sequence[Shard]) -> None:
    """Every rank gets all keys and values, then attends; gradients of keys and values go home at the end."""
    n = len(shards)
    for shift in range(1, n):
        for source in range(n):
            draft.send(0, source, (source + shift) % n, Kind.KV, shards[source])
    for rank in range(n):
        for shift in range(n):
            owner = (rank - shift) % n
            draft.attend(1, rank, shards[rank], shards[owner])
            if draft.backward:
                draft.send(2, rank, owner, Kind.DKV, shards[owner])


def lasp2(draft: ScheduleDraft, shards: Sequence[Shard]) -> None:
    """Linear attention: states of all chunks are gathered at once, while each chunk attends to itself.

    Step 0 makes a chunk's states (a block with keys alone), step 1 is attention within it (only with a mask), step 2
    applies the states of the chunks before it (with no mask: of all) to its queries (a block with queries alone).
    """
    n = len(shards)
    state = draft.sizes.heads * draft.sizes.head_dim**2
    for rank, shard in enumerate(shards):
        if not shard:
            continue
        draft.blocks.append(ContextBlock(0, rank, (), shard, draft.all_heads, 0))
        if draft.causal:
            pairs = pairs_of(shard, shard, causal=True)
            draft.blocks.append(ContextBlock(1, rank, shard, shard, draft.all_heads, pairs))
        if not draft.causal or rank:
            draft.blocks.append(ContextBlock(2, rank, shard, (), draft.all_heads, 0))
    for shift in range(1, n):
        for source in range(n):
            if shards[source]:
                target = (source + shift) % n
                draft.messages.append(
                    ScheduleMessage(1, source, target, Kind.STATE, shards[source], draft.all_heads, state)
                )
