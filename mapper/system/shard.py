"""The part of a workload that one chip of a system computes: tensor parallelism, and a share of the sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.mapper.system.parallel import SIZES, Split, first_expert, refuse_recurrent, share, summed
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.graph import is_optimizer
from siliconloom.workloads.roles import EXPERTS, Pass, Role


def tensor_shard(graph: Graph, tensor: int) -> Graph:
    """The part of one of ``tensor`` chips; the others' are alike.

    Raises
    ------
    LoomError
        When heads or widths cannot be shared evenly.
    NotSupported
        For operators that have no place in the scheme above.
    """
    return share(graph, Split(tensor), messages=False, key="policy")


def reduced_elements(graph: Graph) -> dict[str, int]:
    """Elements that are summed over tensor-parallel chips after an operator, one execution each."""
    return {o.name: o.output_elements for o in graph.operators() if summed(o)}


def sequences_of(graph: Graph, batch: int) -> Graph:
    """The same step of ``batch`` sequences; experts are as evenly chosen as before."""

    def part(size: int) -> int:
        return -(-size * batch // graph.batch)

    def experts(operator: Operator) -> tuple[int, int, int]:
        """Experts that are chosen by some token, rows of each, and how many have one less."""
        first = first_expert(graph, operator)
        stored, chosen = first.stored or first.batch, first.chosen or first.batch
        total = part(graph.tokens) * chosen
        active = min(stored, total)
        return active, -(-total // active), -total % active

    def change(operator: Operator) -> Operator:
        if isinstance(operator, Attention):
            return replace(operator, batch=part(operator.batch))
        if isinstance(operator, Gemm):
            rows = SIZES[operator.place.step][0]
            changes: dict[str, Any] = {rows: part(getattr(operator, rows))}
            if operator.role in EXPERTS:
                changes["batch"], changes[rows], short = experts(operator)
                changes["short"] = short if operator.place.step is Pass.FORWARD else 0
            return replace(operator, **changes)
        assert isinstance(operator, Vector)
        if operator.role is Role.POSITION_BIAS:  # of distances, whatever the sequence
            return operator
        if operator.role in EXPERTS:
            active, each, short = experts(operator)
            return replace(operator, rows=active * each - short)
        return operator if is_optimizer(operator) else replace(operator, rows=part(operator.rows))

    if batch == graph.batch:
        return graph
    refuse_recurrent(graph, "a part of the sequences of")
    return replace(_changed(graph, change), batch=batch, tokens=part(graph.tokens))


def tokens_of(graph: Graph, part: int, parts: int) -> Graph:
    """One of ``parts`` equal runs of a prompt's tokens; its queries see the keys of those before it.

    Raises
    ------
    LoomError
        When the tokens cannot be cut evenly.
    """
    if any(operator.role is Role.CROSS_ATTENTION for operator in graph.operators()):
        raise NotSupported(f"{graph.name}: runs of the tokens of an encoder and a decoder")
    if graph.tokens % parts:
        raise LoomError(f"{graph.name}: {graph.tokens} tokens cannot be cut into {parts} equal runs")

    refuse_recurrent(graph, "runs of tokens of")

    def change(operator: Operator) -> Operator:
        if isinstance(operator, Attention):
            past = operator.kv_len - operator.q_len  # before all of the tokens
            keys = past + operator.q_len * (part + 1) // parts
            return replace(operator, q_len=operator.q_len // parts, kv_len=keys)
        if isinstance(operator, Gemm):
            if operator.chosen is not None:
                raise NotSupported(f"runs of tokens through {operator.name}, which has several products")
            return replace(operator, m=max(operator.m // parts, 1))
        assert isinstance(operator, Vector)
        return replace(operator, rows=max(operator.rows // parts, 1))

    return replace(_changed(graph, change), tokens=graph.tokens // parts)


def without(graph: Graph, leave: Callable[[Operator], bool]) -> Graph:
    """The graph without some operators; what used their results reads them from memory."""
    return _changed(graph, lambda o: None if leave(o) else o)


def with_context(graph: Graph, context: int) -> Graph:
    """A decode step whose sequences attend to ``context`` tokens; what they attend to of an encoder stays."""

    def change(operator: Operator) -> Operator:
        if isinstance(operator, Vector) and operator.role is Role.SCORE_BIAS:
            return replace(operator, cols=context)
        if isinstance(operator, Vector) and operator.role is Role.POSITION_BIAS:
            return replace(operator, rows=context)
        if operator.role is Role.CROSS_ATTENTION:
            return operator
        if not isinstance(operator, Attention):
            return operator
        room = None if operator.room is None else max(operator.room, context)
        return replace(operator, kv_len=context, room=room)

    return _changed(graph, change)


def _changed(graph: Graph, change: Callable[[Operator], Operator | None]) -> Graph:
    dataflow = Dataflow()
    for operator in graph.operators():
        made = change(operator)
        if made is not None:
            dataflow.add(made)
    for source, target, elements in graph.dataflow.edges():
        if source in dataflow and target in dataflow:
            before, after = graph.dataflow[source], dataflow[source]
            dataflow.connect(source, target, -(-elements * after.output_elements // (before.output_elements or 1)))
    return replace(graph, dataflow=dataflow)
