"""Replicas as a command names them: of one machine, or of a fleet of several kinds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from siliconloom.arch import DescriptionError, LoomError, NotSupported
from siliconloom.arch.document import Document
from siliconloom.arch.fleet import FleetDescription, FleetGroup, ReplicaRole, load_fleet
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.result import digest_of
from siliconloom.arch.serving import PICOSECONDS, Batching, Router, ServeSettings, read_settings
from siliconloom.arch.tile import NpuTile
from siliconloom.baselines.stacks import NO_STACK, Stack, find_stack
from siliconloom.evaluate.machine import DescribedMachine, read_machine
from siliconloom.evaluate.profiled import profiled
from siliconloom.evaluate.served_model import ServedModel, part_of, read_model
from siliconloom.evaluate.serving import FleetMember, Served, ServedFleet, check_scaling, check_stores, prepare
from siliconloom.workloads.serving.trace import RequestTrace, load_trace

Sets = Sequence[tuple[str, str]]


def prepare_named(
    machine: str | Document,
    model: str | Document,
    trace: str | RequestTrace,
    sets: Sets,
    stack: str | None = None,
    profile: str | None = None,
) -> Served | ServedFleet:
    """What serves, from names, files and ``--set`` pairs.

    Parameters
    ----------
    machine
        A GPU, a chip, a system, or a file of a fleet (`arch.fleet`).
    stack
        Software of the host; where it is not said, vLLM on GPUs.
    profile
        Takes steps from measured operators: ``measured``, or a folder (`evaluate.profiled`).

    Raises
    ------
    LoomError
        For what cannot be read, and keys that nothing reads.
    """
    of_machine, of_model = split_overrides(list(sets))
    settings = read_settings([pair for pair in of_machine if pair[0].startswith("serve.")])
    rest = [pair for pair in of_machine if not pair[0].startswith("serve.")]
    requests = load_trace(trace) if isinstance(trace, str) else trace
    document = _fleet_document(machine)
    if document is not None:
        if profile is not None:
            raise NotSupported("--profile of a fleet: profiles are of one machine")
        fleet = load_fleet(document, rest)
        return _prepare_fleet(fleet, document, read_model(model, of_model), requests, settings, stack)
    if profile is not None:
        for path, value in rest:
            if not path.startswith("plan.") and path.removeprefix("chip.") != "memory.capacity":
                raise LoomError(f"--set {path}={value}: changes nothing: steps take what was measured (--profile)")
    described = read_machine(machine, rest)
    served = prepare(described, read_model(model, of_model), requests, settings, served_stack(described, stack))
    return served if profile is None else profiled(served, profile)


def _fleet_document(machine: str | Document) -> Document | None:
    """The description of a fleet, where it is one."""
    if isinstance(machine, Document):
        return machine if machine.data.get("kind") == "fleet" else None
    if not os.path.isfile(machine):
        return None
    document = Document.load(machine)
    return document if document.data.get("kind") == "fleet" else None


def served_stack(machine: DescribedMachine, name: str | None) -> Stack:
    """The host's software by name, on GPUs vLLM where nothing is said.

    Raises
    ------
    LoomError
        For a name that is none.
    NotSupported
        For software on chips of ours.
    """
    if name is None:
        name = "vllm" if machine.chip is None else "none"
    found, chip = find_stack(name), machine.chip
    if chip is not None and isinstance(chip.tile, NpuTile) and chip.tile.pim is not None:
        raise NotSupported(
            f"serving on {machine.name}: keys and values of a prompt would have to be brought to the channel that "
            "computes (tile.pim); with --set tile.pim=null the array computes attention"
        )
    if machine.chip is not None and found is not NO_STACK:
        raise NotSupported(f"--stack {name} on {machine.name}: its software was measured on GPUs")
    return found


def _prepare_fleet(
    fleet: FleetDescription,
    document: Document,
    model: ServedModel,
    trace: RequestTrace,
    settings: ServeSettings,
    stack: str | None,
) -> ServedFleet:
    """The replicas of a fleet's groups; raises `LoomError` with the place of the machine where something is wrong."""
    if settings.prefill_replicas:
        raise LoomError("serve.prefill_replicas: groups of a fleet say what they do (groups.0.role)")
    apart = any(group.role is not ReplicaRole.WHOLE for group in fleet.groups)
    if apart and settings.batching is Batching.STATIC:
        raise NotSupported("serve.batching static with replicas for prompts and for answers")
    if apart and settings.shared_attention:
        raise LoomError("serve.shared_attention: changes nothing: what is handed over is shared with nobody (role)")
    events = ("replicas_least", "lost_every", "migrate_below", "power_limit", "draft_on")
    if apart and (key := next((key for key in events if getattr(settings, key) is not None), None)):
        raise NotSupported(f"serve.{key} with replicas for prompts and for answers")
    if settings.migrate_below is not None and fleet.link is None:
        raise LoomError("serve.migrate_below: keys and values move over the fleet's link, which is missing (link)")
    if not apart and settings.migrate_below is None and fleet.link is not None:
        raise LoomError("link: changes nothing: all replicas do whole requests, and none move (serve.migrate_below)")
    members = []
    for at, group in enumerate(fleet.groups):
        try:
            members.append(_member(group, model, trace, settings, stack))
        except LoomError as error:
            where, what = document.position(("groups", at, "machine")), str(error)
            if isinstance(error, NotSupported):
                raise NotSupported(f"{where}: groups.{at}: {what.removeprefix('not supported: ')}") from None
            raise DescriptionError(what, position=where, path=f"groups.{at}") from None
    check_choices(settings, members)
    for key, asked, values in (
        ("page", settings.page is not None, {member.served.settings.block for member in members}),
        ("spill, shared,", any(tier.shared for tier in settings.spill), {_cached(member.served) for member in members}),
    ):
        if asked and len(values) > 1:
            raise NotSupported(f"serve.{key} of replicas that differ in bytes of keys and values on a chip")
    check_scaling(settings, sum(member.count for member in members))
    ends = {role for member in members for role in (member.role,)}
    link = fleet.link

    def handover(size: float) -> float:
        assert link is not None
        return size / (link.count * link.bandwidth) + link.latency / PICOSECONDS

    if ReplicaRole.PROMPTS in ends or settings.migrate_below is not None:
        per_token = {_per_token(member.served) for member in members}
        if len(per_token) > 1:
            raise NotSupported("moving requests between replicas that keep keys and values in different formats")
    digests = "".join(member.served.cluster.digest for member in members)
    return ServedFleet(fleet.name, digest_of([fleet]) + digests, tuple(members), handover)


