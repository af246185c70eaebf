"""Which earlier result every operand of an operator is, and which of its columns: what flows, read off the graph.

Nothing here knows of tiles or addresses. A result is a matrix with a row to a token; its columns follow from what its
maker is. Where no such matrix holds an operand as its reader takes it, there is a reason instead: such work is timed
with an operand of its own, and its values are not the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import CACHE_SCALED, DataType, Packing
from siliconloom.arch.layout import line_values
from siliconloom.arch.scaled import group_rows, keeps_scales
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.epilogue import GATED
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.roles import ASIDE, Role, Section


class Operand(Struct, frozen=True):
    """Columns of an earlier result.

    Parameters
    ----------
    maker
        Operator whose result it is.
    column
        First of its columns that is read.
    held
        All of them: what lies from row to row.
    row, step
        First row that is read, and rows from one to the next.
    """

    maker: str
    column: int
    held: int
    row: int = 0
    step: int = 1


Found = Operand | str
"""An operand, or why there is none."""


def key_block(array: SystolicArray, attention: Attention) -> int:
    """Positions of a block of keys: as many as the array has columns, of fewer than half of them one that is narrow.

    Blocks of keys in a format of their own are whole ones, as all that is made to operands at the array's edge.
    """
    return line_values(attention.positions, array.cols, narrow=int(attention.cached is None))


def packing_of(attention: Attention, *, keys: bool) -> Packing | None:
    """How keys, or values, enter the array, where they are kept in a format of fewer bits than elements."""
    if attention.cached is None:
        return None
    dtype = attention.cached.dtype
    return Packing(dtype, 0, by_rows=dtype in CACHE_SCALED and not keys)


class Cached(Struct, frozen=True):
    """What goes into a cache: the keys of an attention operator, or its values."""

    attention: Attention
    keys: bool
    step: int = 1

    @property
    def owner(self) -> Attention:
        """Operator that reads it."""
        return self.attention

    @property
    def role(self) -> str:
        """What it is to that operator."""
        return "keys" if self.keys else "values"

    @property
    def kept(self) -> DataType:
        """The format that it is kept in."""
        return self.attention.kept

    @property
    def packing(self) -> Packing | None:
        """That, where it has fewer bits than elements."""
        return packing_of(self.attention, keys=self.keys)

    @property
    def scaled(self) -> bool:
        """Whether it has scales."""
        return keeps_scales(self.packing)

    @property
    def result_bits(self) -> int:
        """Bits of local memory to a result, with its scale where it has one."""
        if self.packing is None or not self.scaled:
            return self.kept.bits
        return 8 if self.packing.dtype is DataType.INT4 else 16  # pairs of keys in int4 are one result of 16

    @property
    def units(self) -> int:
        """How many there are: every execution has its own."""
        return self.attention.repeat

    @property
    def transposed(self) -> bool:
        """Whether it lies in blocks of positions, transposed."""
        return self.keys

    def run(self, array: SystolicArray) -> int:
        """Positions that lie together, behind scales or transposed; one where each lies by itself."""
        if self.keys:
            return self.block(array)
        return group_rows(array) if self.scaled else 1

    @property
    def sequences(self) -> int:
        """Sequences, each of which has positions of its own."""
        return self.attention.batch

    @property
    def heads(self) -> int:
        """Heads of a sequence."""
        return self.attention.kv_heads

    @property
    def past(self) -> int:
        """Positions of a sequence that are there already."""
        return self.attention.past

    @property
    def tokens(self) -> int:
        """Positions of a sequence that are new."""
        return self.attention.kv_len - self.attention.past

    @property
    def width(self) -> int:
        """Columns of a head."""
        return self.attention.head_dim if self.keys else self.attention.v_head_dim

    def block(self, array: SystolicArray) -> int:
        """Positions of a block, or columns of a panel."""
        return key_block(array, self.attention) if self.keys else array.cols

    def found(self, graph: Graph) -> Found:
        """What it is made of."""
        return attended(graph, self.attention)[1 if self.keys else 2]

    def of(self, **changes: Any) -> Cached:
        """The same of an operator that differs in something."""
        return replace(self, attention=replace(self.attention, **changes))


class Turned(Struct, frozen=True):
    """What rows of a product's first operand are transposed into, for an array that takes it column by column.

    Parameters
    ----------
    product
        Operator that reads it.
    common
        Whether all products of its batch read the same rows.
    step
        Rows from one that is read to the next.
    rows
        Of a block; as many as the array has where it is zero.
    """

    product: Gemm
    common: bool = False
    step: int = 1
    rows: int = 0

    role = "input"
    units = heads = 1
    past = 0
    transposed = True
    scaled = False
    packing = None

    @property
    def owner(self) -> Gemm:
        """Operator that reads it."""
        return self.product

    @property
    def kept(self) -> DataType:
        """The format of elements."""
        return self.product.precision

    @property
    def sequences(self) -> int:
        """Products, each of which has rows of its own."""
        return 1 if self.common else self.product.batch

    @property
    def tokens(self) -> int:
        """Rows of a product."""
        return self.product.m

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.product.k

    def block(self, array: SystolicArray) -> int:
        """Rows of a block."""
        return self.rows or array.rows

    run = block

    @property
    def result_bits(self) -> int:
        """Bits of local memory to a result."""
        return self.kept.bits

    def found(self, graph: Graph) -> Found:
        """What it is made of."""
        return operands(graph, self.product)[0]

    def of(self, **changes: Any) -> Turned:
        """The same of an operator that differs in something."""
        return replace(self, product=replace(self.product, **changes))


def columns(operator: Operator) -> int:
    """Columns of an operator's result; what experts make has a row to a token of each of them."""
    if isinstance(operator, Gemm):
        return operator.n if operator.stored is not None else operator.batch * operator.n
    if isinstance(operator, Attention):
        return operator.heads * operator.v_head_dim
    assert isinstance(operator, Vector)
    return operator.cols


