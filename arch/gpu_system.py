"""Systems of GPUs as described: the links of a system in place of a GPU's own, and keys that mean nothing there."""

from __future__ import annotations

from typing import Any

from siliconloom.arch import NotSupported
from siliconloom.arch.gpu import Gpu, load_gpu, refuse_idle
from siliconloom.arch.kinds import is_gpu
from siliconloom.arch.system import Policy, System

NCCL = ("switch", "fully_connected", "hierarchical")
"""Topologies of GPUs whose collectives' times follow measured ones; on others every message is simulated."""


CIRCUITS = dict.fromkeys(("protocol", "ring"), "it is of the links' circuits: loom rtl and loom verify use it")
"""Keys of a system that a step's time does not depend on, with the reason."""
OURS = tuple(f"policy.{key}" for key in sorted(Policy.model_fields) if key not in ("tensor", "pipeline"))
UNMEASURED = {
    **dict.fromkeys(
        ("link.latency", "endpoint", "algorithm", "topology.routing", "topology.forwarding"),
        "what collectives of GPUs take was measured on NCCL, links and switches included",
    ),
    **dict.fromkeys(OURS, "it is of our own chips"),
}
"""Keys of a system that the simulated messages of `loom collective` and other topologies depend on, with the reason."""


def refuse_unread(system: System, sets: list[tuple[str, str]]) -> None:
    """Refuse overrides of a system's keys that no step of it reads; where NCCL's model times collectives, of more."""
    refuse_idle(sets, CIRCUITS)
    if system.topology.kind in NCCL and not system.topology.edges and all(is_gpu(g.chip) for g in system.chips):
        refuse_idle(sets, UNMEASURED)


def with_adding_switch(system: System) -> System:
    """The system with ``topology.adds`` as it is: where absent its GPUs' links say it, and other chips' does not."""
    topology = system.topology
    if topology.adds is not None or topology.kind != "switch":
        return system
    adds = all(is_gpu(group.chip) and load_gpu(group.chip).link.in_switch for group in system.chips)
    return system.model_copy(update={"topology": topology.model_copy(update={"adds": adds})})


def joined(system: System, overrides: list[tuple[str, str]] | None = None) -> Gpu:
    """The system's GPU, with the system's links instead of its own."""
    if len(system.chips) != 1:
        raise NotSupported("systems of different chips")
    topology, count = system.topology, system.chips[0].count
    idle = {"link.bandwidth": f"{system.name}'s link says it"}
    if topology.kind == "hierarchical":
        says = f"{system.name}'s topology says it"
        idle |= dict.fromkeys(("link.per_node", "link.network", "link.network_latency"), says)
    refuse_idle(overrides or [], idle, "chip.")
    gpu = load_gpu(system.chips[0].chip, overrides)
    if topology.kind != "hierarchical" and gpu.link.per_node >= count:
        idle = dict.fromkeys(("link.network", "link.network_latency"), f"{system.name}'s {count} GPUs are one node")
        refuse_idle(overrides or [], idle, "chip.")
    changes: dict[str, Any] = {
        "bandwidth": system.link.count * system.link.bandwidth,
        "switched": topology.kind in ("switch", "fully_connected", "hierarchical"),
        "in_switch": (gpu.link.in_switch if topology.adds is None else topology.adds)
        and topology.kind in ("switch", "hierarchical"),
        "per_node": min(gpu.link.per_node, count),
    }
    if topology.kind == "hierarchical":
        changes["per_node"] = min(topology.chips_per_leaf or count, count)
        if (upper := topology.uplink) is not None:
            changes |= {"network": upper.count * upper.bandwidth, "network_latency": 2 * upper.latency}
    link = gpu.link.model_copy(update=changes)
    return gpu.model_copy(update={"link": link})
