"""Operators of the perceptron of a layer: plain, gated, and a mixture of experts."""

from __future__ import annotations

from typing import Any

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import GATED, FeedForward, MixtureOfExperts
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.popularity import alike, rows_of
from siliconloom.workloads.roles import Role

DENSE = Role.COLUMN_PARALLEL, Role.ACTIVATION, Role.ROW_PARALLEL
EXPERT = Role.EXPERT_COLUMN, Role.EXPERT_ACTIVATION, Role.EXPERT_ROW
SHARED = Role.SHARED_COLUMN, Role.ACTIVATION, Role.SHARED_ROW
"""Roles of a perceptron's three operators."""


def add_feed_forward(
    builder: Builder, spec: FeedForward | MixtureOfExperts, tokens: int, hidden: int, x: Value
) -> Value:
    """Add the perceptron of one layer, from the normed residual ``x`` to its output."""
    if isinstance(spec, MixtureOfExperts):
        return _mixture(builder, spec, tokens, hidden, x)
    if spec.gated:
        width = spec.intermediate
        return _gated(builder, "", DENSE, x, x.elements, tokens, width, hidden, spec.activation, bias=spec.bias)
    widens, acts, narrows = DENSE
    up = builder.gemm("up", widens, x, m=tokens, n=spec.intermediate, k=hidden, bias=spec.bias)
    active = builder.vector("activation", acts, spec.activation, up, rows=tokens, cols=spec.intermediate)
    return builder.gemm("down", narrows, active, m=tokens, n=hidden, k=spec.intermediate, bias=spec.bias)


def _gated(
    builder: Builder,
    prefix: str,
    roles: tuple[Role, Role, Role],
    x: Value,
    taken: int,
    rows: int,
    intermediate: int,
    hidden: int,
    activation: VectorFunction,
    **options: Any,
) -> Value:
    """Gate and up projection as one product, the gated activation, the down projection."""
    every = options.get("batch", 1) * rows - options.get("short", 0)
    widens, acts, narrows = roles
    gate_up = builder.gemm(f"{prefix}gate_up", widens, x.part(taken), m=rows, n=2 * intermediate, k=hidden, **options)
    active = builder.vector(
        f"{prefix}activation", acts, GATED[activation], gate_up, rows=every, cols=intermediate, inputs=2
    )
    return builder.gemm(f"{prefix}down", narrows, active, m=rows, n=hidden, k=intermediate, **options)


def _experts(builder: Builder, spec: MixtureOfExperts, tokens: int, hidden: int, x: Value, used: int) -> list[Value]:
    """Add the experts of one layer: all with as many rows, or those that are alike popular together.

    Parameters of experts that no token uses, and those that one token uses, count with the first group.
    """
    total, sizes = tokens * used, (spec.intermediate, hidden, spec.activation)
    if not spec.popularity and not spec.by_chance:
        active = min(spec.experts, total)
        experts: dict[str, Any] = {"batch": active, "stored": spec.experts, "chosen": used, "bias": spec.bias}
        rows, experts["short"] = -(-total // active), -total % active
        routed = _gated(builder, "expert_", EXPERT, x, total * hidden, rows, *sizes, **experts)
        return [routed.part(total * hidden)]
    if spec.by_chance:
        from siliconloom.workloads.drawn_experts import drawn  # NumPy takes a third of the time of `loom workload`

        rows_each = drawn(spec.experts, tokens, used)
    else:
        rows_each = rows_of(spec.popularity, tokens, used)
    groups, made = alike(rows_each), []
    idle = spec.experts - sum(count for count, _ in groups)
    for number, (count, rows) in enumerate(groups):
        stored, chosen = (count + idle, used) if number == 0 else (count, 0)
        experts = {"batch": count, "stored": stored, "chosen": chosen, "bias": spec.bias, "by_chance": spec.by_chance}
        prefix, taken = f"expert_{number + 1}_", count * rows * hidden
        made.append(_gated(builder, prefix, EXPERT, x, taken, rows, *sizes, **experts).part(taken))
    return made


def _mixture(builder: Builder, spec: MixtureOfExperts, tokens: int, hidden: int, x: Value) -> Value:
    """Router, experts, shared experts and their weighted sum.

    Routing is taken to be balanced, where nothing is said: ``min(experts, tokens * top_k)`` distinct experts are
    active, and each gets the same number of rows, some of them one less: ``tokens * top_k`` in all. With a popularity,
    or where tokens draw their experts, each has its own rows, as many in all. Where every expert computes every token
    nothing is taken: each has all rows, and the sum weighs what all have made. The shared experts' gate is one more
    weight of the sum.
    """
    used = spec.experts if spec.dense else spec.top_k
    logits = builder.gemm("router", Role.ROUTER, x, m=tokens, n=spec.experts, k=hidden, bias=spec.correction_bias)
    route = builder.vector(
        "top_k", Role.ROUTE, VectorFunction.TOP_K, logits, rows=tokens, cols=spec.experts, chosen=spec.top_k
    )
    parts = _experts(builder, spec, tokens, hidden, x, used)
    if spec.shared_intermediate:
        width = spec.shared_intermediate
        parts.append(_gated(builder, "shared_", SHARED, x, x.elements, tokens, width, hidden, spec.activation))
    summands = used + bool(spec.shared_intermediate)
    parts.append(route.part(tokens * used))
    if spec.shared_gate:
        gate = builder.gemm("shared_gate", Role.ROUTER, x, m=tokens, n=1, k=hidden)
        opened = builder.vector("shared_open", Role.ROUTE, VectorFunction.SIGMOID, gate, rows=tokens, cols=1)
        parts.append(opened)
    combine = VectorFunction.COMBINE
    return builder.vector("combine", Role.COMBINE, combine, *parts, rows=tokens, cols=hidden, inputs=summands)