def check_choices(settings: ServeSettings, members: Sequence[FleetMember]) -> None:
    """Refuse stores and routers that so few replicas have no use for; raises `LoomError`."""
    first = [member for member in members if member.role is not ReplicaRole.ANSWERS]
    number = sum(member.count for member in first)
    check_stores(settings, number, max(member.served.plan.pipeline for member in first))
    answering = sum(member.count for member in members if member.role is ReplicaRole.ANSWERS)
    if settings.router is not Router.ROUND_ROBIN and max(number, answering) == 1:
        raise LoomError(f"serve.router {settings.router.value}: changes nothing: there is no choice of replicas")


def _cached(served: Served) -> int:
    """Bytes of a token's keys and values on all chips of a replica."""
    return part_of(served.cluster, served.model, served.plan).kv_bytes_per_token * served.plan.tensor


def _per_token(served: Served) -> int:
    return served.model.token.kv_bytes_per_token


def _member(
    group: FleetGroup, model: ServedModel, trace: RequestTrace, settings: ServeSettings, stack: str | None
) -> FleetMember:
    sets = [
        (key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in group.overrides.items()
    ]
    sets += [
        (f"plan.{key}", str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in group.plan.items()
    ]
    described = read_machine(group.machine, sets)
    of_gpus = described.chip is None
    name = stack if of_gpus else None
    served = prepare(described, model, trace, settings, served_stack(described, name), fleet=True)
    price = settings.price if group.price is None else group.price
    return FleetMember(served, served.replicas * group.count, group.role, price)


def fleet_of(served: Served | ServedFleet) -> ServedFleet:
    """The same as a fleet: one machine's replicas do whole requests, or some prompts and the others answers."""
    if isinstance(served, ServedFleet):
        return served
    settings, fabric, chips = served.settings, served.cluster.fabrics[0], served.plan.chips
    prompts = settings.prefill_replicas
    price = settings.price
    if not prompts:
        members: tuple[FleetMember, ...] = (FleetMember(served, served.replicas, price=price),)
    else:
        members = (
            FleetMember(served, prompts, ReplicaRole.PROMPTS, price),
            FleetMember(served, served.replicas - prompts, ReplicaRole.ANSWERS, price),
        )
    # each chip hands over its part, over its own link
    return ServedFleet(served.machine, served.cluster.digest, members, lambda size: fabric.hop(size / chips, chips))


def with_trace(served: Served | ServedFleet, trace: RequestTrace, settings: ServeSettings) -> Served | ServedFleet:
    """The same replicas with other requests."""
    if isinstance(served, Served):
        return replace(served, trace=trace, settings=settings)
    members = tuple(
        replace(member, served=replace(member.served, trace=trace, settings=settings)) for member in served.members
    )
    return replace(served, members=members)


__all__ = ["fleet_of", "prepare_named", "served_stack", "with_trace"]
