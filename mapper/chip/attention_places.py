"""Which tiles of queries there are, which of them are in one pipeline, and for which of them keys may stay."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct

from siliconloom.mapper.chip.lowering import segments
from siliconloom.mapper.chip.pipelined import outside
from siliconloom.workloads import Attention

CAUSAL_SEGMENTS = 8
"""Parts of the query range of a prompt under a mask: of all pairs at most 1/16 are masked and still computed."""


class AttentionPart(Struct, frozen=True):
    """A range of query tokens and the range of keys that some of them may see."""

    query_start: int
    queries: int
    key_start: int
    keys: int


def query_parts(shape: Attention) -> list[AttentionPart]:
    """Cut the queries so that each part reads only the keys that its mask, or a window to both sides, admits.

    A few queries behind many keys are not cut: their mask hides next to nothing, and each part reads all the keys.
    """
    past = shape.kv_len - shape.q_len
    masked = shape.causal or shape.window is not None
    seen = min(shape.kv_len, shape.window or shape.kv_len)
    count = min(CAUSAL_SEGMENTS, shape.q_len, -(-CAUSAL_SEGMENTS * shape.q_len // seen)) if masked else 1
    size, parts = -(-shape.q_len // count), []
    for segment in segments(shape.q_len, size):
        for index in range(segment.count):
            start = segment.start + index * segment.size
            end = past + start + segment.size if shape.causal else shape.kv_len
            if shape.window is not None and not shape.causal:
                end = min(end, start + segment.size - 1 + shape.window)
            begin = 0 if shape.window is None else max(0, past + start + 1 - shape.window)
            parts.append(AttentionPart(start, segment.size, begin, end - begin))
    return parts


def places(shape: Attention, part: AttentionPart, queries: int, heads: int) -> list[tuple[int, int]]:
    """Dimensions that tiles of queries are cut from, the outermost first: elements of each, and of a tile.

    They are sequences, key-value heads, heads that share one and are stacked as rows, and query tokens.
    """
    groups = shape.heads // shape.kv_heads
    return [(shape.batch, 1), (shape.kv_heads, 1), (groups, heads), (part.queries, queries)]


def key_places(keys: int, tile: int, block: int) -> list[tuple[int, int]]:
    """Dimensions that tiles of ``keys`` are cut from: blocks of them, and parts of a block where tiles are such."""
    return [(keys, tile)] if tile >= block else [(keys, block), (block, tile)]


PARTS = 2
"""Where parts of the queries stand in the dimensions of `whole_places`: in sequences and key-value heads."""


def whole_places(shape: Attention, parts: Sequence[AttentionPart], queries: int, heads: int) -> list[tuple[int, int]]:
    """As `places`, with parts of the queries, of one size, between key-value heads and the heads that share one."""
    sizes = places(shape, parts[0], queries, heads)
    return [*sizes[:PARTS], (len(parts), 1), *sizes[PARTS:]]


def as_one(shape: Attention, parts: Sequence[AttentionPart], keys: int) -> list[Sequence[AttentionPart]]:
    """Parts of the queries that are in one pipeline: all of them where all keys are one tile, or each by itself."""
    if are_alike(shape, parts) and all(part.keys <= keys for part in parts):
        return [parts]
    return [[part] for part in parts]


def are_alike(shape: Attention, parts: Sequence[AttentionPart]) -> bool:
    """Whether parts of the queries may be in one pipeline: they are of one size."""
    return len({part.queries for part in parts}) == 1 and not shape.values_in_keys


def kept_from(outer: int, *, parts: bool = False) -> int:
    """The first dimension of `whole_places` for whose tiles one tile of keys stays.

    Pipelines have ``outer`` loops around them; all ``parts`` may read the keys of the one that reads the most.
    """
    return max(outer, PARTS if parts else PARTS + 1)


def sharing(sizes: Sequence[tuple[int, int]], kept: int) -> int:
    """How many tiles of queries of a pipeline are multiplied with the same keys, that stay from `kept_from` on."""
    return prod(-(-total // size) for total, size in sizes[kept:])


def pipelines_from(shape: Attention, parts: Sequence[AttentionPart], sizes: Sequence[tuple[int, int]]) -> int:
    """The first dimension of `whole_places` that is not a loop around pipelines."""
    if len(parts) > 1:
        return outside(sizes, unlike=PARTS)
    return outside(sizes, len(query_parts(shape)))


def is_masked(shape: Attention) -> bool:
    """Whether the program counts which keys each query sees: of a window to both sides a part computes all it reads."""
    return shape.causal and (shape.q_len > 1 or shape.window is not None)


def most_heads(shape: Attention) -> int:
    """Heads that may be stacked as rows: a mask moves on by one column with every row."""
    return 1 if is_masked(shape) else shape.heads // shape.kv_heads


__all__ = [
    "CAUSAL_SEGMENTS",
    "PARTS",
    "AttentionPart",
    "are_alike",
    "as_one",
    "is_masked",
    "kept_from",
    "key_places",
    "most_heads",
    "pipelines_from",
    "places",
    "query_parts",
    "sharing",
    "whole_places",
]
