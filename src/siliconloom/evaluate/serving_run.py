"""A trace of requests served by replicas, as one result."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

from siliconloom import __version__
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.fleet import ReplicaRole
from siliconloom.arch.gpu import LEAST_CLOCK
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.quantity import format_si
from siliconloom.arch.served import SERVING_SCHEMA
from siliconloom.arch.service_level import ServiceLevel
from siliconloom.arch.serving import Preemption, ServeSettings
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.stacks import NO_STACK
from siliconloom.evaluate.asked import workload_digest
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.fleets import fleet_of
from siliconloom.evaluate.pim_costs import PimCosts
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.evaluate.served import run_result
from siliconloom.evaluate.served_model import part_of, routing_of
from siliconloom.evaluate.serving import FleetMember, Served, ServedFleet, draft_plan
from siliconloom.evaluate.serving_memory import (
    ADAPTER_ELEMENT,
    ReplicaMemory,
    adapter_bytes,
    check_lengths,
    memory_of,
    spill_tiers,
)
from siliconloom.evaluate.speculation import ApartCosts, SpeculatedCosts
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.sim.chip.energy import standing_power
from siliconloom.sim.service.costs import RequestLengths, StepCosts
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.offload import ExpertRouting
from siliconloom.sim.service.tuning import Tuner, Tuning
from siliconloom.workloads.serving.trace import RequestTrace

Sets = Sequence[tuple[str, str]]


def serve(
    served: Served | ServedFleet,
    objective: ServiceLevel | None = None,
    overrides: Sets = (),
    *,
    watcher: Watcher = NOBODY,
    audits: int | None = None,
    kept: list[Fleet] | None = None,
) -> dict[str, Any]:
    """Serve the trace, and say what it came to (`arch.served.ServingResult`).

    Parameters
    ----------
    audits
        Steps to ask in full afterwards: 8 of predicted machines, 4 of simulated ones, none of measured profiles.
    kept
        Is given the fleet, whose log has every request.

    Raises
    ------
    LoomError
        For requests that do not fit.
    """
    began = time.perf_counter()
    fleet_served = fleet_of(served)
    first, members = fleet_served.first, fleet_served.members
    settings, trace = first.settings, first.trace
    memories = [memory_of(member.served) for member in members]
    for member, memory in zip(members, memories, strict=True):
        check_lengths(member.served, memory)
    _check_limit(members, settings)
    if settings.draft_price is not None and all(member.price is None for member in members):
        raise LoomError(f"serve.draft_price {settings.draft_price:g}: changes nothing without serve.price")
    _check_moves(memories, settings)
    costs = _costs_of(members)
    lowered = [_costs_of([_at_clock(member, clock) for member in members]) for clock in settings.clocks]
    by_clock = [tuple(each for each, _ in made) for made in zip(*lowered, strict=True)] or [()] * len(members)
    fleet = _made(fleet_served, memories, [each for each, _ in costs], by_clock)
    complete = True
    with watcher.share("serving") as progress:
        try:
            fleet.run(progress)
        except KeyboardInterrupt:
            complete = False
            fleet.stop()
    if kept is not None:
        kept.append(fleet)
    asking = list(dict.fromkeys(each for _, each in costs if each is not None))
    audit: list[float] = []
    for each in asking:
        if complete and not settings.chances:  # requests of several lengths have no step of several tokens each
            audit += _audit(fleet, each, audits)
    notes = [note for member in members for note in _notes(member, complete)]
    context = float(np.mean(trace.prompt + trace.output / 2))
    notes += [note for made, _ in costs if isinstance(made, ApartCosts) and (note := made.slower(context))]
    for made, own in (pair for some in (costs, *lowered) for pair in some):
        if own is not None:
            own.keep()
        if isinstance(made, SpeculatedCosts):
            for each in dict.fromkeys(made.drafts):
                each.keep()
    body = run_result(fleet, trace, settings, objective or ServiceLevel())
    known = all(member.served.profile is None for member in members)
    paid = _paid_seconds(fleet, members, body["duration_s"])
    standing = sum(_standing(member.served) * seconds for member, seconds in zip(members, paid, strict=True))
    standing += sum(_without_replica(member)[1] for member in members) * body["duration_s"]
    body = _with_money(body, members, settings, standing if known else None, paid)
    groups = [_group(member, memory) for member, memory in zip(members, memories, strict=True)]
    return {
        "schema": SERVING_SCHEMA,
        "kind": "serving",
        "version": __version__,
        "complete": complete,
        "asked": {
            "machine": fleet_served.machine,
            "machine_digest": fleet_served.digest,
            "workload": first.model.name,
            "workload_digest": workload_digest(first.model.token),
            "trace": trace.name,
            "trace_digest": _trace_digest(trace),
            "plan": {**_plan(first), "data": sum(member.count for member in members)},
            "settings": settings.model_dump(mode="json"),
            "stack": first.stack.name,
            "profile": first.profile,
            "overrides": dict(overrides),
        },
        "chips": sum(member.count * member.served.plan.chips for member in members),
        **body,
        "memory": groups[0]["memory"],
        "groups": groups,
        "costs": {
            "asked": sum(each.asked for each in asking),
            "audited": len(audit),
            "audit_mean": float(np.mean(audit)) if audit else None,
            "audit_max": max(audit) if audit else None,
        },
        "simulator": {"wall_s": time.perf_counter() - began},
        "notes": list(dict.fromkeys(notes)),
    }


def _check_moves(memories: Sequence[ReplicaMemory], settings: ServeSettings) -> None:
    """Refuse a limit that no replica is ever above; raises `LoomError`."""
    room = max(memory.blocks * memory.block for memory in memories)
    if settings.migrate_below is not None and settings.takes_above >= room:
        key = "migrate_below" if settings.migrate_above is None else "migrate_above"
        raise LoomError(
            f"serve.{key} {getattr(settings, key):g}: nobody takes requests: a replica has room for {room:,} tokens, "
            f"and those above {settings.takes_above:g} would"
        )


def _check_limit(members: Sequence[FleetMember], settings: ServeSettings) -> None:
    """Refuse a limit of power that is never reached, or always passed; raises `LoomError`."""
    limit = settings.power_limit
    if limit is None:
        return
    apart = sum(_without_replica(member)[1] for member in members)
    most = sum(_board(member.served) * member.count for member in members) + apart
    each = [(_standing(member.served), member.count) for member in members]
    count = sum(many for _, many in each)
    least = sum(watts * many for watts, many in each) * (settings.replicas_least or count) / count + apart
    if limit >= most:
        rule = f"changes nothing: the boards' own limits are {most:g} W together{_with_those(apart)}"
        raise LoomError(f"serve.power_limit {limit:g}: {rule}")
    if limit <= least:
        raise LoomError(f"serve.power_limit {limit:g}: chips draw {least:g} W at work on nothing{_with_those(apart)}")


def _with_those(apart: float) -> str:
    """Of so many watts those that chips in no replica draw."""
    return f", with {apart:g} W of those in no replica" if apart else ""


def _board(served: Served) -> float:
    """Watts that a replica's boards draw at most."""
    machine = served.cluster.machine
    assert isinstance(machine, GpuMachine)
    return float(machine.gpu.power_cap or machine.gpu.power) * served.plan.chips


