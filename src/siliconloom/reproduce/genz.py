"""GenZ: analytical times of a model's operators, each the slower of arithmetic and memory at one efficiency.

The operators are those of the library's Llama-2-7B; the machine is a roofline, as the GPU tables' checks have it.
"""

from __future__ import annotations

from typing import Any

from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.roofline import Limits, least_seconds
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import Attention, Gemm, load_workload

EFFICIENCY = 0.8
MACHINE = Limits(flops={"bf16": EFFICIENCY * 300e12}, memory_bandwidth=EFFICIENCY * 1200 * 2**30, l2_bytes=0.0)
TOKENS = 1024
PUBLISHED = {"QKV": 0.42950, "logits": 0.03579, "up and gate": 0.76952, "down": 0.38476}
"""Milliseconds of one layer."""
SHARE = {"logits": 0.5}
"""Queries times keys are half of attention's operations and bytes; scores stay on the chip."""
TOLERANCE = 2e-4
"""Half of the last printed digit."""


def operators() -> dict[str, dict[str, Any]]:
    """A layer's operations by the publication's names; logits are the first half of attention without a mask."""
    graph = load_workload("llama2-7b", [("sequence", str(TOKENS)), ("precision", "bf16")])
    by_name = {operator.name: operator for operator in graph.operators()}
    found = {}
    for name, ours in (("QKV", "layer.qkv"), ("up and gate", "layer.gate_up"), ("down", "layer.down")):
        product = by_name[ours]
        assert isinstance(product, Gemm)
        found[name] = {"op": "gemm", "m": product.m, "n": product.n, "k": product.k}
    attention = by_name["layer.attention"]
    assert isinstance(attention, Attention)
    found["logits"] = {
        "op": "attention_prefill",
        "q_len": attention.q_len,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "causal": "false",
    }
    return found


def card() -> Card:
    """Derive the four times."""
    made = operators()
    times = least_seconds(make_operations([made[name] for name in PUBLISHED]), MACHINE) * 1e3
    rows = [
        CardRow(
            f"ms of a layer's {name}, Llama-2-7B, 1024 tokens", float(time) * SHARE.get(name, 1), published, TOLERANCE
        )
        for time, (name, published) in zip(times, PUBLISHED.items(), strict=True)
    ]
    return Card(
        "genz",
        "GenZ's arithmetic: 300 TFLOP/s, 1200 GiB/s, efficiency 0.8",
        "Bambhaniya et al., Demystifying AI Platform Design for Distributed Inference of Next-Generation LLMs, 2024",
        tuple(rows),
    )
