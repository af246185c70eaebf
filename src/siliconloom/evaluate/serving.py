"""Requests served by a machine: the replicas that its chips make, their memory, and the run as one result."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.document import Document
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.served import SERVING_SCHEMA
from siliconloom.arch.serving import Batching, Preemption, ServeSettings, ServiceLevel, read_settings
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.stacks import NO_STACK, Stack, find_stack
from siliconloom.evaluate.asked import workload_digest
from siliconloom.evaluate.cluster import chip_alone
from siliconloom.evaluate.machine import DescribedMachine, read_machine
from siliconloom.evaluate.served import run_result
from siliconloom.evaluate.step_costs import Ask, ReplicaCosts
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.service.costs import StepCosts
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup, ServedRequests
from siliconloom.workloads import Attention, Graph, load_workload
from siliconloom.workloads.serving.arrivals import timed
from siliconloom.workloads.serving.trace import RequestTrace, load_trace

Sets = Sequence[tuple[str, str]]
OF_STEPS = ("phase", "batch", "sequence", "context", "requests", "training_batch", "cache_length")
"""Keys of a workload that the requests say."""
ROOMY = 0.5
"""Share of the memory that weights take at most where nobody says on how many chips a replica is."""


class ServedModel(Struct, frozen=True):
    """A model that requests are answered by: its name, and its graph for any step."""

    name: str
    ask: Ask

    @property
    def token(self) -> Graph:
        """One next token of one request."""
        return self.ask([("phase", "decode"), ("batch", "1"), ("context", "1")])


def read_model(name: str | Document, sets: Sets) -> ServedModel:
    """A model by file or library name, or as a document; ``sets`` are overrides of its workload without ``workload.``.

    Raises
    ------
    LoomError
        For keys that the requests say.
    NotSupported
        For models that make no tokens one after the other over a cache.
    """
    for path, value in sets:
        if path.partition(".")[0].partition("[")[0] in OF_STEPS:
            raise LoomError(f"--set workload.{path}={value}: the requests say this of every step")
    given = list(sets)

    def ask(step: Sets) -> Graph:
        return load_workload(name, [*given, *step])

    model = ServedModel(str(name), ask)
    try:
        graph = ask([("requests", "[{new: 1, context: 1}]")])
    except NotSupported:
        raise
    except LoomError as error:
        text = str(error)
        if "not supported" in text:
            raise NotSupported(f"serving {name}: {text.partition('not supported: ')[2]}") from None
        raise
    if not any(isinstance(o, Attention) for o in graph.operators()):
        raise NotSupported(f"serving {name}: it has no attention, and no cache")
    return model


class Served(Struct, frozen=True):
    """All that a run needs.

    Parameters
    ----------
    plan
        Of one replica.
    replicas
        How many there are, those that do prompts only among them.
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

    @property
    def replica(self) -> Cluster:
        """Chips of one."""
        return self.cluster.part(self.plan.chips)


def prepare(
    machine: DescribedMachine, model: ServedModel, trace: RequestTrace, settings: ServeSettings, stack: Stack = NO_STACK
) -> Served:
    """Divide a machine into replicas.

    ``plan.tensor``, ``plan.expert`` and so on are of one replica, ``plan.data`` is how many there are. Where nothing is
    said, a replica has as few chips (a power of two) as keep half of their memory for keys and values, and there are as
    many replicas as fit.

    Raises
    ------
    LoomError
        Where the model fits no replica, with what is needed and what there is.
    """
    cluster = machine.cluster or chip_alone(_chip_of(machine))
    given = dict(machine.plan)
    for key in given:
        if key not in ("tensor", "data", "expert", "expert_load", "expert_tensor", "sequence_parallel"):
            raise NotSupported(f"plan.{key} of a service: replicas share a model by plan.tensor and plan.expert")
    data = given.pop("data", None)
    if "tensor" not in given:
        given["tensor"] = _degree(
            cluster, model, settings, most=cluster.chips if data is None else cluster.chips // data
        )
    plan = Plan(**given)
    if plan.chips > cluster.chips:
        raise LoomError(f"plan.tensor {plan.tensor}: {cluster.name} has {cluster.chips} chips")
    replicas = cluster.chips // plan.chips if data is None else data
    if replicas * plan.chips > cluster.chips:
        raise LoomError(
            f"plan.data {replicas}: {replicas} replicas of {plan.chips} chips, {cluster.name} has {cluster.chips}"
        )
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
    return Served(cluster.name, cluster, model, timed(trace, settings), settings, plan, replicas, stack)


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
    found = find_stack(name)
    if machine.chip is not None and found is not NO_STACK:
        raise NotSupported(f"--stack {name} on {machine.name}: its software was measured on GPUs")
    return found


