"""Requests served by a machine: the replicas that its chips make, their memory, and the run as one result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.fleet import ReplicaRole
from siliconloom.arch.serving import Batching, Order, Router, ServeSettings
from siliconloom.arch.tile import NpuTile
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.stacks import NO_STACK, Stack
from siliconloom.evaluate.cluster import chip_alone
from siliconloom.evaluate.machine import DescribedMachine, read_machine
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.evaluate.served_model import ServedModel, offloaded_bytes, page_tokens, part_of, read_model
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.service.costs import StepCosts
from siliconloom.workloads import Attention
from siliconloom.workloads.serving.arrivals import timed
from siliconloom.workloads.serving.trace import RequestTrace

Sets = Sequence[tuple[str, str]]
UNSTAGED = ("speculate", "adapter_rank", "model_slots", "expert_slots", "tune_sequence", "migrate_below", "power_limit")
"""Keys under ``serve.`` that a pipeline's schedulers have nothing for."""
ROOMY = 0.5
"""Share of the memory that weights take at most where nobody says on how many chips a replica is."""


class DraftModel(Struct, frozen=True):
    """The model that guesses: on how many chips, of the replica or of a machine of its own, and seconds to that."""

    model: ServedModel
    tensor: int | None = None
    own: Cluster | None = None
    latency_s: float = 0.0


class Served(Struct, frozen=True):
    """All that a run needs.

    Parameters
    ----------
    plan
        Of one replica.
    replicas
        How many there are, those that do prompts only among them; ``given_data`` where ``plan.data`` says so.
    """

    machine: str
    cluster: Cluster
    model: ServedModel
    trace: RequestTrace
    settings: ServeSettings
    plan: Plan
    replicas: int
    stack: Stack
    profile: str | None = None
    costs: StepCosts | None = None
    draft: DraftModel | None = None
    given_data: bool = False

    @property
    def replica(self) -> Cluster:
        """Chips of one."""
        return self.cluster.part(self.plan.chips)

    @property
    def draft_cluster(self) -> Cluster:
        """Chips that the model which guesses may be on."""
        own = None if self.draft is None else self.draft.own
        return self.cluster if own is None else own


class FleetMember(Struct, frozen=True):
    """Replicas that are alike: ``count`` of those that ``served`` says, what they do, and dollars an hour of a chip."""

    served: Served
    count: int
    role: ReplicaRole = ReplicaRole.WHOLE
    price: float | None = None


class ServedFleet(Struct, frozen=True):
    """Replicas of several kinds, and seconds until so many bytes of keys and values are at another one."""

    machine: str
    digest: str
    members: tuple[FleetMember, ...]
    handover: Callable[[float], float]

    @property
    def first(self) -> Served:
        """The first member's, of whose trace and settings all are."""
        return self.members[0].served


