"""What an operation must at least do, and the time below which no GPU can have done it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct

from siliconloom.baselines.operations import (
    ATTENTION,
    CACHES,
    COLLECTIVES,
    ELEMENTWISE,
    KEPT,
    OPS,
    PRECISIONS,
    PRODUCTS,
    CacheStored,
    Float,
    Op,
    Operations,
    Precision,
)


class Roofline(Protocol):
    """Limits of one GPU, as its datasheet gives them, in SI units."""

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second of its memory."""
        ...

    @property
    def l2_bytes(self) -> float:
        """Bytes of its last cache: operands that small need not come from memory."""
        ...

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second that its links to other GPUs carry one way, all of them together; 0: not known."""
        ...

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s with operands of a `Precision`; 0 when it has no such arithmetic."""
        ...


class Limits(Struct, frozen=True, kw_only=True):
    """A `Roofline` written down: FLOP/s by precision, bytes per second, bytes."""

    flops: dict[str, float]
    memory_bandwidth: float
    l2_bytes: float
    link_bandwidth: float = 0.0

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s with operands of a `Precision`; 0 when it has no such arithmetic."""
        return self.flops.get(dtype, 0.0)


ELEMENTWISE_PASSES: dict[Op, int] = {
    Op.RMSNORM: 2,
    Op.LAYERNORM: 2,
    Op.SOFTMAX: 2,
    Op.GELU: 2,
    Op.ROPE: 2,
    Op.EMBEDDING: 2,
    Op.SILU_MUL: 3,
    Op.ADD: 3,
}
"""Times that m x n elements are read or written, at least."""
BACKWARD_PRODUCTS = 5
"""Products of attention's backward pass where forward there are two (Dao, 2023, algorithm 2)."""


def flops(operations: Operations) -> Float:
    """FLOPs of every row; 0 of everything else than products and attention.

    Products have 2 m n k batch, grouped ones, whose m are all rows, 2 m n k; of sparse weights only those that are kept
    count. Attention has 4 batch heads head_dim times the pairs of query and key that causality and a window leave, and
    two and a half times that backward.
    """
    o = {name: getattr(operations, name).astype(np.float64) for name in _USED}
    many = np.where(operations.among(Op.GROUPED_GEMM), 1.0, o["batch"])
    product = 2 * o["m"] * o["n"] * o["k"] * many * np.where(operations.sparse(), KEPT, 1.0)
    attention = 4 * o["batch"] * o["heads"] * o["head_dim"] * operations.pairs()
    attention = np.where(operations.among(Op.ATTENTION_BACKWARD), BACKWARD_PRODUCTS / 2 * attention, attention)
    scored = operations.among(*ATTENTION, Op.ATTENTION_BACKWARD)
    found: Float = np.where(scored, attention, product * operations.among(*PRODUCTS))
    return found


def compulsory_bytes(operations: Operations) -> Float:
    """Bytes that every row reads and writes at least, each operand once; 0 of collectives and whole models.

    A product's operands and result, attention's queries, the keys and values that one sees, and its result (backward
    each and its gradient), an element-wise operation's `ELEMENTWISE_PASSES`; all in the row's precision, but weights as
    they are stored, and what attention reads of a cache as it is kept.
    """
    o = {name: getattr(operations, name).astype(np.float64) for name in _USED}
    grouped = operations.among(Op.GROUPED_GEMM)
    rows = o["m"] * np.where(grouped, 1.0, o["batch"])
    product = rows * (o["k"] + o["n"]) + operations.products() * o["k"] * o["n"]
    keys = operations.seen_keys()
    attention = 2 * o["batch"] * o["head_dim"] * (o["heads"] * o["q_len"] + o["kv_heads"] * keys)
    passes = np.array([ELEMENTWISE_PASSES.get(op, 0) for op in OPS], dtype=np.float64)[operations.op]
    elements = np.where(operations.among(*PRODUCTS), product, 0.0)
    elements = np.where(operations.among(*ATTENTION), attention, elements)
    elements = np.where(operations.among(Op.ATTENTION_BACKWARD), 2 * attention, elements)
    elements = np.where(operations.among(*ELEMENTWISE), passes * o["m"] * o["n"], elements)
    packed, element = operations.packed() | operations.sparse(), operations.element_bytes()
    read = operations.reads_cache()
    fewer = 2 * o["batch"] * o["head_dim"] * o["kv_heads"] * keys * (element - operations.kept_bytes())
    if not packed.any():
        return elements * element - np.where(read, fewer, 0.0)
    rest = rows * (o["k"] + o["n"]) * operations.element_bytes()
    found: Float = np.where(packed, rest + operations.weight_bytes(), elements * element - np.where(read, fewer, 0.0))
    return found


