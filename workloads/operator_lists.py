"""Workloads written as lists of operators of any kind: functions of rows and elements, pooling, products, convolutions.

An entry stands alone, or reads results of entries before it (``reads``); entries of one ``block`` are executed together
``repeat`` times. Sizes are those of one image, or of one of whatever ``batch`` counts.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import Description, Document
from siliconloom.arch.vector import COLUMN_LIMIT, INPUT_LIMIT, VectorFunction
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.fields import DEFAULT_PRECISION, Count, OperandFormat, Title
from siliconloom.workloads.graph import Graph, Phase
from siliconloom.workloads.lists import ConvolutionEntry, Name, Pair, Repeat, Size, refuse_twins, window_places
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector

FUNCTIONS = {
    "softmax": VectorFunction.TOP_K,
    "layer_norm": VectorFunction.LAYER_NORM,
    "rms_norm": VectorFunction.RMS_NORM,
    "row_sum": VectorFunction.ROW_SUM,
    "row_max": VectorFunction.ROW_MAX,
    "add": VectorFunction.ADD,
    "multiply": VectorFunction.MULTIPLY,
    "maximum": VectorFunction.MAXIMUM,
    "gelu": VectorFunction.GELU,
    "silu": VectorFunction.SILU,
    "relu": VectorFunction.RELU,
    "tanh": VectorFunction.TANH,
    "gated_gelu": VectorFunction.GATED_GELU,
    "gated_silu": VectorFunction.GATED_SILU,
    "copy": VectorFunction.COPY,
}
"""What a vector entry of each kind computes.

A softmax of rows in memory is that of the k largest of each row (``top_k``) with k all of them; the function of that
name takes sums of a product from the accumulator."""
PAIRS = ("add", "multiply", "maximum", "gated_gelu", "gated_silu")
"""Kinds of two operands."""
VECTORS = {"layer_norm": 2, "rms_norm": 1}
"""Vectors of parameters, as wide as a row."""
EPSILON = 1e-5
"""What norms add to the mean square of a row."""


class ListedOperator(Description):
    """What every entry has.

    ``reads`` are the entries before it whose results are its operands, in order; without it the operands are data of
    its own. ``block`` joins entries that follow one another, all executed ``repeat`` times one after the other.
    """

    name: Name
    repeat: Repeat = 1
    block: Name | None = None
    reads: tuple[Name, ...] = ()
    precision: OperandFormat | None = None


class VectorEntry(ListedOperator):
    """A function of a matrix of ``rows`` x ``cols``: of its elements, or of whole rows."""

    kind: Literal[
        "softmax",
        "layer_norm",
        "rms_norm",
        "row_sum",
        "row_max",
        "add",
        "multiply",
        "maximum",
        "gelu",
        "silu",
        "relu",
        "tanh",
        "gated_gelu",
        "gated_silu",
        "copy",
    ]
    rows: Size
    cols: Size

    @model_validator(mode="after")
    def _check(self) -> VectorEntry:
        if vector_by_row(self.kind) and self.cols > COLUMN_LIMIT:
            raise ValueError(f"cols of {self.kind} are at most {COLUMN_LIMIT} (got {self.cols})")
        return self


class PoolEntry(ListedOperator):
    """The largest value, or the mean, of every window of ``kernel`` of an image of each of ``channels``.

    Rows of the result are places of windows and its columns are channels, as those of a convolution. A mean counts the
    padding, as zeros.
    """

    kind: Literal["max_pool", "average_pool"]
    channels: Size
    height: Size
    width: Size
    kernel: Pair
    stride: Pair = 1
    padding: Annotated[int, Field(ge=0, le=2**16, strict=True)] = 0

    @property
    def area(self) -> int:
        """Values of a window."""
        return self.kernel**2 if isinstance(self.kernel, int) else prod(self.kernel)

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        return window_places((self.height, self.width), self.kernel, self.stride, self.padding, 1)

    @model_validator(mode="after")
    def _check(self) -> PoolEntry:
        if min(self.output_size) < 1:
            raise ValueError("the kernel is larger than the padded image")
        least = self.kernel if isinstance(self.kernel, int) else min(self.kernel)
        if 2 * self.padding > least:
            raise ValueError(
                f"padding is at most half of the kernel, {least} (got {self.padding}): some windows have no value"
            )
        if self.area > INPUT_LIMIT:
            raise ValueError(f"a window has at most {INPUT_LIMIT} values (got {self.area})")
        return self


class ProductEntry(ListedOperator):
    """C[m,n] = A[m,k] B[k,n]; B and ``bias`` are stored parameters."""

    kind: Literal["gemm"]
    m: Size
    n: Size
    k: Size
    bias: bool = False


class AttentionEntry(ListedOperator):
    """softmax(Q K^T) V of ``heads`` heads, of which some share keys and values where there are fewer ``kv_heads``."""

    kind: Literal["attention"]
    heads: Size
    kv_heads: Size | None = None
    queries: Size
    keys: Size | None = None
    head_dim: Size
    causal: bool = False

    @property
    def shared(self) -> tuple[int, int]:
        """Key-value heads, and keys of each: as many as heads and queries where nothing is said."""
        return self.kv_heads or self.heads, self.keys or self.queries

    @model_validator(mode="after")
    def _check(self) -> AttentionEntry:
        kv_heads, keys = self.shared
        if self.heads % kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {kv_heads} key-value heads evenly")
        if self.causal and keys < self.queries:
            raise ValueError(f"keys of causal attention are as many as its {self.queries} queries (got {keys})")
        return self


class ImageEntry(ConvolutionEntry, ListedOperator):
    """A convolution, as in a list of them; lowered to a product by im2col."""

    kind: Literal["convolution"]


Item = Annotated[VectorEntry | PoolEntry | ProductEntry | AttentionEntry | ImageEntry, Field(discriminator="kind")]


class OperatorList(Description):
    """Operators that run in the order written, ``batch`` times as many rows of each."""

    kind: Literal["operators"]
    name: Title | None = None
    description: str = ""
    source: str = ""
    precision: OperandFormat | None = None
    batch: Count = 1
    operators: tuple[Item, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> OperatorList:
        refuse_twins(item.name for item in self.operators)
        ended: set[str] = set()
        before: Item | None = None
        for item in self.operators:
            if before is None or _block(item) != _block(before):
                if _block(item) in ended:
                    raise ValueError(f"block '{_block(item)}' of '{item.name}' has ended: its entries stand together")
                ended.add(_block(item))
            elif item.repeat != before.repeat:
                raise ValueError(f"'{item.name}' must have repeat {before.repeat}, as all of block '{item.block}'")
            before = item
        return self


def operator_graph(document: Document, name: str) -> Graph:
    """Graph of a document of kind ``operators``: edges where entries read others, a token for each of ``batch``."""
    entries = document.validate(OperatorList)
    default, dataflow = entries.precision or DEFAULT_PRECISION, Dataflow()
    stated = [item.precision for item in entries.operators]
    for index, item in enumerate(entries.operators):
        common = {"name": item.name, "block": _block(item), "repeat": item.repeat}
        made = _made(item, entries.batch, precision=item.precision or default, **common)
        taken = _taken(item, entries.batch)
        if item.reads and len(item.reads) != len(taken):
            what = f"{item.kind} has {len(taken)} operand{'s' * (len(taken) > 1)}"
            raise document.error(f"must name {len(taken)}: {what}", ("operators", index, "reads"))
        for maker, elements in zip(item.reads, taken, strict=False):
            if maker not in dataflow:
                rule = f"'{maker}' is no entry before '{item.name}'"
                raise document.error(rule, ("operators", index, "reads"))
            found = dataflow[maker].output_elements
            if found != elements:
                rule = f"'{maker}' makes {found} elements and '{item.name}' takes {elements}"
                raise document.error(rule, ("operators", index, "reads"))
        dataflow.add(made)
        for maker, elements in zip(item.reads, taken, strict=False):
            dataflow.connect(maker, made.name, elements)
    return Graph(
        name=entries.name or name,
        phase=Phase.PREFILL,
        precision=default,
        explicit_precision=any(each is not None for each in (entries.precision, *stated)),
        batch=entries.batch,
        tokens=entries.batch,
        images=entries.batch * any(isinstance(item, PoolEntry | ImageEntry) for item in entries.operators),
        dataflow=dataflow,
    )


def vector_by_row(kind: str) -> bool:
    """Whether entries of a kind reduce over rows."""
    return FUNCTIONS[kind].spec.cost.by_row


def _block(item: Item) -> str:
    return item.block or item.name


def _taken(item: Item, batch: int) -> list[int]:
    """Elements of each operand that is no parameter, as another entry makes them: an image's stand once."""
    if isinstance(item, VectorEntry):
        return [batch * item.rows * item.cols] * (2 if item.kind in PAIRS else 1)
    if isinstance(item, ProductEntry):
        return [batch * item.m * item.k]
    if isinstance(item, AttentionEntry):
        kv_heads, keys = item.shared
        cached = batch * kv_heads * keys * item.head_dim
        return [batch * item.heads * item.queries * item.head_dim, cached, cached]
    channels = item.channels if isinstance(item, PoolEntry) else item.in_channels
    return [batch * channels * item.height * item.width]


