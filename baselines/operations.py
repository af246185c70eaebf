"""Operations that a GPU is timed or predicted on, as columns: one row is one kernel, collective or model run.

The columns are those of every CSV file of this package (`COLUMNS`):

=============  ==============================================================================================
op             what is done, an `Op`
m, n, k        of a product C[m,n] = A[m,k] B[k,n]; m rows of n columns of an element-wise operation
batch          products or sequences side by side; experts of a grouped product
dealt          how the m rows of a grouped product are dealt to its experts, a `Dealt`
top_k          of rows dealt by chance: experts of a token, all different, so that m rows are m / top_k tokens
q_len, kv_len  query tokens, and keys that they look at (those before them included), per sequence
heads          query heads; kv_heads key and value heads; head_dim elements of a head
causal         whether a query looks only at keys up to its own
window         keys that a query looks at, the last ones up to its own, or where it is not causal those that are nearer
               than that on either side, of as many queries; 0 where it looks at all
dtype          number format of the operands, a `Precision`
weights        format in which B is stored where that is another one, a `WeightFormat`; the product is in ``dtype``
group          rows of B that share a scale in each column, of 16 bits (8 in MX blocks); 0 where a column has one scale
sparsity       which weights of B are kept, a `SparsePattern`; the others are zeros and not stored
cache          of attention: format in which keys and values are kept where that is another one, a `CacheStored`
gpus           GPUs that take part
bytes          of a collective: the larger of its send and receive buffer on one GPU (what nccl-tests calls size)
=============  ==============================================================================================
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from siliconloom.arch.datatype import CACHE_SCALE_BYTES

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Code = NDArray[np.int8]

LARGEST_SIZE = 2**31 - 1
LARGEST_BUFFER = 2**50


class Op(StrEnum):
    """What a row does. Element-wise operations have m rows of n columns of their *output*."""

    GEMM = "gemm"
    ATTENTION_PREFILL = "attention_prefill"
    ATTENTION_DECODE = "attention_decode"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    RMSNORM = "rmsnorm"
    LAYERNORM = "layernorm"
    SOFTMAX = "softmax"
    SILU_MUL = "silu_mul"  # silu(x) * y of the two halves of 2n columns: the gate of SwiGLU
    GELU = "gelu"
    ADD = "add"
    ROPE = "rope"  # n = (heads + kv_heads) * head_dim
    EMBEDDING = "embedding"
    PREFILL = "prefill"  # a whole model, from the prompts of a batch to their first tokens
    DECODE = "decode"  # a whole model, one further token of each sequence of a batch
    SERVE = "serve"  # a whole model, a batch from prompts to its last output tokens
    SERVE_TTFT = "serve_ttft"  # time to first token with `batch` requests in flight, queueing included
    SERVE_TPOT = "serve_tpot"  # time per output token with `batch` requests in flight
    LAYER_PREFILL = "layer_prefill"  # one transformer layer of a model
    LAYER_DECODE = "layer_decode"
    ATTENTION_BACKWARD = "attention_backward"  # gradients of queries, keys and values, its outputs and sums at hand
    GROUPED_GEMM = "grouped_gemm"  # one kernel for the products of `batch` experts: m rows in all, dealt to them


OPS = tuple(Op)
"""An op's code is its place here."""
COLLECTIVES = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL)
PRODUCTS = (Op.GEMM, Op.GROUPED_GEMM)
ATTENTION = (Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE)
ELEMENTWISE = (Op.RMSNORM, Op.LAYERNORM, Op.SOFTMAX, Op.SILU_MUL, Op.GELU, Op.ADD, Op.ROPE, Op.EMBEDDING)
MASKED = (Op.ATTENTION_PREFILL, Op.ATTENTION_BACKWARD)
"""Operations on a whole prompt, which say whether they are causal."""
KERNELS = (*PRODUCTS, *ATTENTION, Op.ATTENTION_BACKWARD, *COLLECTIVES, *ELEMENTWISE)
"""Operations with a shape of their own."""
MODELS = tuple(op for op in OPS if op not in KERNELS)
"""Operations on a whole model or layer: their rows name it (see `siliconloom.baselines.tables`)."""


