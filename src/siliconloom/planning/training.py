"""A training step of a plan on a cluster: time, where it goes, and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siliconloom.arch import LoomError
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.mapper.pipeline import Placement
from siliconloom.planning.cluster import Cluster
from siliconloom.planning.costs import Costs, layer_costs
from siliconloom.planning.memory import Memory, training_memory
from siliconloom.planning.plan import Plan, Shape
from siliconloom.planning.step import PipelineRun, make_schedule, run_pipeline

OPTIMIZER_BYTES = 30.0
"""Of a parameter: Adam reads a gradient of 2 bytes and a state of 12, writes the state and the parameter of 2, and
clears the gradient."""
GRADIENT_SUM = 4.0
"""Bytes of a gradient when it is summed over replicas: fp32, as Megatron-LM accumulates it."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step and its parts.

    Parameters
    ----------
    pipeline
        From the first forward to the last backward pass.
    gradients, optimizer
        After it: sums over replicas (with ZeRO, scattered and gathered), and the update.
    bubble
        Share of the pipeline's time in which a chip waits.
    exposed
        Seconds that a chip waits for messages: tensor-parallel sums, gradients, parameters of ZeRO-3.
    """

    seconds: float
    pipeline: float
    gradients: float
    optimizer: float
    bubble: float
    exposed: float
    memory: Memory
    microbatches: int
    run: PipelineRun | None = None


class Trainer:
    """Costs of plans of one model on one cluster; layers' costs are kept."""

    def __init__(
        self, cluster: Cluster, shape: Shape, batch: int, *, gated: bool, dtype: str = "bf16", sustained: bool = True
    ) -> None:
        self.cluster, self.shape, self.batch = cluster, shape, batch
        self.gated, self.dtype, self.sustained = gated, dtype, sustained
        self._costs: dict[tuple[Any, ...], Costs] = {}

    def costs(self, plan: Plan) -> Costs:
        """Of a layer and the ends, for one microbatch."""
        key = (plan.tensor, plan.microbatch, plan.recompute, plan.sequence_parallel, plan.attention)
        if key not in self._costs:
            self._costs[key] = layer_costs(self.cluster.gpu, self.shape, plan, self.gated, self.dtype, self.sustained)
        return self._costs[key]

    def check(self, plan: Plan) -> None:
        """Raise `LoomError` for a plan that does not divide, saying by how much."""
        shape, cluster = self.shape, self.cluster
        if plan.chips != cluster.chips:
            raise LoomError(
                f"plan: data {plan.data} x tensor {plan.tensor} x pipeline {plan.pipeline} is {plan.chips} chips, "
                f"{cluster.name} has {cluster.chips}"
            )
        for what, size in (("heads", shape.heads), ("inner width", shape.inner)):
            if size % plan.tensor:
                raise LoomError(f"plan.tensor {plan.tensor} does not divide the {size} of {what}")
        if plan.pipeline * plan.chunks > shape.layers:
            raise LoomError(
                f"plan.pipeline {plan.pipeline}" + (f" x {plan.chunks} chunks" if plan.chunks > 1 else "")
                + f" is more than the {shape.layers} layers"
            )  # fmt: skip
        if self.batch % (plan.data * plan.microbatch):
            rest = self.batch % (plan.data * plan.microbatch)
            raise LoomError(
                f"batch {self.batch} does not divide into data {plan.data} x microbatch {plan.microbatch}: "
                f"{rest} left over"
            )
        if plan.tensor > cluster.per_node:
            raise LoomError(
                f"plan.tensor {plan.tensor} is more than a node's {cluster.per_node} chips; every layer would wait for "
                "the network"
            )

    def microbatches(self, plan: Plan) -> int:
        """That each replica's pipeline runs through."""
        return self.batch // (plan.data * plan.microbatch)

    def stages(self, plan: Plan) -> tuple[list[float], list[float], list[float]]:
        """Seconds of every stage's forward, input-gradient and weight-gradient pass for a microbatch."""
        costs, count = self.costs(plan), plan.pipeline * plan.chunks
        base, extra = divmod(self.shape.layers, count)
        layers = [base + (1 if stage < extra else 0) for stage in range(count)]
        if extra:  # the ends have the embedding and the head: give the middle stages the odd layers
            order = sorted(range(count), key=lambda s: abs(s - (count - 1) / 2))
            layers = [base + (1 if s in set(order[:extra]) else 0) for s in range(count)]
        forward = [n * costs.forward for n in layers]
        backward = [n * costs.backward for n in layers]
        weight = [n * costs.weight for n in layers]
        forward[0] += costs.first[0]
        backward[0] += costs.first[1]
        forward[-1] += costs.last[0]
        backward[-1] += costs.last[1]
        return forward, backward, weight

    def memory(self, plan: Plan) -> Memory:
        """Bytes of the fullest chip; the first stage of a pipeline holds the most microbatches."""
        micro, p = self.microbatches(plan), plan.pipeline
        if plan.schedule == "gpipe":
            held = float(micro)
        elif plan.schedule == "interleaved" and p > 1:
            held = min((2 * (p - 1) + (plan.chunks - 1) * p + 1) / plan.chunks, micro)
        else:
            held = float(min(p, micro))
        return training_memory(self.shape, plan, held)

    def after(self, plan: Plan) -> tuple[float, float, float]:
        """Seconds of the gradients' sums and of the optimizer, and what ZeRO-3 adds to every microbatch."""
        cluster, shape = self.cluster, self.shape
        layers = -(-shape.layers // plan.pipeline)
        parameters = (layers * shape.layer_parameters + shape.end_parameters / 2) / plan.tensor
        share = load_efficiency(cluster.gpu.architecture).collective.share_simple
        gradients = each = 0.0
        if plan.data > 1:
            rate = cluster.ring_rate(plan.tensor, plan.data) * share
            part = (plan.data - 1) / plan.data
            wait = 2 * (plan.data - 1) * cluster.latency
            if plan.zero == 0:
                gradients = 2 * part * parameters * GRADIENT_SUM / rate + wait
            else:
                gradients = part * parameters * (GRADIENT_SUM + (shape.element if plan.zero < 3 else 0)) / rate + wait
            if plan.zero == 3:
                each = 2 * part * parameters * shape.element / rate
        split = plan.data if plan.zero else 1
        optimizer = parameters / split * OPTIMIZER_BYTES / (cluster.gpu.memory_bandwidth * 0.9)
        return gradients, optimizer, each

    def least(self, plan: Plan) -> float:
        """Seconds that the plan cannot beat: its slowest stage's work, the others' once, and what follows."""
        forward, backward, weight = self.stages(plan)
        micro, p = self.microbatches(plan), plan.pipeline
        work = [sum(forward[d::p]) + sum(backward[d::p]) + sum(weight[d::p]) for d in range(p)]
        gradients, optimizer, each = self.after(plan)
        return micro * max(work) + micro * each + gradients + optimizer

    def step(self, plan: Plan) -> StepTime:
        """Simulate one step; raises `LoomError` for plans that do not divide."""
        self.check(plan)
        micro = self.microbatches(plan)
        forward, backward, weight = self.stages(plan)
        costs = self.costs(plan)
        gradients, optimizer, each = self.after(plan)
        apart = plan.schedule == "zero_bubble" and plan.pipeline > 1
        times = (forward[0], backward[0], weight[0])
        schedule = make_schedule(plan, micro, times)
        whole = backward if apart else [b + w for b, w in zip(backward, weight, strict=True)]
        hop = 0.0
        if plan.pipeline > 1:
            stride = plan.tensor * plan.data
            size = self.shape.sequence * plan.microbatch * self.shape.hidden * 2 / plan.tensor
            hop = size / self.cluster.hop_rate(stride) + self.cluster.latency
        run = run_pipeline(
            schedule, Placement(plan.pipeline, plan.chunks), forward, whole, weight if apart else None, hop=hop
        )
        seconds = run.seconds + micro * each + gradients + optimizer
        layers = self.shape.layers / plan.pipeline
        exposed = micro * layers * costs.communication + gradients + micro * each
        return StepTime(
            seconds,
            run.seconds + micro * each,
            gradients,
            optimizer,
            run.bubble,
            exposed,
            self.memory(plan),
            micro,
            run,
        )

    @property
    def flops(self) -> float:
        """Model FLOPs of a step, 6 for each parameter of products and token, and 12 s h for attention's scores.

        Recomputation does not count: it is the plan's own choice.
        """
        tokens = self.batch * self.shape.sequence
        products = self.shape.layers * self.shape.layer_parameters + self.shape.vocabulary * self.shape.hidden
        scores = 12 * self.shape.layers * self.shape.sequence * self.shape.heads * self.shape.head_dim
        return tokens * (6.0 * products + scores)