def prepare_named(
    machine: str | Document, model: str | Document, trace: str | RequestTrace, sets: Sets, stack: str | None = None
) -> Served:
    """What `prepare` makes of names, files, documents and ``--set`` pairs.

    A GPU's software is vLLM unless ``stack`` says another.

    Raises
    ------
    LoomError
        For what cannot be read, and keys that nothing reads.
    """
    of_machine, of_model = split_overrides(list(sets))
    settings = read_settings([pair for pair in of_machine if pair[0].startswith("serve.")])
    described = read_machine(machine, [pair for pair in of_machine if not pair[0].startswith("serve.")])
    requests = trace if isinstance(trace, RequestTrace) else load_trace(trace)
    return prepare(described, read_model(model, of_model), requests, settings, served_stack(described, stack))


def _chip_of(machine: DescribedMachine) -> Any:
    assert machine.chip is not None
    return machine.chip


def _degree(cluster: Cluster, model: ServedModel, settings: ServeSettings, *, most: int) -> int:
    """Chips of a replica: the fewest, by powers of two, whose weights leave half of the usable memory."""
    fits = 1
    degree = 1
    while degree <= most:
        try:
            weights = _part(cluster, model, Plan(tensor=degree)).weight_bytes
        except LoomError:
            break
        fits = degree
        if weights <= ROOMY * settings.memory_share * cluster.capacity:
            break
        degree *= 2
    return fits


def _part(cluster: Cluster, model: ServedModel, plan: Plan, sets: Sets = ()) -> Graph:
    server = Server(cluster.part(plan.chips), model.ask(sets) if sets else model.token)
    server.check(plan)
    return server.layers.part(plan, server.batch)


