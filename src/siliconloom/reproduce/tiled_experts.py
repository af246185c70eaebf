"""A mixture of experts fused with its collectives: COMET (Zhang et al., MLSys 2025).

Layer 0 gathers all tokens and multiplies each expert's: rows of an expert stand in the order of the GPUs that they
come from, so that a tile needs one chunk, and tiles go in the order of chunks. Layer 1 multiplies again, adds up the
experts of a token and scatters the sums over the GPUs: tiles go by columns of all experts, so that the sums of some
columns begin while others are computed, on multiprocessors that do nothing else. How many those are, and in how many
parts tiles become ready, is what is fastest of some.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.tiled import (
    PICO,
    TILE,
    Overlap,
    Product,
    TiledKernel,
    collective_seconds,
    gather_product,
    kernel_seconds,
    wire_of,
)

SUMMING = (8, 16, 24, 32, 48, 64)
"""Multiprocessors that may be set apart for sums."""
SLABS = (1, 2, 4, 8, 16, 32)


class Experts(Struct, frozen=True):
    """Experts of one GPU and the tokens that all GPUs have.

    Parameters
    ----------
    tokens, chosen
        Tokens of all GPUs, and experts of each.
    experts, share
        Experts of the layer, and the share of them that this GPU has a part of.
    hidden, inner
        Width of a token, and this GPU's columns of an expert.
    """

    tokens: int
    chosen: int
    experts: int
    share: float
    hidden: int
    inner: int
    dtype: str = "bf16"

    @property
    def rows(self) -> int:
        """Rows of all experts of the GPU, shared evenly."""
        return round(self.tokens * self.chosen * self.share)

    @property
    def groups(self) -> int:
        """Experts that the GPU has a part of."""
        return round(self.experts * self.share)

    @property
    def first(self) -> Product:
        """Layer 0."""
        return Product(self.rows, self.inner, self.hidden, self.groups, self.dtype)

    @property
    def second(self) -> Product:
        """Layer 1."""
        return Product(self.rows, self.hidden, self.inner, self.groups, self.dtype)


def gather_experts(gpu: Gpu, experts: Experts, chips: int) -> Overlap:
    """Layer 0: all tokens are gathered, and multiplied with their experts."""
    size = experts.tokens * experts.hidden * experts.first.element
    found = [
        gather_product(gpu, experts.first, chips, size=size, passes=passes)
        for passes in range(1, chips + 1)
        if chips % passes == 0
    ]
    return min(found, key=lambda overlap: overlap.fused)


def scatter_experts(gpu: Gpu, experts: Experts, chips: int) -> Overlap:
    """Layer 1: tokens are multiplied with their experts, added up, and scattered over the GPUs."""
    product, wire = experts.second, wire_of(gpu)
    kernel = TiledKernel(gpu, product)
    size = experts.tokens * experts.hidden * product.element
    sums = (product.results + size) / kernel.stream + kernel.launch
    alone = kernel_seconds(gpu, product)
    transfer = size * (chips - 1) / chips / wire.rate
    last = kernel.launch + size / chips * (chips + 1) / kernel.stream
    return Overlap(
        product=alone,
        transfer=transfer,
        sequential=alone + sums + collective_seconds(gpu, "reduce_scatter", chips, size),
        chunked=min(_scattered(gpu, experts, chips, slabs, None) for slabs in _slabs(experts)) + last,
        fused=min(_scattered(gpu, experts, chips, n, taken) for n in _slabs(experts) for taken in SUMMING) + last,
    )


def _slabs(experts: Experts) -> Iterator[int]:
    return (n for n in SLABS if experts.hidden % (n * TILE[1]) == 0)


def _scattered(gpu: Gpu, experts: Experts, chips: int, slabs: int, taken: int | None) -> float:
    """Seconds until all partial sums are there; without ``taken`` products and sums take turns, as kernels do."""
    product, wire = experts.second, wire_of(gpu)
    kernel = TiledKernel(gpu, product, taken=taken or 0)
    part = replace(product, columns=product.columns // slabs)
    sums = experts.tokens * part.columns * product.element
    near = part.results <= gpu.l2_bytes / 2  # what tiles just wrote is still there
    moved = sums + (0.0 if near else part.results)
    rate = kernel.stream
    if taken is not None:
        rate = min(rate, taken * load_efficiency(gpu.architecture).gemm.l2_rate * gpu.clock)
    added = round((part.results + sums) / rate * PICO)
    message = round(sums * (chips - 1) / chips / wire.rate * PICO)
    sum_before: int | None = None
    for _ in range(slabs):
        beside = moved if taken is not None else 0.0
        ready = None if taken is not None else sum_before
        again = 0.0 if kernel.just_made else part.inputs
        tiles = kernel.add(part, part.tiles, ready, round(kernel.launch * PICO), again=again, beside=beside)
        sum_before = kernel.tasks.add("sum", kernel.sums, added)
        for task in tiles[-min(kernel.width, len(tiles)) :]:
            kernel.tasks.wait(sum_before, task, 0 if taken is not None else round(kernel.launch * PICO))
        sent = kernel.tasks.add("sums out", kernel.link, message)
        kernel.tasks.wait(sent, sum_before)
    return kernel.finish() + wire.flag


def separate_seconds(gpu: Gpu, product: Product) -> float:
    """A grouped product as one kernel for each expert, as a loop over experts launches them."""
    rows = ceil(product.rows / product.groups)
    return product.groups * kernel_seconds(gpu, replace(product, rows=rows, groups=1))
