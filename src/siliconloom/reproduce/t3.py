"""T3: products of Megatron's sub-layers fused with the reduce-scatter of their results.

The paper's machine: 80 compute units at 1.4 GHz, 16 MB of last-level cache, 1 TB/s of memory, a ring of 150 GB/s (75
each way) with 500 ns. Products are timed by the GPU model on that machine (Volta's rates and kernels), the fusion by
`siliconloom.reproduce.fused`; the sub-layers are Mega-GPT-2's and T-NLG's at tensor parallelism 8 and 16.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.fused import Fused, fuse

MODELS = {"Mega-GPT-2": (3072, 16 * 1024), "T-NLG": (4256, 8 * 1024)}
"""Width, and tokens of a batch (sequences of 1,024)."""
SUBLAYERS = {
    "output projection": 1,
    "second feed-forward": 4,
    "first feed-forward, backward": 4,
    "input projection, backward": 3,
}
"""Length of the sums in widths, before it is shared."""
TENSOR = (8, 16)
LINK, LATENCY, MEMORY = 75e9, 500e-9, 1e12
PUBLISHED = {"triggered": (1.20, 1.39), "arbitrated": (1.30, 1.47), "ideal": (1.35, 1.50)}
"""Geometric mean and maximum of the speed-up over product, reduce-scatter and all-gather one after the other."""
TOLERANCE = 0.1


def sublayers() -> list[Fused]:
    """Every sub-layer of both models at both degrees."""
    gpu = load_gpu("v100", [("clock", "1.4 GHz"), ("memory.bandwidth", "1 TB/s"), ("l2.capacity", "16 MiB")])
    shapes = [
        (width, tokens, tensor, factor * width // tensor)
        for width, tokens in MODELS.values()
        for tensor in TENSOR
        for factor in SUBLAYERS.values()
    ]
    rows = [{"op": "gemm", "m": tokens, "n": width, "k": k, "dtype": "fp16"} for width, tokens, _, k in shapes]
    seconds = predict(gpu, make_operations(rows)).seconds.tolist()
    return [
        fuse(time, tokens * width * 2.0, tensor, bandwidth=LINK, latency=LATENCY, memory=MEMORY)
        for time, (width, tokens, tensor, _) in zip(seconds, shapes, strict=True)
    ]


def card() -> Card:
    """Speed-ups of the sub-layers, mean and largest."""
    found = sublayers()
    rows = []
    for kind, (mean, most) in PUBLISHED.items():
        gains = [f.sequential / getattr(f, kind) for f in found]
        rows += [
            CardRow(f"speed-up, geometric mean [{kind}]", float(np.exp(np.mean(np.log(gains)))), mean, TOLERANCE),
            CardRow(f"speed-up, largest [{kind}]", float(max(gains)), most, TOLERANCE),
        ]
    return Card(
        "t3",
        "T3: products fused with the sums of their results",
        "Pati et al., T3: Transparent Tracking and Triggering for Fine-grained Overlap, ASPLOS 2024",
        tuple(rows),
    )
