"""The fastest plan that fits, and what the others lost by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from siliconloom.arch import LoomError
from siliconloom.arch.quantity import format_bytes
from siliconloom.planning.plan import Plan
from siliconloom.planning.training import StepTime, Trainer

MICROBATCHES = (1, 2, 4, 8, 16)
CHUNKS = (2, 4)
RECOMPUTES: tuple[Any, ...] = ("none", "selective", "full")
RESERVED = 0.06
"""Share of the memory that frameworks, collectives' buffers and fragments take."""


@dataclass(frozen=True)
class Found:
    """A plan with its step."""

    plan: Plan
    step: StepTime


@dataclass(frozen=True)
class Search:
    """The best plans, fastest first, and how many were looked at.

    Parameters
    ----------
    simulated, pruned, too_large
        Plans whose step was simulated, whose bound showed them slower, that do not fit the memory.
    """

    best: tuple[Found, ...]
    simulated: int
    pruned: int
    too_large: int


def plans(trainer: Trainer, fixed: dict[str, Any]) -> Iterator[Plan]:
    """Every plan that divides, with the values of ``fixed`` as given."""
    cluster, shape = trainer.cluster, trainer.shape

    def wanted(name: str, values: list[Any]) -> list[Any]:
        return [fixed[name]] if name in fixed else values

    for tensor in wanted("tensor", [t for t in _divisors(cluster.chips) if t <= cluster.per_node]):
        if shape.heads % tensor or shape.inner % tensor or cluster.chips % tensor:
            continue
        for pipeline in wanted("pipeline", _divisors(cluster.chips // tensor)):
            data = cluster.chips // (tensor * pipeline)
            if pipeline > shape.layers:
                continue
            if tensor * pipeline * data != cluster.chips or fixed.get("data", data) != data:
                continue
            for microbatch in wanted("microbatch", list(MICROBATCHES)):
                if trainer.batch % (data * microbatch):
                    continue
                base = Plan(data=data, tensor=tensor, pipeline=pipeline, microbatch=microbatch,
                            attention=fixed.get("attention", "flash"))  # fmt: skip
                yield from _variants(trainer, base, fixed)


def _variants(trainer: Trainer, base: Plan, fixed: dict[str, Any]) -> Iterator[Plan]:
    micro = trainer.batch // (base.data * base.microbatch)
    orders: list[tuple[Any, int]] = [("1f1b", 1)]
    if base.pipeline > 1:
        orders.append(("zero_bubble", 1))
        if micro % base.pipeline == 0:
            orders += [("interleaved", c) for c in CHUNKS if trainer.shape.layers % (base.pipeline * c) == 0]
    if "schedule" in fixed or "chunks" in fixed:
        name = str(fixed.get("schedule", "interleaved" if int(str(fixed.get("chunks", 1))) > 1 else "1f1b"))
        orders = [(name, int(str(fixed.get("chunks", 1 if name != "interleaved" else 2))))]
    shared = [False, True] if base.tensor > 1 else [False]
    for schedule, chunks in orders:
        for zero in [fixed["zero"]] if "zero" in fixed else ([0, 1, 2, 3] if base.data > 1 else [0]):
            if zero in (2, 3) and base.pipeline > 1 and "zero" not in fixed:
                continue  # gradients are summed over microbatches, which sharing them would scatter each time
            for recompute in [fixed["recompute"]] if "recompute" in fixed else RECOMPUTES:
                if recompute == "selective" and base.attention == "flash" and "recompute" not in fixed:
                    continue  # nothing of a fused attention is kept that could be computed again
                for sequence in [fixed["sequence_parallel"]] if "sequence_parallel" in fixed else shared:
                    yield replace(
                        base, schedule=schedule, chunks=chunks, zero=zero, recompute=recompute,
                        sequence_parallel=sequence,
                    )  # fmt: skip


def search(
    trainer: Trainer, fixed: dict[str, Any] | None = None, *, keep: int = 5,
    progress: Callable[[float], None] | None = None,
) -> Search:  # fmt: skip
    """Best-first: plans are simulated in the order of their lower bounds until none can be among the best.

    Raises
    ------
    LoomError
        When no plan divides or fits, with the smallest memory that any needs.
    """
    memory = trainer.cluster.gpu.memory.capacity * (1 - RESERVED)
    fitting: list[tuple[float, int, Plan]] = []
    too_large, smallest = 0, (float("inf"), Plan())
    for number, plan in enumerate(plans(trainer, fixed or {})):
        need = trainer.memory(plan).total
        if need < smallest[0]:
            smallest = (need, plan)
        if need > memory:
            too_large += 1
            continue
        fitting.append((trainer.least(plan), number, plan))
    if not fitting:
        if smallest[0] == float("inf"):
            raise LoomError(
                f"no plan divides: {trainer.cluster.chips} chips, batch {trainer.batch}, {trainer.shape.heads} heads, "
                f"{trainer.shape.layers} layers; workload.batch is what all of them share"
            )
        raise LoomError(
            f"no plan fits {format_bytes(memory)} of each {trainer.cluster.gpu.name}: the smallest needs "
            f"{format_bytes(smallest[0])} ({smallest[1].text()}), {smallest[0] / memory:.3g} times as much"
        )
    fitting.sort(key=lambda f: (f[0], f[1]))
    best: list[Found] = []
    simulated = 0
    for index, (least, _, plan) in enumerate(fitting):
        if len(best) == keep and least >= best[-1].step.seconds:
            break
        found = Found(plan, trainer.step(plan))
        if found.step.seconds < least * (1 - 1e-9):
            raise AssertionError(f"{plan.text()}: {found.step.seconds} s is under its bound of {least} s")
        simulated += 1
        best = sorted([*best, found], key=lambda f: f.step.seconds)[:keep]
        if progress is not None:
            progress(index / len(fitting))
    return Search(tuple(best), simulated, len(fitting) - simulated, too_large)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
