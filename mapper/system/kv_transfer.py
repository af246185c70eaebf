"""From prompts under one plan to next tokens under another: which chip's keys and values go where, and how long.

The cache is a box of sequences, layers, key-value heads and tokens. A plan gives every chip a part of each: its
replica's sequences, its stage's layers, its share of the heads (the same head for several chips where there are fewer),
its share of the tokens. What a chip needs and has already stays; of the rest every holder sends an equal part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.mapper.system.contracts import Fabric
from siliconloom.mapper.system.plan import Plan

Float = NDArray[np.float64]


class CacheShare(Struct, frozen=True):
    """Chips' parts of a cache: from and to, as shares of the whole, in each of four dimensions; arrays over ranks."""

    sequences: Float
    layers: Float
    heads: Float
    tokens: Float


class Transferred(Struct, frozen=True):
    """Bytes that each chip sends each other, and seconds until the last one has its part."""

    sent: Float
    seconds: float

    @property
    def moved(self) -> float:
        """Bytes over links."""
        return float(self.sent.sum())


def share_of(plan: Plan, stages: Sequence[int], kv_heads: int) -> CacheShare:
    """What every rank holds of a cache, by its place in the plan's dimensions."""
    rank = np.arange(plan.workers)
    tensor, rest = rank % plan.tensor, rank // plan.tensor
    context, rest = rest % plan.context, rest // plan.context
    data, stage = rest % plan.data, rest // plan.data
    ends = np.concatenate([[0], np.cumsum(stages)]) / sum(stages)
    held = min(plan.tensor, kv_heads)
    head = tensor * held // plan.tensor
    return CacheShare(
        _pairs(data / plan.data, (data + 1) / plan.data),
        _pairs(ends[stage], ends[stage + 1]),
        _pairs(head / held, (head + 1) / held),
        _pairs(context / plan.context, (context + 1) / plan.context),
    )


def transfer_cache(
    before: CacheShare, after: CacheShare, size: float, fabric: Fabric, places: Sequence[int]
) -> Transferred:
    """Move a cache of ``size`` bytes from one sharing to the other on the same chips."""
    common = np.ones((len(before.heads), len(after.heads)))
    for name in ("sequences", "layers", "heads", "tokens"):
        a, b = getattr(before, name), getattr(after, name)
        low = np.maximum(a[:, None, 0], b[None, :, 0])
        common *= np.clip(np.minimum(a[:, None, 1], b[None, :, 1]) - low, 0.0, None)
    chips = max(common.shape)
    whole = np.zeros((chips, chips))
    whole[: common.shape[0], : common.shape[1]] = common
    need = np.array([_volume(after, i) for i in range(len(after.heads))] + [0.0] * (chips - len(after.heads)))
    own = np.minimum(np.diagonal(whole).copy(), need)
    np.fill_diagonal(whole, 0.0)
    given = whole.sum(axis=0)
    scale = np.divide(need - own, given, out=np.zeros(chips), where=given > 0)
    sent = whole * scale[None, :] * size
    return Transferred(sent, fabric.exchange(sent, places))


def _pairs(low: NDArray[np.floating], high: NDArray[np.floating]) -> Float:
    return np.stack([low, high], axis=1).astype(np.float64)


def _volume(share: CacheShare, rank: int) -> float:
    found = 1.0
    for name in ("sequences", "layers", "heads", "tokens"):
        low, high = getattr(share, name)[rank]
        found *= high - low
    return found
