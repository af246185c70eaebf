"""What a chip does in a pass of a plan's stage: its operators and collectives, one after the other, and their times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.layers import Block, operator_seconds
from siliconloom.mapper.system.pipeline import PassKind
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import Attention, Collective, Graph, Operator, SharedAttention
from siliconloom.workloads.graph import is_optimizer
from siliconloom.workloads.roles import Pass

PICO = 1e12


class PassWork(Struct, frozen=True):
    """What a chip does at one place of a pass: work, or with a dimension a collective along it."""

    name: str
    kind: str = ""
    picoseconds: int = 0
    operations: int = 0
    size: int = 0
    collective: str = ""
    dimension: str = ""


class Passes:
    """Work of every kind of pass of a block, in order; what was found is kept."""

    def __init__(self, planner: Server | Trainer, plan: Plan) -> None:
        self.plan = plan
        self.part: Graph = planner.layers.part(plan, plan.microbatch)
        machine, fabric = planner.cluster.machine, planner.cluster.fabrics[0]
        self.seconds: Mapping[str, float] = operator_seconds(self.part, plan, machine, fabric)[0]
        forward, backward = {}, {}
        for name, _, operators in self.part.blocks():
            first = operators[0]
            if first.place.backward:
                backward[first.forward_block] = operators
            elif not is_optimizer(first):
                forward[name] = operators
        self.forward, self.backward = forward, backward
        self._kept: dict[tuple[str, PassKind, bool], list[PassWork]] = {}

    def work(self, blocks: Sequence[Block], kind: PassKind, *, apart: bool) -> list[PassWork]:
        """Of a stage's pass; the gradients of weights are passes of their own where they are ``apart``."""
        ordered = blocks if kind is PassKind.FORWARD else list(reversed(blocks))
        return [work for block in ordered for work in self._block(block, kind, apart)]

    def _block(self, block: Block, kind: PassKind, apart: bool) -> list[PassWork]:
        key = block.name, kind, apart
        if key not in self._kept:
            made = [self._one(o) for o in self._operators(block, kind, apart)]
            self._kept[key] = [work for work in made if work.dimension or work.picoseconds]
            told = self._told(block, kind, apart)
            found = sum(self.seconds.get(o.name, 0.0) for o in self._operators(block, kind, apart))
            if abs(found - told) > 1e-9 * told:
                raise AssertionError(f"block {block.name}: operators take {found} s, and its pass {told} s")
        return self._kept[key]

    def _operators(self, block: Block, kind: PassKind, apart: bool) -> list[Operator]:
        forward, backward = self.forward[block.name], self.backward.get(block.name, [])
        if kind is PassKind.FORWARD:
            return forward
        weights = [o for o in backward if o.place.step is Pass.WEIGHT_GRADIENT]
        if kind is PassKind.WEIGHT:
            return weights
        again: list[Operator] = []
        if self.plan.recompute == "selective":
            again = [o for o in forward if isinstance(o, Attention)]
        elif self.plan.recompute == "full" and block.entering:
            again = forward
        return [*again, *(o for o in backward if not apart or o not in weights)]

    def _told(self, block: Block, kind: PassKind, apart: bool) -> float:
        """Seconds of the pass as the plan has them."""
        if kind is PassKind.FORWARD:
            return block.forward
        if kind is PassKind.WEIGHT:
            return block.weight
        again = {"none": 0.0, "selective": block.attention, "full": block.forward if block.entering else 0.0}
        return block.backward + again[self.plan.recompute] + (0.0 if apart else block.weight)

    def _one(self, operator: Operator) -> PassWork:
        picoseconds = round(self.seconds.get(operator.name, 0.0) * PICO)
        if isinstance(operator, Collective):
            size = operator.input_bytes
            return PassWork(operator.name, operator.kind, picoseconds, 0, size, operator.operation, operator.dimension)
        size = operator.input_bytes + operator.output_bytes
        return PassWork(operator.name, operator.kind, picoseconds, operator.flops, size)


def more_than_operators(planner: Server | Trainer, plan: Plan) -> Iterator[str]:
    """What of a plan has passes that are more than operators and collectives one after the other."""
    if plan.overlap != "none":
        yield f"plan.overlap {plan.overlap}"
    if plan.attention_chips:
        yield f"plan.attention_chips {plan.attention_chips}"
    if plan.vocabulary and plan.pipeline > 1:
        yield "plan.vocabulary"
    if planner.documents:
        yield "plan.documents"
    if len(planner.cluster.kinds) > 1:
        yield "a system of different chips"
    if planner.layers.row(plan, plan.microbatch) is not None:
        yield "chips whose memory computes"
    if any(isinstance(o, SharedAttention) for o in planner.layers.part(plan, plan.microbatch).operators()):
        yield "attention that chips share"


__all__ = ["PICO", "PassWork", "Passes", "more_than_operators"]
