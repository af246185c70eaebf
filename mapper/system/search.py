"""The fastest plan that fits, and what the others lost by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import LoomError
from siliconloom.arch.quantity import format_bytes
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.memory import MemoryUse
from siliconloom.mapper.system.plan import HOST_KEYS, Plan
from siliconloom.mapper.system.planner import StepTime
from siliconloom.mapper.system.step import GREEDY, check_chunks
from siliconloom.mapper.system.training import Trainer

ROUNDING_S = 1e-9
"""Seconds by which a step may be short of its bound: each of its events is rounded to a picosecond."""
MICROBATCHES = (1, 2, 4, 8, 16)
CHUNKS = (2, 4)
RECOMPUTES: tuple[Any, ...] = ("none", "selective", "full")
RESERVED = 0.06
"""Share of the memory that frameworks, collectives' buffers and fragments take."""
KERNELS = ("attention", "context_heads", "expert_load", "expert_copies")
"""Keys that are taken as they are given."""
ANY = "any"
"""Value of ``plan.overlap`` that lets the search choose."""
LONG = 8192
"""Tokens of a sequence that a chip has at least where the search tries context parallelism."""


class Found(Struct, frozen=True):
    """A plan with its step."""

    plan: Plan
    step: StepTime


class Search(Struct, frozen=True):
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


