"""Bytes that a chip holds during training or inference."""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.planning.plan import Plan, Shape

GRADIENT = 2.0
"""Bytes of a gradient."""
STATE = 12.0
"""Bytes of Adam's fp32 parameter, momentum and variance (ZeRO's K)."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one chip at its fullest."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    cache: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.cache


def states(parameters: float, element: float, data: int, zero: int) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimizer state with ZeRO's stages (Rajbhandari et al., SC 2020, section 5).

    Of ``parameters`` on each of ``data`` replicas: 16 bytes each without sharing, 4 + 12 / data at stage 1, 2 + 14 /
    data at stage 2, 16 / data at stage 3.
    """
    weights = parameters * element / (data if zero >= 3 else 1)
    gradients = parameters * GRADIENT / (data if zero >= 2 else 1)
    optimizer = parameters * STATE / (data if zero >= 1 else 1)
    return weights, gradients, optimizer


def layer_activations(shape: Shape, plan: Plan) -> float:
    """Bytes of one layer and microbatch kept for its backward pass (Korthikanti et al., 2022, equations 1 to 6).

    With s tokens, b sequences, width h, a heads, t tensor-parallel chips: s b h (10 + 24 / t + 5 a s / (h t)), with
    sequence parallelism all over t; without the attention's 5 a s / (h t) when it is recomputed or never stored; 2 s b
    h when all is recomputed. The 24 are the paper's for an inner width of 4 h, which is 16 of them.
    """
    s, b, h, t = shape.sequence, plan.microbatch, shape.hidden, plan.tensor
    split = t if plan.sequence_parallel else 1
    if plan.recompute == "full":
        return 2.0 * s * b * h / split
    scores = 0.0
    if plan.recompute == "none" and plan.attention == "unfused":
        scores = 5.0 * shape.heads * s / (h * t)
    inner = 8.0 + 4.0 * shape.inner / h
    return s * b * h * (10.0 / split + inner / t + scores)


def training_memory(shape: Shape, plan: Plan, in_flight: float) -> Memory:
    """Bytes of the first stage, which holds the embedding and most activations.

    ``in_flight`` is the microbatches whose activations a device holds at once, each a whole device's share of layers.
    """
    per_stage = -(-shape.layers // plan.pipeline)
    parameters = (per_stage * shape.layer_parameters + shape.end_parameters / 2) / plan.tensor
    weights, gradients, optimizer = states(parameters, shape.element, plan.data, plan.zero)
    kept = layer_activations(shape, plan) * per_stage * in_flight
    if plan.recompute == "full":  # one layer's own, while it is computed again
        again = Plan(tensor=plan.tensor, microbatch=plan.microbatch, sequence_parallel=plan.sequence_parallel,
                     attention=plan.attention)  # fmt: skip
        kept += layer_activations(shape, again)
    return Memory(weights, gradients, optimizer, kept)