def _costs_of(members: Sequence[FleetMember]) -> list[tuple[StepCosts, ReplicaCosts | None]]:
    """What steps of each member take, and the same where the evaluator says it; members that are alike share it."""
    found: list[tuple[StepCosts, ReplicaCosts | None]] = []
    known: dict[tuple[str, str, str], tuple[StepCosts, ReplicaCosts | None]] = {}
    for member in members:
        served = member.served
        key = served.cluster.digest, repr(served.plan), served.stack.name
        if key not in known:
            known[key] = _costs(served)
        found.append(known[key])
    return found


def _costs(served: Served) -> tuple[StepCosts, ReplicaCosts | None]:
    if served.costs is not None:
        return served.costs, None
    longest = int((served.trace.prompt + served.trace.output).max())
    guesses = served.settings.guesses
    of_machine = PimCosts if isinstance(served.cluster.machine, PimMachine) else ReplicaCosts
    made = of_machine(
        served.replica, served.model.ask, served.plan, stack=served.stack, longest=longest, guesses=sum(guesses)
    )
    if served.draft is None:
        return made, made
    plan, draft = draft_plan(served), served.draft
    chips, before = served.draft_cluster.part(plan.chips), (1, *guesses[:-1])
    found = {
        many: ReplicaCosts(chips, draft.model.ask, plan, longest=longest, guesses=many - 1) for many in set(before)
    }
    drafts = [found[many] for many in before]
    if draft.own is None:
        return SpeculatedCosts(made, drafts), made
    return ApartCosts(made, drafts, draft.latency_s, ahead=served.settings.draft_ahead), made


