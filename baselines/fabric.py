"""GPUs joined as described: NCCL's model within a node, its rings and trees between nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.gpu import Gpu
from siliconloom.arch.rank_links import RankLink, RankLinks
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict

Float = NDArray[np.float64]


@dataclass(frozen=True)
class GpuFabric:
    """Equal nodes of GPUs, each with a port to the network: NCCL's model within a node, its rings between nodes.

    Parameters
    ----------
    gpu
        With the system's links in place of its own.
    per_node
        GPUs of a node.
    outside, latency
        Bytes per second of a GPU's port, and seconds of a message between nodes.
    program
        Serving software whose all-reduces run within a node, where it has its own.
    """

    gpu: Gpu
    per_node: int
    outside: float
    latency: float
    program: str = ""
    _found: dict[tuple[str, int, int, int], float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def seconds(self, operation: str, size: float, stride: int, chips: int, precision: str = "fp16") -> float:
        if chips == 1 or not size:
            return 0.0
        key = operation, round(size), stride, chips
        if key not in self._found:
            self._found[key] = self._seconds(operation, size, stride, chips)
        return self._found[key]

    def _seconds(self, operation: str, size: float, stride: int, chips: int) -> float:
        if stride * chips <= self.per_node:
            row = {"op": operation, "gpus": chips, "bytes": max(round(size), 1), "dtype": "fp16"}
            return float(predict(self.gpu, make_operations([row]), software=self.program).seconds[0])
        together = max(self.per_node // stride, 1)
        nodes = math.ceil(chips / together)
        share = load_efficiency(self.gpu.architecture).collective.share_simple
        inside = self.gpu.link_bandwidth
        if operation == "all_to_all":
            far = size * (chips - together) / chips / (self.outside * share)
            near = size * (together - 1) / chips / (inside * share)
            return max(far, near) + self.latency
        around = 2 if operation == "all_reduce" else 1
        rate = min(inside, together * self.outside) * share
        # A ring's steps, or up and down a tree of nodes whose rate is half as high where it branches.
        ring = around * ((chips - 1) / chips * size / rate + (nodes - 1) * self.latency)
        if operation != "all_reduce":
            return ring
        tree = 2 * size / rate + 2 * math.ceil(math.log2(nodes)) * self.latency
        local = 0.0
        if together > 1:
            local = self._seconds("all_reduce", size / together, 1, together)
        return min(ring, tree + local)

    def hop(self, size: float, stride: int) -> float:
        rate = self.gpu.link_bandwidth if stride < self.per_node else self.outside
        return size / rate + self.latency

    def links(self, stride: int) -> RankLinks:
        fitted = load_efficiency(self.gpu.architecture).collective
        wait = fitted.wait_simple + fitted.step_simple
        inner = RankLink(self.gpu.link_bandwidth * fitted.share_simple, wait)
        outer = RankLink(self.outside * fitted.share_simple, wait + self.latency)
        return RankLinks(inner, outer, max(self.per_node // stride, 1))

    def placed(self, places: tuple[int, ...]) -> GpuFabric:
        """The same: nodes are alike, and ranks fill them in order."""
        return self

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        if not sent.any():
            return 0.0
        node = np.arange(len(sent)) // self.per_node
        near = node[:, None] == node[None, :]
        share = load_efficiency(self.gpu.architecture).collective.share_simple
        ports = ((np.where(near, sent, 0.0), self.gpu.link_bandwidth), (np.where(near, 0.0, sent), self.outside))
        busiest = max(float(max(m.sum(axis=0).max(), m.sum(axis=1).max())) / (rate * share) for m, rate in ports)
        return busiest + self.latency