def prepare(
    machine: DescribedMachine,
    model: ServedModel,
    trace: RequestTrace,
    settings: ServeSettings,
    stack: Stack = NO_STACK,
    *,
    fleet: bool = False,
) -> Served:
    """Divide a machine into replicas.

    ``plan.tensor``, ``plan.expert`` and so on are of one replica, ``plan.data`` is how many there are. Where nothing is
    said, a replica has as few chips (a power of two) as keep half of their memory for keys and values, and there are as
    many replicas as fit; ``fleet`` where others serve beside it.

    Raises
    ------
    LoomError
        Where the model fits no replica, with what is needed and what there is.
    """
    chip = machine.chip
    if chip is not None and not isinstance(chip.tile, NpuTile):
        raise NotSupported(f"serving on {machine.name}: a {chip.tile.kind} tile runs products alone")
    cluster = machine.cluster or chip_alone(_chip_of(machine))
    given = dict(machine.plan)
    for key in given:
        if key not in ("tensor", "data", "pipeline", "expert", "expert_load", "expert_tensor", "sequence_parallel"):
            raise NotSupported(
                f"plan.{key} of a service: replicas share a model by plan.tensor, plan.pipeline and plan.expert"
            )
    data = given.pop("data", None)
    stages = given.get("pipeline", 1)
    if "tensor" not in given:
        most = (cluster.chips if data is None else cluster.chips // data) // stages
        given["tensor"] = _degree(cluster, model, settings, most=most, stages=stages)
    if "expert" in given and "expert_tensor" not in given:  # experts that are shared by as few chips as they can be
        given["expert_tensor"] = max(given["tensor"] // given["expert"], 1)
    plan = Plan(**given)
    if plan.chips > cluster.chips:
        stages_too = f", plan.pipeline {stages}" if stages > 1 else ""
        raise LoomError(f"plan.tensor {plan.tensor}{stages_too}: {cluster.name} has {cluster.chips} chips")
    if stages > 1:
        for key in UNSTAGED:
            asked = getattr(settings, key)
            if asked is not None:
                raise NotSupported(f"serve.{key} with plan.pipeline {stages}")
    if settings.expert_slots is not None and plan.expert > 1:
        raise NotSupported(f"serve.expert_slots with plan.expert {plan.expert}: each chip has experts of its own")
    replicas = cluster.chips // plan.chips if data is None else data
    if replicas * plan.chips > cluster.chips:
        raise LoomError(
            f"plan.data {replicas}: {replicas} replicas of {plan.chips} chips, {cluster.name} has {cluster.chips}"
        )
    _check_memory_that_computes(cluster, plan, trace, settings)
    if settings.page is not None:
        block = page_tokens(part_of(cluster, model, plan), model, settings.page)
        settings = settings.model_copy(update={"block": block})
    if settings.router is not Router.ROUND_ROBIN and replicas == 1 and not fleet:
        raise LoomError(f"serve.router {settings.router.value}: changes nothing: there is one replica")
    if not fleet:
        check_stores(settings, settings.prefill_replicas or replicas, plan.pipeline)
    if settings.migrate_below is not None and replicas == 1 and not fleet:
        raise LoomError(f"serve.migrate_below {settings.migrate_below:g}: changes nothing: there is one replica")
    if not fleet:
        check_scaling(settings, replicas)
    if settings.prefill_replicas >= replicas and settings.prefill_replicas:
        raise LoomError(
            f"serve.prefill_replicas {settings.prefill_replicas}: there are {replicas} replicas, and one at least must "
            "make the answers (plan.tensor and plan.data say how many there are)"
        )
    if settings.batching is Batching.CONTINUOUS and settings.max_sequences > settings.token_budget:
        raise LoomError(
            f"serve.token_budget {settings.token_budget}: is less than the {settings.max_sequences} requests "
            "(serve.max_sequences) of a step, each of which has a token"
        )
    _check_columns(trace, settings)
    if settings.shared_attention:
        check_sharing(cluster, model)
    if settings.power_limit is not None and not isinstance(cluster.machine, GpuMachine):
        raise NotSupported(f"serve.power_limit on {cluster.name}: only GPUs have times at a lower clock")
    made = Served(
        cluster.name,
        cluster,
        model,
        _of_models(timed(trace, settings), settings),
        settings,
        plan,
        replicas,
        stack,
        draft=_draft_of(settings),
        given_data=data is not None,
    )
    if made.draft is not None:
        draft_plan(made)
    return made


def _check_memory_that_computes(cluster: Cluster, plan: Plan, trace: RequestTrace, settings: ServeSettings) -> None:
    """Refuse what has no meaning where a sequence lies in a channel that computes its attention."""
    machine = cluster.machine
    if not isinstance(machine, PimMachine):
        return
    where = f"on {cluster.name}, whose memory computes"
    if plan.pipeline > 1:
        raise NotSupported(f"plan.pipeline {plan.pipeline} of a service {where}")
    if settings.page is not None:
        raise NotSupported(f"serve.page {where}: keys and values lie in rows of its banks")
    if settings.speculate is not None:
        raise NotSupported(f"serve.speculate {where}: it has one query of a sequence at a time")
    if trace.segments and settings.prefix_cache and machine.policy.attention != "npu":
        raise NotSupported(
            f"prefixes that requests share {where}: a sequence lies in a channel of its own; serve.prefix_cache=false "
            "computes them anew, and a system's policy.attention=npu leaves attention to the arrays"
        )


def _draft_of(settings: ServeSettings) -> DraftModel | None:
    """The model that guesses, on the machine that is named for it; raises `LoomError` for one that serves nothing."""
    if settings.draft is None:
        return None
    own = None
    try:
        model = read_model(settings.draft, ())
    except NotSupported as error:
        raise NotSupported(f"serve.draft: {_plain(error)}") from None
    except LoomError as error:
        raise LoomError(f"serve.draft {settings.draft}: {error}") from None
    if settings.draft_on is not None:
        try:
            machine = read_machine(settings.draft_on, [])
        except NotSupported:
            raise
        except LoomError as error:
            raise LoomError(f"serve.draft_on: {error}") from None
        chip = machine.chip
        if chip is not None and (not isinstance(chip.tile, NpuTile) or chip.pim is not None or chip.tile.pim):
            raise NotSupported(f"serve.draft_on {machine.name}: guesses are made by GPUs and NPUs")
        own = machine.cluster or chip_alone(_chip_of(machine))
        if len(own.kinds) > 1 or isinstance(own.machine, PimMachine):
            raise NotSupported(f"serve.draft_on {machine.name}: guesses are made by GPUs and NPUs of one kind")
        precision = model.token.precision
        if isinstance(own.machine, GpuMachine) and not own.machine.peak(precision):
            raise LoomError(
                f"serve.draft_on {machine.name}: has no units for {precision.value}, the format of {model.name}"
            )
    return DraftModel(model, settings.draft_tensor, own, settings.draft_latency_s or 0.0)


def check_stores(settings: ServeSettings, replicas: int, stages: int) -> None:
    """Refuse a store that one scheduler alone would reach, and that outlives nobody; raises `LoomError`."""
    if replicas * stages > 1 or settings.lost_every is not None:
        return
    for at, tier in enumerate(settings.spill):
        if tier.shared:
            raise LoomError(f"serve.spill.{at}.shared true: changes nothing: one replica has prompts")


def check_scaling(settings: ServeSettings, replicas: int) -> None:
    """Refuse numbers of replicas that come and go which are no fewer than there are, or more; raises `LoomError`."""
    least, most = settings.replicas_least, settings.replicas_most
    there = f"there is room for {replicas} (plan.tensor and plan.data say how many)"
    if least is not None and least >= replicas:
        raise LoomError(
            f"serve.replicas_least {least}: {'changes nothing' if least == replicas else 'cannot be'}: {there}"
        )
    if most is not None and most > replicas:
        raise LoomError(f"serve.replicas_most {most}: {there}")


def draft_plan(served: Served) -> Plan:
    """Chips that the draft model is on: as many as is said, or all of its machine's or replica's, or one where it does
    not divide.

    Raises
    ------
    LoomError
        For a number of chips that there are not, or that the model does not divide over.
    """
    draft = served.draft
    assert draft is not None
    most = served.plan.tensor if draft.own is None else draft.own.chips
    plan = Plan(tensor=draft.tensor or most)
    if plan.tensor > most:
        where = "a replica" if draft.own is None else draft.own.name
        raise LoomError(f"serve.draft_tensor {plan.tensor}: {where} has {most} chip{'s' * (most > 1)}")
    for tried in dict.fromkeys((plan, Plan(tensor=draft.tensor or 1))):
        try:
            part_of(served.draft_cluster, draft.model, tried)
            return tried
        except LoomError as error:
            trouble = error
    key = f"serve.draft {draft.model.name}" if draft.tensor is None else f"serve.draft_tensor {draft.tensor}"
    raise LoomError(f"{key}{'' if draft.own is None else f' on {draft.own.name}'}: {_plain(trouble)}")


def _plain(error: LoomError) -> str:
    """What an error says, without that something is not supported."""
    return str(error).removeprefix("not supported: ")


def _check_columns(trace: RequestTrace, settings: ServeSettings) -> None:
    """Refuse what asks for columns that the trace lacks, and adapters that nothing is said of; raises `LoomError`."""
    shared = settings.shared_attention
    for key, asked, has, column in (
        ("shared_attention", shared, bool(trace.segments), "prefix, session or hash_ids"),
        ("spill", bool(settings.spill), bool(trace.segments), "prefix, session or hash_ids"),
        ("order priority", settings.order is Order.PRIORITY, len(trace.priority) > 0, "priority"),
        ("order fair", settings.order is Order.FAIR, len(trace.client) > 0, "client"),
        ("router prefix", settings.router is Router.PREFIX, bool(trace.segments), "prefix, session or hash_ids"),
        ("adapter_rank", settings.adapter_rank is not None, bool((trace.adapter >= 0).any()), "adapter"),
        ("model_slots", settings.model_slots is not None, len(trace.model) > 0, "model"),
        (
            "router resident",
            settings.router is Router.RESIDENT,
            len(trace.model) > 0 or bool((trace.adapter >= 0).any()),
            "adapter or model",
        ),
    ):
        if asked and not has:
            raise LoomError(f"serve.{key}: changes nothing: {trace.name} has no column {column}")
    if settings.adapter_rank is None and (trace.adapter >= 0).any():
        raise LoomError(f"{trace.name}: has adapters; serve.adapter_rank and serve.host_bandwidth say what they take")


def _of_models(trace: RequestTrace, settings: ServeSettings) -> RequestTrace:
    """Requests of one model, or of several that take turns.

    Raises
    ------
    LoomError
        For several of which nothing is said, and for more room than there are models.
    """
    count = max(len(np.unique(trace.model)), 1)
    if settings.model_slots is None and count > 1:
        raise LoomError(
            f"{trace.name}: asks {count} models (its column model); serve.model_slots and serve.model_bandwidth say "
            "how many lie in a replica's memory, and how soon another one does"
        )
    if settings.model_slots is not None and settings.model_slots > count:
        asked = "1 model" if count == 1 else f"{count} models"
        raise LoomError(f"serve.model_slots {settings.model_slots}: {trace.name} asks {asked}")
    return trace if settings.model_slots is not None else replace(trace, model=np.zeros(0, np.int64))


def check_sharing(cluster: Cluster, model: ServedModel) -> None:
    """Raise `NotSupported` where next tokens cannot attend together to what their requests share."""
    if not isinstance(cluster.machine, GpuMachine):
        raise NotSupported(f"serve.shared_attention on {cluster.name}: kernels of it are those of GPUs")
    if all(o.window is not None for o in model.token.operators() if isinstance(o, Attention)):
        raise NotSupported(f"serve.shared_attention of {model.name}, all of whose layers see a window")


def _chip_of(machine: DescribedMachine) -> Any:
    assert machine.chip is not None
    return machine.chip


def _degree(cluster: Cluster, model: ServedModel, settings: ServeSettings, *, most: int, stages: int) -> int:
    """Chips of a replica's stage: the fewest, by powers of two, whose weights leave half of the usable memory."""
    fits = 1
    degree = 1
    while degree <= most:
        try:
            part = part_of(cluster, model, Plan(tensor=degree))
            weights = (part.weight_bytes - offloaded_bytes(part, model, settings)) * (settings.model_slots or 1)
        except LoomError:
            break
        fits = degree
        if weights / stages <= ROOMY * settings.memory_share * cluster.capacity:
            break
        degree *= 2
    return fits


__all__ = ["FleetMember", "Served", "ServedFleet", "check_scaling", "check_stores", "draft_plan", "prepare"]
