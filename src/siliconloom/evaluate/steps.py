"""A step of a workload under a plan: what one chip's part of it is, and how long all parts take on all chips.

What the operators of the part take by themselves, and what that costs, is each machine's own: `evaluate.gpus` has GPUs,
`evaluate.chips` our own chips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.arch.result import SCHEMA
from siliconloom.arch.system import Policy
from siliconloom.evaluate.asked import asked
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.experts import KEYS as ROUTING_KEYS
from siliconloom.mapper.system.experts import degrees, read_routed
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.layers import Layers, operator_seconds
from siliconloom.mapper.system.plan import Plan, refuse_keys_of_one, refuse_training_keys
from siliconloom.mapper.system.search import ANY, too_much
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import Attention, Graph, Phase, SharedAttention
from siliconloom.workloads.roles import Pass


class ModelTooLarge(LoomError):
    """A model that the chips cannot hold; ``least`` of them hold its weights and cache."""

    def __init__(self, text: str, least: int) -> None:
        super().__init__(f"{text}; it takes {least}")
        self.least = least


class PlannedStep:
    """A step of a workload under a plan: one part's kernels, and how long all parts take.

    What has no attention is no model that a plan could cut: it runs on one chip, operator after operator. With
    ``fits`` a step that the chips' memory has no room for is refused.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, graph: Graph, fixed: Mapping[str, Any], *, fits: bool = True
    ) -> None:
        self.part, self.microbatches, self.flops = graph, 1, 2.0 * graph.macs
        self.memory_bytes = float(graph.weight_bytes + graph.kv_bytes + graph.state_bytes)
        self.others: list[dict[str, Any]] = []
        """Rows of what the chip by itself has no time for: shared attention, and gradients that are left over."""
        self.waits: dict[str, float] = {}
        self.optimizer = 0.0
        """Seconds of the update that ends a training step."""
        self.again: frozenset[str] = frozenset()
        """Operators that the backward pass computes again (``plan.recompute``)."""
        self.layers: Layers | None = None
        """Of the model; none where it has no layers that a plan could cut."""
        self.planner: Server | Trainer | None = None
        """Of the model; none where no plan could cut it."""
        self.routed: dict[str, Any] = {}
        """Where experts lie and what their chips' load is, if a trace says where tokens go."""
        self.notes: list[str] = []
        self.of_chips = cluster.chips
        self.asked_of_experts = {key: fixed[key] for key in ROUTING_KEYS if key in fixed}
        inference = graph.phase is not Phase.TRAINING
        if fixed.get("documents"):
            raise NotSupported("plan.documents in one step of loom sim; loom plan has it")
        if inference:
            refuse_training_keys(fixed)
        if fixed.get("overlap") == ANY:
            raise LoomError("plan.overlap any: one step has one way; name it, or let loom plan try all")
        routed = read_routed(fixed, graph, whole=True)
        self.plan = Plan(**{"tensor": policy.tensor, "microbatch": 0 if inference else 1, **degrees(fixed)})
        if not any(isinstance(o, Attention) for o in graph.operators()):
            if self.plan.chips > 1:
                raise NotSupported(f"{graph.name} on {self.plan.chips} chips: it has no layers that a plan could cut")
            times = cluster.machine.seconds(graph)
            self.seconds = sum(times.get(o.name, 0.0) * o.repeat for o in graph.operators())
            if self.memory_bytes > cluster.capacity:
                raise _too_large(cluster, graph, 1)
            return
        stages = policy.pipeline or fewest_stages(graph, self.plan.tensor, cluster.capacity)
        while True:
            if "pipeline" not in fixed:
                self.plan = replace(self.plan, pipeline=stages)
            if self.plan.chips > cluster.chips and ("pipeline" in fixed or stages == 1):
                raise LoomError(
                    f"plan {self.plan.text(training=not inference)}: {self.plan.chips} chips, {cluster.name} has "
                    f"{cluster.chips}"
                )
            if self.plan.chips > cluster.chips:
                raise _too_large(cluster, graph, cluster.chips // self.plan.tensor * self.plan.tensor)
            planner = (Server if inference else Trainer)(cluster.part(self.plan.chips), graph, routed=routed)
            refuse_keys_of_one(fixed, self.plan, planner.experts)
            plan = planner.loaded(self.plan)
            plan = planner.sized(plan) if isinstance(planner, Server) else plan
            step = planner.step(plan)
            error = too_much(planner, plan, step.memory) if fits else None
            if error is None:
                break
            if "pipeline" in fixed or policy.pipeline or not inference:
                raise error
            stages += 1
        self.plan, self.seconds, self.microbatches = plan, step.seconds, step.microbatches
        self.memory_bytes = step.memory.total
        self.part = planner.layers.part(plan, plan.microbatch)
        self.layers, self.planner = planner.layers, planner
        if routed is not None:
            self.routed = {"experts": routed.result(plan, chips=True)}
            self.notes.append(routed.note(plan))
        self.flops = 2.0 * planner.passes * planner.macs  # of the scores only those that a causal mask leaves
        times, self.waits = operator_seconds(self.part, plan, planner.cluster.machine, planner.cluster.fabrics[0])
        self.again = _computed_again(self.part, plan, planner)
        for operator in self.part.operators():
            if isinstance(operator, SharedAttention):
                repeat = operator.repeat * self.executions(operator.name)
                self.add(operator.name, "shared_attention", repeat, times[operator.name], operator.macs, operator.shape)
        if step.sharing:
            self.add("shared parameters and gradients, left over", "all_gather", 1, step.sharing)
        if step.gradients:
            self.add("gradients, left over", "all_reduce", 1, step.gradients)
        if step.memory.host:
            hosted = format_bytes(step.memory.host)
            self.notes.append(f"a chip has {hosted} in its host's memory (plan.offload), whose energy is left out")
        if step.host:
            self.add("host's transfers and update, left over", "host", 1, step.host)
        if isinstance(planner, Trainer):
            self.optimizer = step.optimizer

    def executions(self, name: str) -> int:
        """How often a step does what an operator does in one pass: once a pass, twice where it is computed again."""
        return self.microbatches * (2 if name in self.again else 1)

    def idle_joules(self, watts: float) -> dict[str, float]:
        """What chips that the plan leaves without work take during the step, each ``watts``; nothing where all work."""
        idle = self.of_chips - self.plan.chips
        return {"idle_chips": idle * watts * self.seconds} if idle > 0 else {}

    def idle_notes(self, watts: float) -> list[str]:
        """A note, where the plan has work for fewer chips than there are; each of the others takes ``watts``."""
        idle = self.of_chips - self.plan.chips
        if idle <= 0:
            return []
        taken = f"{format_si(idle * watts * self.seconds, 'J')}, {format_si(idle * watts, 'W')}"
        return [working_note(self.plan.chips, self.of_chips), f"of the energy {taken} are of {_those_idle(idle)}"]

    def head(self, kind: str, cluster: Cluster, graph: Graph, clock: int) -> dict[str, Any]:
        """What a result of `arch.result` says of such a step whatever the chips are; ``clock`` is theirs, in hertz."""
        plan = self.plan
        asked_plan = plan.as_dict() | self.asked_of_experts
        if self.routed:
            del asked_plan["expert_load"]  # which was found
        return {
            "schema": SCHEMA,
            "kind": kind,
            "version": __version__,
            "chip": cluster.machine.name,
            "system": {
                "name": cluster.name,
                "chips": plan.chips,
                "tensor": plan.tensor,
                "pipeline": plan.pipeline,
                "passes": self.microbatches,
            },
            "plan_text": plan.text(training=graph.phase is Phase.TRAINING),
            "workload": graph.name,
            "phase": graph.phase.value,
            "precision": graph.formats,
            "batch": graph.batch,
            "tokens": graph.tokens,
            "asked": asked(graph, machine=cluster.name, digest=cluster.digest, plan=asked_plan),
            "seconds": self.seconds,
            "clock_hz": clock,
            "cycles": round(self.seconds * clock),
            "macs": graph.macs,
            "tokens_per_second": graph.tokens / self.seconds,
            **({"images_per_second": graph.images / self.seconds} if graph.images else {}),
            **self.routed,
        }

    def add(
        self, name: str, kind: str, repeat: int, seconds: float, macs: int = 0, shape: Mapping[str, Any] | None = None
    ) -> None:
        """Add a row to the others."""
        row = {"name": name, "kind": kind, "repeat": repeat, "fused": False, "seconds": seconds * repeat}
        self.others.append(row | {"macs": macs * repeat, "bound": "", "error": 0.0, "shape": dict(shape or {})})


def _computed_again(part: Graph, plan: Plan, planner: Server | Trainer) -> frozenset[str]:
    """Operators of the forward pass that ``plan.recompute`` repeats: those of layers, or their attention."""
    if plan.recompute == "none":
        return frozenset()
    forward = [o for o in part.operators() if o.place.step is Pass.FORWARD]
    if plan.recompute == "selective":
        return frozenset(o.name for o in forward if isinstance(o, Attention))
    blocks = {b.name: b for b in planner.layers.blocks(plan, plan.microbatch)}
    return frozenset(o.name for o in forward if blocks[o.block].entering)


def _those_idle(chips: int) -> str:
    return "the chip without work" if chips == 1 else f"the {chips:,} chips without work"


def working_note(chips: int, of: int) -> str:
    """What a result says where a plan leaves chips without work."""
    return f"{chips} of {of} chips work; --set plan.data=... or plan.tensor=... take more"


def fewest_stages(graph: Graph, tensor: int, capacity: float) -> int:
    return max(math.ceil((graph.weight_bytes + graph.kv_bytes) / (tensor * capacity)), 1)


def _too_large(cluster: Cluster, graph: Graph, held: int) -> ModelTooLarge:
    return ModelTooLarge(
        f"{graph.name} does not fit: weights and cache are {format_bytes(graph.weight_bytes + graph.kv_bytes)}, "
        f"{held} x {cluster.machine.name} hold {format_bytes(held * cluster.capacity)}",
        fewest_stages(graph, 1, cluster.capacity),
    )