def rows(operator: Operator) -> int:
    """Rows of an operator's result."""
    if isinstance(operator, Gemm):
        return operator.m if operator.stored is None else operator.batch * operator.m
    if isinstance(operator, Attention):
        return operator.batch * operator.q_len
    assert isinstance(operator, Vector)
    return operator.rows


def operands(graph: Graph, operator: Operator) -> tuple[Found, ...]:
    """Operands of an operator that the graph has, but for what it keeps: those of a product, a sum, a function."""
    flow = graph.dataflow
    makers = flow.predecessors(operator.name) if operator.name in flow else []
    if isinstance(operator, Attention):
        return (attended(graph, operator)[0],)
    if isinstance(operator, Gemm):
        return tuple(_of_product(graph, operator, flow[name]) for name in makers[:1])
    assert isinstance(operator, Vector)
    count = operator.inputs
    if operator.role is Role.SCORE_BIAS:
        return (NO_BIAS,) * count
    if operator.role is Role.NONE and count > 1 and len(makers) == 1:
        same = rows(flow[makers[0]]) == operator.rows and columns(flow[makers[0]]) == operator.cols
        return (
            "no layout for a result that is several operands" if same else "no layout for windows of an image",
        ) * count
    if operator.function is VectorFunction.COMBINE and makers:
        return _of_experts(graph, operator)
    if len(makers) == count:
        return tuple(_whole(operator, flow[name]) for name in makers)
    if len(makers) == 1 and operator.function in GATED and columns(flow[makers[0]]) == count * operator.cols:
        held = columns(flow[makers[0]])
        return tuple(Operand(makers[0], number * operator.cols, held) for number in range(count))
    return ("no layout for operands that several operators have made",) * count if makers else ()


NO_BIAS = "no circuit adds a bias of its distance to a score"
"""Why the sum of scores and biases reads neither: scores never leave the tile, and only an operator beside adds."""

UNEVEN = "no layout for requests of unequal lengths"
"""Why attention of some of a step's sequences, and what reads it, takes no rows of what all of them have made."""

ROUTED = "routing depends on data"
"""Why there is no layout for what experts read and make, where a token does not go to every expert."""


def takes_all(graph: Graph, operator: Operator) -> bool:
    """Whether an expert's product takes every token: each expert that is stored is chosen for it.

    Then its rows are known beforehand: those of its operand as they are, or those of its own expert.
    """
    if not isinstance(operator, Gemm) or not operator.stored == operator.chosen == operator.batch:
        return False
    makers = graph.dataflow.predecessors(operator.name) if operator.name in graph.dataflow else []
    return len(makers) == 1 and rows(graph.dataflow[makers[0]]) in (operator.m, operator.batch * operator.m)