def link_bytes(operations: Operations) -> Float:
    """Bytes that a collective sends over each GPU's links at least; 0 of other rows.

    An all-reduce sends its buffer once (a switch that adds may do the rest; a ring sends 2 (p-1)/p of it), the others
    (p-1)/p of their larger buffer, p GPUs.
    """
    gpus = np.maximum(operations.gpus, 1).astype(np.float64)
    share = np.where(operations.among(Op.ALL_REDUCE), 1.0, (gpus - 1) / gpus)
    return np.where(operations.among(*COLLECTIVES), operations.bytes * share, 0.0)


def bus_bytes(operations: Operations) -> Float:
    """Bytes by which nccl-tests defines bus bandwidth: 2 (p-1)/p of an all-reduce's, (p-1)/p of the others'."""
    gpus = np.maximum(operations.gpus, 1).astype(np.float64)
    share = (gpus - 1) / gpus * np.where(operations.among(Op.ALL_REDUCE), 2.0, 1.0)
    return np.where(operations.among(*COLLECTIVES), operations.bytes * share, 0.0)


class Floor(Struct, frozen=True):
    """One limit: least seconds of every row, and how to name a row's rate and the limit, for messages."""

    seconds: Float
    work: Float
    limit: Float
    unit: str
    name: str


def peak_rates(operations: Operations, roofline: Roofline) -> Float:
    """FLOP/s that every row has at most, by its operands; 0 where the GPU has no such arithmetic.

    Keys and values that are kept in fp8 may be multiplied as they are.
    """
    peaks = np.array([roofline.peak_flops(str(p)) for p in PRECISIONS])
    found: Float = peaks[operations.dtype]
    as_kept = operations.reads_cache() & (operations.cache == CACHES.index(CacheStored.FP8))
    return np.where(as_kept, np.maximum(found, peaks[PRECISIONS.index(Precision.FP8)]), found)


def floors(operations: Operations, roofline: Roofline) -> list[Floor]:
    """Every limit of a GPU on every row; a limit that does not apply gives 0 s.

    Memory carries what does not fit the last cache: a benchmark that repeats an operation finds the rest there.
    """
    peaks = peak_rates(operations, roofline)
    memory = np.full(len(operations), roofline.memory_bandwidth)
    links = np.full(len(operations), roofline.link_bandwidth)
    spilled = np.maximum(compulsory_bytes(operations) - roofline.l2_bytes, 0.0)
    works: list[tuple[Float, Float, str, str]] = [
        (flops(operations), peaks, "FLOP/s", "its peak"),
        (spilled, memory, "B/s", "its memory bandwidth"),
        (link_bytes(operations), links, "B/s", "the bandwidth of its links"),
    ]
    return [
        Floor(np.divide(work, limit, out=np.zeros(len(work)), where=limit > 0), work, limit, unit, name)
        for work, limit, unit, name in works
    ]


def least_seconds(operations: Operations, roofline: Roofline) -> Float:
    """Seconds below which no row can have been done."""
    found: Float = np.max([floor.seconds for floor in floors(operations, roofline)], axis=0)
    return found


_USED = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")

__all__ = [
    "ELEMENTWISE_PASSES",
    "Floor",
    "Limits",
    "Roofline",
    "bus_bytes",
    "compulsory_bytes",
    "floors",
    "flops",
    "least_seconds",
    "link_bytes",
    "peak_rates",
]
