"""Sets of tokens that a chip holds, and how many (query, key) pairs a mask admits between two of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Piece(Struct, frozen=True):
    """Tokens of one document, in even steps.

    Parameters
    ----------
    document
        Number of the document in the batch.
    tokens
        Their places in it.
    """

    document: int
    tokens: range

    def __len__(self) -> int:
        return len(self.tokens)


Shard = tuple[Piece, ...]
"""Tokens that lie together on a chip."""


def shard_tokens(shard: Shard) -> int:
    """Tokens of a shard."""
    return sum(len(piece) for piece in shard)


def pairs_of(queries: Shard, keys: Shard, *, causal: bool) -> int:
    """(query, key) pairs of one head that the mask admits: in one document, and with ``causal`` no key after its query.

    Pieces of one document have the same step.
    """
    of_document: dict[int, list[range]] = {}
    for key in keys:
        of_document.setdefault(key.document, []).append(key.tokens)
    found = 0
    for query in queries:
        for tokens in of_document.get(query.document, ()):
            found += _causal(query.tokens, tokens) if causal else len(query) * len(tokens)
    return found


def _causal(queries: range, keys: range) -> int:
    """Pairs with the key at or before the query, in closed form: query x sees x + c + 1 keys, from 0 to all of them."""
    m, n = len(queries), len(keys)
    if not m or not n:
        return 0
    if m > 1 and n > 1 and queries.step != keys.step:
        raise ValueError(f"pieces in steps of {queries.step} and {keys.step} have no closed form")
    if m == 1:
        return min(max((queries[0] - keys[0]) // keys.step + 1, 0), n)
    c = (queries[0] - keys[0]) // queries.step
    first = min(max(0, -c), m)
    full = min(max(first, n - c), m)
    return (full - first) * (first + full + 2 * c + 1) // 2 + (m - full) * n


def whole(lengths: Sequence[int]) -> Shard:
    """All tokens of all documents."""
    return tuple(Piece(number, range(length)) for number, length in enumerate(lengths) if length)


def cut(piece: Piece, parts: int) -> list[Piece]:
    """Consecutive parts that differ by at most a token."""
    n = len(piece)
    return [Piece(piece.document, piece.tokens[i * n // parts : (i + 1) * n // parts]) for i in range(parts)]


def split(shard: Shard, parts: int) -> list[Shard]:
    """A shard's tokens in order, in consecutive parts that differ by at most a token."""
    total = shard_tokens(shard)
    found: list[Shard] = []
    for part in range(parts):
        low, high = part * total // parts, (part + 1) * total // parts
        pieces, before = [], 0
        for piece in shard:
            inside = piece.tokens[max(low - before, 0) : max(high - before, 0)]
            if inside:
                pieces.append(Piece(piece.document, inside))
            before += len(piece)
        found.append(tuple(pieces))
    return found


def contiguous(lengths: Sequence[int], ranks: int) -> list[Shard]:
    """Every document in one run for each rank."""
    return _dealt([cut(piece, ranks) for piece in whole(lengths)], ranks)


def striped(lengths: Sequence[int], ranks: int) -> list[Shard]:
    """Every document's tokens dealt in turn (Brandon et al., "Striped Attention", 2023)."""
    return _dealt([[Piece(p.document, p.tokens[rank::ranks]) for rank in range(ranks)] for p in whole(lengths)], ranks)


def zigzag(lengths: Sequence[int], ranks: int) -> list[Shard]:
    """Every document in 2 n runs, of which rank r has the r-th and the r-th last (Llama 3, section 3.3.2)."""
    shards: list[list[Piece]] = [[] for _ in range(ranks)]
    for piece in whole(lengths):
        runs = cut(piece, 2 * ranks)
        for rank in range(ranks):
            shards[rank] += [run for run in (runs[rank], runs[-1 - rank]) if len(run)]
    return [tuple(shard) for shard in shards]


def _dealt(documents: list[list[Piece]], ranks: int) -> list[Shard]:
    return [tuple(pieces[rank] for pieces in documents if len(pieces[rank])) for rank in range(ranks)]