class ReplicaMemory(Struct, frozen=True):
    """Bytes of one replica's chips together, and what is left of them for keys and values."""

    capacity: float
    usable: float
    weights: float
    activations: float
    per_token: float
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
    part = _part(served.cluster, served.model, plan)
    chips, capacity = plan.chips, served.cluster.capacity
    budget = min(settings.token_budget, int(served.trace.prompt.max()))
    steps = (
        [("phase", "prefill"), ("batch", "1"), ("sequence", str(budget))],
        [("phase", "decode"), ("batch", str(settings.max_sequences)), ("context", "1")],
    )
    working = 0
    for sets in steps:
        largest = _part(served.cluster, served.model, plan, sets)
        working = max(working, *(o.input_bytes + o.output_bytes for o in largest.operators()))
    weights, per_token = float(part.weight_bytes), float(part.kv_bytes_per_token)
    usable = settings.memory_share * capacity
    left = usable - weights - working
    blocks = int(left // (per_token * settings.block)) if left > 0 else 0
    if settings.cache_tokens is not None:
        blocks = settings.cache_tokens // settings.block
        if blocks * per_token * settings.block > left:
            taken = format_bytes(settings.cache_tokens * per_token)
            raise LoomError(
                f"serve.cache_tokens {settings.cache_tokens:,}: take {taken} of a chip, weights leave "
                f"{format_bytes(max(left, 0))}"
            )
    if blocks < 1:
        least = _least_chips(served, weights)
        raise LoomError(
            f"{served.model.name} leaves no room for keys and values: of the {format_bytes(usable)} that may be used "
            f"of a chip (serve.memory_share {settings.memory_share:g}) weights take {format_bytes(weights)}, "
            f"activations {format_bytes(working)}; plan.tensor={least} leaves room"
        )
    each = chips
    return ReplicaMemory(
        capacity * each, usable * each, weights * each, working * each, per_token * each, settings.block, blocks
    )


def _least_chips(served: Served, weights: float) -> int:
    usable = served.settings.memory_share * served.cluster.capacity
    return ceil(weights * served.plan.tensor / usable) + 1


def check_lengths(served: Served, memory: ReplicaMemory) -> None:
    """Refuse requests that no replica could ever answer; raises `LoomError`."""
    trace, settings = served.trace, served.settings
    room = memory.blocks * memory.block
    lengths = trace.prompt + trace.output
    at = int(np.argmax(lengths))
    if int(lengths[at]) > room:
        raise LoomError(
            f"{trace.name}: request {at + 1} has {int(lengths[at]):,} tokens, a replica has room for {room:,} "
            f"({memory.blocks:,} blocks of {memory.block})"
        )
    try:
        served.model.ask([("phase", "decode"), ("batch", "1"), ("context", str(int(lengths[at])))])
    except LoomError as error:
        raise LoomError(f"{trace.name}: request {at + 1} has {int(lengths[at]):,} tokens: {error}") from None
    if settings.batching is Batching.CONTINUOUS and not settings.chunked:
        at = int(np.argmax(trace.prompt))
        if int(trace.prompt[at]) > settings.token_budget:
            raise LoomError(
                f"serve.chunked false: the prompt of request {at + 1} has {int(trace.prompt[at]):,} tokens, a step "
                f"has {settings.token_budget:,} (serve.token_budget)"
            )


def serve(
    served: Served,
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
        Steps to ask in full afterwards: 8 of predicted machines, 2 of simulated ones, none of measured profiles.
    kept
        Is given the fleet, whose log has every request.

    Raises
    ------
    LoomError
        For requests that do not fit.
    """
    began = time.perf_counter()
    memory = memory_of(served)
    check_lengths(served, memory)
    costs, asking = _costs(served)
    settings, trace = served.settings, served.trace
    per_s = settings.host_bandwidth
    swap_s = memory.per_token / per_s if settings.preemption is Preemption.SWAP and per_s else 0.0
    group = ReplicaGroup(costs, memory.blocks, served.replicas - settings.prefill_replicas, swap_s)
    first = None if not settings.prefill_replicas else replace(group, count=settings.prefill_replicas)
    requests = ServedRequests(
        trace.arrival_s, trace.prompt, trace.output, trace.segments, trace.answer, trace.session, trace.priority
    )
    fleet = Fleet(settings, requests, [group], first, _handover(served, memory))
    complete = True
    with watcher.share("serving") as progress:
        try:
            fleet.run(progress)
        except KeyboardInterrupt:
            complete = False
    if kept is not None:
        kept.append(fleet)
    audit = _audit(fleet, asking, audits) if complete and asking is not None else []
    if asking is not None:
        asking.keep()
    standing = asking.standing_w if asking is not None else _standing(served)
    body = run_result(fleet, trace, settings, objective or ServiceLevel(), memory=memory, chips=served.plan.chips)
    total = body["duration_s"] * standing * served.replicas
    body = _with_money(body, served, total)
    return {
        "schema": SERVING_SCHEMA,
        "kind": "serving",
        "version": __version__,
        "complete": complete,
        "asked": {
            "machine": served.machine,
            "machine_digest": served.cluster.digest,
            "workload": served.model.name,
            "workload_digest": workload_digest(served.model.token),
            "trace": trace.name,
            "trace_digest": _trace_digest(trace),
            "plan": {"tensor": served.plan.tensor, "expert": served.plan.expert, "data": served.replicas},
            "settings": settings.model_dump(mode="json"),
            "stack": served.stack.name,
            "profile": served.profile,
            "overrides": dict(overrides),
        },
        "chips": served.replicas * served.plan.chips,
        **body,
        "memory": {
            "capacity_bytes": memory.capacity,
            "usable_bytes": memory.usable,
            "weight_bytes": memory.weights,
            "activation_bytes": memory.activations,
            "kv_bytes_per_token": memory.per_token,
            "block_tokens": memory.block,
            "blocks": memory.blocks,
            "cache_tokens": memory.blocks * memory.block,
        },
        "costs": {
            "asked": 0 if asking is None else asking.asked,
            "audited": len(audit),
            "audit_mean": float(np.mean(audit)) if audit else None,
            "audit_max": max(audit) if audit else None,
        },
        "simulator": {"wall_s": time.perf_counter() - began},
        "notes": _notes(served, complete),
    }


def _costs(served: Served) -> tuple[StepCosts, ReplicaCosts | None]:
    """What steps take, and the same where the evaluator says it."""
    if served.costs is not None:
        return served.costs, None
    longest = int((served.trace.prompt + served.trace.output).max())
    made = ReplicaCosts(served.replica, served.model.ask, served.plan, stack=served.stack, longest=longest)
    return made, made


def _standing(served: Served) -> float:
    machine = served.cluster.machine
    return float(machine.gpu.idle_power) * served.plan.chips if isinstance(machine, GpuMachine) else 0.0


def _handover(served: Served, memory: ReplicaMemory) -> Callable[[int], float]:
    """Seconds until keys and values of a prompt's tokens are at another replica, each chip's over its own link."""
    if not served.settings.prefill_replicas:
        return lambda _: 0.0
    fabric, chips = served.cluster.fabrics[0], served.plan.chips
    each = memory.per_token / chips
    return lambda tokens: fabric.hop(tokens * each, chips)


def _audit(fleet: Fleet, costs: ReplicaCosts, audits: int | None) -> list[float]:
    """Relative differences of steps' kernels from what the evaluator says of them in full."""
    wanted = (8 if costs.predicted else 2) if audits is None else audits
    found: list[float] = []
    samples = [sample for replica in fleet.replicas for sample in replica.samples]
    if not wanted or not samples:
        return found
    for at in sorted({round(i * (len(samples) - 1) / max(wanted - 1, 1)) for i in range(wanted)}):
        chunks, ended, contexts = samples[at]
        mean = np.array([np.mean(contexts) if contexts else 0.0])
        told = float(costs.kernels(chunks, ended, len(contexts), mean)[0][0])
        found.append(abs(told / costs.whole(chunks, contexts) - 1))
    return found


def _with_money(body: dict[str, Any], served: Served, standing_j: float) -> dict[str, Any]:
    settings = served.settings
    energy = body.pop("step_joules") + standing_j
    hours = body["duration_s"] / 3600 * served.replicas * served.plan.chips
    chips_usd = None if settings.price is None else hours * settings.price
    electricity = energy / 3.6e6 * settings.electricity
    usd = None if chips_usd is None else chips_usd + electricity
    made = max(body["requests"]["output_tokens"], 1)
    return body | {
        "energy_j": energy,
        "power_w": energy / body["duration_s"] if body["duration_s"] else 0.0,
        "joules_per_token": energy / made,
        "cost": {
            "chip_hours": hours,
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


def _notes(served: Served, complete: bool) -> list[str]:
    machine, notes = served.cluster.machine, list[str]()
    if not complete:
        notes.append("interrupted: figures are of the requests that had ended by then")
    if served.profile is None and isinstance(machine, GpuMachine):
        notes.append("kernels are predicted by the GPU model, one after the other")
    if served.stack is NO_STACK:
        notes.append("no software of the host: its share of a step is left out (--stack)")
    idle = served.cluster.chips - served.replicas * served.plan.chips
    if idle:
        notes.append(f"{idle} of {served.cluster.chips} chips do nothing")
    if served.settings.price is None:
        notes.append("cost is electricity alone: chips have no price (serve.price, dollars an hour of a chip)")
    return [*notes, *machine.notes]


__all__ = [
    "OF_STEPS",
    "Served",
    "ServedModel",
    "memory_of",
    "prepare",
    "prepare_named",
    "read_model",
    "serve",
    "served_stack",
]
