"""A step of a plan as an execution trace: every operator and message of every rank, as one of its chips has them.

Ranks are chips. A rank does its stage's passes in the order of the plan's schedule, and in a pass its operators one
after the other. What leaves a stage is a message to the same chip of the next one. Work takes what the plan's machine
says, messages are left to whoever runs the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.budget import require_memory
from siliconloom.arch.execution_trace import NODE_BYTES, NODES_MOST, CollectiveKind, ExecutionTrace, NodeKind, TraceNode
from siliconloom.evaluate.pass_work import PICO, Passes, PassWork, more_than_operators
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.layers import Block
from siliconloom.mapper.system.pipeline import PassKind, Schedule, StagePass
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.step import GREEDY, make_placement, make_schedule
from siliconloom.mapper.system.training import GRADIENT_SUM, Trainer

DIMENSIONS = ("tensor", "context", "expert", "expert_tensor", "replicas", "expert_replicas")


class _Rank(Struct):
    """A rank's nodes while they are written down."""

    nodes: list[TraceNode] = field(default_factory=list)
    last: int | None = None

    def add(self, node: TraceNode, *waits: int | None, goes_on: bool = True) -> int:
        """A node after others; the next one waits for it where the rank ``goes_on`` from it."""
        earlier = tuple(dict.fromkeys(w for w in waits if w is not None))
        made = replace(node, id=len(self.nodes), waits=earlier)
        self.nodes.append(made)
        if goes_on:
            self.last = made.id
        return made.id


def step_trace(planner: Server | Trainer, plan: Plan, name: str) -> ExecutionTrace:
    """Every rank's nodes of one step.

    Raises
    ------
    NotSupported
        For plans whose work is more than operators and messages one after the other.
    """
    plan = planner.sized(plan) if isinstance(planner, Server) else plan
    _refuse(planner, plan)
    batch = plan.microbatch
    counts = planner.dealt(plan, batch)
    blocks = [kinds[0] for kinds in planner.stage_blocks(plan, batch, counts)]
    passes = Passes(planner, plan)
    placement, schedule = make_placement(plan), _schedule(planner, plan, blocks)
    each = plan.data * plan.context * plan.tensor
    groups = _Groups(planner, plan)
    held = [[placement.stage(d, c) for c in range(placement.chunks)] for d in range(placement.devices)]
    total = each * sum(
        len(passes.work(blocks[placement.stage(device, one.chunk)], one.kind, apart=plan.schedule in GREEDY)) + 2
        for device, steps in enumerate(schedule)
        for one in steps
    )
    if total > NODES_MOST:
        raise LoomError(f"--trace: {total:,} nodes of {plan.chips} ranks are more than the {NODES_MOST:,} of a trace")
    require_memory(f"--trace: {total:,} nodes", total * NODE_BYTES, "fewer chips, or a larger microbatch, have fewer")
    apart = plan.schedule in GREEDY and plan.pipeline > 1
    size = planner.hop_bytes(plan, batch)
    ranks = [_Rank() for _ in range(plan.chips)]
    for device, steps in enumerate(schedule):
        for lane in range(each):
            rank = device * each + lane
            writer = _RankWriter(ranks[rank], rank, lane, each, groups, size)
            for one in steps:
                stage = placement.stage(device, one.chunk)
                ends = _ends(one, stage, placement.stages)
                devices = tuple(None if s is None else placement.place(s)[0] for s in ends)
                writer.run_pass(one, stage, passes.work(blocks[stage], one.kind, apart=apart), device, devices)
            if isinstance(planner, Trainer):
                own = [b for stage in held[device] for b in blocks[stage]]
                writer.chain(_after(planner, plan, own))
    places = planner.cluster.places
    by_chip = {places[rank]: nodes for rank, nodes in enumerate(ranks)}
    if set(by_chip) != set(range(plan.chips)):
        raise NotSupported("an execution trace of ranks on some chips of a system")
    moved = [_moved(by_chip[chip].nodes, places) for chip in range(plan.chips)]
    return ExecutionTrace(name, tuple(moved), groups.named(places))


def _moved(nodes: Sequence[TraceNode], places: Sequence[int]) -> tuple[TraceNode, ...]:
    """A rank's nodes with the chips of the ranks that its messages go to."""
    return tuple(node if node.peer < 0 else replace(node, peer=places[node.peer]) for node in nodes)


