"""MARLIN's ideal curve: what four-bit weights save of a product that waits for memory, until arithmetic is the limit.

The roofline of one product with the bytes that a workload's operator counts: codes, an fp16 scale for each column of a
group of 128, activations and results in fp16. Both sides are ideal, as the paper's curve is: no kernel is modelled.
"""

from __future__ import annotations

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import Gemm

FLOPS, BANDWIDTH = 125e12, 600e9
"""Of NVIDIA's A10, as the paper has them."""
ROWS, COLUMNS = 18 * 1024, 72 * 1024
PACKING = Packing(DataType.INT4, 128)
PUBLISHED = {1: 3.87, 2: 3.87, 4: 3.87, 8: 3.87, 16: 3.87, 32: 3.85, 64: 3.27, 128: 1.65}
"""Ideal speedup over fp16 by batch (figure 1)."""
TOLERANCE = 0.015


def least(batch: int, packing: Packing | None) -> float:
    """Seconds of a product at the roofline."""
    product = Gemm(
        name="product", block="product", precision=DataType.FP16, m=batch, n=COLUMNS, k=ROWS, packing=packing
    )
    moved = product.weight_bytes + product.input_bytes + product.output_bytes
    return max(moved / BANDWIDTH, product.flops / FLOPS)


def card() -> Card:
    """Speedups at every batch of the figure."""
    rows = [
        CardRow(f"ideal speedup [batch {batch}]", least(batch, None) / least(batch, PACKING), published, TOLERANCE)
        for batch, published in PUBLISHED.items()
    ]
    return Card(
        "marlin",
        "MARLIN: ideal speedup of W4A16 over fp16 on an A10, groups of 128, 72k x 18k",
        "Frantar et al., MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models, 2024, "
        "figure 1",
        tuple(rows),
    )
