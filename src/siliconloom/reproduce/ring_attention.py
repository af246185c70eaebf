"""Ring attention's least blocks: the smallest for which the simulated ring hides its messages.

Blocks are computed at the A100's full rate, as in the paper; the block is found by bisection over simulations of a
ring of four, with no mask, until nothing of its messages is left to see. A chip holds six blocks: query, key, value,
output, and the next key and value.
"""

from __future__ import annotations

from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.rank_links import RankLink
from siliconloom.mapper.context import context_schedule
from siliconloom.mapper.system.context import time_context
from siliconloom.reproduce.card import Card, CardRow

RANKS, HEADS, WIDTH = 4, 32, 128
"""Neither chips nor heads change the least block: both products and messages grow with them."""
PUBLISHED = {"NVLink, 300 GB/s": (300e9, 1.0e3, 6.2e3, 0.05), "InfiniBand, 12.5 GB/s": (12.5e9, 24.96e3, 149.8e3, 1e-3)}
"""Bandwidth; least tokens of a block and of a chip's sequence (table 2); relative error that rounding allows."""
BUFFERS = 6


def least_block(flops: float, bandwidth: float) -> int:
    """Fewest tokens of a block whose ring exposes no message."""

    def seconds(_queries: int, _keys: int, pairs: int, heads: int) -> float:
        return 4.0 * pairs * heads * WIDTH / flops

    low, high = 0, 1 << 20
    while high - low > 1:
        block = (low + high) // 2
        schedule = context_schedule("ring", RANKS, [RANKS * block], causal=False, heads=HEADS, head_dim=WIDTH)
        found = time_context(schedule, seconds, RankLink(bandwidth, wiring="ring"))
        low, high = (low, block) if found.exposed <= 1e-9 * found.seconds else (block, high)
    return high


def card() -> Card:
    """Search for both links of the table."""
    flops = load_gpu("a100").peak_flops("bf16")
    rows = []
    for name, (bandwidth, block, sequence, tolerance) in PUBLISHED.items():
        least = least_block(flops, bandwidth)
        rows += [
            CardRow(f"least block, tokens [{name}]", least, block, tolerance),
            CardRow(f"least sequence of a chip, tokens [{name}]", BUFFERS * least, sequence, tolerance),
        ]
    return Card(
        "ring-attention",
        "Ring attention: least blocks that hide their messages",
        "Liu et al., Ring Attention with Blockwise Transformers for Near-Infinite Context, 2023, table 2",
        tuple(rows),
    )
