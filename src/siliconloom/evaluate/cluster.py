"""Systems as plans see them: every kind of chip as a machine, and what joins them."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from siliconloom.arch import Chip, LoomError, NotSupported
from siliconloom.arch.gpu import Gpu, load_gpu, refuse_idle
from siliconloom.arch.gpu_system import NCCL, joined, with_adding_switch
from siliconloom.arch.kinds import is_gpu
from siliconloom.arch.network import Endpoint, LinkPort, Topology, wire
from siliconloom.arch.result import digest_of
from siliconloom.arch.system import Policy, System, load_group
from siliconloom.arch.tile import NpuTile
from siliconloom.baselines.fabric import GpuFabric
from siliconloom.baselines.machine import GpuMachine
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.fabric import ALGORITHMS, NetworkFabric, SilentFabric
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.contracts import Fabric, Machine


def with_messages(cluster: Cluster, program: str) -> Cluster:
    """The cluster with the all-reduces of serving software within its nodes, where these are GPUs."""
    if not program:
        return cluster
    fabrics = tuple(dataclasses.replace(f, program=program) if isinstance(f, GpuFabric) else f for f in cluster.fabrics)
    return replace(cluster, fabrics=fabrics, digest=f"{cluster.digest} {program}")


def cluster_of(system: System, overrides: list[tuple[str, str]] | None = None, *, chip: Chip | None = None) -> Cluster:
    """Read a system; ``chip`` is that of its only group, when it is not to be read from the library.

    Raises
    ------
    LoomError
        For a hierarchy without its upper links, or overrides of a system of several kinds.
    """
    if len(system.chips) > 1 and overrides:
        raise LoomError(f"{system.name}: --set chip. is ambiguous, it has {len(system.chips)} kinds of chips")
    topology, total = system.topology, sum(group.count for group in system.chips)
    if topology.kind not in NCCL or topology.edges or not all(is_gpu(group.chip) for group in system.chips):
        return _of_links(system, overrides, chip)
    kinds: list[tuple[GpuMachine, int]] = []
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
    digest = digest_of([system, *(machine.gpu for machine, _ in kinds)])
    return Cluster(system.name, tuple(kinds), tuple(fabrics), per_node, tuple(range(total)), digest=digest)


def _of_links(system: System, overrides: list[tuple[str, str]] | None, chip: Chip | None) -> Cluster:
    kinds: list[tuple[Machine, int]] = []
    described: list[Gpu | Chip] = []
    for group in system.chips:
        if is_gpu(group.chip):
            refuse_idle(overrides or [], {"link": f"{system.name}'s links say it"}, "chip.")
            described.append(load_gpu(group.chip, overrides))
        else:
            described.append(chip or load_group(group, overrides))
        last = described[-1]
        if isinstance(last, Chip) and not isinstance(last.tile, NpuTile):
            raise NotSupported(f"a model on a system of chips with a {last.tile.kind} tile ({last.name})")
        kinds.append((GpuMachine(last) if isinstance(last, Gpu) else machine_of(last, system.policy), group.count))
    total = sum(group.count for group in system.chips)
    wiring = wire(with_adding_switch(system).topology, system.link, total)
    if system.algorithm == "in_switch" and not wiring.topology.adds:
        raise NotSupported("algorithm in_switch: the description does not say that a switch adds (topology.adds: true)")
    if system.algorithm not in ("auto", "in_switch") and not any(
        system.algorithm in names for names in ALGORITHMS.values()
    ):
        known = ", ".join(sorted({name for names in ALGORITHMS.values() for name in names}))
        raise NotSupported(f"algorithm {system.algorithm} among groups of chips; plans have {known}")
    messages = NetworkFabric(wiring, system.endpoint, tuple(range(total)), system.algorithm)
    fabric: Fabric = messages if system.policy.communicate else SilentFabric(messages)
    per_node = min(wiring.leaves) if len(wiring.leaves) > 1 else total
    places = tuple(range(total))
    digest = digest_of([system, *described])
    return Cluster(system.name, tuple(kinds), (fabric,) * len(kinds), per_node, places, wiring, digest)


def machine_of(chip: Chip, policy: Policy | None = None) -> ChipMachine:
    """One of our chips; where its memory computes, under a policy."""
    return ChipMachine(chip) if chip.pim is None else PimMachine(chip, policy=policy or Policy())


def chip_alone(chip: Chip) -> Cluster:
    """A chip that nothing joins to others."""
    link = LinkPort.model_validate({"bandwidth": "1 GB/s", "latency": "1 ns"})
    wiring = wire(Topology(kind="fully_connected"), link, 1)
    fabric = NetworkFabric(wiring, Endpoint(), (0,))
    return Cluster(chip.name, ((machine_of(chip), 1),), (fabric,), 1, (0,), digest=chip.digest)
