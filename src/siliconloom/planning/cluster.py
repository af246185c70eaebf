"""What a plan needs to know of a system: chips, nodes, and the rates between them."""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.description import System
from siliconloom.arch.gpu import Gpu, is_gpu
from siliconloom.systems.gpus import joined


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs in equal nodes.

    Parameters
    ----------
    inside, outside
        Bytes per second of a chip to others of its node, and of its network port.
    latency
        Seconds of a message between nodes.
    """

    name: str
    gpu: Gpu
    chips: int
    per_node: int
    inside: float
    outside: float
    latency: float

    def ring_rate(self, stride: int, size: int) -> float:
        """Bus bandwidth of a ring over ``size`` chips that lie ``stride`` apart.

        Within a node the links'; between nodes every chip of the ring in a node brings its own network port.
        """
        if stride * size <= self.per_node:
            return self.inside
        together = max(self.per_node // stride, 1)
        return min(self.inside, together * self.outside)

    def hop_rate(self, stride: int) -> float:
        """Bytes per second from a chip to the one ``stride`` further."""
        return self.inside if stride < self.per_node else self.outside


def cluster_of(system: System, overrides: list[tuple[str, str]] | None = None) -> Cluster:
    """Read a system of GPUs as a cluster.

    Raises
    ------
    NotSupported
        For systems of our own chips, or of several kinds.
    """
    if not all(is_gpu(group.chip) for group in system.chips):
        raise NotSupported(f"plan on {system.name}: its chips are no GPUs; `loom sim` takes them with policy.tensor")
    gpu = joined(system, overrides)
    chips = system.chips[0].count
    topology = system.topology
    if topology.kind in ("switch", "fully_connected"):
        per_node, outside, latency = chips, float(gpu.link.network), gpu.link.network_latency
    elif topology.kind == "hierarchical":
        per_node = min(topology.chips_per_leaf or chips, chips)
        upper = topology.uplink
        if upper is None:
            raise LoomError(f"{system.name}: topology.uplink is missing; it joins the nodes")
        outside, latency = float(upper.count * upper.bandwidth), 2 * upper.latency
    else:
        raise NotSupported(f"plan on a {topology.kind}; there are switch, fully_connected and hierarchical")
    return Cluster(system.name, gpu, chips, per_node, gpu.link_bandwidth, outside, latency * 1e-12)