def expert_weights(graph: Graph, operator: Vector) -> Found | None:
    """Weights of a weighted sum, a row to a token and a column to an expert."""
    flow = graph.dataflow
    makers = [flow[name] for name in flow.predecessors(operator.name)] if operator.name in flow else []
    chances = [each for each in makers if isinstance(each, Vector) and each.function is VectorFunction.TOP_K]
    if not makers or operator.role is Role.NONE:  # of a mean all weights are alike
        return None
    if len(chances) != 1 or chances[0].cols != operator.inputs:
        return ROUTED
    return _same_format(operator, chances[0]) or Operand(chances[0].name, 0, chances[0].cols)


def _of_experts(graph: Graph, operator: Vector) -> tuple[Found, ...]:
    """What each expert made of every token; its rows follow those of the expert before."""
    flow, count = graph.dataflow, operator.inputs
    makers = [flow[name] for name in flow.predecessors(operator.name)]
    experts = [each for each in makers if isinstance(each, Gemm)]
    if not experts or not all(takes_all(graph, each) for each in experts):
        return (ROUTED,) * count
    made = experts[0]
    if len(experts) > 1 or not isinstance(made, Gemm) or made.batch != count or made.m != operator.rows:
        return ("no layout for an expert that all tokens share",) * count
    return tuple(Operand(made.name, 0, made.n, row=number * made.m) for number in range(count))


def residual(graph: Graph, chain: tuple[Operator, ...]) -> Found:
    """What the sum among operators that are computed together adds to their own results."""
    names = {each.name for each in chain}
    for each in chain:
        if isinstance(each, Vector) and each.function is VectorFunction.ADD:
            others = [name for name in graph.dataflow.predecessors(each.name) if name not in names]
            if len(others) == 1:
                return _whole(each, graph.dataflow[others[0]])
    return "no layout for sums of more than two results"


def attended(graph: Graph, attention: Attention) -> tuple[Found, Found, Found]:
    """Queries, new keys and new values of an attention operator, whoever appends those to a cache."""
    flow = graph.dataflow
    makers = flow.predecessors(attention.name) if attention.name in flow else []
    caches = [name for name in makers if is_append(flow[name])]
    others = [name for name in makers if name not in caches and flow[name].role is not Role.SCORE_BIAS]
    news = flow.predecessors(caches[0]) if caches else others
    others, news = (sorted(names, key=lambda name: columns(flow[name])) for names in (others, news))  # rope, then qkv
    if attention.values_in_keys:
        return ("no layout for a latent cache",) * 3
    if not others or not news:
        return ("no layout for attention whose operands come from outside",) * 3
    if graph.requests:
        return (UNEVEN,) * 3
    if attention.role is Role.CROSS_ATTENTION:
        return _attended_across(attention, flow[others[0]], flow[news[0]] if caches else None)
    queries = attention.heads * attention.head_dim
    keys = queries + attention.kv_heads * attention.head_dim
    values = keys + attention.kv_heads * attention.v_head_dim
    tokens = attention.batch * attention.q_len

    def found(name: str, first: int, end: int) -> Found:
        maker = flow[name]
        held = columns(maker)
        if rows(maker) != tokens or held not in (queries, keys, values) or end > held:
            return "no layout for queries and keys that are normalised, or turned in part"
        return _same_format(attention, maker) or Operand(name, first, held)

    return found(others[0], 0, queries), found(news[0], queries, keys), found(news[-1], keys, values)


def _attended_across(attention: Attention, asks: Operator, made: Operator | None) -> tuple[Found, Found, Found]:
    """Those of cross-attention: queries are a product, keys and values another one, of the encoder's result.

    Where nothing has ``made`` the latter they lie in their cache, and those that are found stand for none.
    """
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    both = keys + attention.kv_heads * attention.v_head_dim

    def found(maker: Operator, first: int, tokens: int, held: int) -> Found:
        if (rows(maker), columns(maker)) != (tokens, held):
            return "no layout for queries and keys that are normalised, or turned in part"
        return _same_format(attention, maker) or Operand(maker.name, first, held)

    asked = found(asks, 0, attention.batch * attention.q_len, queries)
    if made is None:
        return (asked,) * 3
    source = attention.batch * attention.kv_len
    return asked, found(made, 0, source, both), found(made, keys, source, both)