def _made(item: Item, batch: int, **common: Any) -> Operator:
    """The operator of an entry.

    A window's values are as many operands, each of them a matrix with a row to a window: overlapping ones are read as
    often as they lie in windows, as a convolution's are. The largest is a chain of maxima; the mean a weighted sum.
    """
    if isinstance(item, VectorEntry):
        return Vector(
            function=FUNCTIONS[item.kind],
            rows=batch * item.rows,
            cols=item.cols,
            inputs=2 if item.kind in PAIRS else 1,
            weights=VECTORS.get(item.kind, 0) * item.cols,
            epsilon=EPSILON if item.kind in VECTORS else 0.0,
            chosen=item.cols if item.kind == "softmax" else 1,
            **common,
        )
    if isinstance(item, ProductEntry):
        return Gemm(m=batch * item.m, n=item.n, k=item.k, bias=item.bias, **common)
    if isinstance(item, AttentionEntry):
        kv_heads, keys = item.shared
        return Attention(
            batch=batch,
            heads=item.heads,
            kv_heads=kv_heads,
            q_len=item.queries,
            kv_len=keys,
            head_dim=item.head_dim,
            v_head_dim=item.head_dim,
            causal=item.causal,
            **common,
        )
    if isinstance(item, PoolEntry):
        function = VectorFunction.MAXIMUM if item.kind == "max_pool" else VectorFunction.COMBINE
        rows = batch * prod(item.output_size)
        return Vector(function=function, rows=rows, cols=item.channels, inputs=item.area, **common)
    return item.product(batch, **common)


__all__ = ["OperatorList", "operator_graph"]
