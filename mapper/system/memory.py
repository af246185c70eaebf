"""Bytes that a chip holds during training or inference."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.mapper.system.layers import Block
from siliconloom.mapper.system.plan import Plan
from siliconloom.workloads.roles import Section

GRADIENT = 2.0
"""Bytes of a gradient."""
STATE = 12.0
"""Bytes of Adam's fp32 parameter, momentum and variance (ZeRO's K)."""


class MemoryUse(Struct, frozen=True):
    """Bytes of one chip at its fullest."""

    weights: float
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    cache: float = 0.0
    host: float = 0.0
    """Bytes that the chip has in the host's memory, none of the others among them."""

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


class Held(Struct, frozen=True):
    """What the blocks of a device add up to; see `Block`."""

    parameters: float
    expert_parameters: float
    weight_bytes: float
    expert_bytes: float
    kept: float
    scores: float
    entering: float
    largest: float
    head: float
    widest: float
    leaving: tuple[float, float, float]

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Held:
        """Sums over blocks; ``entering`` counts what a block without an input keeps, ``largest`` and ``widest``
        (weights) are one block's, and so is ``leaving``: what a layer keeps at most, without scores, or of its input.

        What the head keeps, logits among it, is apart: its backward pass follows at once.
        """
        element = [b.weight_bytes / max(b.parameters + b.expert_parameters, 1) for b in blocks]
        return cls(
            parameters=float(sum(b.parameters for b in blocks)),
            expert_parameters=float(sum(b.expert_parameters for b in blocks)),
            weight_bytes=sum(b.parameters * e for b, e in zip(blocks, element, strict=True)),
            expert_bytes=sum(b.expert_parameters * e for b, e in zip(blocks, element, strict=True)),
            kept=sum(b.kept for b in blocks if b.section is not Section.HEAD),
            scores=sum(b.scores for b in blocks),
            entering=sum(b.entering or b.kept for b in blocks if b.section is not Section.HEAD),
            largest=max((b.kept for b in blocks), default=0.0),
            head=sum(b.kept for b in blocks if b.section is Section.HEAD),
            widest=max((b.weight_bytes for b in blocks), default=0.0),
            leaving=(
                max((b.kept for b in blocks if b.section is not Section.HEAD), default=0.0),
                max((b.kept - b.scores for b in blocks if b.section is not Section.HEAD), default=0.0),
                max((b.entering or b.kept for b in blocks if b.section is not Section.HEAD), default=0.0),
            ),
        )


def activations(held: Held, plan: Plan) -> float:
    """Bytes of one microbatch that a device's blocks keep for their backward pass.

    What the operator graph's backward pass reads; of a GPT layer this is Korthikanti et al.'s s b h (10 + 24 / t + 5 a
    s / (h t)) (2022, equations 1 to 6). Selective recomputation keeps no scores, full only a layer's input.
    """
    if plan.recompute == "full":
        return held.entering
    return held.kept - (held.scores if plan.recompute == "selective" else 0.0)


def training_memory(held: Held, plan: Plan, in_flight: float, *, last: bool = False) -> MemoryUse:
    """Bytes of a device with these blocks, which holds the activations of ``in_flight`` microbatches.

    With ``last`` a step has one microbatch, whose gradients leave for the host as they are made.
    """
    parts = []
    for parameters, size, replicas in (
        (held.parameters, held.weight_bytes, plan.data * plan.context),
        (held.expert_parameters, held.expert_bytes, plan.expert_replicas),
    ):
        shared = plan.sharing(replicas)
        parts.append(states(parameters, size / parameters if parameters else 0.0, shared, plan.zero))
    weights, gradients, optimizer = (sum(p) for p in zip(*parts, strict=True))
    own = weights
    if plan.zero == 3:  # gathered: the layer that is computed and the next one
        weights += 2 * held.widest
    kept = activations(held, plan) * in_flight + held.head * (in_flight if plan.schedule == "gpipe" else 1.0)
    if plan.recompute == "full":  # one layer's own, while it is computed again
        kept += held.largest
    made = MemoryUse(weights, gradients, optimizer, kept)
    return _on_host(made, own, held, plan, in_flight, last=last)


def staying(held: Held, plan: Plan, in_flight: float) -> float:
    """Bytes of activations on a chip whose others lie on the host: of two blocks, as one comes or leaves meanwhile."""
    of_block = held.leaving[("none", "selective", "full").index(plan.recompute)]
    return min(2 * of_block, activations(held, plan) * in_flight)


def _on_host(made: MemoryUse, own: float, held: Held, plan: Plan, in_flight: float, *, last: bool) -> MemoryUse:
    """The same with what lies in the host's memory apart (`mapper.system.host_memory`), of ``own`` weights."""
    host, found = 0.0, made
    if plan.offload != "none":
        host += made.optimizer
        found = replace(found, optimizer=0.0)
        if last:  # gradients of one block at a time
            found = replace(found, gradients=min(made.gradients, held.widest))
    if plan.offload == "parameters":
        host += own
        found = replace(found, weights=min(made.weights, 2 * held.widest))
    if plan.offload_activations:
        leaves = activations(held, plan) * in_flight - staying(held, plan, in_flight)
        host += leaves
        found = replace(found, activations=made.activations - leaves)
    return replace(found, host=host)
