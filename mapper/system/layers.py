"""What one chip does and keeps for each block of a model under a plan, read off the operator graph of its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.mapper.system.attention import shared_seconds
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.contracts import Fabric, LayerRow, Machine, Parts
from siliconloom.mapper.system.disaggregation import pooled_seconds
from siliconloom.mapper.system.overlap import BlockPass, layer_seconds
from siliconloom.mapper.system.parallel import share
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.shard import sequences_of
from siliconloom.workloads import Attention, Collective, Graph, Operator, SharedAttention, Vector
from siliconloom.workloads.graph import is_optimizer
from siliconloom.workloads.roles import EXPERTS, Pass, Role, Section
from siliconloom.workloads.subgraph import alone

SCORE_BYTES = 5.0
"""Of each score that unfused attention keeps: softmax and dropout's results, and a mask (Korthikanti et al., 2022)."""
MASK_BYTES = 1.0
"""Of each value that dropout passes, at the end of attention and of the feed-forward network."""


class Block(Struct, frozen=True):
    """One execution of a block of operators, on one chip, for one microbatch.

    Parameters
    ----------
    section
        What part of the model it is.
    forward, backward, weight
        Seconds of the forward pass, of the gradient of its input, of the gradient of its weights; messages included.
    update
        Seconds of the optimizer for all parameters of the chip's part.
    attention
        Of which attention's kernels take in the forward pass.
    waits
        Of which forward and backward wait for messages.
    parameters, expert_parameters
        Of the chip's part; those of experts are shared with fewer others.
    weight_bytes, cache_bytes, working
        Of parameters as they are used, of keys and values, and of an operator's operands and results at most.
    kept, scores, entering
        Bytes of results that the backward pass reads, of which attention's scores, and of the block's input alone.
    """

    name: str
    section: Section
    repeat: int
    forward: float
    backward: float
    weight: float
    update: float
    attention: float
    waits: tuple[float, float]
    parameters: int
    expert_parameters: int
    weight_bytes: float
    cache_bytes: float
    working: float
    kept: float
    scores: float
    entering: float

    def divided(self, parts: int) -> Block:
        """An equal part of the block, whose operators are cut by columns."""
        return replace(
            self,
            forward=self.forward / parts,
            backward=self.backward / parts,
            weight=self.weight / parts,
            update=self.update / parts,
            waits=(self.waits[0] / parts, self.waits[1] / parts),
            parameters=-(-self.parameters // parts),
            weight_bytes=self.weight_bytes / parts,
            kept=self.kept / parts,
        )


class Layers:
    """Blocks of a model under any plan, on every kind of chip; what was found is kept."""

    def __init__(self, cluster: Cluster, graph: Graph, documents: Sequence[int] = ()) -> None:
        self.cluster, self.graph, self.documents = cluster, graph, documents
        forward = [o for o in graph.operators() if o.place.step is Pass.FORWARD]
        self._attentions = [o for o in forward if o.role is Role.ATTENTION]
        self._graphs: dict[tuple[Any, ...], Graph] = {}
        self._blocks: dict[tuple[Any, ...], tuple[Block, ...]] = {}
        self._waits: dict[tuple[Any, ...], dict[str, float]] = {}

    def part(self, plan: Plan, batch: int) -> Graph:
        """Operators of one chip for ``batch`` sequences."""
        key = plan.split, batch
        if key not in self._graphs:
            self._graphs[key] = share(sequences_of(self.graph, batch), plan.split)
        return self._graphs[key]

    def blocks(self, plan: Plan, batch: int, kind: int = 0) -> tuple[Block, ...]:
        """Blocks in program order, on one kind of the cluster's chips."""
        pool = plan.attention_chips, plan.workers
        row = self.row(plan, batch, kind)
        together = 0 if row is None else self.in_a_row(plan)
        key = plan.split, plan.context_heads, batch, kind, plan.attention, plan.overlap, pool, together
        if key not in self._blocks:
            self._blocks[key] = self._measure(plan, batch, kind, row)
        return self._blocks[key]

    def _measure(self, plan: Plan, batch: int, kind: int, row: LayerRow | None) -> tuple[Block, ...]:
        part = self.part(plan, batch)
        machine, _ = self.cluster.kinds[kind]
        seconds, waits = operator_seconds(part, plan, machine, self.cluster.fabrics[kind], self.documents)
        seconds |= {} if row is None else row.times
        unfused = plan.attention == "unfused"
        blocks = [(b, b[2][0]) for b in part.blocks()]
        forward = [b for b, first in blocks if first.place.step is Pass.FORWARD]
        backward = {first.forward_block: b[2] for b, first in blocks if first.place.backward}
        updates = {first.forward_block: seconds[first.name] for _, first in blocks if is_optimizer(first)}
        found = []
        for name, repeat, operators in forward:
            block = _block(part, name, repeat, operators, backward.get(name, []), seconds, waits, unfused, plan.tensor)
            block = replace(block, update=updates.get(name, 0.0))
            if plan.overlap != "none" and block.waits[0] and repeat > 1:
                block = self._overlapped(block, plan, batch, kind, seconds)
            if row is not None and block.attention:
                block = replace(block, forward=row.seconds / self.in_a_row(plan), cache_bytes=row.cache_bytes)
            if plan.attention_chips and block.attention:
                block = self._pooled(block, plan, batch, kind, operators, backward.get(name, []), seconds)
            found.append(block)
        rest, layers = part.resting_bytes, sum(b.repeat for b in found if b.section is Section.LAYER)
        if rest:  # as many of the encoder's layers as of the decoder's
            found = [
                replace(b, weight_bytes=b.weight_bytes + rest / layers) if b.section is Section.LAYER else b
                for b in found
            ]
        return tuple(found)

    def row(self, plan: Plan, batch: int, kind: int = 0) -> LayerRow | None:
        """Layers of a stage where they are more than operators one after the other."""
        machine, _ = self.cluster.kinds[kind]
        return machine.row(self.parts(plan, kind), batch, self.in_a_row(plan))

    def parts(self, plan: Plan, kind: int = 0) -> Parts:
        """For so many sequences, a chip's part and what its messages take."""
        return lambda count: (self.part(plan, count), self._messages(plan, count, kind))

    def in_a_row(self, plan: Plan) -> int:
        """Layers of the fullest stage."""
        return ceil(sum(o.repeat for o in self._attentions) / plan.pipeline)

    def _messages(self, plan: Plan, batch: int, kind: int) -> dict[str, float]:
        """Seconds of the messages of one chip for ``batch`` sequences."""
        key = plan.split, batch, kind
        if key not in self._waits:
            fabric = self.cluster.fabrics[kind]
            self._waits[key] = {
                o.name: message_seconds(o, plan, fabric)
                for o in self.part(plan, batch).operators()
                if isinstance(o, Collective)
            }
        return self._waits[key]

    def _pooled(
        self,
        block: Block,
        plan: Plan,
        batch: int,
        kind: int,
        forward: list[Operator],
        backward: list[Operator],
        seconds: Mapping[str, float],
    ) -> Block:
        """The block with its attention on other chips."""
        pools = self.cluster.kinds_between(plan.workers, plan.chips)
        part, fabric = self.part(plan, batch), self.cluster.fabrics[kind]
        backward = [o for o in backward if o.place.step is not Pass.WEIGHT_GRADIENT]
        times = [
            max(pooled_seconds(part, o, plan, self.cluster.kinds[p][0], fabric, seconds) for p in pools) if o else 0.0
            for o in (forward, backward)
        ]
        own = [
            sum(seconds.get(o.name, 0.0) for o in ops if not isinstance(o, Attention)) for ops in (forward, backward)
        ]
        waits = (block.waits[0] + max(times[0] - own[0], 0.0), block.waits[1] + max(times[1] - own[1], 0.0))
        return replace(block, forward=times[0], backward=times[1], attention=0.0, waits=waits)

    def _overlapped(self, block: Block, plan: Plan, batch: int, kind: int, seconds: Mapping[str, float]) -> Block:
        """The block with its messages passing beside something; never slower than in line.

        Halves of the tokens are inference's; the backward pass has them in line.
        """
        machine, _ = self.cluster.kinds[kind]
        fabric = self.cluster.fabrics[kind]
        whole = sequences_of(self.graph, batch)

        def timed(part: Graph, on: Machine) -> Mapping[str, float]:
            return operator_seconds(part, plan, on, fabric, self.documents)[0]

        part = self.part(plan, batch)
        times, waits = [block.forward, block.backward], list(block.waits)
        for at in range(2 if block.backward and plan.overlap not in ("tokens", "nano") else 1):
            work = times[at] - waits[at]
            beside = layer_seconds(whole, part, BlockPass(block.name, bool(at)), plan, machine, timed, seconds)
            times[at] = min(times[at], beside)
            waits[at] = max(times[at] - work, 0.0)
        return replace(block, forward=times[0], backward=times[1], waits=(waits[0], waits[1]))


def operator_seconds(
    part: Graph, plan: Plan, machine: Machine, fabric: Fabric, documents: Sequence[int] = ()
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of one execution of every operator of a chip's part, and of which it only waits for messages.

    ``documents`` are what each sequence consists of, where it is several: attention is that of each by itself.
    """
    unfused = plan.attention == "unfused"
    found = dict(machine.seconds(part, unfused=unfused))
    waits: dict[str, float] = {}
    for operator in part.operators():
        if isinstance(operator, Collective):
            found[operator.name] = waits[operator.name] = message_seconds(operator, plan, fabric)
        elif isinstance(operator, SharedAttention):
            found[operator.name], waits[operator.name] = shared_seconds(
                operator, part, plan, machine, fabric, documents
            )
        elif isinstance(operator, Attention) and documents:
            found[operator.name] = sum(
                machine.seconds(alone(part, replace(operator, q_len=n, kv_len=n)), unfused=unfused)[operator.name]
                for n in documents
            )
    return found, waits


def message_seconds(message: Collective, plan: Plan, fabric: Fabric) -> float:
    """Seconds of one execution of a collective, all groups of its dimension at once."""
    stride, chips = extent(plan, message.dimension)
    return fabric.seconds(message.operation, message.input_bytes, stride, chips)


def extent(plan: Plan, dimension: str) -> tuple[int, int]:
    """Distance of the chips along a dimension, and how many they are."""
    sharing = plan.split.sharing
    return {
        "tensor": (1, plan.tensor),
        "context": (plan.tensor, plan.context),
        "expert": (sharing, plan.expert),
        "expert_tensor": (1, sharing),
        "data": (plan.tensor * plan.context, plan.data),
        "replicas": (plan.tensor, plan.context * plan.data),
    }[dimension]


def _block(
    part: Graph,
    name: str,
    repeat: int,
    forward: list[Operator],
    backward: list[Operator],
    seconds: Mapping[str, float],
    waits: Mapping[str, float],
    unfused: bool,
    tensor: int,
) -> Block:
    def total(operators: list[Operator], wanted: Callable[[Operator], bool]) -> float:
        return sum(seconds.get(o.name, 0.0) for o in operators if wanted(o))

    def weights(operator: Operator) -> bool:
        return operator.place.step is Pass.WEIGHT_GRADIENT

    experts = sum(o.parameters for o in forward if o.role in EXPERTS)
    cache = sum(
        o.row_bytes * _cached(part, o)
        for o in forward
        if isinstance(o, Vector) and o.role in (Role.CACHE, Role.LATENT_CACHE)
    ) + sum(part.cross_bytes_of(o) for o in forward if isinstance(o, Attention))
    own = {o.name for o in forward}
    kept, entering = _kept(part, own, {o.name for o in backward}, tensor)
    scores = masks = 0.0
    if unfused:
        attentions = [o for o in forward if isinstance(o, Attention)]
        scores = sum(SCORE_BYTES * o.batch * o.heads * o.q_len * o.kv_len for o in attentions)
        masks = sum(MASK_BYTES * o.output_elements for o in forward if o.role is Role.RESIDUAL)
    return Block(
        name,
        forward[0].place.section,
        repeat,
        forward=total(forward, lambda o: True),
        backward=total(backward, lambda o: not weights(o)),
        weight=total(backward, weights),
        update=0.0,
        attention=total(forward, lambda o: isinstance(o, Attention)),
        waits=(sum(waits.get(o.name, 0.0) for o in forward), sum(waits.get(o.name, 0.0) for o in backward)),
        parameters=sum(o.parameters for o in forward) - experts,
        expert_parameters=experts,
        weight_bytes=float(sum(o.weight_bytes for o in forward)),
        cache_bytes=float(cache),
        working=float(max((o.input_bytes + o.output_bytes for o in forward), default=0)),
        kept=kept + scores + masks,
        scores=scores,
        entering=entering,
    )


def _cached(part: Graph, append: Vector) -> int:
    """Tokens of which the cache holds keys and values after a step."""
    readers = [part.dataflow[name] for name in part.dataflow.successors(append.name)]
    found = [each for each in readers if isinstance(each, Attention)]  # a layer has several, of requests' lengths
    attention = found[0] if found else part.beside(append, Role.ATTENTION)
    assert isinstance(attention, Attention)
    ranks = attention.ranks if isinstance(attention, SharedAttention) else 1
    return attention.batch * min(attention.positions, attention.window or attention.positions) // ranks


def kept_bytes(part: Graph, tensor: int) -> float:
    """Bytes of results that a chip's part of a training step keeps for its way back, those of the head left out."""
    blocks = [(name, repeat, operators) for name, repeat, operators in part.blocks()]
    back = {each[0].forward_block: {o.name for o in each} for _, _, each in blocks if each[0].place.backward}
    return sum(
        repeat * _kept(part, {o.name for o in operators}, back.get(name, set()), tensor)[0]
        for name, repeat, operators in blocks
        if operators[0].place.step is Pass.FORWARD and operators[0].place.section is not Section.HEAD
    )


def _kept(part: Graph, own: set[str], back: set[str], tensor: int) -> tuple[float, float]:
    """Bytes of results that the backward pass of a block reads, and of what enters the block.

    A message's result is gathered again. Tokens that were dealt to experts are kept as they were dealt.
    """
    if not back:
        return 0.0, 0.0
    kept: dict[str, float] = {}
    entering: dict[str, float] = {}
    operators: dict[str, Operator] = {o.name: o for o in part.operators()}
    for source, target, elements in part.dataflow.edges():
        maker, scattered = _maker(part, source)
        if maker not in own and target not in own and target not in back:
            continue
        producer = operators[maker]
        own_part = tensor if scattered else 1
        whole = producer.precision.size(producer.output_elements) / own_part
        if target in back and producer.place.step is Pass.FORWARD:
            dealt = producer.precision.size(elements) if elements > producer.output_elements else 0.0
            kept[maker] = max(kept.get(maker, 0.0), whole + dealt)
        if target in own and maker not in own:
            entering[maker] = whole
    return sum(kept.values()), sum(entering.values())


def _maker(part: Graph, name: str) -> tuple[str, bool]:
    """The operator whose result a message carries, and whether each chip gets a part of it first."""
    scattered = False
    while isinstance(operator := part.dataflow[name], Collective):
        scattered |= operator.operation == "reduce_scatter"
        name = part.dataflow.predecessors(name)[0]
    return name, scattered
