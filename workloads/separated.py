"""Attention as operators of their own, for machines that do not fuse it: scores, their softmax, and a product.

Every one of them reads its operands from memory and leaves its result there, so that scores go through memory as often
as they are written and read. All pairs of a query and a key are computed, whether a mask hides them or not. A latent
cache is read for both products.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.vector import COLUMN_LIMIT, VectorFunction
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.graph import Graph
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector


def separated(graph: Graph) -> Graph:
    """The same graph with three operators in place of each attention: ``.scores``, ``.softmax`` and ``.context``.

    Raises
    ------
    NotSupported
        For keys and values that are kept in a format of their own, and more keys than a softmax has columns.
    """
    if not any(isinstance(operator, Attention) for operator in graph.operators()):
        return graph
    if formats := graph.cache_formats:
        raise NotSupported(
            f"attention as operators of their own (attention: separate) with keys and values in {formats[0]}"
        )
    dataflow, ends = Dataflow(), dict[str, str]()
    for operator in graph.operators():
        parts: Sequence[Operator] = _parts(operator) if isinstance(operator, Attention) else [operator]
        ends[operator.name] = parts[-1].name
        for part in parts:
            dataflow.add(part)
    for operator in graph.operators():
        inputs = graph.dataflow.inputs(operator.name)
        if not isinstance(operator, Attention):
            for maker, elements in inputs:
                dataflow.connect(ends[maker], operator.name, elements)
            continue
        scores, softmax, context = _parts(operator)
        left = scores.input_elements  # of queries and keys, which come first; values are what is left
        for maker, elements in inputs:
            taken = min(left, elements)
            left -= taken
            for reader, count in ((scores, taken), (context, elements - taken)):
                if count:
                    dataflow.connect(ends[maker], reader.name, count)
        if inputs or graph.dataflow.successors(operator.name):
            dataflow.connect(scores.name, softmax.name, scores.output_elements)
            dataflow.connect(softmax.name, context.name, scores.output_elements)
    return replace(graph, dataflow=dataflow)


def _parts(attention: Attention) -> list[Gemm | Vector]:
    """The operators that compute one attention, in order."""
    reason = (
        f"keys and values kept in {attention.cached.dtype.value}"
        if attention.cached is not None
        else f"more than {COLUMN_LIMIT} keys"
        if attention.kv_len > COLUMN_LIMIT
        else None
    )
    if reason:
        raise NotSupported(f"{attention.name} as operators of their own (attention: separate) with {reason}")
    products, rows = attention.batch * attention.kv_heads, attention.heads // attention.kv_heads * attention.q_len
    keys = attention.kv_len
    return [
        _product(attention, "scores", products, rows, keys, attention.head_dim),
        Vector(
            name=f"{attention.name}.softmax",
            function=VectorFunction.TOP_K,
            rows=products * rows,
            cols=keys + attention.sinks,
            chosen=keys + attention.sinks,
            block=attention.block,
            repeat=attention.repeat,
            precision=attention.precision,
        ),
        _product(attention, "context", products, rows, attention.v_head_dim, keys),
    ]


def _product(attention: Attention, name: str, products: int, m: int, n: int, k: int) -> Gemm:
    return Gemm(
        name=f"{attention.name}.{name}",
        batch=products,
        m=m,
        n=n,
        k=k,
        weight=False,
        block=attention.block,
        repeat=attention.repeat,
        precision=attention.precision,
    )


__all__ = ["separated"]