def _made(
    fleet: ServedFleet,
    memories: Sequence[ReplicaMemory],
    costs: Sequence[StepCosts],
    lowered: Sequence[tuple[StepCosts, ...]],
) -> Fleet:
    """The replicas of all members; ``lowered`` are costs of each one's steps at lower clocks."""
    settings, trace = fleet.first.settings, fleet.first.trace
    per_s, swaps = settings.host_bandwidth, settings.preemption is Preemption.SWAP
    prompts: list[ReplicaGroup] = []
    others: list[ReplicaGroup] = []
    speeds = [_speed(member.served, each) for member, each in zip(fleet.members, costs, strict=True)]
    for member, memory, each, speed, slow in zip(fleet.members, memories, costs, speeds, lowered, strict=True):
        swap_s = memory.per_token / per_s if swaps and per_s else 0.0
        adapters = (0, 0.0, 0.0)
        if settings.adapter_rank is not None and per_s:
            read_s = memory.adapter / member.served.plan.chips / member.served.cluster.machine.bandwidth
            adapters = settings.adapter_slots, memory.adapter / per_s, read_s
        models = (0, 0.0)
        if settings.model_slots is not None and settings.model_bandwidth:
            models = settings.model_slots, memory.weights / settings.model_slots / settings.model_bandwidth
        stages = member.served.plan.pipeline
        group = ReplicaGroup(
            each,
            memory.blocks,
            member.count,
            swap_s,
            adapters,
            models,
            speed / max(speeds),
            stages,
            slow,
            _standing(member.served),
            _tiers(member.served, memory, each),
            _tuning(member.served, each),
            _routing(member.served, each),
        )
        (prompts if member.role is ReplicaRole.PROMPTS else others).append(group)
    per_token = memories[0].per_token
    apart = sum(_without_replica(member)[1] for member in fleet.members)
    return Fleet(settings, trace, others, prompts, lambda tokens: fleet.handover(tokens * per_token), apart)


def _at_clock(member: FleetMember, share: float) -> FleetMember:
    """The same GPUs at a share of their clock."""
    served = member.served
    machine = served.cluster.machine
    assert isinstance(machine, GpuMachine)
    gpu = machine.gpu
    clock = round((gpu.locked_clock or gpu.clock) * share)
    if clock < LEAST_CLOCK * gpu.clock:
        locked, least = (format_si(each, "Hz") for each in (gpu.locked_clock or gpu.clock, LEAST_CLOCK * gpu.clock))
        raise LoomError(
            f"serve.capped_clock {share:g}: of the locked clock, {locked}, is below {least}, a fifth of its own"
        )
    held = replace(machine, gpu=gpu.model_copy(update={"locked_clock": clock}))
    cluster = replace(served.cluster, kinds=((held, served.cluster.chips),))
    return replace(member, served=replace(served, cluster=cluster))


