"""What a plan needs to know of a system: its chips, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.description import System, load_group
from siliconloom.arch.gpu import is_gpu
from siliconloom.arch.network import wire
from siliconloom.planning.fabric import Fabric, GpuFabric, NetworkFabric
from siliconloom.planning.machines import ChipMachine, GpuMachine, Machine
from siliconloom.systems.gpus import joined


@dataclass(frozen=True)
class Cluster:
    """Chips in the order of their ranks.

    Parameters
    ----------
    kinds
        Machines and how many of each, in order.
    per_node
        Chips that are nearer to each other than to the rest.
    """

    name: str
    kinds: tuple[tuple[Machine, int], ...]
    fabrics: tuple[Fabric, ...]
    per_node: int

    @property
    def chips(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def mixed(self) -> bool:
        return len(self.kinds) > 1

    @property
    def machine(self) -> Machine:
        """The only kind, or the first."""
        return self.kinds[0][0]

    @property
    def capacity(self) -> float:
        """Bytes of the smallest memory."""
        return min(machine.capacity for machine, _ in self.kinds)

    def kinds_between(self, first: int, last: int) -> list[int]:
        """Kinds of the chips from rank ``first`` to before ``last``."""
        found, at = [], 0
        for kind, (_, count) in enumerate(self.kinds):
            if at < last and first < at + count:
                found.append(kind)
            at += count
        return found


def cluster_of(system: System, overrides: list[tuple[str, str]] | None = None) -> Cluster:
    """Read a system.

    Raises
    ------
    NotSupported
        For GPUs on topologies whose collectives are not modelled.
    LoomError
        For a hierarchy without its upper links, or overrides of a system of several kinds.
    """
    if len(system.chips) > 1 and overrides:
        raise LoomError(f"{system.name}: --set chip. is ambiguous, it has {len(system.chips)} kinds of chips")
    if not all(is_gpu(group.chip) for group in system.chips):
        return _of_chips(system, overrides)
    topology, total = system.topology, sum(group.count for group in system.chips)
    if topology.kind not in ("switch", "fully_connected", "hierarchical"):
        raise NotSupported(f"GPUs on a {topology.kind}; there are switch, fully_connected and hierarchical")
    kinds: list[tuple[Machine, int]] = []
    fabrics: list[Fabric] = []
    per_node = total
    for group in system.chips:
        gpu = joined(system.model_copy(update={"chips": (group,)}), overrides)
        outside, latency = float(gpu.link.network), gpu.link.network_latency
        if topology.kind == "hierarchical":
            per_node = min(topology.chips_per_leaf or total, total)
            upper = topology.uplink
            if upper is None:
                raise LoomError(f"{system.name}: topology.uplink is missing; it joins the nodes")
            outside, latency = float(upper.count * upper.bandwidth), 2 * upper.latency
        kinds.append((GpuMachine(gpu), group.count))
        fabrics.append(GpuFabric(gpu, per_node, outside, latency * 1e-12))
    return Cluster(system.name, tuple(kinds), tuple(fabrics), per_node)


def _of_chips(system: System, overrides: list[tuple[str, str]] | None) -> Cluster:
    kinds: list[tuple[Machine, int]] = []
    for group in system.chips:
        if is_gpu(group.chip):
            machine: Machine = GpuMachine(joined(system.model_copy(update={"chips": (group,)})))
        else:
            machine = ChipMachine(load_group(group, overrides))
        kinds.append((machine, group.count))
    total = sum(group.count for group in system.chips)
    wiring = wire(system.topology, system.link, total)
    fabric = NetworkFabric(wiring, system.endpoint, tuple(range(total)))
    per_node = min(wiring.leaves) if len(wiring.leaves) > 1 else total
    return Cluster(system.name, tuple(kinds), (fabric,) * len(kinds), per_node)
