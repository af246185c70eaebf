"""Seconds of attention whose sequences are shared by several chips, inside a plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from msgspec.structs import replace

from siliconloom.mapper.context import context_schedule
from siliconloom.mapper.system.context import ContextTime, time_context
from siliconloom.mapper.system.contracts import Fabric, Machine
from siliconloom.mapper.system.plan import Plan
from siliconloom.workloads import Attention, Graph, SharedAttention
from siliconloom.workloads.roles import Pass
from siliconloom.workloads.subgraph import alone


def shared_seconds(
    operator: SharedAttention, part: Graph, plan: Plan, machine: Machine, fabric: Fabric, documents: Sequence[int]
) -> tuple[float, float]:
    """Of all chips, until the last one has its tokens' results, and of which nothing is computed.

    The graph's two operators of the backward pass are one schedule here; the second one has its time.
    """
    if operator.place.step is Pass.VALUES_GRADIENT:
        return 0.0, 0.0
    found = _run(operator, part, plan, machine, fabric, documents, backward=operator.place.backward)
    return found.seconds, found.exposed


def _run(
    operator: SharedAttention,
    part: Graph,
    plan: Plan,
    machine: Machine,
    fabric: Fabric,
    documents: Sequence[int],
    *,
    backward: bool,
) -> ContextTime:
    width = operator.v_head_dim // 2 if backward else operator.head_dim  # keys' gradient has both, side by side
    schedule = context_schedule(
        operator.scheme,
        operator.ranks,
        documents or [operator.kv_len],
        causal=operator.causal,
        heads=operator.heads,
        kv_heads=operator.kv_heads,
        head_dim=width,
        backward=backward,
        ulysses=plan.context_heads,
    )

    @cache
    def block(queries: int, keys: int, pairs: int, heads: int) -> float:
        if not queries or not keys or not pairs:
            return 0.0
        full = queries * keys
        triangle = queries == keys and 2 * pairs <= full + keys
        attention = Attention(
            name="block",
            block="block",
            precision=operator.precision,
            batch=operator.batch,
            heads=heads,
            kv_heads=max(operator.kv_heads * heads // operator.heads, 1),
            q_len=queries,
            kv_len=keys,
            head_dim=width,
            v_head_dim=width,
            causal=triangle,
        )
        if heads % attention.kv_heads:
            attention = replace(attention, kv_heads=1)
        seconds = machine.seconds(alone(part, attention))["block"]
        return seconds * pairs / (full + keys) * 2 if triangle else seconds * pairs / full

    links = fabric.links(plan.tensor)
    return time_context(schedule, block, links, element=operator.precision.size(1000) / 1000 * operator.batch)