UPDATED = 2 + 2 * 12
"""Bytes of each parameter that an optimizer reads and writes: a gradient, and Adam's states there and back."""
BUSY = 32
"""Requests in a step whose tokens a second are a replica's speed, for who chooses among replicas."""


def _speed(served: Served, costs: StepCosts) -> float:
    """Requests of the trace's mean lengths that a replica answers in a second, 32 of them at once in each stage."""
    trace = served.trace
    prompt, output = float(trace.prompt.mean()), float(trace.output.mean())
    budget = min(int(trace.prompt.max()), served.settings.token_budget, max(round(prompt), 1))
    chunk = float(costs.steps([(budget, 0)], 1, 0, np.zeros(1))[0][0]) * prompt / budget
    count = min(BUSY, served.settings.max_sequences)
    token = float(costs.steps([], 0, count, np.array([prompt + output / 2]))[0][0]) / count
    return served.plan.pipeline / (chunk + output * token)


def _tiers(served: Served, memory: ReplicaMemory, costs: StepCosts) -> tuple[tuple[int, float, bool], ...]:
    """Slower memories of a replica; raises `LoomError` for one that is slower than computing anew."""
    tiers = spill_tiers(served, memory)
    if not tiers:
        return ()
    longest = int(served.trace.prompt.max())
    size = min(longest, served.settings.token_budget)
    made = float(costs.steps([(size, longest - size)], 0, 0, np.zeros(1))[0][0]) / size
    for at, (tier, (_, brought, _)) in enumerate(zip(served.settings.spill, tiers, strict=True)):
        if brought >= made:
            each_s, own_s = format_si(brought, "s"), format_si(made, "s")
            raise LoomError(
                f"serve.spill.{at}.bandwidth: a token's keys and values take {each_s} from {tier.name}, and {own_s} to "
                "compute behind the longest prompt"
            )
    return tiers


def _tuning(served: Served, costs: StepCosts) -> Tuning | None:
    """Training in what steps leave over; raises `LoomError` where no step has time for a token of it."""
    settings, machine = served.settings, served.cluster.machine
    sequence, rank, limit = settings.tune_sequence, settings.tune_rank, settings.tune_step_s
    if sequence is None:
        return None
    assert rank is not None
    assert limit is not None
    if not isinstance(costs, ReplicaCosts) or isinstance(costs, PimCosts):
        where = f"steps that were measured ({served.profile})" if served.profile else f"on {served.machine}"
        raise NotSupported(f"serve.tune_sequence {where}: nobody says what a window takes back")
    adapter = adapter_bytes(part_of(served.cluster, served.model, served.plan), rank)
    parameters = adapter / ADAPTER_ELEMENT
    made = Tuning(costs, sequence, limit, adapter / machine.bandwidth, UPDATED * parameters / machine.bandwidth)
    if not Tuner(made, settings.token_budget).fits:
        raise LoomError(f"serve.tune_step_s {limit:g}: a step of one token of training takes longer")
    return made


def _routing(served: Served, costs: StepCosts) -> ExpertRouting | None:
    """Experts that come from the host; raises `NotSupported` where they are told ahead and layers' times are not."""
    if served.settings.expert_ahead and (not isinstance(costs, ReplicaCosts) or isinstance(costs, PimCosts)):
        where = "with serve.draft" if served.draft else f"on {served.machine}, whose steps are not told by layers"
        raise NotSupported(f"serve.expert_ahead {where}")
    return routing_of(served.cluster, served.model, served.plan, served.settings)


def _standing(served: Served) -> float:
    """Watts of a replica's chips, whether they work or not, and of those that guess for it."""
    watts = _idle(served.cluster) * served.plan.chips
    if served.draft is not None and served.draft.own is not None:
        watts += _idle(served.draft.own) * served.draft.own.chips
    return watts


