"""The kinds of operator that a workload is made of, with exact counts of work and bytes.

Every count is for ONE execution of the operator; a block's ``repeat`` says how often it is executed. Bytes are those
of packed values at the operator's ``precision``; results are written back at the operand format.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from msgspec import Struct

from siliconloom.arch.datatype import CacheFormat, DataType, Packing, Sparsity
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.roles import NOWHERE, Place, Role


class Operator(Struct, frozen=True, kw_only=True):
    """One step of a workload.

    Parameters
    ----------
    name
        Unique in its graph, such as ``layer.qkv``: a label, that nothing is read from.
    block
        Run of operators that is executed ``repeat`` times in sequence, such as ``layer``.
    repeat
        Executions of the block; the same for all of its operators, each execution having its own parameters.
    precision
        Format of the operands.
    place
        What it is for in its model, and what it belongs to there.
    """

    name: str
    block: str
    repeat: int = 1
    precision: DataType
    place: Place = NOWHERE

    kind: ClassVar[str] = ""
    _dimensions: ClassVar[tuple[str, ...]] = ()

    @property
    def role(self) -> Role:
        """What it does in its model."""
        return self.place.role

    @property
    def forward_block(self) -> str:
        """Its block, or the block of the forward pass whose gradients its block makes."""
        return self.place.forward_block or self.block

    @property
    def macs(self) -> int:
        """Multiply-accumulates of matrix work."""
        return 0

    @property
    def unmasked_macs(self) -> int:
        """As `macs`, had attention no mask."""
        return self.macs

    @property
    def flops(self) -> int:
        """Two per multiply-accumulate of matrix work; vector work counts none."""
        return 2 * self.macs

    @property
    def vector_elements(self) -> int:
        """Elements that pass through the vector unit."""
        return 0

    @property
    def parameters(self) -> int:
        """Parameter elements that this operator stores."""
        return 0

    @property
    def active_parameters(self) -> int:
        """Parameter elements that one token uses; fewer than `parameters` only in a mixture of experts."""
        return self.parameters

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored parameters of one execution; times ``repeat`` it is the operator's total."""
        return self.precision.size(self.parameters)

    @property
    def input_elements(self) -> int:
        """Elements of the operands that are not stored parameters."""
        raise NotImplementedError

    @property
    def output_elements(self) -> int:
        """Elements of the result."""
        raise NotImplementedError

    @property
    def input_bytes(self) -> int:
        """Bytes of the operands that are not stored parameters, each read once."""
        return self.precision.size(self.input_elements)

    @property
    def output_bytes(self) -> int:
        """Bytes of the result, written once."""
        return self.precision.size(self.output_elements)

    @property
    def shape(self) -> dict[str, Any]:
        """The dimensions that define the work, by field name."""
        return {name: getattr(self, name) for name in self._dimensions}