class _RankWriter(Struct):
    """Writes down what one rank does."""

    into: _Rank
    rank: int
    lane: int
    each: int
    groups: _Groups
    size: int

    def run_pass(
        self, one: StagePass, stage: int, work: Sequence[PassWork], device: int, ends: tuple[int | None, ...]
    ) -> None:
        """A pass of a stage: what it gets from the device before, its work, what it sends on."""
        before, after = ends
        got: int | None = None
        tag = one.microbatch
        kind = int(one.kind is not PassKind.FORWARD)
        if before is not None and before != device:
            node = self._message(NodeKind.RECEIVE, before, self._tag(tag, stage, kind), f"{one.kind}{tag} to {stage}")
            got = self.into.add(node, goes_on=False)
        if work:
            self.chain(work, got, f"{one.kind}{tag} ")
        elif got is not None:
            self.into.add(TraceNode(0, f"{one.kind}{tag}", NodeKind.COMPUTE, duration=0), self.into.last, got)
        if after is not None and after != device:
            to = stage + (-1 if kind else 1)
            node = self._message(NodeKind.SEND, after, self._tag(tag, to, kind), f"{one.kind}{tag} to {to}")
            self.into.add(node, self.into.last, goes_on=False)

    def chain(self, work: Sequence[PassWork], got: int | None = None, prefix: str = "") -> None:
        """Work one after the other, the first after what was got."""
        for each in work:
            group = self.groups.of(each.dimension, self.rank) if each.dimension else None
            if each.dimension and group is None:
                continue
            self.into.add(self._work(each, prefix, group), self.into.last, got)
            got = None

    def _work(self, each: PassWork, prefix: str, group: tuple[str, int] | None) -> TraceNode:
        name = f"{prefix}{each.name}"
        if group is None:
            return TraceNode(
                0, name, NodeKind.COMPUTE, duration=each.picoseconds, operations=each.operations, tensor=each.size
            )
        kind = CollectiveKind[each.collective.upper()]
        size = -(-each.size // group[1]) if kind is CollectiveKind.ALL_GATHER else each.size
        return TraceNode(0, name, NodeKind.COLLECTIVE, collective=kind, group=group[0], size=size)

    def _message(self, kind: NodeKind, device: int, tag: int, name: str) -> TraceNode:
        return TraceNode(0, name, kind, size=self.size, peer=device * self.each + self.lane, tag=tag)

    def _tag(self, microbatch: int, stage: int, back: int) -> int:
        """Which message it is of those between two ranks."""
        return (stage * 2 + back) * 2**20 + microbatch


class _Groups:
    """Groups of ranks along every dimension of a plan, numbered from 1."""

    def __init__(self, planner: Server | Trainer, plan: Plan) -> None:
        self.members: dict[str, tuple[int, ...]] = {}
        self._of: dict[tuple[str, int], str] = {}
        numbers: dict[tuple[int, ...], str] = {}
        for dimension in DIMENSIONS:
            stride, chips = _extent(planner, plan, dimension)
            if chips == 1:
                continue
            for base in range(0, plan.chips - stride * chips + 1, stride * chips):
                for lane in range(stride):
                    ranks = tuple(base + lane + i * stride for i in range(chips))
                    name = numbers.setdefault(ranks, str(len(numbers) + 1))
                    self.members[name] = ranks
                    self._of |= {(dimension, rank): name for rank in ranks}

    def of(self, dimension: str, rank: int) -> tuple[str, int] | None:
        """Name and size of the group of a rank along a dimension, or none where it has one chip."""
        name = self._of.get((dimension, rank))
        return None if name is None else (name, len(self.members[name]))

    def named(self, places: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Chips of every group."""
        return {name: tuple(places[rank] for rank in ranks) for name, ranks in self.members.items()}


def _extent(planner: Server | Trainer, plan: Plan, dimension: str) -> tuple[int, int]:
    if dimension == "expert_replicas":
        return plan.expert * plan.split.sharing, plan.expert_replicas
    return planner.extent(plan, dimension)


def _schedule(planner: Server | Trainer, plan: Plan, blocks: Sequence[Sequence[Block]]) -> Schedule:
    if isinstance(planner, Server):
        return [[StagePass(PassKind.FORWARD, m) for m in range(planner.parts(plan))] for _ in range(plan.pipeline)]
    found = planner.stages(plan)
    times = (found.forward[0], found.backward[0], found.weight[0])
    return make_schedule(plan, planner.microbatches(plan), times)


def _ends(one: StagePass, stage: int, stages: int) -> tuple[int | None, int | None]:
    """Stages that a pass gets something from, and sends something to."""
    if one.kind is PassKind.WEIGHT:
        return None, None
    before, after = (stage - 1, stage + 1) if one.kind is PassKind.FORWARD else (stage + 1, stage - 1)
    return (before if 0 <= before < stages else None), (after if 0 <= after < stages else None)


def _after(planner: Trainer, plan: Plan, blocks: Sequence[Block]) -> list[PassWork]:
    """Sums of gradients over replicas, and the update."""
    found = []
    for what, parameters, dimension in (
        ("gradients", sum(b.parameters for b in blocks), "replicas"),
        ("experts' gradients", sum(b.expert_parameters for b in blocks), "expert_replicas"),
    ):
        if parameters:
            size = round(parameters * GRADIENT_SUM)
            found.append(PassWork(what, size=size, collective="all_reduce", dimension=dimension))
    update = sum(planner.updated(plan, b) * b.update for b in blocks)
    return [*found, PassWork("optimizer", picoseconds=round(update * PICO))] if update else found


def _reasons(planner: Server | Trainer, plan: Plan) -> Iterator[str]:
    """What of a plan is more than operators and messages one after the other."""
    if plan.context > 1:
        yield f"plan.context {plan.context}"
    yield from more_than_operators(planner, plan)
    if plan.offload != "none" or plan.offload_activations:
        yield "what lies on the host (plan.offload)"
    if isinstance(planner, Trainer) and plan.data * plan.context > 1:
        if plan.zero:
            yield f"plan.zero {plan.zero} (set plan.zero=0)"
        if plan.outer > 1:
            yield f"plan.outer {plan.outer}"
        if plan.overlap_gradients:
            yield "plan.overlap_gradients (set plan.overlap_gradients=false)"


def _refuse(planner: Server | Trainer, plan: Plan) -> None:
    for reason in _reasons(planner, plan):
        raise NotSupported(f"an execution trace of {reason}")


__all__ = ["step_trace"]