class Precision(StrEnum):
    """Number format of operands. `DataType` of arch holds what our own arrays compute in; GPUs have others."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"
    INT4 = "int4"

    @property
    def size(self) -> float:
        """Bytes of one element in memory."""
        return _SIZE[self]


_SIZE = {
    Precision.FP64: 8.0,
    Precision.FP32: 4.0,
    Precision.TF32: 4.0,
    Precision.FP16: 2.0,
    Precision.BF16: 2.0,
    Precision.FP8: 1.0,
    Precision.INT8: 1.0,
    Precision.FP4: 0.5,
    Precision.INT4: 0.5,
}
PRECISIONS = tuple(Precision)
"""A precision's code is its place here."""


class WeightFormat(StrEnum):
    """In what B lies in memory: the operands' format, or codes that the kernel makes operands of.

    MX blocks (OCP Microscaling Formats) are of fp4_e2m1 or of fp8, 32 rows of a column that share a power of two.
    """

    OPERANDS = "operands"
    INT8 = "int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    MXFP8 = "mxfp8"


WEIGHT_FORMATS = tuple(WeightFormat)
"""A format's code is its place here."""
_CODE_BYTES = {
    WeightFormat.OPERANDS: 0.0,
    WeightFormat.INT8: 1.0,
    WeightFormat.INT4: 0.5,
    WeightFormat.MXFP4: 0.5,
    WeightFormat.MXFP8: 1.0,
}
IN_BLOCKS = tuple(WEIGHT_FORMATS.index(f) for f in (WeightFormat.MXFP4, WeightFormat.MXFP8))
"""Codes of the formats of MX blocks."""
PACKED_BESIDE: dict[WeightFormat, tuple[Precision, ...]] = {
    WeightFormat.INT8: (Precision.FP16, Precision.BF16),
    WeightFormat.INT4: (Precision.FP16, Precision.BF16, Precision.INT8),
    WeightFormat.MXFP4: (Precision.FP16, Precision.BF16),
    WeightFormat.MXFP8: (Precision.FP16, Precision.BF16),
}
"""Operands that kernels make of codes."""


class CacheStored(StrEnum):
    """In what keys and values are kept: the operands' format, fp8, or codes with a scale and an offset.

    Codes have both for each head's key and value of a position, of 16 bits each.
    """

    OPERANDS = "operands"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


CACHES = tuple(CacheStored)
"""A format's code is its place here."""
_CACHE_BYTES = {CacheStored.OPERANDS: 0.0, CacheStored.FP8: 1.0, CacheStored.INT8: 1.0, CacheStored.INT4: 0.5}
_CACHE_SCALES = {CacheStored.INT8, CacheStored.INT4}


class SparsePattern(StrEnum):
    """Zeros among the weights of B: none that are known, or two of every four in a column (2:4)."""

    DENSE = "dense"
    TWO_OF_FOUR = "2of4"


class Dealt(StrEnum):
    """How rows are dealt to experts: evenly, or by chance, each token's to any of them with the same probability."""

    EVEN = "even"
    CHANCE = "chance"


DEALS = tuple(Dealt)
"""A way's code is its place here."""
PATTERNS = tuple(SparsePattern)
"""A pattern's code is its place here."""
KEPT, WHERE_BYTES = 0.5, 0.25
"""Of 2:4: share of weights that are kept, and bytes that say where one stood (two bits)."""
SCALE_BYTES, BLOCK_SCALE_BYTES = 2.0, 1.0
"""Of the scale of a column of a group, and of an MX block."""
ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "float4": "fp4",
    "nvfp4": "fp4",
}


@cache
def op_mask(ops: tuple[Op, ...]) -> Bool:
    """Whether each operation's code is one of ``ops``."""
    found = np.zeros(len(OPS), bool)
    found[[OPS.index(op) for op in ops]] = True
    return found


