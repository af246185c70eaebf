"""Documents of unequal length over ranks: short ones whole, long ones on as many ranks as their work is worth.

The idea of ByteScale (Ge et al., 2025: each sequence has a degree of its own) and Zeppelin (Chen et al., 2025: short
sequences cause no messages). A document's ranks are a ring of their own, with its tokens in zigzag.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from siliconloom.mapper.context.rings import ring
from siliconloom.mapper.context.schedule import ScheduleDraft
from siliconloom.mapper.context.tokens import Piece, Shard, pairs_of, zigzag


def assign(lengths: Sequence[int], ranks: int, *, causal: bool) -> list[tuple[int, ...]]:
    """Ranks of each document.

    A document gets as many ranks as keep its part on each at an even share of all pairs and of all tokens; documents
    go, largest first, to the ranks that are then filled least, counting whichever of the two they have more of.
    """
    pairs = np.array(
        [pairs_of((Piece(0, range(n)),), (Piece(0, range(n)),), causal=causal) for n in lengths], np.float64
    )
    weights = np.stack([pairs / max(pairs.sum(), 1.0), np.array(lengths, np.float64) / max(sum(lengths), 1)], axis=1)
    load = np.zeros((ranks, 2))
    found: list[tuple[int, ...]] = [()] * len(lengths)
    for document in np.argsort(-weights.max(axis=1), kind="stable").tolist():
        degree = min(max(int(np.ceil(weights[document].max() * ranks - 1e-9)), 1), ranks, max(lengths[document], 1))
        after = (load + weights[document] / degree).max(axis=1)
        chosen = np.sort(np.argsort(after, kind="stable")[:degree])
        load[chosen] += weights[document] / degree
        found[document] = tuple(chosen.tolist())
    return found


def packed(draft: ScheduleDraft, lengths: Sequence[int]) -> list[Shard]:
    """A ring for each document over its ranks; what each rank holds."""
    holders: list[list[Piece]] = [[] for _ in range(draft.ranks)]
    for document, members in enumerate(assign(lengths, draft.ranks, causal=draft.causal)):
        shards = [
            tuple(Piece(document, piece.tokens) for piece in shard)
            for shard in zigzag([lengths[document]], len(members))
        ]
        ring(draft, shards, members=members)
        for member, shard in zip(members, shards, strict=True):
            holders[member] += shard
    return [tuple(pieces) for pieces in holders]
