"""What a plan needs to know of a system: its chips, and what joins them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

from siliconloom.arch import LoomError
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.kinds import is_gpu
from siliconloom.arch.network import Wiring, wire
from siliconloom.arch.system import System, load_group
from siliconloom.planning.fabric import Fabric, GpuFabric, NetworkFabric
from siliconloom.planning.machines import ChipMachine, GpuMachine, Machine
from siliconloom.systems.gpus import joined

NCCL = ("switch", "fully_connected", "hierarchical")
"""Topologies of GPUs whose collectives' times follow measured ones; on others every message is simulated."""


@dataclass(frozen=True)
class Cluster:
    """Chips, what joins them, and which rank each one takes.

    Parameters
    ----------
    kinds
        Machines and how many of each, in the order of the chips.
    fabrics
        As each kind sees it.
    per_node
        Chips that are nearer to each other than to the rest.
    places
        Chip of each rank.
    wiring
        Links, where messages are simulated one by one.
    """

    name: str
    kinds: tuple[tuple[Machine, int], ...]
    fabrics: tuple[Fabric, ...]
    per_node: int
    places: tuple[int, ...]
    wiring: Wiring | None = None

    @property
    def chips(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def uneven(self) -> bool:
        """Whether it matters which chip takes which rank."""
        wiring = self.wiring
        if len(self.kinds) > 1:
            return True
        if wiring is None:
            return False
        alike = len(set(wiring.bandwidth.tolist())) == 1 and len(set(wiring.latency.tolist())) == 1
        return not alike or bool(wiring.topology.edges)

    def placed(self, places: tuple[int, ...]) -> Cluster:
        """The same chips with other ranks."""
        fabrics = tuple(replace(f, places=places) if isinstance(f, NetworkFabric) else f for f in self.fabrics)
        return replace(self, places=places, fabrics=fabrics)

    @property
    def machine(self) -> Machine:
        """The only kind, or the first."""
        return self.kinds[0][0]

    @property
    def capacity(self) -> float:
        """Bytes of the smallest memory."""
        return min(machine.capacity for machine, _ in self.kinds)

    def kinds_between(self, first: int, last: int) -> list[int]:
        """Kinds of the chips that ranks from ``first`` to before ``last`` are."""
        if len(self.kinds) == 1:
            return [0]
        ends = list(accumulate(count for _, count in self.kinds))
        return sorted({bisect_right(ends, chip) for chip in self.places[first:last]})


def cluster_of(system: System, overrides: list[tuple[str, str]] | None = None) -> Cluster:
    """Read a system.

    Raises
    ------
    LoomError
        For a hierarchy without its upper links, or overrides of a system of several kinds.
    """
    if len(system.chips) > 1 and overrides:
        raise LoomError(f"{system.name}: --set chip. is ambiguous, it has {len(system.chips)} kinds of chips")
    topology, total = system.topology, sum(group.count for group in system.chips)
    if topology.kind not in NCCL or topology.edges or not all(is_gpu(group.chip) for group in system.chips):
        return _of_links(system, overrides)
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
    return Cluster(system.name, tuple(kinds), tuple(fabrics), per_node, tuple(range(total)))


def _of_links(system: System, overrides: list[tuple[str, str]] | None) -> Cluster:
    kinds: list[tuple[Machine, int]] = []
    for group in system.chips:
        if is_gpu(group.chip):
            machine: Machine = GpuMachine(load_gpu(group.chip, overrides))
        else:
            machine = ChipMachine(load_group(group, overrides))
        kinds.append((machine, group.count))
    total = sum(group.count for group in system.chips)
    wiring = wire(system.topology, system.link, total)
    fabric = NetworkFabric(wiring, system.endpoint, tuple(range(total)))
    per_node = min(wiring.leaves) if len(wiring.leaves) > 1 else total
    return Cluster(system.name, tuple(kinds), (fabric,) * len(kinds), per_node, tuple(range(total)), wiring)
