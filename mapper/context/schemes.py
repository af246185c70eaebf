"""Context-parallel schemes by name."""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.mapper.context.exchange import all_gather, hybrid, lasp2
from siliconloom.mapper.context.packing import packed
from siliconloom.mapper.context.rings import lightseq, ring, token_ring
from siliconloom.mapper.context.schedule import Schedule, ScheduleDraft, Sizes
from siliconloom.mapper.context.tokens import contiguous, striped, whole, zigzag

SCHEMES = ("ring", "striped", "zigzag", "token_ring", "ulysses", "hybrid", "all_gather", "lightseq", "lasp2", "packed")


def context_schedule(
    scheme: str,
    ranks: int,
    lengths: Sequence[int],
    *,
    causal: bool = True,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    backward: bool = False,
    ulysses: int = 1,
) -> Schedule:
    """Attention of ``lengths`` over ``ranks``, written out.

    Parameters
    ----------
    scheme
        One of `SCHEMES`: ``ring`` (contiguous runs), ``striped`` and ``zigzag`` (rings that balance a causal mask),
        ``token_ring`` (queries go round, with a mask in zigzag), ``ulysses`` (heads for tokens and back), ``hybrid``
        (zigzag rings of groups of ``ulysses`` ranks), ``all_gather`` (of keys, in zigzag), ``lightseq`` (causal, idle
        ranks help), ``lasp2`` (linear attention, one document), ``packed`` (each document on ranks of its own).
    lengths
        Tokens of each document; none sees another.
    backward
        The backward pass of the same.
    ulysses
        Of ``hybrid``: ranks that share the heads.

    Raises
    ------
    LoomError
        When the scheme is unknown, or cannot share so many heads by so many ranks.
    """
    if scheme not in SCHEMES:
        near = nearest_name(scheme, SCHEMES)
        raise LoomError(
            f"{scheme}: no context-parallel scheme; did you mean '{near}'?"
            if near
            else f"{scheme}: no context-parallel scheme; known: {', '.join(SCHEMES)}"
        )
    kv_heads = heads if kv_heads is None else kv_heads
    if ranks < 1 or not lengths or min(lengths) < 1:
        raise LoomError(f"context: {ranks} ranks and documents of {list(lengths)[:4]} tokens; both must be positive")
    if heads % kv_heads:
        raise LoomError(f"context: {heads} heads cannot share {kv_heads} key heads evenly")
    draft = ScheduleDraft(ranks, Sizes(heads, kv_heads, head_dim), causal=causal, backward=backward)
    if scheme == "packed":
        return draft.finish(scheme, packed(draft, lengths))
    if scheme in ("ulysses", "hybrid"):
        degree = ranks if scheme == "ulysses" else ulysses
        if ranks % degree:
            raise LoomError(f"hybrid: {ranks} ranks are not groups of {degree}")
        groups = ranks // degree
        return draft.finish(scheme, hybrid(draft, zigzag(lengths, groups) if groups > 1 else [whole(lengths)], degree))
    if scheme == "lasp2" and len(lengths) > 1:
        raise NotSupported("linear attention of several documents over ranks: states would have to end with each")
    if scheme == "lightseq" and not causal:
        raise LoomError("lightseq: balances a causal mask; without one use ring")
    balanced = scheme in ("zigzag", "all_gather") or (scheme == "token_ring" and causal)
    deal = striped if scheme == "striped" else zigzag if balanced else contiguous
    shards = deal(lengths, ranks)
    maker = {"token_ring": token_ring, "all_gather": all_gather, "lightseq": lightseq, "lasp2": lasp2}.get(scheme, ring)
    maker(draft, shards)
    return draft.finish(scheme, shards)