def _idle(cluster: Cluster) -> float:
    """Watts of a chip at work on nothing."""
    machine = cluster.machine
    if isinstance(machine, GpuMachine):
        return float(machine.gpu.idle_power)
    assert isinstance(machine, ChipMachine)
    return sum(standing_power(machine.chip).values())


def _without_replica(member: FleetMember) -> tuple[int, float]:
    """Chips of the machine that are in no replica, and the watts that they draw; none where replicas come and go."""
    if member.role is not ReplicaRole.WHOLE:
        return 0, 0.0
    served = member.served
    chips = served.cluster.chips - served.replicas * served.plan.chips
    return chips, 0.0 if served.settings.replicas_least is not None else chips * _idle(served.cluster)


def _plan(served: Served) -> dict[str, int]:
    """How the chips of one replica share the model."""
    plan = served.plan
    return {"tensor": plan.tensor, "pipeline": plan.pipeline, "expert": plan.expert}


def _group(member: FleetMember, memory: ReplicaMemory) -> dict[str, Any]:
    served = member.served
    return {
        "machine": served.machine,
        "role": member.role.value,
        "replicas": member.count,
        "chips": served.plan.chips,
        "plan": _plan(served),
        "stack": served.stack.name,
        "price": member.price,
        "draft": _draft(served),
        "memory": {
            "capacity_bytes": memory.capacity,
            "usable_bytes": memory.usable,
            "weight_bytes": memory.weights,
            "activation_bytes": memory.activations,
            "kv_bytes_per_token": memory.per_token,
            "adapter_bytes": memory.adapter,
            "tuning_bytes": memory.tuning,
            "hosted_bytes": memory.hosted,
            "models": served.settings.model_slots or 1,
            "block_tokens": memory.block,
            "blocks": memory.blocks,
            "cache_tokens": memory.blocks * memory.block,
        },
    }


def _draft(served: Served) -> dict[str, Any] | None:
    draft = served.draft
    if draft is None:
        return None
    own = draft.own
    chips, made = draft_plan(served).chips, {"ahead": True} if served.settings.draft_ahead else {}
    return {"model": draft.model.name, "machine": None if own is None else own.name, "chips": chips, **made}


def _audit(fleet: Fleet, costs: ReplicaCosts, audits: int | None) -> list[float]:
    """Relative differences of steps' kernels from what the evaluator says of them in full."""
    wanted = (8 if costs.predicted else 4) if audits is None else audits
    found: list[float] = []
    of_these = (costs, *(r.costs for r in fleet.engines if getattr(r.costs, "target", None) is costs))
    samples = [sample for engine in fleet.engines if engine.costs in of_these for sample in engine.account.samples]
    if not wanted or not samples:
        return found
    for at in sorted({round(i * (len(samples) - 1) / max(wanted - 1, 1)) for i in range(wanted)}):
        chunks, ended, contexts = samples[at]
        mean = np.array([np.mean(contexts) if contexts else 0.0])
        lengths = RequestLengths(Counter(each - 1 for each in contexts))
        told = float(costs.kernels(chunks, ended, len(contexts), mean, lengths)[0][0])
        found.append(abs(told / costs.whole(chunks, contexts) - 1))
    return found


def _paid_seconds(fleet: Fleet, members: Sequence[FleetMember], duration: float) -> list[float]:
    """Seconds that each member's replicas were paid for, all together: of the whole run, where none come and go."""
    if fleet.elastic is None:
        return [duration * member.count for member in members]
    begin = float(fleet.requests.arrival_s[0])
    each = fleet.elastic.paid(begin, begin + duration)
    ends = np.cumsum([member.count for member in members]).tolist()
    return [sum(each[end - member.count : end]) for end, member in zip(ends, members, strict=True)]


