"""MARLIN: what four-bit weights save of a product that waits for memory, until arithmetic is the limit.

The ideal curve is the roofline of one product with the bytes that a workload's operator counts: codes, an fp16 scale
for each column of a group of 128, activations and results in fp16. Both sides are ideal, as the paper's curve is.

The other rows are the GPU model's kernels, packed weights over 16-bit ones, against measured kernels: what the
authors say of theirs on an A10, and what a table of vLLM's build of it has on an H100.
"""

from __future__ import annotations

from siliconloom.arch.datatype import DataType, Packing, Sparsity
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import Gemm

FLOPS, BANDWIDTH = 125e12, 600e9
"""Of NVIDIA's A10, as the paper has them."""
ROWS, COLUMNS = 18 * 1024, 72 * 1024
PACKING = Packing(DataType.INT4, 128)
PUBLISHED = {1: 3.87, 2: 3.87, 4: 3.87, 8: 3.87, 16: 3.87, 32: 3.85, 64: 3.27, 128: 1.65}
"""Ideal speedup over fp16 by batch (figure 1)."""
TOLERANCE = 0.015
MEASURED = {1: 3.87, 16: 3.87}
"""MARLIN on an A10 by batch: "the maximum possible 3.87x speedup up to batchsizes around 16-32" (its README)."""
TABLE = {1: (2.30, 4.98, 3.46), 2: (4.63, 10.02, 6.87), 4: (9.26, 19.85, 13.75)}
"""TFLOP/s on an H100 by batch, 8192 x 8192, one scale a column: torch in fp16, vLLM in four and eight bits."""
SIDE = 8192
KERNEL_TOLERANCE = 0.05
ALONE = (
    "each launch is timed by itself, by events behind an emptied L2 (Triton's do_bench), where the model's is one in a "
    "stream; the packed kernels are made of mma, Hopper's own being wgmma; how much is due to which is not known"
)


SPARSE = 5.3
"""Sparse-MARLIN's ideal with 2:4 on top, "near-optimal speedups of around 5.3x" (its README)."""
SPARSE_TOLERANCE = 0.05
"""The figure is that of codes and two bits of each that is kept, 16/3; scales of groups make it 16/3.125."""


def least(batch: int, packing: Packing | None, sparsity: Sparsity | None = None) -> float:
    """Seconds of a product at the roofline."""
    product = Gemm(
        name="product",
        block="product",
        precision=DataType.FP16,
        m=batch,
        n=COLUMNS,
        k=ROWS,
        packing=packing,
        sparsity=sparsity,
    )
    moved = product.weight_bytes + product.input_bytes + product.output_bytes
    return max(moved / BANDWIDTH, product.flops / FLOPS)


def kernel_speedup(gpu: str, batch: int, columns: int, depth: int, packing: Packing) -> float:
    """Time of a product in fp16 over its time with packed weights, by the GPU model."""
    dense = {"op": "gemm", "m": batch, "n": columns, "k": depth, "dtype": "fp16"}
    packed = {**dense, "weights": packing.dtype.value, "group": packing.group}
    before, after = predict(load_gpu(gpu), make_operations([dense, packed])).seconds.tolist()
    return float(before / after)


def card() -> Card:
    """Speedups at every batch of the figure, and of kernels that were measured."""
    rows = [
        CardRow(f"ideal speedup [batch {batch}]", least(batch, None) / least(batch, PACKING), published, TOLERANCE)
        for batch, published in PUBLISHED.items()
    ]
    sparse = least(1, None) / least(1, PACKING, Sparsity(2, 4))
    rows.append(CardRow("ideal speedup, 2:4 [batch 1]", sparse, SPARSE, SPARSE_TOLERANCE))
    rows += [
        CardRow(
            f"GPU model's speedup, A10, W4A16 [batch {batch}]",
            kernel_speedup("a10", batch, COLUMNS, ROWS, PACKING),
            published,
            KERNEL_TOLERANCE,
        )
        for batch, published in MEASURED.items()
    ]
    for place, dtype in ((1, DataType.INT4), (2, DataType.INT8)):
        rows += [
            CardRow(
                f"GPU model's speedup, H100, W{dtype.bits}A16 [batch {batch}]",
                kernel_speedup("h100", batch, SIDE, SIDE, Packing(dtype, 0)),
                tflops[place] / tflops[0],
                KERNEL_TOLERANCE,
                cause=ALONE,
            )
            for batch, tflops in TABLE.items()
        ]
    return Card(
        "marlin",
        "MARLIN: speedup of W4A16 over fp16, ideal on an A10 (groups of 128, 72k x 18k), and the GPU model's kernels",
        "Frantar et al., MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models, 2024, "
        "figure 1; READMEs of IST-DASLab/marlin and Sparse-Marlin; inclusionAI/humming, pull request 2 (H100)",
        tuple(rows),
    )
