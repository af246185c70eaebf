"""A training step of a plan on a cluster: time, where it goes, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from siliconloom.arch import LoomError, NotSupported
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.experts import RoutedExperts
from siliconloom.mapper.system.held import HeldOverTime, held_over_time
from siliconloom.mapper.system.host_memory import UpdatedBlock, left_after, waited
from siliconloom.mapper.system.layers import Block
from siliconloom.mapper.system.memory import Held, MemoryUse, training_memory
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.planner import Planner, StepTime
from siliconloom.mapper.system.step import GREEDY, PipelineRun, Slowdown, make_placement, make_schedule, run_pipeline
from siliconloom.workloads import Graph
from siliconloom.workloads.roles import Section

GRADIENT_SUM = 4.0
"""Bytes of a gradient when it is summed over replicas: fp32, as Megatron-LM accumulates it."""


class _Stages(Struct, frozen=True):
    """Seconds of every stage's passes for a microbatch, and of messages within them."""

    counts: list[int]
    forward: list[float]
    backward: list[float]
    weight: list[float]
    waits: list[float]
    blocks: list[list[list[Block]]]


class _Sums(Struct, frozen=True):
    """Seconds of scattering gradients, of sums over groups, of gathering parameters."""

    scatter: float
    across: float
    gather: float