def _with_money(
    body: dict[str, Any],
    members: Sequence[FleetMember],
    settings: ServeSettings,
    standing_j: float | None,
    paid_s: Sequence[float],
) -> dict[str, Any]:
    """Energy and money; of steps that were measured, whose energy nobody knows, ``standing_j`` is ``None``."""
    steps_j = body.pop("step_joules")
    energy = None if standing_j is None else steps_j + standing_j
    hours = [each / 3600 * member.served.plan.chips for each, member in zip(paid_s, members, strict=True)]
    prices = [member.price for member in members]
    chips_usd = None
    if all(price is not None for price in prices) and (settings.draft_on is None or settings.draft_price is not None):
        chips_usd = sum(many * (price or 0.0) for many, price in zip(hours, prices, strict=True))
        chips_usd += sum(paid_s) / 3600 * (settings.draft_price or 0.0)
    electricity = None if energy is None else energy / 3.6e6 * settings.electricity
    usd = None if chips_usd is None else chips_usd + (electricity or 0.0)
    made = max(body["requests"]["output_tokens"], 1)
    power = None if energy is None else energy / body["duration_s"] if body["duration_s"] else 0.0
    return body | {
        "energy_j": energy,
        "power_w": power,
        "joules_per_token": None if energy is None else energy / made,
        "cost": {
            "chip_hours": sum(hours),
            "chips_usd": chips_usd,
            "electricity_usd": electricity,
            "usd": usd,
            "usd_per_million_tokens": None if usd is None else usd / made * 1e6,
        },
    }


def _trace_digest(trace: RequestTrace) -> str:
    digest = hashlib.sha256()
    for name, value in asdict(trace).items():
        if name != "name":
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()


def _notes(member: FleetMember, complete: bool) -> list[str]:
    served = member.served
    machine, notes = served.cluster.machine, list[str]()
    if not complete:
        notes.append(
            "interrupted: figures are of the requests that had ended when every replica had come so far; steps and "
            "energy are of some steps more"
        )
    if served.profile is not None:
        notes.append(
            f"steps are made of operators that were timed ({served.profile}), straight between their sizes; their "
            "energy is not known, and left out, of cost too"
        )
        if served.plan.tensor > 1:
            notes.append("messages between GPUs are predicted: profiles have none")
    elif isinstance(machine, GpuMachine):
        notes.append("kernels are predicted by the GPU model, one after the other")
    if served.stack is NO_STACK:
        notes.append("no software of the host: its share of a step is left out (--stack)")
    idle, watts = _without_replica(member)
    if idle:
        drawn = f", and draw {format_si(watts, 'W')} all the while" if watts else ""
        notes.append(f"{idle} of {served.cluster.chips} chips do nothing{drawn}")
    notes += _model_notes(served)
    own = None if served.draft is None else served.draft.own
    if own is not None:
        notes.append(f"guesses are made on {own.name}, whose host's share of a step is left out")
        if idle := own.chips - draft_plan(served).chips:
            notes.append(f"{idle} of the {own.chips} chips of {own.name} do nothing (serve.draft_tensor)")
        if member.price is not None and served.settings.draft_price is None:
            notes.append(f"of the cost electricity alone is known: {own.name} has no price (serve.draft_price)")
    if member.price is None and served.profile is None:
        notes.append("of the cost electricity alone is known: chips have no price (serve.price, dollars an hour)")
    return [*notes, *machine.notes]


def _model_notes(served: Served) -> list[str]:
    """What is to be known of the model's longest request, and of the model that guesses."""
    longest = int((served.trace.prompt + served.trace.output).max())
    notes = list(served.model.last_token(longest).notes)
    if served.draft is None:
        return notes
    guessing = served.draft.model
    notes += [f"serve.draft {guessing.name}: {note}" for note in guessing.last_token(longest).notes]
    ours, theirs = served.model.vocabulary, guessing.vocabulary
    if ours != theirs and ours is not None and theirs is not None:
        notes.append(
            f"serve.draft {guessing.name} tells {theirs:,} tokens apart and {served.model.name} {ours:,}: guesses are "
            "checked as if both had the same tokens"
        )
    return notes


__all__ = ["serve"]
