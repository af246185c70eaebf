"""Parts of an operator graph as graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from siliconloom.workloads import Attention, Collective, Graph, Operator, SharedAttention
from siliconloom.workloads.dataflow import Dataflow


def without_messages(graph: Graph) -> Graph:
    """The operators that a chip computes by itself: no collectives, no attention shared with others."""
    return subgraph(graph, [o for o in graph.operators() if not isinstance(o, Collective | SharedAttention)])


def subgraph(graph: Graph, operators: Sequence[Operator]) -> Graph:
    """A graph of these operators, and the edges between them."""
    dataflow = Dataflow()
    for operator in operators:
        dataflow.add(operator)
    for source, target, elements in graph.dataflow.edges():
        if source in dataflow and target in dataflow:
            dataflow.connect(source, target, elements)
    return replace(graph, dataflow=dataflow)


def executed_once(graph: Graph) -> Graph:
    """The same with every block executed once, and nothing in memory beside it."""
    dataflow = Dataflow()
    for operator in graph.operators():
        dataflow.add(replace(operator, repeat=1))
    for source, target, elements in graph.dataflow.edges():
        dataflow.connect(source, target, elements)
    return replace(graph, dataflow=dataflow, resting=())


def alone(graph: Graph, attention: Attention) -> Graph:
    """A graph of one attention, done as in ``graph``."""
    dataflow = Dataflow()
    dataflow.add(attention)
    tokens = attention.batch * attention.q_len
    return replace(graph, dataflow=dataflow, resting=(), batch=attention.batch, tokens=tokens)
