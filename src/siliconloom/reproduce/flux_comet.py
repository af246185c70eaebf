"""Flux and COMET: products fused with their tensor-parallel collectives, dense on L20, of experts on H800 and L20.

Fused kernels are simulated tile by tile (`siliconloom.baselines.tiled`, `tiled_experts`); products are the GPU model's,
links those of the datasheets at the share that NCCL's all-to-all reaches in the GPU model. What they are compared with
is PyTorch's: an all-gather or reduce-scatter, a product, and for experts a kernel that puts rows in their order or
adds them up, and a product for each expert.

The figures are those of the authors' repository (its page has named the GPUs with NVLink both H800 and H100).
"""

from __future__ import annotations

from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.baselines.tiled import (
    Overlap,
    Product,
    collective_seconds,
    gather_product,
    kernel_seconds,
    product_scatter,
    wire_of,
)
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.tiled_experts import Experts, gather_experts, scatter_experts, separate_seconds

CHIPS, TOKENS, HIDDEN, INNER = 8, 8192, 8192, 8192
DENSE = {
    "all-gather and product": (gather_product, Product(4096, 6144, 12288, dtype="fp16"), 16.946, 5.903),
    "product and reduce-scatter": (product_scatter, Product(4096, 12288, 6144, dtype="fp16"), 17.664, 5.730),
}
"""Of one of eight L20: M = 4096, K = 12288, N = 49152; published ms unfused and fused."""
EXPERTS = {
    "32 experts, top 4": Experts(TOKENS, 4, 32, 1.0, HIDDEN, INNER // 8),
    "32 experts, top 4, in two groups": Experts(TOKENS, 4, 32, 0.5, HIDDEN, INNER // 4),
    "8 experts, top 2": Experts(TOKENS, 2, 8, 1.0, HIDDEN, INNER // 8),
    "8 experts, top 2, in two groups": Experts(TOKENS, 2, 8, 0.5, HIDDEN, INNER // 4),
}
FUSED = {
    "h800": ((1.146, 1.863), (1.335, 1.685), (0.657, 1.019), (0.955, 0.981)),
    "l20": ((7.813, 7.976), (8.727, 8.445), (5.901, 6.744), (6.155, 7.009)),
}
"""ms of layer 0 and layer 1, for each of `EXPERTS`."""
UNFUSED = {"h800": (4.702, 10.452), "l20": (26.792, 42.092)}
"""The same of PyTorch, for the first of `EXPERTS`."""
TOLERANCE = 0.1
NCCL = (
    "the published collective alone takes {theirs:.1f} ms, 7.9 or 7.2 GB/s; NCCL in the GPU model, with constants of "
    "GPUs with NVLink at PCIe's rate, {ours:.1f}"
)
TORCH = "PyTorch's kernels for the rows' order, sums and experts' products are not published; it says naive"
FIRST = (
    "two groups of experts, with the same arithmetic and messages, take the published kernel 1.04 to 1.45 times as "
    "long as one; here as long"
)
SECOND = (
    "16384 further rows take the published kernel 0.84 ms on H800, the product alone 0.41 ms in the GPU model: the "
    "kernel that also adds up is slower than a plain one, by what is not published"
)
PRODUCT = (
    "the published product alone takes {theirs:.2f} ms, {ours:.2f} here, and hides the links altogether, at "
    "the share of the datasheet's rate that A100s' all-to-all reaches over NVLink"
)
WIRE = "{least:.1f} GB/s at least in the published kernel, {ours:.1f} here (the all-to-all's share of the datasheet's)"


def unfused(gpu: Gpu, experts: Experts, *, second: bool) -> float:
    """Seconds of a layer in separate kernels: collective, rows copied into order or added up, each expert's product."""
    product = experts.second if second else experts.first
    size = experts.tokens * experts.hidden * product.element
    moved = product.results + size if second else 2 * product.inputs
    passed = collective_seconds(gpu, "reduce_scatter" if second else "all_gather", CHIPS, size)
    return passed + separate_seconds(gpu, product) + moved / gpu.memory_bandwidth


def card() -> Card:
    """Every figure of the page for eight GPUs."""
    rows = []
    l20 = load_gpu("l20")
    collective = {"all-gather and product": 11.200, "product and reduce-scatter": 12.273}
    for name, (fuse, product, separate, fused) in DENSE.items():
        found: Overlap = fuse(l20, product, CHIPS)
        cause = NCCL.format(theirs=collective[name], ours=(found.sequential - found.product) * 1e3)
        rows += [
            CardRow(
                f"dense product alone, ms [{name}, L20]",
                kernel_seconds(l20, product) * 1e3,
                round(separate - collective[name], 3),
                TOLERANCE,
            ),
            CardRow(f"dense, unfused, ms [{name}, L20]", found.sequential * 1e3, separate, TOLERANCE, cause),
            CardRow(
                f"dense, fused, ms [{name}, L20]",
                found.fused * 1e3,
                fused,
                TOLERANCE,
                PRODUCT.format(theirs=separate - collective[name], ours=found.product * 1e3),
            ),
        ]
    gathered = TOKENS * HIDDEN * 2 * (CHIPS - 1) / CHIPS
    for name, figures in FUSED.items():
        gpu = load_gpu(name)
        for (shape, experts), (first, second) in zip(EXPERTS.items(), figures, strict=True):
            ours = gather_experts(gpu, experts, CHIPS).fused
            wire = WIRE.format(least=gathered / first * 1e-6, ours=wire_of(gpu).rate * 1e-9)
            rows += [
                CardRow(
                    f"experts' layer 0, fused, ms [{shape}, {gpu.name.upper()}]",
                    ours * 1e3,
                    first,
                    TOLERANCE,
                    FIRST if ours * 1e3 < first and "groups" in shape else wire,
                ),
                CardRow(
                    f"experts' layer 1, fused, ms [{shape}, {gpu.name.upper()}]",
                    scatter_experts(gpu, experts, CHIPS).fused * 1e3,
                    second,
                    TOLERANCE,
                    SECOND,
                ),
            ]
        for layer, published in enumerate(UNFUSED[name]):
            found_ms = unfused(gpu, next(iter(EXPERTS.values())), second=bool(layer)) * 1e3
            rows.append(
                CardRow(
                    f"experts' layer {layer}, unfused, ms [{gpu.name.upper()}]", found_ms, published, TOLERANCE, TORCH
                )
            )
    return Card(
        "flux-comet",
        "Flux and COMET: products fused with collectives, on eight GPUs",
        "Chang et al., Flux, 2024; Zhang et al., Comet, MLSys 2025; performance page of their repository",
        tuple(rows),
    )
