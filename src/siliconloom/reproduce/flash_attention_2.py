"""FlashAttention-2 on an A100: forward and backward pass together, TFLOP/s by sequence length.

Forward is the GPU model's prefill attention, without the cache that serving writes; backward is derived from its
constants (`siliconloom.baselines.attention_backward`). Nothing is fitted to this table.
"""

from __future__ import annotations

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.reproduce.card import Card, CardRow

HIDDEN, TOKENS = 2048, 16384
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PUBLISHED = {
    (64, False): (132, 153, 162, 171, 175, 176),
    (64, True): (88, 119, 140, 156, 165, 171),
    (128, False): (151, 173, 187, 196, 201, 203),
    (128, True): (99, 133, 155, 173, 182, 189),
}
"""TFLOP/s by head size and causality (Dao, 2023, appendix: A100 80 GB SXM4, figures of forward and backward)."""
TOLERANCE = 0.15
BACKWARD_FLOPS = 2.5
"""Backward over forward FLOPs, five products for two."""
CAUSE = (
    "the forward pass's constants, from which backward is derived, were fitted to another build of the kernels, with "
    "keys in pages and lengths by sequence; a second laboratory's times on the same card and shapes are shorter, ours "
    "being 14 % (0.1-1 ms) to 18 % (above 1 ms) longer in the median: without that these rows are at most 6 % low"
)


def seconds(length: int, head_dim: int, causal: bool) -> tuple[float, float]:
    """Forward and backward time of 16K tokens in sequences of ``length``, 2048 wide."""
    gpu, batch, heads = load_gpu("a100"), TOKENS // length, HIDDEN // head_dim
    row = {
        "op": "attention_prefill",
        "batch": batch,
        "q_len": length,
        "heads": heads,
        "head_dim": head_dim,
        "causal": str(causal).lower(),
        "dtype": "fp16",
    }
    forward = predict(gpu, make_operations([row]), cache_write=False).seconds[0]
    backward = predict(gpu, make_operations([row | {"op": "attention_backward"}])).seconds[0]
    return float(forward), float(backward)


def flops(length: int, causal: bool) -> float:
    """Forward and backward FLOPs as the publication counts them."""
    forward = 4.0 * length**2 * HIDDEN * (TOKENS // length)
    return forward * (1 + BACKWARD_FLOPS) * (0.5 if causal else 1.0)


def card() -> Card:
    """Derive the table."""
    rows = []
    for (head_dim, causal), published in PUBLISHED.items():
        for length, figure in zip(LENGTHS, published, strict=True):
            ours = flops(length, causal) / sum(seconds(length, head_dim, causal)) / 1e12
            name = f"TFLOP/s, head {head_dim}{', causal' if causal else ''} [{length} tokens]"
            row = CardRow(name, ours, float(figure), TOLERANCE)
            rows.append(row if row.within else CardRow(name, ours, float(figure), TOLERANCE, CAUSE))
    return Card(
        "flash-attention-2",
        "FlashAttention-2 forward and backward on an A100, 16K tokens, 2048 wide",
        "Dao, FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, 2023",
        tuple(rows),
    )
