"""Time of attention's backward pass with FlashAttention-2's kernels, derived from the forward pass's constants.

A multiprocessor takes a block of keys of one head and walks the queries (Dao, 2023, algorithm 2). Of each pair of
blocks it forms five products where the forward pass has two: the scores again, the gradients of values, of
probabilities, of queries and of keys. Its operands come from shared memory, more bytes for each operation than
forward: there a warp keeps its queries' rows and the probabilities in registers, here both go back and forth. What the
forward pass loses of the matrix units' rate is taken to be its shared-memory time that is not hidden, and the same
share of the backward pass's is not hidden either. The gradients of queries are summed in fp32 in memory: a kernel
before clears them and sums rows of outputs times their gradients, and one after rounds them to 16 bits.

Nothing is fitted to a measured backward pass.
"""

from __future__ import annotations

import math

from msgspec import Struct

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.efficiency import load_efficiency

SHARED_BYTES = 128.0
"""Bytes per cycle of a multiprocessor's shared memory (32 banks of 4)."""
PRODUCTS = 5
ELEMENT = 2.0
"""Bytes of bf16 and fp16; gradients of queries are summed in 4."""


class Blocks(Struct, frozen=True):
    """Queries and keys of a pair of blocks, and how its warps share each product's rows and columns."""

    queries: int
    keys: int
    warps: int
    score_rows: int
    key_rows: int
    query_rows: int

    def shared_bytes(self, head: int) -> float:
        """Shared memory read and written for a pair of blocks: operands of five products, and two matrices kept."""
        scores = self._operands(self.queries, self.keys, head, self.score_rows)
        keys = self._operands(self.keys, head, self.queries, self.key_rows)
        queries = self._operands(self.queries, head, self.keys, self.query_rows)
        return 2 * scores + 2 * keys + queries + 2 * self.queries * self.keys * ELEMENT

    def _operands(self, rows: int, columns: int, depth: int, over_rows: int) -> float:
        over_columns = self.warps // over_rows
        return (rows * over_columns + columns * over_rows) * depth * ELEMENT


BLOCKS = {64: Blocks(128, 128, 8, 4, 4, 4), 128: Blocks(64, 128, 8, 2, 4, 2)}
"""By head size at most: ``flash_bwd_launch_template.h`` of the library, for 164 KiB of shared memory."""
FORWARD = {64: (128, 128, 4), 128: (128, 64, 4)}
"""Queries, keys and warps of the forward pass's blocks; each warp has its own rows."""


def backward_seconds(
    gpu: Gpu, *, batch: int, queries: int, keys: int, heads: int, head_dim: int, causal: bool
) -> float:
    """Seconds of the backward pass in 16 bits, as many key heads as query heads.

    Raises
    ------
    NotSupported
        For a GPU whose kernels are not FlashAttention-2's, and for heads above 128.
    """
    efficiency = load_efficiency(gpu.architecture)
    if efficiency.attention != "flash-attention-2":
        raise NotSupported(f"backward attention on {gpu.name}: only of FlashAttention-2's kernels")
    size = next((s for s in sorted(BLOCKS) if head_dim <= s), None)
    if size is None:
        raise NotSupported(f"backward attention with heads of {head_dim}; kernels are known to {max(BLOCKS)}")
    blocks, fitted = BLOCKS[size], efficiency.prefill
    rate = gpu.rate("bf16")
    products = 2.0 * PRODUCTS * blocks.queries * blocks.keys * head_dim / rate
    shared = blocks.shared_bytes(head_dim) / SHARED_BYTES
    unhidden = (1.0 / fitted.mainloop - 1.0) / forward_shared_share(size, rate)
    exponentials = blocks.queries * blocks.keys / gpu.exponentials
    step = products + unhidden * shared + (1.0 - fitted.overlap) * exponentials + fitted.block
    longest = math.ceil(queries / blocks.queries)
    shortest = math.ceil(min(queries, blocks.keys) / blocks.queries) if causal else longest
    items = batch * heads * math.ceil(keys / blocks.keys)
    even = items * (shortest + longest) / 2.0 / gpu.multiprocessors
    starts = math.ceil(items / gpu.multiprocessors)
    walk = max(longest, even + fitted.tail * (starts * (shortest + longest) / 2.0 - even))
    compute = (walk * step + max(1.0, items / gpu.multiprocessors) * fitted.item) / gpu.clock
    matrix = batch * heads * queries * head_dim
    other = batch * heads * keys * head_dim
    bandwidth = gpu.memory_bandwidth * fitted.stream
    moved = (2 * matrix + 4 * other) * ELEMENT + 2 * matrix * 4.0
    busy = (compute**fitted.norm + (moved / bandwidth) ** fitted.norm) ** (1.0 / fitted.norm)
    before = (2 * matrix * ELEMENT + matrix * 4.0) / bandwidth
    after = matrix * (4.0 + ELEMENT) / bandwidth
    seconds = fitted.launch + busy + before + after + 2 * efficiency.elementwise.launch
    return float(seconds * (1.0 + efficiency.gemm.slow * seconds / (seconds + efficiency.gemm.tau)))


def forward_shared_share(size: int, rate: int) -> float:
    """Shared-memory time of the forward pass's blocks over their products' time at the full rate."""
    queries, keys, warps = FORWARD[size]
    moved: float = (2 * keys * warps + queries) * size * ELEMENT
    return moved / SHARED_BYTES / (4.0 * queries * keys * size / rate)


__all__ = ["BLOCKS", "FORWARD", "Blocks", "backward_seconds", "forward_shared_share"]
