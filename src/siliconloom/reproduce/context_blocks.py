"""Seconds of context-parallel blocks on a GPU, by the GPU model's attention kernel."""

from __future__ import annotations

from typing import Any

from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.mapper.system.context import BlockSeconds


def gpu_blocks(
    gpu: Gpu, *, head_dim: int, group: int = 1, dtype: str = "bf16", sustained: bool = False
) -> BlockSeconds:
    """What `time_context` wants of blocks on ``gpu``.

    A block of one run of tokens with itself is the causal kernel; any other is one without a mask, of all queries by as
    many keys as they see on average. LASP-2's states are products of each head.

    Parameters
    ----------
    group
        Query heads that share a key head.
    sustained
        In a run of seconds, under the board's power limit.
    """
    known: dict[tuple[int, int, int, int], float] = {}

    def seconds(queries: int, keys: int, pairs: int, heads: int) -> float:
        block = (queries, keys, pairs, heads)
        if block not in known:
            row = _row(queries, keys, pairs, heads, head_dim, group) | {"dtype": dtype}
            found = predict(gpu, make_operations([row]), sustained=sustained, cache_write=False)
            known[block] = float(found.seconds[0])
        return known[block]

    return seconds


def _row(queries: int, keys: int, pairs: int, heads: int, head_dim: int, group: int) -> dict[str, Any]:
    if not queries:  # keys^T values of each head
        return {"op": "gemm", "m": head_dim, "n": head_dim, "k": keys, "batch": heads}
    if not keys:  # queries times states
        return {"op": "gemm", "m": queries, "n": head_dim, "k": head_dim, "batch": heads}
    causal = queries == keys and 2 * pairs == queries * (queries + 1)
    seen = keys if causal else max(round(pairs / queries), 1)
    return {
        "op": "attention_prefill",
        "batch": 1,
        "q_len": queries,
        "kv_len": seen,
        "heads": heads,
        "kv_heads": max(heads // group, 1),
        "head_dim": head_dim,
        "causal": str(causal).lower(),
    }
