"""ONNX's own operator of attention: its heads, and which pairs of queries and keys it computes."""

from __future__ import annotations

import numpy as np

from siliconloom.models.onnx import MOST_ELEMENTS, OnnxNode
from siliconloom.workloads.onnx.attention import Kept, Mask, added_mask, mask_of
from siliconloom.workloads.onnx.net import OnnxNet


def heads_of(net: OnnxNet, node: OnnxNode) -> list[tuple[int, ...]]:
    """Sequences, heads, positions and width of the queries, keys and values of an Attention node."""
    shapes = [net.shape(name) for name in node.inputs[:3]]
    ranks = set(map(len, shapes))
    if ranks == {4}:
        return shapes
    if ranks != {3}:
        raise net.model.error(node, "its queries, keys and values have not all 3, or all 4, dimensions")
    counts = [node.attributes.get(key, 0) for key in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    if not all(count > 0 and not shape[2] % count for shape, count in zip(shapes, counts, strict=True)):
        raise net.model.error(node, "its heads do not divide its columns")
    return [(b, count, length, width // count) for (b, length, width), count in zip(shapes, counts, strict=True)]


def pairs_of(net: OnnxNet, node: OnnxNode, scores: tuple[int, ...]) -> Mask:
    """Which pairs an Attention node computes, whose positions of queries and keys both count from the first one."""
    bounds = [int(node.attributes.get(f"{side}_window_size", -1)) for side in ("left", "right")]
    if min(bounds) < -1:
        raise net.model.error(node, "its window is negative")
    left, right = (None if bound < 0 else bound for bound in bounds)
    right = 0 if node.attributes.get("is_causal", 0) else right
    if node.input(3):
        return _masked(net, node, scores, (left, right))
    queries, keys = scores[2:]
    found = _banded((queries, keys), left, right)
    if found is None:
        kind = "causal Attention" if left is None and right == 0 else "an Attention window"
        positions = "both counted from the first one, where these are no window of earlier keys for every query"
        raise net.model.unsupported(node, f"{kind} of {queries:,} queries and {keys:,} keys, {positions}")
    return found


def _masked(net: OnnxNet, node: OnnxNode, scores: tuple[int, ...], bounds: tuple[int | None, int | None]) -> Mask:
    """The same under a mask, which is constant and hides pairs."""
    mask = node.input(3)
    if not net.constant(mask):
        raise net.model.unsupported(node, "an Attention node whose mask is no constant")
    kept = added_mask(net, mask)
    if kept is None:
        raise net.model.unsupported(node, "an Attention node whose mask adds numbers to scores that it does not hide")
    if not kept.size:
        return Mask(known=False)
    short = scores[-1] - kept.shape[-1] if kept.ndim else 0
    if short > 0:  # keys behind the end of a mask are hidden
        kept = np.pad(kept, [(0, 0)] * (kept.ndim - 1) + [(0, short)])
    if kept.ndim > 4 or any(a not in (1, b) for a, b in zip(kept.shape[::-1], scores[::-1], strict=False)):
        raise net.model.error(node, "its mask does not fit its scores")
    if bounds == (None, None):
        return mask_of(kept, scores)
    if np.prod(np.broadcast_shapes(kept.shape, scores[2:]), dtype=object) > MOST_ELEMENTS:
        return Mask(known=False)
    return mask_of(kept & _in_band((scores[2], scores[3]), *bounds), scores)


def _banded(shape: tuple[int, int], left: int | None, right: int | None) -> Mask | None:
    """What it says of pairs that query i sees the keys from i - left to i + right, both from the first one on.

    There is none where no mask says so: later queries must see as many keys as there are places.
    """
    queries, keys = shape
    if right is None or right >= keys - 1:
        return Mask() if left is None or left >= queries - 1 else None
    seen = queries + right
    if queries == 1:
        return Mask(keys=seen)
    window = None if left is None or left >= queries - 1 else left + right + 1
    return Mask(causal=True, window=window, keys=seen) if seen <= keys else None


def _in_band(shape: tuple[int, int], left: int | None, right: int | None) -> Kept:
    """The pairs that `_banded` is about."""
    ahead = np.arange(shape[1])[None] - np.arange(shape[0])[:, None]
    kept = np.ones(shape, np.bool_) if right is None else ahead <= right
    return np.asarray(kept if left is None else kept & (ahead >= -left), np.bool_)


__all__ = ["heads_of", "pairs_of"]
