"""What a plan asks of chips and of what joins them, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import DataType
from siliconloom.arch.rank_links import RankLinks
from siliconloom.workloads import Gemm, Graph, Phase

Float = NDArray[np.float64]


Parts = Callable[[int], tuple[Graph, Mapping[str, float]]]
"""For so many sequences: the operators of one chip's part, and the seconds of its messages by name."""


class LayerRow(Protocol):
    """Layers that follow one another on a chip, whose operators do not simply do so."""

    @property
    def seconds(self) -> float:
        """Of the whole row, with its messages."""

    @property
    def times(self) -> Mapping[str, float]:
        """Seconds of one execution of each operator by itself, those outside of the layers among them."""

    @property
    def cache_bytes(self) -> float:
        """Of a layer's keys and values, as they lie in memory."""


class Machine(Protocol):
    """One kind of chip: what operators take on it, by simulation or by prediction."""

    @property
    def name(self) -> str:
        """As described."""

    @property
    def capacity(self) -> float:
        """Bytes of memory."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second of memory."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of its times should know."""

    @property
    def multiprocessors(self) -> int:
        """Parts of the chip that kernels side by side can divide among them; one where a kernel takes it all."""

    def without(self, multiprocessors: int) -> Machine:
        """The same with fewer multiprocessors; raises `NotSupported` where a kernel takes the whole chip."""

    def peak(self, precision: DataType) -> float:
        """FLOP/s of products."""

    def memory_peak(self, phase: Phase) -> float:
        """FLOP/s of the memory beside them, where it computes in such work."""

    def fused_rest(self, operation: str, product: Gemm, chips: int) -> float:
        """Seconds by which a product fused with its message is longer than the product alone.

        Raises `NotSupported` where products cannot be fused with messages.
        """

    def fitted(self, graph: Graph) -> Graph:
        """The graph in a number format that the chip computes in; raises `LoomError` where it asks for another one."""

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        """Seconds of one execution of each operator that is no message; ``unfused`` attention keeps its scores."""

    def row(self, parts: Parts, batch: int, layers: int) -> LayerRow | None:
        """So many layers for ``batch`` sequences; ``None`` where operators follow one another."""


class Fabric(Protocol):
    """What joins the chips of a system."""

    def seconds(self, operation: str, size: float, stride: int, chips: int, precision: str = "fp16") -> float:
        """Seconds of a collective in which each chip has ``size`` bytes, as nccl-tests counts them."""

    def hop(self, size: float, stride: int) -> float:
        """Seconds until a message of ``size`` bytes is ``stride`` chips further."""

    def links(self, stride: int) -> RankLinks:
        """Links of chips that lie ``stride`` apart, for attention that they share."""

    def placed(self, places: tuple[int, ...]) -> Fabric:
        """The same with each rank on the chip that ``places`` says."""

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        """Seconds until all bytes of a matrix of ranks' messages, all at once, have arrived."""