class Gemm(Operator, frozen=True, kw_only=True):
    """``batch`` independent products C[m,n] = A[m,k] B[k,n].

    Parameters
    ----------
    m, n, k
        Rows of the result, columns of the result, length of the sums.
    batch
        Independent products that are executed: heads, groups of a convolution, active experts.
    weight
        B is a stored parameter; otherwise it is an operand, and counts in `input_bytes`.
    bias
        A stored vector of n elements is added to each row.
    unbiased
        With ``bias``: columns whose bias is zero, and no parameter (the keys' columns among queries, keys and values).
    stored
        Stored matrices where that is more than are executed (all experts); ``None`` means ``batch``.
    chosen
        Stored matrices that one token uses (experts per token); ``None`` means ``batch``.
    packing
        How the stored matrices are packed; ``None`` where they have the format of the other operand.
    compression
        Bytes in memory of a byte of the stored matrices, where they are compressed without loss.
    sparsity
        Which weights of the stored matrices are kept, where the others are zeros; only these count as work.
    by_chance
        Of experts: which of them a token uses is drawn, and ``m`` what some of them get in a typical draw.
    short
        Of experts: how many of the products, the last ones, have a row less, as tokens do not divide.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    weight: bool = True
    bias: bool = False
    unbiased: int = 0
    stored: int | None = None
    chosen: int | None = None
    packing: Packing | None = None
    compression: float | None = None
    sparsity: Sparsity | None = None
    by_chance: bool = False
    short: int = 0

    kind: ClassVar[str] = "gemm"
    _dimensions: ClassVar[tuple[str, ...]] = ("m", "n", "k", "batch", "weight", "bias", "stored")

    @property
    def rows(self) -> int:
        """Rows of all products together."""
        return self.batch * self.m - self.short

    @property
    def shape(self) -> dict[str, Any]:
        return super().shape | ({"short": self.short} if self.short else {})

    @property
    def macs(self) -> int:
        return self.rows * self.n * self.kept_rows

    @property
    def kept_rows(self) -> int:
        """Weights of a column that are no zeros by a pattern."""
        return self.k if self.sparsity is None else int(self.sparsity.rows(self.k))

    @property
    def stored_as(self) -> Packing | None:
        """How the stored matrices lie, pattern of zeros and all; ``None`` where they are as the other operand."""
        if self.sparsity is None:
            return self.packing
        plain = self.packing or Packing(self.precision, 0)
        return plain._replace(sparsity=self.sparsity)

    @property
    def parameters(self) -> int:
        return self._matrix_elements(self.batch if self.stored is None else self.stored)

    @property
    def active_parameters(self) -> int:
        return self._matrix_elements(self.batch if self.chosen is None else self.chosen)

    @property
    def weight_bytes(self) -> int:
        """As of any operator; of packed matrices codes, and a scale for every column of a group."""
        if self.packing is None and self.compression is None and self.sparsity is None:
            return self.precision.size(self.parameters)
        matrices = self.stored or self.batch
        return matrices * (self.matrix_bytes + self.precision.size((self.n - self.unbiased) * self.bias))

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one B, at least: a chip's own layout may hold more of packed ones."""
        if self.compression is not None:
            return math.ceil(self.expanded_bytes * self.compression)
        return self.expanded_bytes

    @property
    def expanded_bytes(self) -> int:
        """Bytes of one B that is not compressed, or not any more."""
        stored = self.kept_rows * self.n
        where = 0 if self.sparsity is None else -(-self.sparsity.metadata_bits(self.k, self.n) // 8)
        if self.packing is None:
            return self.precision.size(stored) + where
        groups = -(-self.k // self.packing.group) if self.packing.group else 0
        return self.packing.dtype.size(stored) + groups * self.n * self.packing.scale_bits // 8 + where

    @property
    def input_elements(self) -> int:
        return self.rows * self.k + (0 if self.weight else self.batch * self.k * self.n)

    @property
    def output_elements(self) -> int:
        return self.rows * self.n

    def _matrix_elements(self, matrices: int) -> int:
        return matrices * (self.k * self.n * self.weight + (self.n - self.unbiased) * self.bias)


class Attention(Operator, frozen=True, kw_only=True):
    """softmax(Q K^T / sqrt(head_dim)) V, fused: the scores never leave the chip.

    Parameters
    ----------
    batch
        Sequences.
    heads, kv_heads
        Query heads, and key-value heads that they share evenly.
    q_len, kv_len
        Queries and keys per sequence. With ``causal`` the queries are the last ``q_len`` of the ``kv_len`` positions.
    head_dim, v_head_dim
        Width of a query or key, and of a value.
    causal
        A query sees the keys up to its own position.
    window
        A query sees the last ``window`` keys up to its own position. Without ``causal``, of as many queries as keys, it
        sees those that are nearer than that on either side.
    values_in_keys
        The values are the first ``v_head_dim`` columns of the keys (the latent of absorbed MLA), read once.
    room
        Positions that the cache has room for; ``kv_len`` where it says nothing.
    cached
        Format of the cache that keys and values are read from, where it is not ``precision``.
    remade
        Keys and values of earlier tokens are made in this step, too (from a latent), and lie in no cache.
    sinks
        Each head has a score beside those of keys, a parameter, that takes its part of the softmax.
    banked
        Keys and values lie in a memory that multiplies by them, and in no other.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    causal: bool
    window: int | None = None
    values_in_keys: bool = False
    room: int | None = None
    cached: CacheFormat | None = None
    remade: bool = False
    sinks: bool = False
    banked: bool = False

    kind: ClassVar[str] = "attention"
    _dimensions: ClassVar[tuple[str, ...]] = (
        "batch",
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "v_head_dim",
        "causal",
        "window",
        "values_in_keys",
    )

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.name}: {self.heads} heads cannot share {self.kv_heads} key-value heads evenly")
        if self.causal and self.q_len > self.kv_len:
            raise ValueError(f"{self.name}: causal attention of {self.q_len} queries needs as many keys")
        if self.window is not None and not self.causal and self.q_len != self.kv_len:
            raise ValueError(f"{self.name}: a window to both sides needs as many queries as keys")
        if self.room is not None and self.room < self.kv_len:
            raise ValueError(f"{self.name}: a cache of {self.room} positions has no room for {self.kv_len} keys")

    @property
    def parameters(self) -> int:
        return self.heads * self.sinks

    @property
    def past(self) -> int:
        """Earlier tokens of each sequence, whose keys and values lie in a cache."""
        return self.kv_len - self.q_len if self.causal and not self.remade else 0

    @property
    def follows(self) -> bool:
        """Whether several queries of each sequence follow earlier tokens: a chunk of a prompt, or of guessed tokens."""
        return self.causal and 1 < self.q_len < self.kv_len

    @property
    def positions(self) -> int:
        """Positions that the cache has room for."""
        return self.kv_len if self.room is None else self.room

    @property
    def pairs(self) -> int:
        """(query, key) pairs that the mask admits, per head and sequence: exact."""
        if not self.causal and self.window is None:
            return self.q_len * self.kv_len
        first = self.kv_len - self.q_len + 1  # keys that the first query sees before the window is applied
        limit = self.kv_len if self.window is None else min(self.window, self.kv_len)
        growing = max(0, min(self.kv_len, limit) - first + 1)  # queries that see fewer than or just `limit` keys
        found = growing * (2 * first + growing - 1) // 2 + (self.q_len - growing) * limit
        return found if self.causal else 2 * found - self.q_len  # as many behind as before, and each itself

    @property
    def macs(self) -> int:
        return self.batch * self.heads * self.pairs * (self.head_dim + self.v_head_dim)

    @property
    def unmasked_macs(self) -> int:
        return self.batch * self.heads * self.q_len * self.kv_len * (self.head_dim + self.v_head_dim)

    @property
    def vector_elements(self) -> int:
        """Scores that the softmax handles: the admitted pairs of all heads and sequences."""
        return self.batch * self.heads * self.pairs

    @property
    def kv_read(self) -> int:
        """Keys of a sequence that some query sees; fewer than ``kv_len`` only with a window."""
        return self.kv_len if self.window is None else min(self.kv_len, self.q_len + self.window - 1)

    @property
    def query_elements(self) -> int:
        """Elements of all queries."""
        return self.batch * self.q_len * self.heads * self.head_dim

    @property
    def kv_elements(self) -> int:
        """Elements of the keys and values that some query sees."""
        width = self.head_dim + (0 if self.values_in_keys else self.v_head_dim)
        return self.batch * self.kv_read * self.kv_heads * width

    @property
    def kept(self) -> DataType:
        """The format of keys and values."""
        return self.precision if self.cached is None else self.cached.dtype

    @property
    def kv_read_bytes(self) -> int:
        """Bytes of these keys and values that main memory has, each read once."""
        if self.banked:
            return 0
        return (self.precision if self.cached is None else self.cached).size(self.kv_elements)

    @property
    def input_elements(self) -> int:
        return self.query_elements + self.kv_elements

    @property
    def input_bytes(self) -> int:
        if self.cached is None and not self.banked:
            return super().input_bytes
        return self.precision.size(self.query_elements) + self.kv_read_bytes

    @property
    def output_elements(self) -> int:
        return self.batch * self.q_len * self.heads * self.v_head_dim


CHAINED = (VectorFunction.ADD, VectorFunction.MAXIMUM)
"""Functions of two operands that take more of them one by one."""


class Vector(Operator, frozen=True, kw_only=True):
    """Element-wise or row-wise work on a matrix of ``rows`` x ``cols``.

    Parameters
    ----------
    function
        What is computed; row functions reduce over ``cols``.
    rows, cols
        Shape of the result.
    inputs, outputs
        Operands of that shape that are read, and results of that shape that are written.
    weights
        Parameter elements used: gamma and beta of a norm, the table of a gather.
    tied
        Name of the operator that stores those parameters, when it is another one.
    chosen
        Elements that a top-k takes of each row.
    epsilon
        What a norm adds to the mean square of a row. Circuits in integers have none.
    cached
        Of an append to the cache: its format, where it is not ``precision``.
    first, padding
        Of a gather by positions: the row of its table that a sequence begins with; a token that has no position, but
        the row before that one, where there is such a token.
    banked
        Of an append of keys: they go to a channel that computes, as they are.
    """

    function: VectorFunction
    rows: int
    cols: int
    inputs: int = 1
    outputs: int = 1
    weights: int = 0
    tied: str | None = None
    chosen: int = 1
    epsilon: float = 0.0
    first: int = 0
    padding: int | None = None
    cached: CacheFormat | None = None
    banked: bool = False

    kind: ClassVar[str] = "vector"
    _dimensions: ClassVar[tuple[str, ...]] = (
        "function",
        "rows",
        "cols",
        "inputs",
        "outputs",
        "weights",
        "tied",
        "chosen",
    )

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the result, as it is kept."""
        return (self.precision if self.cached is None else self.cached).size(self.cols)

    @property
    def output_bytes(self) -> int:
        if self.banked:
            return 0
        return super().output_bytes if self.cached is None else self.outputs * self.rows * self.row_bytes

    @property
    def passes(self) -> int:
        """How often the vector unit begins its function: what is `CHAINED` takes two operands, then one by one."""
        return max(self.inputs - 1, 1) if self.function in CHAINED else 1

    @property
    def counted(self) -> int:
        """What the work on each element grows with: elements that a top-k takes, operands of a weighted sum."""
        return self.inputs if self.function == VectorFunction.COMBINE else self.chosen

    @property
    def vector_elements(self) -> int:
        return self.rows * self.cols

    @property
    def parameters(self) -> int:
        return 0 if self.tied else self.weights

    @property
    def input_elements(self) -> int:
        return self.inputs * self.rows * self.cols

    @property
    def output_elements(self) -> int:
        return self.outputs * self.rows * self.function.spec.result_cols(self.cols)