class Trainer(Planner):
    """Training steps of one model on one cluster."""

    def __init__(
        self, cluster: Cluster, graph: Graph, documents: Sequence[int] = (), routed: RoutedExperts | None = None
    ) -> None:
        super().__init__(cluster, graph, documents, routed)
        self._held_by: dict[tuple[Any, ...], list[Held]] = {}
        self._stages_by: dict[tuple[Any, ...], _Stages] = {}

    def check(self, plan: Plan) -> None:
        super().check(plan)
        replicas = plan.data * plan.context
        if plan.zero_group and (not plan.zero or replicas % plan.zero_group):
            raise LoomError(
                f"plan.zero_group {plan.zero_group}: "
                + (
                    f"does not divide the {replicas} replicas"
                    if plan.zero
                    else "there is nothing to share with plan.zero 0"
                )
            )
        if plan.outer > 1 and plan.zero > 1:
            raise LoomError(f"plan.outer {plan.outer}: replicas that step by themselves share no gradients (plan.zero)")
        if plan.vocabulary and not self.has_vocabulary:
            raise LoomError(f"plan.vocabulary: {self.graph.name} has no vocabulary that stages could share")
        if plan.vocabulary and plan.schedule != "1f1b":
            raise LoomError(f"plan.vocabulary: its passes have a place in 1f1b only (plan.schedule is {plan.schedule})")
        if plan.offload_activations and plan.schedule in GREEDY and plan.pipeline > 1:
            raise NotSupported(
                f"plan.offload_activations with plan.schedule {plan.schedule}: passes of weights read activations "
                "once more"
            )
        if plan.offload != "none" and plan.outer > 1:
            raise LoomError(f"plan.offload {plan.offload}: is not of replicas that step by themselves (plan.outer)")
        if self.batch % (plan.data * plan.microbatch):
            rest = self.batch % (plan.data * plan.microbatch)
            raise LoomError(
                f"batch {self.batch} does not divide into data {plan.data} x microbatch {plan.microbatch}: "
                f"{rest} left over"
            )

    def microbatches(self, plan: Plan) -> int:
        """That each replica's pipeline runs through."""
        return self.batch // (plan.data * plan.microbatch)

    def stages(self, plan: Plan) -> _Stages:
        """Passes of every stage; where its chips differ all wait for the slowest."""
        key = *self.deal_key(plan, plan.microbatch), plan.recompute
        if key not in self._stages_by:
            self._stages_by[key] = self._stages(plan)
        return self._stages_by[key]

    def _stages(self, plan: Plan) -> _Stages:
        counts = self.dealt(plan, plan.microbatch)
        blocks = self.stage_blocks(plan, plan.microbatch, counts)
        forward, backward, weight, waits = [], [], [], []
        for kinds in blocks:
            forward.append(max(sum(b.forward for b in part) for part in kinds))
            backward.append(max(sum(b.backward + _again(b, plan) for b in part) for part in kinds))
            weight.append(max(sum(b.weight for b in part) for part in kinds))
            again = 2 if plan.recompute == "full" else 1
            waits.append(max(sum(again * b.waits[0] + b.waits[1] for b in part) for part in kinds))
        return _Stages(counts, forward, backward, weight, waits, blocks)

    def memory(self, plan: Plan) -> MemoryUse:
        """Bytes of the fullest chip, by the microbatches that its schedule holds at once."""
        key = self.deal_key(plan, plan.microbatch)
        if key not in self._held_by:
            counts = self.dealt(plan, plan.microbatch)
            blocks = self.stage_blocks(plan, plan.microbatch, counts)
            self._held_by[key] = [Held.of([b for s in stages for b in blocks[s][0]]) for stages in _devices(plan)]
        last = self.microbatches(plan) == 1
        found = [
            training_memory(h, plan, self._in_flight(plan, d), last=last) for d, h in enumerate(self._held_by[key])
        ]
        return max(found, key=lambda m: m.total)

    def _in_flight(self, plan: Plan, device: int) -> float:
        micro, p = self.microbatches(plan), plan.pipeline
        if plan.schedule == "gpipe":
            return float(micro)
        if plan.schedule == "interleaved" and p > 1:
            return float(min((2 * (p - device - 1) + (plan.chunks - 1) * p + 1) / plan.chunks, micro))
        if plan.schedule in GREEDY and p > 1:
            return float(min(GREEDY[plan.schedule](p) / make_placement(plan).chunks, micro))
        return float(min(p - device + (plan.vocabulary and p > 1), micro))

    def after(self, plan: Plan, found: _Stages) -> tuple[float, float, float]:
        """Seconds of gradients' sums that nothing hides, of the optimizer, and of what sharing adds to a microbatch.

        Replicas that share gradients scatter them after every microbatch, those that share parameters gather them for
        both of its passes.
        """
        gradients = optimizer = each = 0.0
        for stages in _devices(plan):
            for index, kind in enumerate(self.kinds(plan, stages[0])):
                blocks = [b for s in stages for b in found.blocks[s][index]]
                forward = sum(found.forward[s] for s in stages)
                backward = sum(found.backward[s] + found.weight[s] for s in stages)
                sums = self._sums(plan, blocks, kind)
                if plan.offload == "none":
                    optimizer = max(optimizer, sum(self.updated(plan, b) * b.update for b in blocks))

                def left(messages: float, work: float, parts: int = len(blocks)) -> float:
                    return _beside(messages, work, parts) if plan.overlap_gradients else messages

                always, scatter, gather = 0.0, sums.scatter, sums.gather
                if plan.zero == 2:
                    always, scatter = left(scatter, backward), 0.0
                if plan.zero == 3:  # one backward pass hides what is gathered for it and what it scatters
                    always, scatter, gather = left(scatter + gather, backward) + left(gather, forward), 0.0, 0.0
                each = max(each, always)
                if plan.outer > 1:  # the whole sum passes beside the steps until the next one
                    work = self.microbatches(plan) * (forward + backward)
                    whole = scatter + sums.across + gather
                    gradients = max(gradients, max(whole - plan.outer * work, 0.0) / plan.outer)
                else:
                    late = left(scatter + sums.across, backward) + left(gather, forward)
                    gradients = max(gradients, late)
        return gradients, optimizer, each

    def waits_for_host(self, plan: Plan, found: _Stages) -> tuple[list[float], list[float], float]:
        """Seconds that each stage's forward and backward pass wait for the host, and the step for its update.

        A pass begins with its first block's parameters not there, but for a backward pass behind a forward one, which
        left the last block's; under ``gpipe`` all forward passes come first.
        """
        number, after = len(found.forward), 0.0
        forth, back = [0.0] * number, [0.0] * number
        if plan.offload == "none" and not plan.offload_activations:
            return forth, back, after
        speed, follows = plan.host_bandwidth or 0.0, plan.schedule != "gpipe" or self.microbatches(plan) == 1
        apart = plan.schedule in GREEDY and plan.pipeline > 1
        for stage, kinds in enumerate(found.blocks):
            for blocks in kinds:
                forward = [b.forward for b in blocks]
                backward = [_backward(b, plan) - (b.weight if apart else 0.0) for b in blocks]
                comes = [self._fetched(plan, b) for b in blocks]
                leaves = [_kept(b, plan) if plan.offload_activations else 0.0 for b in blocks]
                late = max(leaves[-1] / speed - forward[0], 0.0)
                forth[stage] = max(forth[stage], waited(comes, leaves, forward, speed) + late)
                back_comes = [leaves[-1] + (0.0 if follows else comes[-1])]
                back_comes += [c + k for c, k in zip(comes[-2::-1], leaves[-2::-1], strict=True)]
                back[stage] = max(back[stage], waited(back_comes, [0.0] * len(blocks), backward[::-1], speed))
        if plan.offload != "none":
            after = max(self._updated_late(plan, found, stages, back) for stages in _devices(plan))
        return forth, back, after

    def _updated_late(self, plan: Plan, found: _Stages, stages: list[int], back: list[float]) -> float:
        """Seconds of a device's update behind the last backward pass."""
        most, (_, replicas) = 0.0, self.extent(plan, "replicas")
        speed, updates = plan.host_bandwidth or 0.0, plan.host_memory_bandwidth or 0.0
        summed_after = not plan.overlap_gradients and replicas > 1
        for index, _ in enumerate(self.kinds(plan, stages[0])):
            blocks = [b for s in stages for b in found.blocks[s][index]][::-1]
            rows = [
                UpdatedBlock(
                    0.0 if summed_after else _backward(b, plan),
                    self.updated(plan, b) * _parameters(b),
                    b.weight_bytes / _parameters(b),
                )
                for b in blocks
            ]
            returns = plan.offload == "optimizer"
            most = max(most, left_after(rows, speed, updates, returns=returns))
            if returns and plan.offload_activations:  # both come over one link
                inbound = sum(row.parameters * row.element for row in rows) + sum(_kept(b, plan) for b in blocks[1:])
                most = max(
                    most, inbound / speed - sum(_backward(b, plan) for b in blocks) - sum(back[s] for s in stages)
                )
        return most

    def _fetched(self, plan: Plan, block: Block) -> float:
        """Bytes of a block's parameters that a chip fetches from its host: its own part, where replicas share them."""
        if plan.offload != "parameters":
            return 0.0
        return block.weight_bytes * (self.updated(plan, block) if plan.zero == 3 else 1.0)

    def _sums(self, plan: Plan, blocks: list[Block], kind: int) -> _Sums:
        """Messages of a device's gradients and parameters."""
        fabric = self.cluster.fabrics[kind]
        stride, replicas = self.extent(plan, "replicas")
        spread = plan.expert * plan.split.sharing
        scatter = gather = across = 0.0
        for parameters, distance, chips in (
            (sum(b.parameters for b in blocks), stride, replicas),
            (sum(b.expert_parameters for b in blocks), spread, plan.expert_replicas),
        ):
            shared = plan.sharing(chips)
            if chips == 1 or not parameters:
                continue
            if shared > 1:
                scatter += fabric.seconds("reduce_scatter", parameters * GRADIENT_SUM, distance, shared)
                gather += fabric.seconds("all_gather", self.graph.precision.size(parameters), distance, shared)
            # Groups that share each among themselves sum their parts over the groups.
            part = parameters * GRADIENT_SUM / shared
            across += fabric.seconds("all_reduce", part, distance * shared, chips // shared)
        return _Sums(scatter, across, gather)

    def updated(self, plan: Plan, block: Block) -> float:
        """The share of a block's parameters that a chip updates; replicas that share the optimizer have a part each."""
        dense, expert = block.parameters, block.expert_parameters
        _, replicas = self.extent(plan, "replicas")
        own = dense / plan.sharing(replicas) + expert / plan.sharing(plan.expert_replicas)
        return own / ((dense + expert) or 1)

    def least(self, plan: Plan) -> float:
        """Seconds that the plan cannot beat: a device's work, what it waits for at first, and what follows."""
        found = self.stages(plan)
        micro = self.microbatches(plan)
        hop = self.hop(plan, plan.microbatch)
        forth, come, updated = self.waits_for_host(plan, found)
        forward, backward = (
            [p + w for p, w in zip(*two, strict=True)] for two in ((found.forward, forth), (found.backward, come))
        )
        most, back = 0.0, plan.schedule not in GREEDY
        for stages in _devices(plan):
            # The first stage of a device waits for the forward passes of those before, which wait for its gradients.
            work = sum(forward[s] + backward[s] + found.weight[s] for s in stages)
            before = sum(forward[: stages[0]]) + stages[0] * hop
            after = sum(backward[: stages[0]]) + sum(found.weight[: stages[0]]) + stages[0] * hop if back else 0.0
            most = max(most, before + micro * work + after)
        gradients, optimizer, each = self.after(plan, found)
        return most + micro * each + gradients + optimizer + updated

    def timeline(self, plan: Plan, slow: Sequence[Slowdown] = ()) -> PipelineRun:
        """Every pass of a step's pipeline."""
        found = self.stages(plan)
        return self._run(plan, found, self.waits_for_host(plan, found), slow)

    def _run(
        self, plan: Plan, found: _Stages, waits: tuple[list[float], list[float], float], slow: Sequence[Slowdown]
    ) -> PipelineRun:
        """The passes with what each waits for."""
        apart = plan.schedule in GREEDY and plan.pipeline > 1
        forward, backward = (
            [s + w for s, w in zip(*two, strict=True)]
            for two in ((found.forward, waits[0]), (found.backward, waits[1]))
        )
        schedule = make_schedule(plan, self.microbatches(plan), (forward[0], backward[0], found.weight[0]))
        whole = backward if apart else [b + w for b, w in zip(backward, found.weight, strict=True)]
        return run_pipeline(
            schedule,
            make_placement(plan),
            forward,
            whole,
            found.weight if apart else None,
            hop=self.hop(plan, plan.microbatch),
            slow=slow,
        )

    def held(self, plan: Plan, slow: Sequence[Slowdown] = ()) -> list[HeldOverTime]:
        """What a chip of every stage's device holds over a step."""
        found = self.stages(plan)
        forth, back, _ = self.waits_for_host(plan, found)
        first = found.forward[0] + forth[0], found.backward[0] + back[0], found.weight[0]
        schedule, last = make_schedule(plan, self.microbatches(plan), first), self.microbatches(plan) == 1
        blocks = [kinds[0] for kinds in found.blocks]
        return held_over_time(plan, schedule, make_placement(plan), self.timeline(plan, slow).run, blocks, last=last)

    def step(self, plan: Plan, slow: Sequence[Slowdown] = ()) -> StepTime:
        """Simulate one step, with stages or links that fall behind; raises `LoomError` for plans that do not divide."""
        self.check(plan)
        micro = self.microbatches(plan)
        found = self.stages(plan)
        gradients, optimizer, each = self.after(plan, found)
        waits_for = self.waits_for_host(plan, found)
        run, updated = self._run(plan, found, waits_for, slow), waits_for[2]
        pipeline, host = run.seconds + micro * each, updated
        if any(waits_for[0]) or any(waits_for[1]):
            nothing = [0.0] * len(found.forward)
            host += run.seconds - self._run(plan, found, (nothing, nothing, 0.0), slow).seconds
        waits = max(sum(found.waits[s] for s in stages) for stages in _devices(plan))
        return StepTime(
            seconds=pipeline + gradients + optimizer + updated,
            pipeline=pipeline,
            gradients=gradients,
            optimizer=optimizer,
            bubble=run.bubble,
            exposed=micro * (waits + each) + gradients,
            memory=self.memory(plan),
            microbatches=micro,
            stages=tuple(found.counts),
            sharing=micro * each,
            host=host,
        )


def _devices(plan: Plan) -> list[list[int]]:
    """Stages of every device, in order."""
    placement = make_placement(plan)
    return [sorted(placement.stage(d, c) for c in range(placement.chunks)) for d in range(placement.devices)]


def _again(block: Block, plan: Plan) -> float:
    """Seconds of what the backward pass computes again."""
    return {"none": 0.0, "selective": block.attention, "full": block.forward if block.entering else 0.0}[plan.recompute]


def _backward(block: Block, plan: Plan) -> float:
    """Seconds of all that a block's backward pass does."""
    return block.backward + block.weight + _again(block, plan)


def _parameters(block: Block) -> float:
    """All of a block's, one at least."""
    return max(block.parameters + block.expert_parameters, 1.0)


def _kept(block: Block, plan: Plan) -> float:
    """Bytes that a microbatch's forward pass through a block keeps; what the head keeps is read at once."""
    if block.section is Section.HEAD:
        return 0.0
    if plan.recompute == "full":
        return block.entering or block.kept
    return block.kept - (block.scores if plan.recompute == "selective" else 0.0)


def _beside(messages: float, work: float, parts: int) -> float:
    """What is left of ``messages`` that go beside ``work``, a part at a time: each leaves when its part is computed.

    Two streams in a row of equal parts: the last one's message, or all that the work before it was too short for.
    """
    if not messages or not parts:
        return 0.0
    return max(messages / parts, messages - work * (parts - 1) / parts)