def in_its_cache(graph: Graph, attention: Attention) -> bool:
    """Whether all keys and values lie in their cache already: those of cross-attention, after the prompt."""
    return attention.role is Role.CROSS_ATTENTION and not any(map(is_append, _makers(graph, attention)))


def has_biases(graph: Graph, attention: Attention) -> bool:
    """Whether a bias is added to every score of an attention operator."""
    return any(maker.role is Role.SCORE_BIAS for maker in _makers(graph, attention))


def _makers(graph: Graph, operator: Operator) -> list[Operator]:
    """Operators whose results one uses; none of one that is by itself."""
    flow = graph.dataflow
    return [flow[name] for name in flow.predecessors(operator.name)] if operator.name in flow else []


def is_append(operator: Operator) -> bool:
    """Whether an operator appends to a cache."""
    return isinstance(operator, Vector) and operator.function is VectorFunction.KV_APPEND


@lru_cache(maxsize=64)
def updated(graph: Graph) -> Mapping[str, str]:
    """Operators whose result takes the place of an earlier one: the last of a block that is executed again and again.

    What a block makes is its own next operand, so both are one object. It is no more read where it is overwritten: the
    last operator reads it element by element, or not at all.
    """
    found: dict[str, str] = {}
    flow = graph.dataflow
    for _, repeat, members in graph.blocks():
        names, last = {each.name for each in members}, members[-1]
        moving = (each.name for each in members if each.role not in ASIDE)
        before = {name for each in moving for name in flow.predecessors(each) if name not in names}
        if repeat > 1 and len(before) == 1 and not isinstance(last, Attention):
            maker = flow[before.pop()]
            same = (rows(maker), columns(maker), maker.precision) == (rows(last), columns(last), last.precision)
            if same and not isinstance(maker, Attention):
                found[last.name] = found.get(maker.name, maker.name)
    return found


def _whole(reader: Vector, maker: Operator) -> Found:
    """All columns of a result, or the first of them."""
    held = columns(maker)
    wide = reader.function is VectorFunction.ROPE and held >= reader.cols  # values follow queries and keys
    if rows(maker) == reader.rows and held > reader.cols and not wide:
        return "no layout for some of a result's columns"
    if rows(maker) != reader.rows or not (wide or held == reader.cols):
        return "no layout for a result that is read in other rows than it was made in"
    return _same_format(reader, maker) or Operand(maker.name, 0, held)


def _of_product(graph: Graph, reader: Gemm, maker: Operator) -> Found:
    """The moving operand: every row, or of each sequence the last one; the first one where a pooler takes it."""
    made = rows(maker)
    if graph.requests and isinstance(maker, Attention):
        return UNEVEN
    if reader.stored is not None:
        if not takes_all(graph, reader):
            return ROUTED
        return _same_format(reader, maker) or Operand(maker.name, 0, reader.k)
    if not reader.weight or reader.batch > 1:
        return "no layout for products of heads"
    if reader.role is Role.NONE and columns(maker) < reader.k:
        return "no layout for windows of an image"
    if made == reader.m and columns(maker) > reader.k and not is_append(maker):
        return "no layout for some of a result's columns"
    if columns(maker) != reader.k or made % reader.m or is_append(maker):
        return "no layout for a result that is read in other rows than it was made in"
    step = made // reader.m
    if step > 1 and graph.requests:
        return UNEVEN  # of each the last row
    if reader.role is Role.NONE and step > 1:
        return "no layout for windows of an image"
    row = 0 if reader.place.section is Section.POOLER else step - 1
    return _same_format(reader, maker) or Operand(maker.name, 0, reader.k, row, step)


def _same_format(reader: Operator, maker: Operator) -> str | None:
    if reader.precision is not maker.precision:
        return f"no layout for a result in {maker.precision.value} that is read in {reader.precision.value}"
    return None


__all__ = [
    "NO_BIAS",
    "ROUTED",
    "Cached",
    "Found",
    "Operand",
    "Turned",
    "attended",
    "columns",
    "expert_weights",
    "has_biases",
    "in_its_cache",
    "is_append",
    "key_block",
    "operands",
    "packing_of",
    "residual",
    "rows",
    "takes_all",
    "updated",
]
