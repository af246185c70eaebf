"""Seconds of a layer's passes and of a model's ends on one GPU, from the kernels that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.operations import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.planning.plan import Plan, Shape

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Costs:
    """Seconds of one microbatch on one chip.

    Parameters
    ----------
    forward, backward, weight
        Of one layer: forward pass, gradient of its input with what is recomputed, gradient of its weights.
    first, last
        Forward and backward of the embedding, and of head and loss.
    communication
        Of which a layer's forward and backward wait for tensor-parallel sums.
    """

    forward: float
    backward: float
    weight: float
    first: tuple[float, float]
    last: tuple[float, float]
    communication: float


def layer_rows(shape: Shape, plan: Plan, *, gated: bool) -> tuple[Rows, Rows, Rows, Rows]:
    """Kernels of a layer: forward without attention, attention forward, input gradients, weight gradients."""
    tokens, t = shape.sequence * plan.microbatch, plan.tensor
    own = tokens // t if plan.sequence_parallel else tokens
    h, inner = shape.hidden, shape.inner // t
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim // t
    mixed = shape.heads * shape.head_dim // t
    products = [(qkv, h), (h, mixed), (inner * (2 if gated else 1), h), (h, inner)]
    norm = {"op": "layernorm", "m": own, "n": h}
    add = {"op": "add", "m": own, "n": h}
    act = {"op": "silu_mul" if gated else "gelu", "m": tokens, "n": inner}
    forward: Rows = [{"op": "gemm", "m": tokens, "n": n, "k": k} for n, k in products]
    forward += [norm, norm, add, add, act]
    inputs: Rows = [{"op": "gemm", "m": tokens, "n": k, "k": n} for n, k in products]
    inputs += [norm, norm, add, add, act, act]
    weights: Rows = [{"op": "gemm", "m": n, "n": k, "k": tokens} for n, k in products]
    return forward, _attention(shape, plan), inputs, weights


def _attention(shape: Shape, plan: Plan) -> Rows:
    b, heads, s, d = plan.microbatch, shape.heads // plan.tensor, shape.sequence, shape.head_dim
    if plan.attention == "flash":
        kv = max(shape.kv_heads // plan.tensor, 1)
        return [{"op": "attention_prefill", "batch": b, "q_len": s, "kv_len": s, "heads": heads, "kv_heads": kv,
                 "head_dim": d, "causal": "true"}]  # fmt: skip
    scores = {"op": "gemm", "m": s, "n": s, "k": d, "batch": b * heads}
    mixed = {"op": "gemm", "m": s, "n": d, "k": s, "batch": b * heads}
    softmax = {"op": "softmax", "m": b * heads * s, "n": s}
    dropout = {"op": "gelu", "m": b * heads * s, "n": s}  # one read, one write, as any element-wise kernel
    return [scores, softmax, dropout, mixed]


def layer_costs(gpu: Gpu, shape: Shape, plan: Plan, gated: bool, dtype: str = "bf16", sustained: bool = True) -> Costs:
    """Costs of ``plan`` on ``gpu``.

    Attention's backward pass has five products to the forward's two, on the same kernels' efficiency; what is
    recomputed counts with the backward pass.
    """
    plan = Plan(**{**plan.as_dict(), "data": 1, "pipeline": 1})
    forward, attention, inputs, weights = layer_rows(shape, plan, gated=gated)
    tokens, t = shape.sequence * plan.microbatch, plan.tensor
    head = {"op": "gemm", "m": tokens, "n": -(-shape.vocabulary // t), "k": shape.hidden}
    loss = {"op": "softmax", "m": tokens, "n": -(-shape.vocabulary // t), "dtype": "fp32"}
    first: Rows = [{"op": "embedding", "m": tokens, "n": shape.hidden}]
    last: Rows = [head, loss]
    last_back: Rows = [
        {"op": "gemm", "m": tokens, "n": shape.hidden, "k": head["n"]},
        {"op": "gemm", "m": head["n"], "n": shape.hidden, "k": tokens},
        loss,
    ]
    reduce: Rows = []
    if t > 1:
        reduce = [{"op": "all_reduce", "gpus": t, "bytes": round(tokens * shape.hidden * 2)}]
    groups = [forward, attention, inputs, weights, first, last, last_back, reduce]
    rows = [{"dtype": dtype, **row} for group in groups for row in group]
    found = predict(gpu, make_operations(rows), sustained=sustained, cache_write=False)
    times, at = [], 0
    for group in groups:
        times.append(float(found.seconds[at : at + len(group)].sum()))
        at += len(group)
    ahead, attend, back, weight, start, end, end_back, sums = times
    again = {"none": 0.0, "selective": attend, "full": ahead + attend + 2 * sums}[plan.recompute]
    return Costs(
        forward=ahead + attend + 2 * sums,
        backward=back + 2.5 * attend + 2 * sums + again,
        weight=weight,
        first=(start, 2 * start),
        last=(end, end_back),
        communication=4 * sums + (2 * sums if plan.recompute == "full" else 0.0),
    )
