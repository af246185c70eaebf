"""What a plan asks of a chip, whatever it is: seconds of the operators of its part, memory, peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from siliconloom.arch import Chip, DataType, LoomError
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.model import Kernel, kernels_of
from siliconloom.baselines.operations import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.mapper.plan import map_workload
from siliconloom.sim.memory import effective
from siliconloom.simulate import simulate
from siliconloom.workloads import Attention, Collective, Graph, Operator, Phase, SharedAttention
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.graph import is_optimizer

Rows = list[dict[str, Any]]


class Machine(Protocol):
    """A kind of chip."""

    @property
    def name(self) -> str:
        """As described."""

    @property
    def capacity(self) -> float:
        """Bytes of memory."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second of memory."""

    def peak(self, precision: DataType) -> float:
        """FLOP/s of products."""

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        """Seconds of one execution of each operator that is no message; ``unfused`` attention keeps its scores."""


@dataclass(frozen=True)
class GpuMachine:
    """Times by the GPU model; training, and what is ``sustained``, under the board's power limit.

    Inference has a serving stack's kernels, which take residual sums along with norms; training launches each.
    """

    gpu: Gpu
    sustained: bool = False

    @property
    def name(self) -> str:
        return self.gpu.name

    @property
    def capacity(self) -> float:
        return float(self.gpu.memory.capacity)

    @property
    def bandwidth(self) -> float:
        return self.gpu.memory_bandwidth

    def peak(self, precision: DataType) -> float:
        return self.gpu.peak_flops(precision.value)

    def without(self, multiprocessors: int) -> GpuMachine:
        """The same with fewer multiprocessors."""
        left = self.gpu.multiprocessors - multiprocessors
        return replace(self, gpu=self.gpu.model_copy(update={"multiprocessors": left}))

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        training = graph.phase is Phase.TRAINING
        kernels = kernels_of(without_messages(graph))
        rows: list[tuple[Kernel, dict[str, Any]]] = []
        for kernel in kernels:
            rows += [(kernel, row) for row in (_scores(kernel.row) if unfused else [kernel.row])]
        found = predict(
            self.gpu, make_operations([row for _, row in rows]), sustained=training or self.sustained,
            cache_write=not training, quantized=not training,
        )  # fmt: skip
        launch = load_efficiency(self.gpu.architecture).elementwise.launch
        wider = _value_widths(graph) if training else {}
        times: dict[str, float] = defaultdict(float)
        for (kernel, _), seconds in zip(rows, found.seconds.tolist(), strict=True):
            saved = launch if kernel.fused and not training else 0.0
            times[kernel.operator] += max(seconds - saved, 0.0) * wider.get(kernel.operator, 1.0)
        return times


def _value_widths(graph: Graph) -> dict[str, float]:
    """Arithmetic of attention relative to one whose values are as wide as its keys, which the kernels' rows have.

    Of the five products of the backward pass, two are one of that kind and three are the wider other.
    """
    attentions = [o for o in graph.operators() if isinstance(o, Attention)]
    return {o.name: (o.head_dim + o.v_head_dim) / (2 * o.head_dim) for o in attentions}


def _scores(row: dict[str, Any]) -> Rows:
    """Attention as products with its scores in memory, their softmax and dropout between."""
    if row["op"] != "attention_prefill":
        return [row]
    many, q, k, d = row["batch"] * row["heads"], row["q_len"], row["kv_len"], row["head_dim"]
    common = {"dtype": row["dtype"]}
    return [
        {"op": "gemm", "m": q, "n": k, "k": d, "batch": many, **common},
        {"op": "softmax", "m": many * q, "n": k, **common},
        {"op": "gelu", "m": many * q, "n": k, **common},  # dropout: one read, one write
        {"op": "gemm", "m": q, "n": d, "k": k, "batch": many, **common},
    ]


@dataclass(frozen=True)
class ChipMachine:
    """Times by the chip simulator."""

    chip: Chip
    _found: dict[tuple[Any, ...], dict[str, float] | str] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _blockers: set[str] = field(default_factory=set, init=False, compare=False, repr=False)
    """Operators for which the buffers were too small under some plan: looked at first under the next one, so that a
    search in which none fits ends soon."""

    @property
    def name(self) -> str:
        return self.chip.name

    @property
    def capacity(self) -> float:
        return float(self.chip.nearest.total_capacity)

    @property
    def bandwidth(self) -> float:
        return float(self.chip.nearest.total_bandwidth)

    def peak(self, precision: DataType) -> float:
        return 2.0 * self.chip.peak_macs * self.chip.clock

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        work = without_messages(graph)
        key = (work.phase, work.precision, tuple(work.operators()))
        if key not in self._found:
            # Whether the whole plan fits is the planner's matter; one layer's data is where it would be.
            roomy = {n: m.model_copy(update={"capacity": 2**60}) for n, m in self.chip.memory.items()}
            chip = self.chip.model_copy(update={"memory": roomy})
            try:
                for operator in work.operators():
                    if operator.name in self._blockers:
                        _check_alone(chip, work, operator)
                done = simulate(chip, _once(work))
            except LoomError as error:
                self._found[key] = str(error)
                if not self._blockers:
                    self._find_blocker(chip, work)
                raise
            times: dict[str, float] = defaultdict(float)
            for index, mapped in enumerate(done.plan.tasks):
                times[mapped.task.owner] += float(done.run.exclusive[index]) / done.chip.clock
            self._found[key] = times
        found = self._found[key]
        if isinstance(found, str):
            raise LoomError(found)
        return found

    def _find_blocker(self, chip: Chip, graph: Graph) -> None:
        for operator in graph.operators():
            try:
                _check_alone(chip, graph, operator)
            except LoomError:
                self._blockers.add(operator.name)
                return


def _check_alone(chip: Chip, graph: Graph, operator: Operator) -> None:
    """Map an operator by itself, by estimates alone; raises `LoomError` where it does not go."""
    map_workload(effective(chip), _once(subgraph(graph, [operator])))


def without_messages(graph: Graph) -> Graph:
    """The operators that a chip computes by itself: no collectives, no attention shared with others, no optimizer."""
    own = [o for o in graph.operators() if not isinstance(o, Collective | SharedAttention) and not is_optimizer(o)]
    return subgraph(graph, own)


def subgraph(graph: Graph, operators: Sequence[Operator]) -> Graph:
    """A graph of these operators, and the edges between them."""
    dataflow = Dataflow()
    for operator in operators:
        dataflow.add(operator)
    for source, target, elements in graph.dataflow.edges():
        if source in dataflow and target in dataflow:
            dataflow.connect(source, target, elements)
    return replace(graph, dataflow=dataflow)


def _once(graph: Graph) -> Graph:
    """Every block executed once: a layer's time does not depend on how many there are."""
    dataflow = Dataflow()
    for operator in graph.operators():
        dataflow.add(replace(operator, repeat=1))
    for source, target, elements in graph.dataflow.edges():
        dataflow.connect(source, target, elements)
    return replace(graph, dataflow=dataflow)


def alone(graph: Graph, attention: Attention) -> Graph:
    """A graph of one attention, done as in ``graph``."""
    dataflow = Dataflow()
    dataflow.add(attention)
    return replace(graph, dataflow=dataflow, batch=attention.batch, tokens=attention.batch * attention.q_len)
