"""Several AXI4 masters that act as one wide one: a DMA wider than the widest AXI4 bus."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib.wiring import In, Out, Signature

from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.bytes import ByteGate
from siliconloom.rtl.npu.geometry import MEMORY_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import read_channels, write_channels

INCREMENTING = 1


def prefixes(geometry: Geometry) -> list[str]:
    """What the names of the data ports begin with."""
    return ["m_axi"] if geometry.ports == 1 else [f"m_axi_{port}" for port in range(geometry.ports)]


def axi_read(bus: int, id_bits: int) -> Signature:
    """The read channels of an AXI4 master."""
    return Signature(
        {
            "arvalid": Out(1),
            "arready": In(1),
            "arid": Out(id_bits),
            "araddr": Out(MEMORY_BITS),
            "arlen": Out(8),
            "arsize": Out(3),
            "arburst": Out(2),
            "rvalid": In(1),
            "rready": Out(1),
            "rid": In(id_bits),
            "rdata": In(8 * bus),
            "rresp": In(2),
            "rlast": In(1),
        }
    )


def axi_master(bus: int, id_bits: int) -> Signature:
    """An AXI4 master."""
    return Signature(
        {
            **axi_read(bus, id_bits).members,
            "awvalid": Out(1),
            "awready": In(1),
            "awid": Out(id_bits),
            "awaddr": Out(MEMORY_BITS),
            "awlen": Out(8),
            "awsize": Out(3),
            "awburst": Out(2),
            "wvalid": Out(1),
            "wready": In(1),
            "wdata": Out(8 * bus),
            "wstrb": Out(bus),
            "wlast": Out(1),
            "bvalid": In(1),
            "bready": Out(1),
            "bid": In(id_bits),
            "bresp": In(2),
        }
    )


class Ports(Circuit):
    """Splits the DMA's data channels over the ports of the tile.

    Main memory is interleaved: of each ``bus`` bytes, port p carries bytes p * ``port_bytes`` and up, at the address on
    the port that is the byte address divided by the number of ports. A burst or a beat to be written goes to every
    port, each of which takes it when it is ready; a beat that was read, or an answer, is there when every port has it.
    Every burst has the identifier 0, so that answers keep their order; one with another identifier counts as an error.

    Members
    -------
    read : In(read_channels), write : In(write_channels)
        The wide master.
    m_axi* : Out(axi_master)
        The ports.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        ports: dict[str, Any] = {"read": In(read_channels(geometry.bus)), "write": In(write_channels(geometry.bus))}
        ports |= {prefix: Out(axi_master(geometry.port_bytes, geometry.id_bits)) for prefix in prefixes(geometry)}
        super().__init__(library, library.name("ports"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        width = self.geometry.port_bytes
        ports = [getattr(self, prefix) for prefix in prefixes(self.geometry)]
        shift = log2(len(ports))
        outwards = {"ar": self.read.burst, "aw": self.write.burst, "w": self.write.beat}
        for channel, source in outwards.items():
            takes = []
            for prefix, port in zip(prefixes(self.geometry), ports, strict=True):
                taken = Signal(name=f"{prefix}_{channel}_taken")
                m.d.comb += getattr(port, f"{channel}valid").eq(source.valid & ~taken)
                takes.append(getattr(port, f"{channel}ready") | taken)
                m.d.sync += taken.eq(source.valid & takes[-1] & ~source.ready)
            m.d.comb += source.ready.eq(Cat(*takes).all())
        beat, answer, written = self.read.beat, self.write.answer, self.write.beat.payload
        # bytes that are not written are zeros: they may come from memory that nothing has filled
        gate = self.library.make(ByteGate, self.geometry.bus)
        kept = self.place(m, gate, "kept", word=written.data, lanes=written.lanes).o
        for number, port in enumerate(ports):
            low, high = number * width, (number + 1) * width
            for channel in ("ar", "aw"):
                burst = outwards[channel].payload
                m.d.comb += [
                    getattr(port, f"{channel}addr").eq(burst.address >> shift),
                    getattr(port, f"{channel}len").eq(burst.length),
                    getattr(port, f"{channel}size").eq(log2(width)),
                    getattr(port, f"{channel}burst").eq(INCREMENTING),
                ]
            m.d.comb += [
                port.wdata.eq(kept[8 * low : 8 * high]),
                port.wstrb.eq(written.lanes[low:high]),
                port.wlast.eq(written.last),
                port.rready.eq(beat.valid & beat.ready),
                port.bready.eq(answer.valid & answer.ready),
            ]
        m.d.comb += [
            beat.valid.eq(Cat(*(port.rvalid for port in ports)).all()),
            beat.payload.data.eq(Cat(*(port.rdata for port in ports))),
            beat.payload.error.eq(Cat(*(port.rresp[1] | port.rid.any() for port in ports)).any()),
            beat.payload.last.eq(ports[0].rlast),
            answer.valid.eq(Cat(*(port.bvalid for port in ports)).all()),
            answer.payload.error.eq(Cat(*(port.bresp[1] | port.bid.any() for port in ports)).any()),
        ]
        return m