class Operations(Struct, frozen=True, eq=False):
    """Rows as columns of one length; numbers are 0 and ``causal`` is false where a column is not meant.

    ``op``, ``dtype``, ``weights``, ``sparsity``, ``cache`` and ``dealt`` are codes: places in `OPS`, `PRECISIONS`,
    `WEIGHT_FORMATS`, `PATTERNS`, `CACHES` and `DEALS`.
    """

    op: Code
    m: Int
    n: Int
    k: Int
    batch: Int
    q_len: Int
    kv_len: Int
    heads: Int
    kv_heads: Int
    head_dim: Int
    causal: Bool
    dtype: Code
    gpus: Int
    bytes: Int
    weights: Code
    group: Int
    sparsity: Code
    cache: Code
    dealt: Code
    top_k: Int
    window: Int

    def __len__(self) -> int:
        return len(self.op)

    def select(self, rows: ArrayLike) -> Operations:
        """Rows of a mask, or of a list of indices."""
        chosen = np.asarray(rows)
        return Operations(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})

    def among(self, *ops: Op) -> Bool:
        """Mask of the rows that do one of ``ops``."""
        found: Bool = op_mask(ops)[self.op]
        return found

    def ops(self) -> list[Op]:
        """Operation of every row."""
        return [OPS[code] for code in self.op.tolist()]

    def dtypes(self) -> list[Precision]:
        """Precision of every row."""
        return [PRECISIONS[code] for code in self.dtype.tolist()]

    def element_bytes(self) -> Float:
        """Bytes of one operand element of every row."""
        return np.array([p.size for p in PRECISIONS])[self.dtype]

    def packed(self) -> Bool:
        """Mask of the products whose weights are stored as codes."""
        found: Bool = self.weights != WEIGHT_FORMATS.index(WeightFormat.OPERANDS)
        return found

    def sparse(self) -> Bool:
        """Mask of the products whose weights are sparse."""
        found: Bool = self.sparsity != PATTERNS.index(SparsePattern.DENSE)
        return found

    def cached(self) -> Bool:
        """Mask of the attention whose keys and values are kept in another format."""
        found: Bool = self.cache != CACHES.index(CacheStored.OPERANDS)
        return found

    def reads_cache(self) -> Bool:
        """Mask of the attention that reads keys and values which are kept in another format.

        Next tokens do, and prompts behind earlier tokens, which have more keys than queries, or without a causal mask,
        whose keys are all earlier. Whole prompts only write.
        """
        behind = self.among(Op.ATTENTION_PREFILL) & ((self.kv_len > self.q_len) | ~self.causal)
        found: Bool = self.cached() & (self.among(Op.ATTENTION_DECODE) | behind)
        return found

    def pairs(self) -> Float:
        """(query, key) pairs that causality and the window leave of every row's attention, per head and sequence."""
        queries, keys = self.q_len.astype(np.float64), self.kv_len.astype(np.float64)
        known = keys - queries  # keys before the first query's own
        most = np.where(self.window > 0, self.window, keys)
        growing = np.clip(most - known, 0.0, queries)  # queries that see all keys up to their own
        found: Float = growing * known + growing * (growing + 1) / 2 + (queries - growing) * most
        either = np.where(self.window > 0, 2 * found - queries, queries * keys)
        return np.where(self.causal, found, either)

    def reach(self) -> Float:
        """Keys of every row that a query far from both ends looks at; no limit without a window."""
        both = np.where(self.causal, self.window, 2.0 * self.window - 1.0)
        return np.where(self.window > 0, both, np.inf)

    def seen_keys(self) -> Float:
        """Keys of every row's sequences that some query sees: fewer than ``kv_len`` only with a window."""
        keys = self.kv_len.astype(np.float64)
        return np.where(self.window > 0, np.minimum(keys, self.q_len + self.window - 1.0), keys)

    def read_bytes(self) -> Float:
        """Bytes of an element of keys and values as attention reads them."""
        return np.where(self.reads_cache(), self.kept_bytes(), self.element_bytes())

    def kept_bytes(self) -> Float:
        """Bytes of an element of keys and values as they are kept, its part of a head's scale and offset included."""
        codes = np.array([_CACHE_BYTES[f] for f in CACHES])[self.cache]
        scaled = np.array([f in _CACHE_SCALES for f in CACHES])[self.cache]
        scales = np.where(scaled, CACHE_SCALE_BYTES / np.maximum(self.head_dim, 1), 0.0)
        return np.where(self.cached(), codes + scales, self.element_bytes())

    def weight_bytes(self) -> Float:
        """Bytes of B of every product: operands, or codes and the scales of their groups; 0 of other rows.

        Of sparse ones those that are kept, and where they stood.
        """
        batch = self.products()
        elements = batch * self.n * self.k * np.where(self.sparse(), KEPT, 1.0)
        groups = np.where(self.group > 0, -(-self.k // np.maximum(self.group, 1)), 1)
        each = np.where(np.isin(self.weights, IN_BLOCKS), BLOCK_SCALE_BYTES, SCALE_BYTES)
        scales = batch * self.n * groups * each
        codes = elements * np.array([_CODE_BYTES[f] for f in WEIGHT_FORMATS])[self.weights]
        found: Float = np.where(self.packed(), codes + scales, elements * self.element_bytes())
        found = found + np.where(self.sparse(), elements * WHERE_BYTES, 0.0)
        return np.where(self.among(*PRODUCTS), found, 0.0)

    def products(self) -> Float:
        """Products of every row that have work: of grouped ones experts with a row, their mean number under chance."""
        batch = self.batch.astype(np.float64)
        used = np.maximum(self.top_k, 1)
        missed = np.exp(self.m / used * np.log1p(-used / np.maximum(batch, used + 1e-12)))
        active = np.where(self.by_chance(), batch * (1.0 - missed), np.minimum(batch, self.m))
        return np.where(self.among(Op.GROUPED_GEMM), active, batch)

    def by_chance(self) -> Bool:
        """Mask of the grouped products whose rows are dealt by chance."""
        found: Bool = self.dealt == DEALS.index(Dealt.CHANCE)
        return found

    def row(self, index: int) -> dict[str, Any]:
        """One row as plain values, without the columns that it does not mean."""
        found: dict[str, Any] = {"op": str(OPS[self.op[index]])}
        for name in SIZES:
            if value := int(getattr(self, name)[index]):
                found[name] = value
        if found["op"] in MASKED:
            found["causal"] = bool(self.causal[index])
        found["dtype"] = str(PRECISIONS[self.dtype[index]])
        if stored := int(self.weights[index]):
            found |= {"weights": str(WEIGHT_FORMATS[stored]), "group": int(self.group[index])}
        if pattern := int(self.sparsity[index]):
            found["sparsity"] = str(PATTERNS[pattern])
        if cache := int(self.cache[index]):
            found["cache"] = str(CACHES[cache])
        if dealt := int(self.dealt[index]):
            found["dealt"] = str(DEALS[dealt])
        for name in ("top_k", "window"):
            if value := int(getattr(self, name)[index]):
                found[name] = value
        return found

    def describe(self, index: int) -> str:
        """One row in a few words, for messages: ``gemm m=4096 n=4096 k=4096 bf16``."""
        row = self.row(index)
        sizes = [f"{name}={value}" for name, value in row.items() if name in SIZES]
        packed = [f"weights {row['weights']} in groups of {row['group'] or 'all'}"] if "weights" in row else []
        sparse = [f"sparse {row['sparsity']}"] if "sparsity" in row else []
        kept = [f"cache {row['cache']}"] if "cache" in row else []
        dealt = ["by chance"] if "dealt" in row else []
        dealt += [f"{row['top_k']} of a token"] if "top_k" in row else []
        dealt += [f"window {row['window']}"] if "window" in row else []
        return " ".join([row["op"], *sizes, row["dtype"], *packed, *sparse, *kept, *dealt])


COLUMNS = Operations.__struct_fields__
SIZES = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "gpus", "bytes")

_SHAPE = ("m", "n")
_HEADS = ("heads", "kv_heads", "head_dim")
MEANT: dict[Op, tuple[str, ...]] = {
    **dict.fromkeys(PRODUCTS, (*_SHAPE, "k", "batch")),
    **dict.fromkeys((*ATTENTION, Op.ATTENTION_BACKWARD), ("batch", "q_len", "kv_len", *_HEADS)),
    **dict.fromkeys(COLLECTIVES, ("gpus", "bytes")),
    **dict.fromkeys(ELEMENTWISE, _SHAPE),
    **dict.fromkeys(MODELS, ("batch", "gpus")),
}
"""Sizes that each operation has; what a file gives for others is passed over."""


__all__ = [
    "ALIASES",
    "ATTENTION",
    "MASKED",
    "COLLECTIVES",
    "COLUMNS",
    "DEALS",
    "Dealt",
    "ELEMENTWISE",
    "KERNELS",
    "MEANT",
    "MODELS",
    "OPS",
    "Op",
    "Operations",
    "PATTERNS",
    "PRECISIONS",
    "PRODUCTS",
    "Precision",
    "SIZES",
    "SparsePattern",
    "WEIGHT_FORMATS",
    "WeightFormat",
]
