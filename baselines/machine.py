"""GPUs as a plan asks for them: seconds of operators by the GPU model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import DataType, NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.model import DTYPES, ModelPrediction, predict_model
from siliconloom.baselines.tiled import Product, gather_product, product_reduce, product_scatter
from siliconloom.workloads import Gemm, Graph, Phase, Vector
from siliconloom.workloads.graph import is_optimizer
from siliconloom.workloads.subgraph import without_messages

UPDATE_BYTES = 30.0
"""Of a parameter: Adam reads a gradient of 2 bytes and a state of 12, writes the state and the parameter of 2, and
clears the gradient."""
STREAMED = 0.9
"""Share of the memory's bandwidth that the optimizer's passes reach."""


class GpuMachine(Struct, frozen=True):
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
        return self.gpu.peak_flops(DTYPES.get(precision.value, precision.value))

    def memory_peak(self, phase: Phase) -> float:
        return 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    @property
    def multiprocessors(self) -> int:
        return self.gpu.multiprocessors

    def without(self, multiprocessors: int) -> GpuMachine:
        """The same with fewer multiprocessors."""
        left = self.gpu.multiprocessors - multiprocessors
        return replace(self, gpu=self.gpu.model_copy(update={"multiprocessors": left}))

    def fused_rest(self, operation: str, product: Gemm, chips: int) -> float:
        """See `baselines.tiled`: what is left of a message beside the tiles of its product."""
        if product.stored_as is not None:
            raise NotSupported(f"{product.name}, whose weights are packed or sparse, fused with a message")
        size = product.precision.size(1000) / 1000
        dtype = DTYPES.get(product.precision.value, product.precision.value)
        kernel = Product(product.m, product.n, product.k, dtype=dtype, element=size)
        fuse = {"all_gather": gather_product, "reduce_scatter": product_scatter, "all_reduce": product_reduce}
        found = fuse[operation](self.gpu, kernel, chips)
        return max(found.fused - found.product, 0.0)

    def fitted(self, graph: Graph) -> Graph:
        return graph

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        found = self.predicted(without_messages(graph), unfused=unfused).by_operator
        updates = [o for o in graph.operators() if isinstance(o, Vector) and is_optimizer(o)]
        return found | {o.name: o.rows * o.cols * UPDATE_BYTES / (self.bandwidth * STREAMED) for o in updates}

    def row(self, parts: Callable[[int], tuple[Graph, Mapping[str, float]]], batch: int, layers: int) -> None:
        """Kernels follow one another."""

    def predicted(
        self, graph: Graph, *, groups: Mapping[str, int] | None = None, unfused: bool = False
    ) -> ModelPrediction:
        """Every kernel of a part with its time, energy and floor; see `predict_model`."""
        return predict_model(self.gpu, graph, groups=groups, sustained=self.sustained, unfused=unfused)
