"""Memory of one replica: what weights, activations and adapters leave for keys and values, and whether requests fit."""

from __future__ import annotations

from math import ceil

import numpy as np
from msgspec import Struct

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.serving import Batching, ServeSettings
from siliconloom.evaluate.pim_costs import bytes_in_rows
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.evaluate.served_model import cache_rows, offloaded_bytes, part_of
from siliconloom.evaluate.serving import Served, draft_plan
from siliconloom.evaluate.step_costs import stage_blocks
from siliconloom.mapper.system.layers import kept_bytes
from siliconloom.mapper.system.memory import states
from siliconloom.workloads import Gemm, Graph
from siliconloom.workloads.roles import EXPERTS, Section

ADAPTER_ELEMENT = 2
"""Bytes of an element of an adapter."""


class ReplicaMemory(Struct, frozen=True):
    """Bytes of one replica's chips together, and what is left of them for keys and values."""

    capacity: float
    usable: float
    weights: float
    activations: float
    per_token: float
    adapter: float
    tuning: float
    hosted: float
    block: int
    blocks: int


def memory_of(served: Served) -> ReplicaMemory:
    """What a replica's memory holds.

    Activations are the operands and results of the largest operator of the largest step: ``serve.token_budget`` new
    tokens, or next tokens of ``serve.max_sequences`` requests.

    Raises
    ------
    LoomError
        Where there is no room for weights and one block, with what there is.
    """
    settings, plan = served.settings, served.plan
    part, models = part_of(served.cluster, served.model, plan), settings.model_slots or 1
    chips, capacity = plan.chips, served.cluster.capacity
    longest = int(served.trace.prompt.max())
    most = {
        Batching.CONTINUOUS: settings.token_budget,
        Batching.PREFILL_FIRST: max(settings.token_budget, longest),
        Batching.STATIC: longest * min(settings.max_sequences, len(served.trace)),
    }[settings.batching]
    budget = min(most, longest)
    steps = (
        [("phase", "prefill"), ("batch", "1"), ("sequence", str(budget))],
        [("phase", "decode"), ("batch", str(settings.max_sequences)), ("context", "1")],
    )
    working = 0.0
    for sets in steps:
        largest = part_of(served.cluster, served.model, plan, sets)
        here = max(o.input_bytes + o.output_bytes for o in largest.operators())
        working = max(working, here * most / budget if sets is steps[0] else here)
    hosted = offloaded_bytes(part, served.model, settings)
    stages = [((w - hosted) * models, t) for w, t in stage_memory(served, part)]
    draft = served.draft
    if draft is not None and draft.own is None:  # of the chip that has it all, where it does not divide
        small = part_of(served.cluster, draft.model, draft_plan(served))
        stages = [(w + small.weight_bytes, t + small.kv_bytes_per_token) for w, t in stages]
    usable = settings.memory_share * capacity
    adapters = 0.0
    if settings.adapter_rank is not None:
        adapters = settings.adapter_slots * adapter_bytes(part, settings.adapter_rank)
    tuned = 0.0 if settings.tune_sequence is None else tuning_bytes(served, part)
    rooms = [(usable - w - working - adapters - tuned, w, t) for w, t in stages]
    in_rows = _in_rows(served, part, min(left for left, _, _ in rooms))
    if in_rows is not None:
        rooms = [(left, w, max(t, in_rows)) for left, w, t in rooms]
    left, weights, per_token = min(rooms, key=lambda room: room[0] / room[2])
    block_bytes = per_token * settings.block
    if settings.page is not None:  # pages that end within a token leave something over
        block_bytes *= settings.page / (settings.block * cache_rows(part)[0])
    blocks = int(left // block_bytes) if left > 0 else 0
    guessed = _draft_blocks(served)
    if guessed is not None and settings.cache_tokens is None:
        blocks = min(blocks, guessed)
    if settings.cache_tokens is not None:
        if settings.cache_tokens < settings.block:
            raise LoomError(f"serve.cache_tokens {settings.cache_tokens}: is less than a block ({_block_of(settings)})")
        blocks = settings.cache_tokens // settings.block
        if guessed is not None and blocks > guessed:
            raise LoomError(
                f"serve.cache_tokens {settings.cache_tokens:,}: {served.draft_cluster.name}, which guesses "
                f"(serve.draft_on), has room for {guessed * settings.block:,}"
            )
        if blocks < plan.pipeline:
            raise LoomError(
                f"serve.cache_tokens {settings.cache_tokens}: is less than a block for each of the {plan.pipeline} "
                "schedulers of plan.pipeline"
            )
        if blocks * block_bytes > left:
            taken = format_bytes(blocks * block_bytes)
            raise LoomError(
                f"serve.cache_tokens {settings.cache_tokens:,}: take {taken} of a chip, weights leave "
                f"{format_bytes(max(left, 0))}"
            )
    if blocks < plan.pipeline:
        least = _least_chips(served, weights)
        raise LoomError(
            f"{served.model.name} leaves no room for keys and values: of the {format_bytes(usable)} that may be used "
            f"of a chip (serve.memory_share {settings.memory_share:g}) weights take {format_bytes(weights)}"
            + (f" ({models} models, serve.model_slots)" if models > 1 else "")
            + (f" beside {format_bytes(hosted)} of experts on the host (serve.expert_slots)" if hosted else "")
            + f", activations {format_bytes(working)}"
            + (f", adapters {format_bytes(adapters)}" if adapters else "")
            + (f", training {format_bytes(tuned)} (serve.tune_sequence)" if tuned else "")
            + (f"; plan.tensor={least} leaves room" if least * plan.pipeline <= served.cluster.chips else "")
        )
    together = chips // plan.pipeline
    return ReplicaMemory(
        capacity * chips,
        usable * chips,
        sum(w for w, _ in stages) * together,
        working * chips,
        sum(t for _, _, t in rooms) * together,
        adapters / settings.adapter_slots * chips,
        tuned * chips,
        hosted * chips,
        settings.block,
        blocks // plan.pipeline * plan.pipeline,
    )


def _block_of(settings: ServeSettings) -> str:
    """What says how many tokens a block has, and how many."""
    key = "serve.block" if settings.page is None else f"serve.page {format_bytes(settings.page)}, tokens:"
    return f"{key} {settings.block}"


def _in_rows(served: Served, part: Graph, left: float) -> float | None:
    """Bytes of a token's keys and values on a chip whose memory computes with them."""
    machine, trace = served.cluster.machine, served.trace
    if not isinstance(machine, PimMachine):
        return None
    lengths = int(trace.prompt.min()), int((trace.prompt + trace.output).max())
    return bytes_in_rows(machine, machine.fitted(part), lengths, served.settings.block, left)


def _draft_blocks(served: Served) -> int | None:
    """Blocks that the draft model has room for on a machine of its own; raises `LoomError` where there is none."""
    draft, settings = served.draft, served.settings
    if draft is None or draft.own is None:
        return None
    small, usable = part_of(draft.own, draft.model, draft_plan(served)), settings.memory_share * draft.own.capacity
    blocks = int((usable - small.weight_bytes) // (small.kv_bytes_per_token * settings.block))
    if blocks < 1:
        raise LoomError(
            f"serve.draft_on {draft.own.name}: {draft.model.name} leaves no room for keys and values: of the "
            f"{format_bytes(usable)} that may be used of a chip (serve.memory_share {settings.memory_share:g}) weights "
            f"take {format_bytes(small.weight_bytes)}"
        )
    return blocks


def spill_tiers(served: Served, memory: ReplicaMemory) -> tuple[tuple[int, float, bool], ...]:
    """Blocks of each slower memory, seconds a token, and whether all share it; raises `LoomError` without any room."""
    found, stages = [], served.plan.pipeline
    firsts = [path[0][1] for path in served.trace.segments if path]
    shortest = min(firsts, default=0) // memory.block * memory.block
    for at, tier in enumerate(served.settings.spill):
        blocks = int(tier.capacity // (memory.per_token * memory.block))
        each = blocks if tier.shared else blocks // stages
        if each * memory.block < shortest and each:
            whose = f"each of the {stages} schedulers of plan.pipeline" if each < blocks else tier.name
            raise LoomError(
                f"serve.spill.{at}.capacity {format_bytes(tier.capacity)}: {whose} has room for "
                f"{each * memory.block:,} tokens, and prompts of {served.trace.name} share {shortest:,} or more"
            )
        if not each:
            least = format_bytes(memory.per_token * memory.block)
            raise LoomError(
                f"serve.spill.{at}.capacity: a block of {memory.block} tokens takes {least}, and {tier.name} has "
                f"{format_bytes(tier.capacity)}"
                + (f" for {stages} schedulers (plan.pipeline)" if stages > 1 and not tier.shared else "")
            )
        found.append((blocks, memory.per_token / tier.bandwidth, tier.shared))
    return tuple(found)


def stage_memory(served: Served, part: Graph) -> list[tuple[float, float]]:
    """Bytes of weights, and of keys and values of a token, on a chip of each stage; ``part`` is one of all layers."""
    weights, per_token = float(part.weight_bytes), float(part.kv_bytes_per_token)
    plan = served.plan
    if plan.pipeline == 1:
        return [(weights, per_token)]
    blocks = stage_blocks(served.replica, served.model.ask, plan)
    caches = [sum(b.cache_bytes for b in stage) for stage in blocks]
    shares = [cache / sum(caches) for cache in caches]
    return [(sum(b.weight_bytes for b in stage), per_token * s) for stage, s in zip(blocks, shares, strict=True)]


def adapter_bytes(part: Graph, rank: int) -> float:
    """Bytes of a LoRA adapter's two matrices for every product of the layers that has weights, experts left out."""
    layers = (
        o for o in part.operators() if isinstance(o, Gemm) and o.place.section is Section.LAYER and o.weight_bytes
    )
    return float(sum(ADAPTER_ELEMENT * rank * (o.n + o.k) * o.repeat for o in layers if o.role not in EXPERTS))


def tuning_bytes(served: Served, part: Graph) -> float:
    """Bytes of a chip that training an adapter takes: results that one sequence's way back reads, and its states.

    The head's results are there for a window at a time. Gradients of keys and values are kept from the end of the
    sequence on; of the adapter's parameters, the gradient and Adam's states (`mapper.system.memory.states`).
    """
    sequence, rank = served.settings.tune_sequence, served.settings.tune_rank
    assert sequence is not None
    assert rank is not None
    try:
        sets = [("phase", "training"), ("batch", "1"), ("sequence", str(sequence))]
        trained = part_of(served.cluster, served.model, served.plan, sets)
    except NotSupported as error:
        raise NotSupported(f"serve.tune_sequence {sequence}: {str(error).removeprefix('not supported: ')}") from None
    except LoomError as error:
        raise LoomError(f"serve.tune_sequence {sequence}: {error}") from None
    kept = kept_bytes(trained, served.plan.tensor)
    parameters = adapter_bytes(part, rank) / ADAPTER_ELEMENT
    return kept + float(part.kv_bytes_per_token) * sequence + sum(states(parameters, ADAPTER_ELEMENT, 1, 0))


def _least_chips(served: Served, weights: float) -> int:
    """Chips of a stage whose memory would hold its weights and more."""
    usable = served.settings.memory_share * served.cluster.capacity
    least = ceil(weights * served.plan.tensor / usable) + 1
    return int(2 ** ceil(np.log2(least)))


def check_lengths(served: Served, memory: ReplicaMemory) -> None:
    """Refuse requests that no replica could ever answer; raises `LoomError`."""
    trace, settings = served.trace, served.settings
    spare = int(settings.watermark * (memory.blocks // served.plan.pipeline))
    room = (memory.blocks // served.plan.pipeline - spare) * memory.block
    lengths = trace.prompt + trace.output
    at = int(np.argmax(lengths))
    more = len(settings.chances) + (memory.block if trace.segments else 0)  # a block that is cached and made once more
    if int(lengths[at]) + more > room:
        less = f", of which serve.watermark keeps {spare:,} free" if spare else ""
        stages = served.plan.pipeline
        dealt = f", which the {stages} schedulers of plan.pipeline share" if stages > 1 else ""
        whose = "serve.cache_tokens gives" if settings.cache_tokens else "memory leaves"
        raise LoomError(
            f"{trace.name}: request {at + 1} has {int(lengths[at]):,} tokens, a replica has room for {room:,}: {whose} "
            f"{memory.blocks:,} blocks of {memory.block}{less}{dealt}"
        )
    whose = ""
    try:
        served.model.last_token(int(lengths[at]))
        if served.draft is not None:
            whose = f"serve.draft {served.draft.model.name}: "
            served.draft.model.last_token(int(lengths[at]))
    except LoomError as error:
        raise LoomError(f"{whose}{trace.name}: request {at + 1} has {int(lengths[at]):,} tokens: {error}") from None
    if settings.batching is Batching.CONTINUOUS and not settings.chunked:
        at = int(np.argmax(trace.prompt))
        if int(trace.prompt[at]) > settings.token_budget:
            raise LoomError(
                f"serve.chunked false: the prompt of request {at + 1} has {int(trace.prompt[at]):,} tokens, a step "
                f"has {settings.token_budget:,} (serve.token_budget)"
            )


__all__ = ["ReplicaMemory", "check_lengths", "memory_of", "spill_tiers"]
