"""Seconds of a plan's messages: collectives of equal groups of chips, and a message from one stage to the next.

Chips are numbered with the tensor dimension innermost, then context, data and pipeline, so a dimension's groups are
``size`` chips that lie ``stride`` apart. All groups of a dimension communicate at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.network import Endpoint, LinkPort, Topology, Wiring, wire
from siliconloom.arch.transfers import Transfers, join
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.operations import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.mapper.collectives import collective
from siliconloom.planning import context
from siliconloom.sim.network import run_transfers

Float = NDArray[np.float64]

ALGORITHMS = {
    "all_reduce": ("ring", "halving_doubling", "direct"), "all_gather": ("ring", "halving_doubling", "direct"),
    "reduce_scatter": ("ring", "halving_doubling", "direct"), "all_to_all": ("direct", "ring"),
}  # fmt: skip
PROBE = float(1 << 24)
"""Bytes of messages, all chips' at once, by which a topology's rate between neighbours along a dimension is told."""
JOINED_BYTES = 200
"""Memory of a message of groups that communicate at once: its own table's, that of all groups, and its run's."""
DIRECT_MOST = 64
"""Chips of a group up to which all send to all at once."""


class Fabric(Protocol):
    """What joins the chips of a system."""

    def seconds(self, operation: str, size: float, stride: int, chips: int, precision: str = "fp16") -> float:
        """Of a collective in which each chip has ``size`` bytes, as nccl-tests counts them."""

    def hop(self, size: float, stride: int) -> float:
        """Until a message of ``size`` bytes is ``stride`` chips further."""

    def links(self, stride: int) -> context.Fabric:
        """Links of chips that lie ``stride`` apart, for attention that they share."""

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        """Seconds until all bytes of a matrix of ranks' messages, all at once, have arrived."""


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
    """

    gpu: Gpu
    per_node: int
    outside: float
    latency: float
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
            return float(predict(self.gpu, make_operations([row])).seconds[0])
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

    def links(self, stride: int) -> context.Fabric:
        fitted = load_efficiency(self.gpu.architecture).collective
        wait = fitted.wait_simple + fitted.step_simple
        inner = context.Link(self.gpu.link_bandwidth * fitted.share_simple, wait)
        outer = context.Link(self.outside * fitted.share_simple, wait + self.latency)
        return context.Fabric(inner, outer, max(self.per_node // stride, 1))

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        if not sent.any():
            return 0.0
        node = np.arange(len(sent)) // self.per_node
        near = node[:, None] == node[None, :]
        share = load_efficiency(self.gpu.architecture).collective.share_simple
        ports = ((np.where(near, sent, 0.0), self.gpu.link_bandwidth), (np.where(near, 0.0, sent), self.outside))
        busiest = max(float(max(m.sum(axis=0).max(), m.sum(axis=1).max())) / (rate * share) for m, rate in ports)
        return busiest + self.latency


@dataclass(frozen=True)
class NetworkFabric:
    """Any topology, by the network simulator: every message of all groups in the links' queues at once.

    Parameters
    ----------
    places
        Chip of each rank.
    """

    wiring: Wiring
    endpoint: Endpoint
    places: tuple[int, ...]
    _found: dict[tuple[str, int, int, int], float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def seconds(self, operation: str, size: float, stride: int, chips: int, precision: str = "fp16") -> float:
        if chips == 1 or not size:
            return 0.0
        key = operation, round(size), stride, chips
        if key not in self._found:
            steps = 2 * chips if operation != "all_to_all" else chips
            key_text = f"{operation} of groups of {chips} among {len(self.places):,} chips"
            require_memory(key_text, len(self.places) * steps * JOINED_BYTES, "fewer chips need less")
            groups = [
                [self.places[base + lane + i * stride] for i in range(chips)]
                for base in range(0, len(self.places) - stride * chips + 1, stride * chips)
                for lane in range(stride)
            ]
            names = [a for a in ALGORITHMS[operation] if a != "direct" or chips <= DIRECT_MOST]
            self._found[key] = min(self._run([_of(operation, a, size, g) for g in groups]) for a in names)
        return self._found[key]

    def _run(self, parts: Sequence[Transfers]) -> float:
        run = run_transfers(self.wiring, join(list(parts)), self.endpoint)
        return float(run.done.max()) * 1e-12

    def hop(self, size: float, stride: int) -> float:
        key = "hop", round(size), stride, 2
        if key not in self._found:
            n = len(self.places)
            pairs = [[self.places[a], self.places[a + stride]] for a in range(n - stride)]
            self._found[key] = self._run([_message(a, b, size) for a, b in pairs]) if pairs else 0.0
        return self._found[key]

    def links(self, stride: int) -> context.Fabric:
        wait = self.hop(1.0, stride)
        return context.Fabric(context.Link(PROBE / max(self.hop(PROBE, stride) - wait, 1e-12), wait))

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        source, target = np.nonzero(sent)
        if not len(source):
            return 0.0
        ends = zip(source.tolist(), target.tolist(), strict=True)
        return self._run([_message(places[a], places[b], float(sent[a, b])) for a, b in ends])


def _of(operation: str, algorithm: str, size: float, members: Sequence[int]) -> Transfers:
    """A collective among some chips, by their numbers in the whole."""
    port = LinkPort.model_validate({"bandwidth": "1 GB/s", "latency": "1 ns"})
    found = collective(operation, algorithm, wire(Topology.model_validate({"kind": "ring"}), port, len(members)), size)
    number = np.array(members, np.int32)
    return replace(found, source=number[found.source], target=number[found.target])


def _message(source: int, target: int, size: float) -> Transfers:
    return Transfers(
        np.array([source], np.int32), np.array([target], np.int32), np.array([size]), np.array([False]),
        np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int32),
    )  # fmt: skip
