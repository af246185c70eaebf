"""DFloat11: sizes of models whose bf16 weights are compressed without loss, by what their exponents' entropy leaves.

A bf16 number is a sign, eight bits of exponent and seven of fraction. Signs and fractions are as good as random, and
stay; exponents of trained weights have 2.6 bits of entropy, and are Huffman coded. The workload's own footprint takes
that ratio for its products; an embedding's table is counted as it is. Speed is not part of the card: the published
kernel makes whole layers of operands before their products, which the GPU model has no kernel for.
"""

from __future__ import annotations

from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import load_workload

SIGN, FRACTION, EXPONENT = 1, 7, 2.6
"""Bits of a weight; of the exponent its entropy over language models' weights, as the authors have it."""
RATIO = (SIGN + FRACTION + EXPONENT) / 16
PUBLISHED = {"llama3-8b": (16.1, 10.9), "llama3-70b": (141.0, 95.4)}
"""GB of Llama 3.1 8B and Llama 3.3 70B, whose sizes are these workloads': in bf16 and in DFloat11."""
PLAIN_TOLERANCE, TOLERANCE = 0.005, 0.02


def gigabytes(model: str, ratio: float | None = None) -> float:
    """GB of a model's weights, those of products compressed to a ratio."""
    sets = [("weight_compression", str(ratio))] if ratio is not None else []
    return load_workload(model, sets).weight_bytes / 1e9


def card() -> Card:
    """Sizes in bf16 and compressed."""
    rows = []
    for model, (plain, compressed) in PUBLISHED.items():
        rows.append(CardRow(f"bf16, GB [{model}]", gigabytes(model), plain, PLAIN_TOLERANCE))
        rows.append(CardRow(f"DFloat11, GB [{model}]", gigabytes(model, RATIO), compressed, TOLERANCE))
    return Card(
        "dfloat11",
        "DFloat11: sizes of models with exponents coded by their entropy",
        "Zhang et al., 70% Size, 100% Accuracy: Lossless LLM Compression for Efficient GPU Inference via Dynamic-"
        "Length Float, 2025 (arXiv 2504.11651); sizes and entropy as on the authors' poster",
        tuple(rows),
    )