def plans(planner: Trainer | Server, fixed: dict[str, Any]) -> Iterator[Plan]:
    """Every plan that divides, with the values of ``fixed`` as given."""
    pool = int(fixed.get("attention_chips", 0))
    chips = planner.cluster.chips - pool
    training = isinstance(planner, Trainer)

    def wanted(name: str, values: list[Any]) -> list[Any]:
        return [fixed[name]] if name in fixed else values

    sequence = planner.attention.kv_len
    contexts = [c for c in _divisors(chips) if c == 1 or sequence / c >= LONG]
    for tensor, context in product(
        wanted("tensor", [t for t in _divisors(chips) if t <= planner.cluster.per_node]), wanted("context", contexts)
    ):
        if chips % (tensor * context):
            continue
        for pipeline in wanted("pipeline", _divisors(chips // (tensor * context))):
            data = chips // (tensor * context * pipeline)
            if pipeline > planner.depth or tensor * context * pipeline * data != chips:
                continue
            if fixed.get("data", data) != data:
                continue
            # chips share requests of unequal lengths by heads, columns and experts alone
            dealt = data * pipeline * context > 1 and not {"data", "pipeline", "context"} & fixed.keys()
            if planner.graph.requests and dealt:
                continue
            base = Plan(
                data=data, tensor=tensor, context=context, pipeline=pipeline, microbatch=1, attention_chips=pool
            )
            base = replace(base, **{k: fixed[k] for k in KERNELS if k in fixed})
            schemes = _schemes(planner) if context > 1 else [base.context_scheme]
            for (expert, sharing), scheme, overlap in product(
                _experts(planner, base, fixed), wanted("context_scheme", schemes), _overlaps(base, fixed)
            ):
                spread = replace(base, expert=expert, expert_tensor=sharing, context_scheme=scheme, overlap=overlap)
                spread = planner.loaded(spread)
                for microbatch in wanted("microbatch", list(MICROBATCHES) if training else [0]):
                    if training and planner.batch % (data * microbatch):
                        continue
                    sized = replace(spread, microbatch=microbatch)
                    yield from _training(planner, sized, fixed) if training else _inference(sized, fixed)


def _schemes(planner: Trainer | Server) -> list[Any]:
    """Of context parallelism: a ring that is balanced under the mask, and heads for tokens."""
    several = ["packed"] if len(planner.documents) > 1 else []
    return ["zigzag" if planner.attention.causal else "ring", "ulysses", *several]


def _overlaps(base: Plan, fixed: dict[str, Any]) -> list[Any]:
    """What messages pass beside: as given, or with ``any`` everything that does not change the model."""
    given = fixed.get("overlap", "none")
    if given != ANY:
        return [given]
    return ["none", "tokens", "tiles", "nano"] if base.tensor * base.expert * base.context > 1 else ["none"]


def _experts(planner: Trainer | Server, base: Plan, fixed: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Experts' chips: none apart, or as many groups as divide both experts and chips."""
    shared = [fixed["expert_tensor"]] if "expert_tensor" in fixed else [0] + ([1] if base.tensor > 1 else [])
    if planner.experts == 1 and "expert" not in fixed:
        yield 1, 0
        return
    for sharing in shared:
        apart = base.data * base.context * base.tensor // (sharing or base.tensor)
        tried = [e for e in _divisors(apart) if planner.experts % e == 0]
        if "expert" in fixed:
            yield fixed["expert"], sharing
            continue
        yield from ((e, sharing) for e in tried if e * (sharing or base.tensor) >= base.tensor)


def _inference(base: Plan, fixed: dict[str, Any]) -> Iterator[Plan]:
    yield replace(base, sequence_parallel=fixed.get("sequence_parallel", False))


def _training(planner: Trainer | Server, base: Plan, fixed: dict[str, Any]) -> Iterator[Plan]:
    micro = planner.batch // (base.data * base.microbatch)
    base = replace(
        base, **{k: fixed[k] for k in ("overlap_gradients", "outer", "zero_group", *HOST_KEYS) if k in fixed}
    )
    orders: list[tuple[Any, int]] = [("1f1b", 1)]
    if base.pipeline > 1:
        orders += [("zero_bubble", 1), ("zero_bubble_2", 1)]
        if planner.depth >= 2 * base.pipeline:
            orders.append(("v_half", 1))
        if micro % base.pipeline == 0:
            orders += [("interleaved", c) for c in CHUNKS if planner.depth % (base.pipeline * c) == 0]
    if "schedule" in fixed or "chunks" in fixed:
        name = str(fixed.get("schedule", "interleaved" if int(str(fixed.get("chunks", 1))) > 1 else "1f1b"))
        orders = [(name, int(str(fixed.get("chunks", 1 if name != "interleaved" else 2))))]
    if base.offload_activations and base.pipeline > 1 and "schedule" not in fixed:  # those read activations twice
        orders = [order for order in orders if order[0] not in GREEDY]
    shared = [False, True] if base.tensor > 1 else [False]
    for schedule, chunks in orders:
        stages = [1, 2, 3] if "zero_group" in fixed else [0, 1, 2, 3]
        for zero in [fixed["zero"]] if "zero" in fixed else (stages if base.data * base.context > 1 else [0]):
            if zero in (2, 3) and base.pipeline > 1 and "zero" not in fixed:
                continue  # gradients are summed over microbatches, which sharing them would scatter each time
            for recompute in [fixed["recompute"]] if "recompute" in fixed else RECOMPUTES:
                if recompute == "selective" and base.attention == "flash" and "recompute" not in fixed:
                    continue  # nothing of a fused attention is kept that could be computed again
                for sequence in [fixed["sequence_parallel"]] if "sequence_parallel" in fixed else shared:
                    whole = replace(
                        base,
                        schedule=schedule,
                        chunks=chunks,
                        zero=zero,
                        recompute=recompute,
                        sequence_parallel=sequence,
                    )
                    spread = (
                        [False, True]
                        if schedule == "1f1b" and base.pipeline > 1 and planner.has_vocabulary
                        else [False]
                    )
                    for vocabulary in [fixed["vocabulary"]] if "vocabulary" in fixed else spread:
                        yield replace(whole, vocabulary=vocabulary)


def room(planner: Trainer | Server) -> float:
    """Bytes of a chip that a plan may use."""
    return planner.cluster.capacity * (1 - RESERVED)


def search(
    planner: Trainer | Server,
    fixed: dict[str, Any] | None = None,
    *,
    keep: int = 5,
    progress: Callable[[float], None] | None = None,
) -> Search:
    """Best-first: plans are simulated in the order of their lower bounds until none can be among the best.

    Raises
    ------
    LoomError
        When no plan divides or fits, with the smallest memory that any needs.
    """
    _check_chips(planner, fixed or {})
    if planner.encoder:
        planner.check_encoder(Plan(pipeline=int((fixed or {}).get("pipeline", 1))))
    _check_whole(planner)
    fitting: list[tuple[float, int, Plan]] = []
    too_large, smallest = 0, (float("inf"), Plan())
    refused: LoomError | None = None
    for number, plan in enumerate(plans(planner, fixed or {})):
        try:
            planner.check(plan)
            need = planner.memory(plan).total
        except LoomError as error:  # heads, widths, tokens or experts do not divide
            refused = refused or error
            continue
        if need < smallest[0]:
            smallest = (need, plan)
        if need > room(planner):
            too_large += 1
            continue
        fitting.append((planner.least(plan), number, plan))
    if not fitting:
        raise _none(planner, smallest, refused if fixed or not planner.encoder else None)
    if all(plan.expert == 1 for _, _, plan in fitting):
        of_loads = "expert_routing" if planner.routed else "expert_load"
        if planner.routed or (fixed or {}).get("expert_load", 1.0) != 1.0:
            raise LoomError(f"plan.{of_loads}: changes nothing: in no plan that fits chips hold different experts")
    fitting.sort(key=lambda f: (f[0], f[1]))
    best: list[Found] = []
    simulated = 0
    for index, (least, _, plan) in enumerate(fitting):
        if len(best) == keep and least >= best[-1].step.seconds:
            break
        found = Found(planner.sized(plan) if isinstance(planner, Server) else plan, planner.step(plan))
        if found.step.seconds < least * (1 - 1e-9) - ROUNDING_S:
            raise AssertionError(f"{plan.text()}: {found.step.seconds} s is under its bound of {least} s")
        simulated += 1
        best = sorted([*best, found], key=lambda f: f.step.seconds)[:keep]
        if progress is not None:
            progress(index / len(fitting))
    return Search(tuple(best), simulated, len(fitting) - simulated, too_large)


def too_much(planner: Trainer | Server, plan: Plan, memory: MemoryUse) -> LoomError | None:
    """Why a plan does not fit, with what would help; nothing when it does."""
    have = planner.cluster.capacity
    if memory.total <= have:
        return None
    ways = "more tensor, context or pipeline parallelism" + (
        ", ZeRO or recomputation help" if isinstance(planner, Trainer) else " or fewer sequences help"
    )
    return LoomError(
        f"{plan.text()} needs {format_bytes(memory.total)} of each {planner.cluster.machine.name}, which has "
        f"{format_bytes(have)}: {format_bytes(memory.total - have)} too much; {ways}"
    )


def _check_chips(planner: Trainer | Server, fixed: dict[str, Any]) -> None:
    """Degrees that are given must leave a whole number of chips for the others, and chunks something to interleave."""
    given = [(name, int(fixed[name])) for name in ("data", "tensor", "context", "pipeline") if name in fixed]
    chips = planner.cluster.chips - int(fixed.get("attention_chips", 0))
    needed = prod(size for _, size in given)
    if chips < 1 or chips % needed:
        shown = " x ".join(f"{name} {size}" for name, size in given) or "attention_chips"
        raise LoomError(
            f"plan: {shown} does not divide the {chips} chips of {planner.cluster.name}"
            + (" that are left" if "attention_chips" in fixed else "")
        )
    if "chunks" in fixed:
        pipeline, chunks = int(fixed.get("pipeline", 2)), int(fixed["chunks"])
        check_chunks(pipeline, fixed.get("schedule", "interleaved"), chunks)


def _check_whole(planner: Trainer | Server) -> None:
    """Refuse a model that the chips cannot hold even without copies, before anything is timed."""
    chips, have = planner.cluster.chips, room(planner)
    held = planner.least_bytes / chips
    if held > have:
        what = "parameters, gradients and optimizer state" if isinstance(planner, Trainer) else "parameters"
        raise LoomError(
            f"no plan fits {format_bytes(have)} of each {planner.cluster.machine.name}: {what} of "
            f"{planner.graph.name} are {format_bytes(held)} even when all {chips} chips share them, {held / have:.3g} "
            "times as much"
        )


def _none(planner: Trainer | Server, smallest: tuple[float, Plan], refused: LoomError | None) -> LoomError:
    if smallest[0] == float("inf"):
        if refused is not None:
            return refused
        chips = planner.cluster.chips
        apart = [
            t * p
            for t in _divisors(chips)
            if t <= planner.cluster.per_node and planner.attention.heads % t == 0
            for p in _divisors(chips // t)
            if p <= planner.depth
        ]
        times = chips // max(apart)
        advice = (
            f"a multiple of {times} sequences would (workload.batch)"
            if times > 1
            else f"with what is given, data x tensor x context x pipeline must be {chips} (plan., chips.0.count)"
        )
        return LoomError(
            f"no plan divides: {chips} chips, batch {planner.batch}, {planner.attention.heads} heads, "
            + (f"{planner.depth} layers; {advice}" if planner.depth > 1 else f"one stage; {advice}")
        )
    have = room(planner)
    return LoomError(
        f"no plan fits {format_bytes(have)} of each {planner.cluster.machine.name}: the smallest needs "
        f"{format_bytes(smallest[0])} ({smallest[1].text()}), {smallest[0] / have:.3g} times as much"
    )


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
