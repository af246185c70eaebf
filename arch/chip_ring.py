"""A ring of equal chips that has RTL: which chip, engine and link it is made of."""

from __future__ import annotations

from siliconloom.arch import Chip, LoomError, NotSupported, System, load_system
from siliconloom.arch.document import Document
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.arch.system import load_group
from siliconloom.arch.tile import NpuTile


def load_ring(name: str | Document, overrides: list[tuple[str, str]]) -> System:
    """A system of one kind of chip, with overrides: those under ``chip.`` go to the chip."""
    own = [(path, value) for path, value in overrides if not path.startswith("chip.")]
    inner = {path.removeprefix("chip."): value for path, value in overrides if path.startswith("chip.")}
    system = load_system(name, own)
    if not inner:
        return system
    groups = tuple(group.changed(inner) for group in system.chips)
    return system.model_copy(update={"chips": groups})


def ring_parts(system: System) -> tuple[Chip, RingEngine, LinkProtocol, int]:
    """Chip as described, engine, link and number of chips of a ring that has RTL.

    Raises
    ------
    NotSupported
        For systems that are no ring of equal npu chips with a link protocol and a ring engine.
    LoomError
        When the link's bandwidth or latency is not that of its protocol.
    """
    if system.protocol is None or system.ring is None:
        raise NotSupported(f"the RTL of {system.name}: it needs protocol (of the link) and ring (the engine)")
    if system.topology.kind != "ring" or len(system.chips) != 1:
        raise NotSupported("RTL of a system that is not a ring of equal chips (topology.kind, chips)")
    chip = load_group(system.chips[0])
    if not isinstance(chip.tile, NpuTile):
        raise NotSupported(f"rings of chips with a {chip.tile.kind} tile")
    count, protocol = system.chips[0].count, system.protocol
    if count < 2:
        raise NotSupported("a ring of one chip")
    bandwidth = protocol.flit_bits * chip.clock // 8
    if system.link.count * system.link.bandwidth != bandwidth:
        raise LoomError(
            f"{system.name}: link.bandwidth must be that of a flit a cycle, {bandwidth} B/s "
            f"(got {system.link.count * system.link.bandwidth})"
        )
    if chip.cycles(system.link.latency) != protocol.wire_cycles:
        raise LoomError(
            f"{system.name}: link.latency must be protocol.wire_cycles, {protocol.wire_cycles} cycles "
            f"(got {chip.cycles(system.link.latency)})"
        )
    return chip, system.ring, protocol, count
