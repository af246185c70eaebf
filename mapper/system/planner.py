"""What training and inference under a plan have in common: whether it divides, its stages, its layers' costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import LoomError
from siliconloom.arch.datatype import DataType
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.experts import RoutedExperts, routing_of_model
from siliconloom.mapper.system.layers import Block, Layers, extent
from siliconloom.mapper.system.memory import GRADIENT, STATE, MemoryUse
from siliconloom.mapper.system.parallel import CHUNK
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.stages import ENDS, StageModel, deal
from siliconloom.mapper.system.step import make_placement
from siliconloom.workloads import Attention, Gemm, Graph, Phase
from siliconloom.workloads.roles import Pass, Role


class StepTime(Struct, frozen=True):
    """Seconds of a step and its parts.

    Parameters
    ----------
    pipeline
        From the first pass to the last.
    gradients, optimizer
        What follows in training: sums over replicas (with ZeRO, scattered and gathered) that nothing hides, and the
        update.
    bubble
        Share of the pipeline's time in which a chip waits for others.
    exposed
        Seconds that the busiest chip waits for messages: sums, tokens to and from experts, gradients, parameters.
    stages
        Layers of each stage.
    sharing
        Of the pipeline, what gathering shared parameters and scattering gradients adds to its microbatches.
    host
        Of the step, what it waits for the host: of the pipeline what its microbatches do, and the update behind it.
    """

    seconds: float
    pipeline: float
    gradients: float
    optimizer: float
    bubble: float
    exposed: float
    memory: MemoryUse
    microbatches: int
    stages: tuple[int, ...]
    sharing: float = 0.0
    host: float = 0.0


class Planner:
    """Plans of one workload on one cluster; costs are kept.

    Parameters
    ----------
    graph
        The whole step: all sequences.
    documents
        Tokens of the documents that every sequence consists of, none of which sees another.
    routed
        Where tokens go, which has every plan's load of experts; as the plan says where it is not given.
    """

    def __init__(
        self, cluster: Cluster, graph: Graph, documents: Sequence[int] = (), routed: RoutedExperts | None = None
    ) -> None:
        for machine, _ in cluster.kinds:
            graph = machine.fitted(graph)
        self.cluster, self.graph, self.batch, self.documents = cluster, graph, graph.batch, tuple(documents)
        self.routed = routed
        self.layers = Layers(cluster, graph, self.documents)
        forward = [o for o in graph.operators() if o.place.step is Pass.FORWARD]
        attentions = [o for o in forward if isinstance(o, Attention) and o.role is not Role.CROSS_ATTENTION]
        if graph.requests and self.documents:
            raise LoomError("plan.documents of requests of unequal lengths (workload.requests): not supported")
        self.encoder = len(attentions) < sum(isinstance(o, Attention) for o in forward)
        """Whether the layers attend to an encoder's result."""
        if not attentions:
            raise LoomError(f"{graph.name}: a plan is for transformers; it has no attention")
        self.attention = attentions[0]
        whole = self.encoder and graph.phase is not Phase.DECODE
        self.depth = 1 if whole else sum(o.repeat for o in attentions) // max(len(graph.requests), 1)
        """Layers that stages may be cut between."""
        self.experts = routing_of_model(graph).experts
        if self.documents and self.encoder:
            raise LoomError(f"plan.documents of {graph.name}, an encoder with a decoder: not supported")
        if self.documents:
            forward = [d for o in forward for d in (self._apart(o) if isinstance(o, Attention) else [o])]
        self.macs = sum(o.macs * o.repeat for o in forward)
        self._macs_in: dict[DataType, int] = {}
        for o in forward:
            self._macs_in[o.precision] = self._macs_in.get(o.precision, 0) + o.macs * o.repeat
        self.unmasked_macs = sum(o.unmasked_macs * o.repeat for o in forward)
        self.parameters = graph.parameters
        stored = sum(o.parameters * o.repeat for o in forward)
        self.least_bytes = float(sum(o.weight_bytes * o.repeat for o in forward)) + graph.resting_bytes
        """Bytes of all chips together under any plan: parameters, in training with their gradients and state."""
        if graph.phase is Phase.TRAINING:
            self.least_bytes += stored * (GRADIENT + STATE)
        self._models: dict[tuple[Any, ...], StageModel] = {}
        self._dealt: dict[tuple[Any, ...], list[int]] = {}

    def _apart(self, attention: Attention) -> list[Attention]:
        """Attention of each document."""
        if attention.follows:
            raise LoomError(f"plan.documents of {CHUNK}: not supported")
        if self.graph.phase is Phase.DECODE or sum(self.documents) != attention.kv_len:
            raise LoomError(
                f"plan.documents: {sum(self.documents)} tokens in all, a sequence of prompts or training has "
                f"{attention.kv_len}"
                if self.graph.phase is not Phase.DECODE
                else "plan.documents: decode has one document a sequence; set workload.phase=prefill or training"
            )
        return [replace(attention, q_len=n, kv_len=n) for n in self.documents]

    def model(self, plan: Plan, batch: int, kind: int = 0) -> StageModel:
        """Blocks of one chip of a kind, for ``batch`` sequences."""
        blocks = self.layers.blocks(plan, batch, kind)
        key = id(blocks), kind
        if key not in self._models:
            self._models[key] = StageModel.of(blocks)
        return self._models[key]

    def check(self, plan: Plan) -> None:
        """Raise `LoomError` for a plan that does not divide, saying by how much."""
        cluster = self.cluster
        if plan.chips != cluster.chips:
            context = f" x context {plan.context}" if plan.context > 1 else ""
            pool = f" and {plan.attention_chips} for attention" if plan.attention_chips else ""
            raise LoomError(
                f"plan: data {plan.data} x tensor {plan.tensor}{context} x pipeline {plan.pipeline}{pool} is "
                f"{plan.chips} chips, {cluster.name} has {cluster.chips}"
            )
        if self.encoder:
            self.check_encoder(plan)
        if self.graph.requests:
            self.check_requests(plan)
        placement = make_placement(plan)
        if placement.stages > self.depth:
            raise LoomError(
                f"plan.pipeline {plan.pipeline}"
                + (f" x {placement.chunks} chunks" if placement.chunks > 1 else "")
                + f" is more than the {self.depth} layers"
            )
        if plan.expert > 1 and self.experts == 1:
            raise LoomError(f"plan.expert {plan.expert}: {self.graph.name} has no experts")
        sharing = plan.split.sharing
        if plan.tensor % sharing:
            raise LoomError(f"plan.expert_tensor {sharing} does not divide plan.tensor {plan.tensor}")
        apart = plan.data * plan.context * plan.tensor // sharing
        if plan.expert > 1 and apart % plan.expert:
            chips = plan.data * plan.context * plan.tensor
            works = [n for n in range(1, plan.tensor + 1) if plan.tensor % n == 0 and chips // n % plan.expert == 0]
            hint = f"; plan.expert_tensor={works[-1]} makes that {chips // works[-1]} groups" if works else ""
            raise LoomError(
                f"plan.expert {plan.expert} does not divide the {apart} groups of {sharing} chips that share an expert"
                f" (plan.expert_tensor; plan.tensor where it is not said){hint}"
            )
        if plan.overlap == "shortcut" and self.experts == 1:
            raise LoomError(f"plan.overlap shortcut: {self.graph.name} has no experts")
        if plan.expert_copies:
            self._check_copies(plan)

    def check_encoder(self, plan: Plan) -> None:
        """Refuse what is for one sequence that passes through layers that are alike."""
        kind = f"{self.graph.name}, an encoder with a decoder"
        if plan.pipeline > 1 and self.graph.phase is not Phase.DECODE:
            raise LoomError(
                f"plan.pipeline {plan.pipeline} in {self.graph.phase.value} of {kind}: every layer of the decoder "
                "reads the encoder's result, and stages pass on what one layer makes"
            )
        for key, value, without in (
            ("context", plan.context, 1),
            ("attention_chips", plan.attention_chips, 0),
            ("overlap", plan.overlap, "none"),
        ):
            if value != without:
                raise LoomError(f"plan.{key} {value} of {kind}: not supported")

    def check_requests(self, plan: Plan) -> None:
        """Refuse what deals, cuts or passes on sequences of one length; chips share heads, columns and experts."""
        for key, value, without in (
            ("data", plan.data, 1),
            ("pipeline", plan.pipeline, 1),
            ("context", plan.context, 1),
            ("attention_chips", plan.attention_chips, 0),
            ("microbatch", plan.microbatch or self.batch, self.batch),
        ):
            if value != without:
                raise LoomError(f"plan.{key} {value} of requests of unequal lengths (workload.requests): not supported")

    def _check_copies(self, plan: Plan) -> None:
        if self.graph.phase is Phase.TRAINING:
            raise LoomError("plan.expert_copies is for inference: copies' gradients would have to be summed")
        if plan.expert == 1:
            raise LoomError("plan.expert_copies: changes nothing: plan.expert is 1")
        held = self.experts // plan.expert
        if held + plan.expert_copies > self.experts:
            raise LoomError(
                f"plan.expert_copies {plan.expert_copies}: with {held} of the {self.experts} experts a chip has room "
                f"for {self.experts - held} copies"
            )

    def loaded(self, plan: Plan) -> Plan:
        """The plan with the load that the routing gives its experts' chips; one chip's is even whatever was given."""
        if plan.expert == 1:
            return replace(plan, expert_load=1.0)
        return plan if self.routed is None else replace(plan, expert_load=self.routed.load(plan))

    def kinds(self, plan: Plan, stage: int) -> list[int]:
        """Kinds of the chips that hold a stage."""
        each = plan.data * plan.tensor * plan.context
        device, _ = make_placement(plan).place(stage)
        return self.cluster.kinds_between(device * each, (device + 1) * each)

    def deal_key(self, plan: Plan, batch: int) -> tuple[Any, ...]:
        """What the layers of every stage depend on."""
        placement = make_placement(plan)
        return (
            plan.split,
            batch,
            plan.data,
            plan.attention_chips,
            placement,
            plan.attention,
            plan.overlap,
            plan.vocabulary,
        )

    def dealt(self, plan: Plan, batch: int) -> list[int]:
        """Layers of every stage."""
        key = self.deal_key(plan, batch)
        if key not in self._dealt:
            self._dealt[key] = self._deal(plan, batch)
        return self._dealt[key]

    def _deal(self, plan: Plan, batch: int) -> list[int]:
        stages = make_placement(plan).stages
        models = [self.model(plan, batch, kind) for kind in range(len(self.cluster.kinds))]
        times = [[_whole(m.blocks[at]) for at in m.layers] for m in models]
        ends = [[sum(_whole(b) for b in m.ends(section)) for m in models] for section in ENDS]
        if plan.vocabulary:  # every stage has its part of them
            ends = [[0.0] * len(models)] * 2
        slowest = [max(self.kinds(plan, s), key=lambda k: sum(times[k])) for s in range(stages)]
        return deal(times, ends[0], ends[1], slowest)

    def stage_blocks(self, plan: Plan, batch: int, counts: Sequence[int]) -> list[list[list[Block]]]:
        """Of every stage, by kind of its chips: the blocks of a chip."""
        found = [
            [self.model(plan, batch, kind).stage(counts, stage) for kind in self.kinds(plan, stage)]
            for stage in range(len(counts))
        ]
        if not plan.vocabulary or plan.pipeline == 1:
            return found
        spread = []
        for stage, parts in enumerate(found):
            mine = stage < plan.pipeline  # a device's first stage
            models = [self.model(plan, batch, kind) for kind in self.kinds(plan, stage)]
            ends = [[b for section in ENDS for b in m.ends(section)] for m in models]
            spread.append(
                [
                    [b for b in part if b.section not in ENDS] + [b.divided(plan.pipeline) for b in own if mine]
                    for part, own in zip(parts, ends, strict=True)
                ]
            )
        return spread

    def hop(self, plan: Plan, batch: int) -> float:
        """Seconds until a stage's result is at the next one."""
        if plan.pipeline == 1:
            return 0.0
        size = self.hop_bytes(plan, batch)
        stride = plan.data * plan.tensor * plan.context
        return max(fabric.hop(size, stride) for fabric in self.cluster.fabrics)

    def hop_bytes(self, plan: Plan, batch: int) -> int:
        """Bytes that a chip of a stage sends to the next one."""
        rows = batch * self.attention.q_len / plan.context
        return self.graph.precision.size(round(rows * self._width() / plan.tensor))

    def _width(self) -> int:
        head = next((o for o in self.graph.operators() if o.role is Role.HEAD and isinstance(o, Gemm)), None)
        return head.k if head else self.attention.heads * self.attention.head_dim

    @cached_property
    def has_vocabulary(self) -> bool:
        """Whether the model has a table of tokens, which a model of images has not."""
        return any(o.role is Role.TABLE for o in self.graph.operators())

    @property
    def passes(self) -> int:
        """Times the arithmetic of a forward pass: its gradients are two more."""
        return 3 if self.graph.phase is Phase.TRAINING else 1

    @property
    def flops(self) -> float:
        """Model FLOPs of a step: 6 for each parameter of products and token, and 12 s h for attention's scores.

        In inference a third. Recomputation does not count, the scores that a causal mask saves do.
        """
        return 2.0 * self.passes * self.unmasked_macs

    @property
    def computed_flops(self) -> float:
        """The same without the scores that a causal mask, or a window, saves: those of `bound`."""
        return 2.0 * self.passes * sum(self._macs_in.values())

    def peak(self, precision: DataType) -> float:
        """FLOP/s of all chips in a format, and of their memory where it computes."""
        phase, kinds = self.graph.phase, self.cluster.kinds
        return sum((machine.peak(precision) + machine.memory_peak(phase)) * count for machine, count in kinds)

    @property
    def bound(self) -> float:
        """Seconds of the arithmetic, were all chips at the peaks of its formats; of those that they lack none."""
        each = ((macs, self.peak(precision)) for precision, macs in self._macs_in.items())
        return sum(2.0 * self.passes * macs / peak for macs, peak in each if peak)

    def extent(self, plan: Plan, dimension: str) -> tuple[int, int]:
        """Distance of the chips along a dimension, and how many they are."""
        return extent(plan, dimension)


def _whole(block: Block) -> float:
    return block.forward + block.backward + block.weight
