"""The part of a workload that one chip of a system computes: tensor parallelism, and a share of the sequences.

Tensor parallelism is Megatron's (Shoeybi et al., arXiv:1909.08053, section 3): what makes queries, keys and values
and what widens the feed-forward network are cut by columns, what follows attention and what narrows it again by
rows, with a sum over the chips after each of those two; norms and residual sums are repeated on every chip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import networkx

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.graph import connect

BY_COLUMNS = frozenset({"qkv", "up", "gate_up", "head"})
"""Last part of the names of products whose result is cut."""
BY_ROWS = frozenset({"output", "down"})
"""Last part of the names of products whose sum is cut; an all-reduce follows."""
CUT = frozenset({
    VectorFunction.KV_APPEND, VectorFunction.ROPE, VectorFunction.RELU, VectorFunction.GELU, VectorFunction.SILU,
    VectorFunction.GATED_GELU, VectorFunction.GATED_SILU,
})  # fmt: skip
"""Functions whose columns are cut with the product before them."""


def tensor_shard(graph: Graph, tensor: int) -> Graph:
    """The part of one of ``tensor`` chips; the others' are alike.

    Raises
    ------
    LoomError
        When heads or widths cannot be shared evenly.
    NotSupported
        For operators that have no place in the scheme above.
    """
    return graph if tensor == 1 else _changed(graph, lambda o: _cut(graph.name, o, tensor))


def reduced_elements(graph: Graph) -> dict[str, int]:
    """Elements that are summed over the chips after each operator of `BY_ROWS`, one execution each."""
    return {o.name: o.output_elements for o in graph.operators() if isinstance(o, Gemm) and _last(o) in BY_ROWS}


def sequences_of(graph: Graph, batch: int) -> Graph:
    """A decode step of ``batch`` of the graph's sequences; raises `NotSupported` where work is not per sequence."""

    def part(size: int) -> int:
        return -(-size * batch // graph.batch)

    def change(operator: Operator) -> Operator:
        if isinstance(operator, Gemm):
            if operator.batch > 1:
                raise NotSupported(f"a part of the batch through {operator.name}, which has several products")
            return replace(operator, m=part(operator.m))
        if isinstance(operator, Attention):
            return replace(operator, batch=part(operator.batch))
        assert isinstance(operator, Vector)
        return replace(operator, rows=part(operator.rows))

    if batch == graph.batch:
        return graph
    return replace(_changed(graph, change), batch=batch, tokens=part(graph.tokens))


def without(graph: Graph, leave: Callable[[Operator], bool]) -> Graph:
    """The graph without some operators; what used their results reads them from memory."""
    return _changed(graph, lambda o: None if leave(o) else o)


def with_context(graph: Graph, context: int) -> Graph:
    """A decode step whose sequences attend to ``context`` tokens."""
    return _changed(graph, lambda o: replace(o, kv_len=context) if isinstance(o, Attention) else o)


def _changed(graph: Graph, change: Callable[[Operator], Operator | None]) -> Graph:
    digraph = networkx.DiGraph()
    for operator in graph.operators():
        made = change(operator)
        if made is not None:
            digraph.add_node(operator.name, operator=made)
    for source, target, elements in graph.digraph.edges(data="elements"):
        if source in digraph and target in digraph:
            before, after = graph.digraph.nodes[source]["operator"], digraph.nodes[source]["operator"]
            connect(digraph, source, target, -(-elements * after.output_elements // (before.output_elements or 1)))
    return replace(graph, digraph=digraph)


def _last(operator: Operator) -> str:
    return operator.name.rpartition(".")[2]


def _cut(model: str, operator: Operator, tensor: int) -> Operator:
    def share(size: int, what: str) -> int:
        if size % tensor:
            raise LoomError(f"{model}: {operator.name}: {tensor} chips cannot share {size} {what} evenly (policy.tensor)")
        return size // tensor

    if isinstance(operator, Gemm) and operator.batch == 1 and operator.stored is None:
        if _last(operator) == "head":
            return replace(operator, n=-(-operator.n // tensor))
        if _last(operator) in BY_COLUMNS:
            return replace(operator, n=share(operator.n, "columns"))
        if _last(operator) in BY_ROWS:
            return replace(operator, k=share(operator.k, "rows"))
    elif isinstance(operator, Attention):
        return replace(
            operator,
            heads=share(operator.heads, "heads"),
            kv_heads=share(operator.kv_heads, "key-value heads"),
        )
    elif isinstance(operator, Vector):
        if operator.function in CUT:
            return replace(operator, cols=share(operator.cols, "columns"))
        if _last(operator).endswith(("_norm", "_add")) and _last(operator) not in ("q_norm", "k_norm"):
            return operator
        if operator.block in ("embedding", "head"):
            return operator
        if _last(operator) in ("q_norm", "k_norm"):
            return replace(operator, rows=share(operator.rows, "rows"))
    raise NotSupported(f"tensor parallelism of {operator.name} ({operator.kind}) in {model}")
