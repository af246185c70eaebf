"""A chip of a ring as a design: what its ports mean, and what it was built with."""

from __future__ import annotations

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.library import Library
from siliconloom.rtl.link.node import RingChip
from siliconloom.rtl.npu.design import npu_design
from siliconloom.rtl.npu.geometry import geometry_of

MEANINGS = {
    "start": "begin a reduce-scatter and an all-gather; before the tile stores into the buffer",
    "rank": "place in the ring, held while busy",
    "base": "first word of the buffer, held while busy",
    "words": "words of a chunk, held while busy",
    "busy": "a collective is under way",
    "done": "ended since the last start",
    "misframed": "a message was no whole chunk",
    "send_read": "first read port of memory: an address is there",
    "send_address": "its word",
    "send_data": "a cycle after the address: the word",
    "sum_read": "second read port of memory: an address is there",
    "sum_address": "its word",
    "sum_data": "a cycle after the address: the word",
    "write": "write port of memory: a word is there",
    "write_address": "where it belongs",
    "write_data": "the word",
    "next_symbol": "to the next chip: what the flit is",
    "next_flit": "to the next chip: the flit",
    "next_control": "from the next chip: control word",
    "previous_symbol": "from the previous chip: what the flit is",
    "previous_flit": "from the previous chip: the flit",
    "previous_control": "to the previous chip: control word",
    "retries": "times the sender went back",
    "timeouts": "those of them for want of an answer",
    "control_errors": "control words with a wrong CRC",
    "errors": "bad packets and symbols",
    "duplicates": "packets dropped as taken before",
    "overflows": "flits that found no room: a broken sender",
}
"""Of the ports that begin with ``ring_``."""


def ring_chip(library: Library, chip: Chip, engine: RingEngine, protocol: LinkProtocol, chips: int) -> RingChip:
    """The circuit of a chip with its engine and its ends of two links; raises `NotSupported` where there is no RTL."""
    geometry = geometry_of(chip)
    if 8 * geometry.bus != protocol.flit_bits:
        raise NotSupported(
            f"a link of {protocol.flit_bits}-bit flits on a memory of {geometry.bus}-byte words: they must be equal "
            "(protocol.flit_bits, tile.dma.bytes_per_cycle)"
        )
    if not geometry.dtype.is_integer:
        raise NotSupported(f"a ring of chips in {geometry.dtype.value}; its engine sums int8")
    if geometry.ports != 1:
        raise NotSupported(f"tracking the stores of {geometry.ports} data ports (tile.dma.port_bytes)")
    if chips < 2:
        raise NotSupported("a ring of one chip")
    made = library.make(RingChip, geometry, chips, engine, protocol)
    assert isinstance(made, RingChip)
    return made


def ring_design(library: Library, chip: Chip, engine: RingEngine, protocol: LinkProtocol, chips: int) -> Design:
    """A chip of the ring with everything that goes with it."""
    tile = npu_design(library, chip)
    top = ring_chip(library, chip, engine, protocol, chips)
    parameters = {
        **tile.parameters,
        "chips": chips,
        "operand_added": engine.operand.value,
        "pieces": engine.pieces,
        "flit_bits": protocol.flit_bits,
        "packet_flits": protocol.packet_flits,
        "credits": protocol.credits,
        "packets_outstanding": protocol.outstanding,
    }
    return Design(
        top=top,
        contains="one chip of the ring: the whole tile, its ring engine and its ends of two links",
        parameters=parameters,
        timing={**tile.timing, "wire_cycles": protocol.wire_cycles, "timeout": protocol.timeout},
        meanings={**tile.meanings, **{f"ring_{name}": text for name, text in MEANINGS.items()}},
        registers=tile.registers,
        files=tile.files,
    )
