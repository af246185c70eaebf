"""Experts of which some have a row less than others, as operators of their own, for machines that run every product."""

from __future__ import annotations

from msgspec.structs import replace

from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.graph import Graph
from siliconloom.workloads.operators import Gemm, Operator, Vector
from siliconloom.workloads.roles import EXPERTS


def dealt(graph: Graph) -> Graph:
    """The same graph where products of experts that are ``short`` of a row are operators of their own: ``..._fewer``.

    So are functions of what they have made. Stored matrices, and those that a token uses, count with the first ones.
    """
    uneven = {(o.block, o.place.layer): o for o in graph.operators() if isinstance(o, Gemm) and o.short}
    if not uneven:
        return graph

    def first_of(operator: Operator) -> Gemm | None:
        return uneven.get((operator.block, operator.place.layer)) if operator.role in EXPERTS else None

    dataflow, apart = Dataflow(), dict[str, str]()
    waiting = list[Operator]()  # behind all that the first experts of a layer do
    for operator in graph.operators():
        product = first_of(operator)
        if product is None or (waiting and waiting[0].role is operator.role):
            _flush(dataflow, waiting)
        if product is None:
            dataflow.add(operator)
            continue
        more, fewer = _parts(operator, product)
        apart[operator.name] = fewer.name
        dataflow.add(more)
        waiting.append(fewer)
    _flush(dataflow, waiting)
    for source, target, elements in graph.dataflow.edges():
        product = first_of(graph.dataflow[target]) or first_of(graph.dataflow[source])
        if product is None:
            dataflow.connect(source, target, elements)
            continue
        few = elements * _fewer_rows(product) // _rows(product)
        dataflow.connect(source, target, elements - few)
        if few:
            dataflow.connect(apart.get(source, source), apart.get(target, target), few)
    return replace(graph, dataflow=dataflow)


def _flush(dataflow: Dataflow, waiting: list[Operator]) -> None:
    for operator in waiting:
        dataflow.add(operator)
    waiting.clear()


def _rows(product: Gemm) -> int:
    return product.rows


def _fewer_rows(product: Gemm) -> int:
    """Rows of those experts that have one less."""
    return product.short * (product.m - 1)


def _parts(operator: Operator, product: Gemm) -> tuple[Operator, Operator]:
    """An operator of the experts with as many rows as any, and of those with one less."""
    name = f"{operator.name}_fewer"
    if isinstance(operator, Gemm):
        most = operator.batch - operator.short
        stored = None if operator.stored is None else operator.stored - operator.short
        few = {"batch": operator.short, "m": operator.m - 1, "chosen": 0, "short": 0, "stored": operator.short}
        return replace(operator, batch=most, stored=stored, short=0), replace(operator, name=name, **few)
    assert isinstance(operator, Vector)
    few_rows = _fewer_rows(product)
    return replace(operator, rows=_rows(product) - few_rows), replace(operator, name=name, rows=few_rows)


__all__ = ["dealt"]
