"""Time of attention's backward pass: FlashAttention-2's kernels, derived from the forward pass's constants, and others.

A multiprocessor takes a block of keys of one head and walks the queries (Dao, 2023, algorithm 2). Of each pair of
blocks it forms five products where the forward pass has two: the scores again, the gradients of values, of
probabilities, of queries and of keys. Its operands come from shared memory, more bytes for each operation than
forward: there a warp keeps its queries' rows and the probabilities in registers, here both go back and forth. What the
forward pass loses of the matrix units' rate is taken to be its shared-memory time that is not hidden, and the same
share of the backward pass's is not hidden either. The gradients of queries are summed in fp32 in memory: a kernel
before clears them and sums rows of outputs times their gradients, and one after rounds them to 16 bits.

Nothing of that is fitted to a measured backward pass. cuDNN's kernels on Hopper, whose products read both operands
from shared memory by themselves, have constants of their own (`siliconloom.baselines.efficiency.Backward`) in place of
what is derived of a step.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.attention import blocks_seen, window_blocks
from siliconloom.baselines.efficiency import Efficiency
from siliconloom.baselines.operations import Operations

Float = NDArray[np.float64]

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
MOST_HEAD = max(BLOCKS)
FORWARD = {64: (128, 128, 4), 128: (128, 64, 4)}
"""Queries, keys and warps of the forward pass's blocks; each warp has its own rows."""


def has_backward(efficiency: Efficiency) -> bool:
    """Whether the backward pass of an architecture's own attention is known."""
    return efficiency.backward is not None or efficiency.attention == "flash-attention-2"


def backward_times(gpu: Gpu, efficiency: Efficiency, o: Operations) -> tuple[Float, list[str]]:
    """Seconds of the backward pass of every row in 16 bits, and what takes most of them.

    With grouped heads each query head makes gradients of keys and values, which are summed afterwards.

    Raises
    ------
    NotSupported
        For heads above 128, for other formats, and for kernels of which neither constants nor a derivation are there.
    """
    fitted, own = efficiency.prefill, efficiency.backward
    if not has_backward(efficiency):
        raise NotSupported(f"backward attention on {gpu.name}: only of FlashAttention-2's kernels, or where measured")
    if (o.element_bytes() != ELEMENT).any():
        raise NotSupported(f"backward attention on {gpu.name} in other formats than bf16 and fp16")
    sizes = np.array(sorted(BLOCKS))
    if o.head_dim.max(initial=0) > sizes[-1]:
        raise NotSupported(f"backward attention with heads of {o.head_dim.max()}; kernels are known to {sizes[-1]}")
    size = sizes[np.searchsorted(sizes, o.head_dim)]
    each = [BLOCKS[int(s)] for s in size]
    rows, columns = np.array([b.queries for b in each]), np.array([b.keys for b in each])
    batch, queries, keys, heads, head = (
        getattr(o, name).astype(np.float64) for name in ("batch", "q_len", "kv_len", "heads", "head_dim")
    )
    rate = gpu.rate("bf16")
    products = 2.0 * PRODUCTS * rows * columns * head / rate
    if own is None:
        shared = np.array([b.shared_bytes(int(h)) for b, h in zip(each, head, strict=True)]) / SHARED_BYTES
        forward = np.array([forward_shared_share(int(s), rate) for s in size])
        exponentials = rows * columns / gpu.exponentials
        step = products + (1.0 / fitted.mainloop - 1.0) / forward * shared
        step = step + (1.0 - fitted.overlap) * exponentials + fitted.block
        launch, item = fitted.launch, fitted.item
        tail, stream, norm = fitted.tail, fitted.stream, fitted.norm
    else:
        step, launch, item = products / own.mainloop, own.launch, own.item
        tail, stream, norm = own.tail, own.stream, own.norm
    whole = np.ceil(queries / rows)
    shortest = np.where(o.causal, np.ceil(np.minimum(queries, columns) / rows), whole)
    longest, mean = blocks_seen(shortest, whole, window_blocks(o, columns, rows))
    items = batch * heads * np.ceil(keys / columns)
    even = items * mean / gpu.multiprocessors
    starts = np.ceil(items / gpu.multiprocessors)
    walk = np.maximum(longest, even + tail * (starts * mean - even))
    compute = (walk * step + np.maximum(1.0, items / gpu.multiprocessors) * item) / gpu.clock
    matrix, other = batch * heads * queries * head, batch * heads * keys * head
    bandwidth = gpu.memory_bandwidth * stream
    moved = (2 * matrix + 4 * other) * ELEMENT + 2 * matrix * 4.0
    busy = (compute**norm + (moved / bandwidth) ** norm) ** (1.0 / norm)
    before = (2 * matrix * ELEMENT + matrix * 4.0) / bandwidth
    after = matrix * (4.0 + ELEMENT) / bandwidth
    grouped = np.where(o.heads > o.kv_heads, 2 * other * (1 + o.kv_heads / o.heads) * ELEMENT / bandwidth, 0.0)
    launches = launch + 2 * efficiency.elementwise.launch
    seconds = launches + busy + before + after + grouped
    found: Float = seconds * (1.0 + efficiency.gemm.slow * seconds / (seconds + efficiency.gemm.tau))
    memory = moved / bandwidth + before + after + grouped
    longest_part = np.where(compute >= memory, "compute", "memory")
    return found, np.where(launches > np.maximum(compute, memory), "launch", longest_part).tolist()


def forward_shared_share(size: int, rate: int) -> float:
    """Shared-memory time of the forward pass's blocks over their products' time at the full rate."""
    queries, keys, warps = FORWARD[size]
    moved: float = (2 * keys * warps + queries) * size * ELEMENT
    return moved / SHARED_BYTES / (4.0 * queries * keys * size / rate)


__all__ = [
    "BLOCKS",
    "FORWARD",
    "MOST_HEAD",
    "PRODUCTS",
    "Blocks",
    "backward_times",
    "forward_shared_share",
    "has_backward",
]
