"""Bytes that a chip holds during training or inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from siliconloom.planning.layers import Block
from siliconloom.planning.plan import Plan

GRADIENT = 2.0
"""Bytes of a gradient."""
STATE = 12.0
"""Bytes of Adam's fp32 parameter, momentum and variance (ZeRO's K)."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one chip at its fullest."""

    weights: float
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    cache: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.cache

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(getattr(self, n) + getattr(other, n) for n in self.__dataclass_fields__))


def states(parameters: float, element: float, data: int, zero: int) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimizer state with ZeRO's stages (Rajbhandari et al., SC 2020, section 5).

    Of ``parameters`` on each of ``data`` replicas: 16 bytes each without sharing, 4 + 12 / data at stage 1, 2 + 14 /
    data at stage 2, 16 / data at stage 3.
    """
    weights = parameters * element / (data if zero >= 3 else 1)
    gradients = parameters * GRADIENT / (data if zero >= 2 else 1)
    optimizer = parameters * STATE / (data if zero >= 1 else 1)
    return weights, gradients, optimizer


def block_activations(block: Block, plan: Plan) -> float:
    """Bytes of one block and microbatch kept for its backward pass.

    What the operator graph's backward pass reads; of a GPT layer this is Korthikanti et al.'s s b h (10 + 24 / t + 5 a
    s / (h t)) (2022, equations 1 to 6). Selective recomputation keeps no scores, full only a layer's input.
    """
    if plan.recompute == "full" and block.entering:
        return block.entering
    return block.kept - (block.scores if plan.recompute == "selective" else 0.0)


def training_memory(blocks: Sequence[Block], plan: Plan, in_flight: float) -> Memory:
    """Bytes of a device with these blocks, which holds the activations of ``in_flight`` microbatches."""
    found = Memory(0.0)
    for block in blocks:
        for parameters, replicas in (
            (block.parameters, plan.data * plan.context), (block.expert_parameters, plan.expert_replicas),
        ):  # fmt: skip
            held = block.parameters + block.expert_parameters
            element = block.weight_bytes / held if held else 0.0
            found += Memory(*states(parameters, element, replicas, plan.zero))
        found += Memory(0.0, activations=block_activations(block, plan) * in_flight)
    if plan.recompute == "full" and blocks:  # one layer's own, while it is computed again
        found += Memory(0.0, activations=max(b.kept for b in blocks))
    return found
