"""Several AXI4 masters that act as one wide one: a DMA wider than the widest AXI4 bus."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.geometry import MEMORY_BITS, Geometry, log2

INCREMENTING = 1


def prefixes(geometry: Geometry) -> list[str]:
    """What the names of the data ports begin with."""
    return ["m_axi"] if geometry.ports == 1 else [f"m_axi_{port}" for port in range(geometry.ports)]


def axi_read(bus: int, prefix: str) -> dict[str, Any]:
    """Ports of the read channels of an AXI4 master."""
    return {
        f"{prefix}_arvalid": Out(1),
        f"{prefix}_arready": In(1),
        f"{prefix}_araddr": Out(MEMORY_BITS),
        f"{prefix}_arlen": Out(8),
        f"{prefix}_arsize": Out(3),
        f"{prefix}_arburst": Out(2),
        f"{prefix}_rvalid": In(1),
        f"{prefix}_rready": Out(1),
        f"{prefix}_rdata": In(8 * bus),
        f"{prefix}_rresp": In(2),
        f"{prefix}_rlast": In(1),
    }


def axi_write(bus: int, prefix: str) -> dict[str, Any]:
    """Ports of the write channels of an AXI4 master."""
    return {
        f"{prefix}_awvalid": Out(1),
        f"{prefix}_awready": In(1),
        f"{prefix}_awaddr": Out(MEMORY_BITS),
        f"{prefix}_awlen": Out(8),
        f"{prefix}_awsize": Out(3),
        f"{prefix}_awburst": Out(2),
        f"{prefix}_wvalid": Out(1),
        f"{prefix}_wready": In(1),
        f"{prefix}_wdata": Out(8 * bus),
        f"{prefix}_wstrb": Out(bus),
        f"{prefix}_wlast": Out(1),
        f"{prefix}_bvalid": In(1),
        f"{prefix}_bready": Out(1),
        f"{prefix}_bresp": In(2),
    }


class Ports(Circuit):
    """Splits the DMA's data channels over the ports of the tile.

    Main memory is interleaved: of each ``bus`` bytes, port p carries bytes p * ``port_bytes`` and up, at the address on
    the port that is the byte address divided by the number of ports. An address or a write beat goes to every port,
    each of which takes it when it is ready; a read beat or a response is there when every port has it.

    Members
    -------
    ar_*, r_*, aw_*, w_*, b_* :
        The wide master: as the DMA's engines have them.
    m_axi_* :
        The ports.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        bus = geometry.bus
        ports: dict[str, Any] = {
            "ar_valid": In(1),
            "ar_ready": Out(1),
            "ar_addr": In(MEMORY_BITS),
            "ar_len": In(8),
            "r_valid": Out(1),
            "r_data": Out(8 * bus),
            "r_error": Out(1),
            "aw_valid": In(1),
            "aw_ready": Out(1),
            "aw_addr": In(MEMORY_BITS),
            "aw_len": In(8),
            "w_valid": In(1),
            "w_ready": Out(1),
            "w_data": In(8 * bus),
            "w_strb": In(bus),
            "w_last": In(1),
            "b_valid": Out(1),
            "b_error": Out(1),
        }
        for prefix in prefixes(geometry):
            ports |= axi_read(geometry.port_bytes, prefix) | axi_write(geometry.port_bytes, prefix)
        super().__init__(library, library.name("ports"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        width, names = self.geometry.port_bytes, prefixes(self.geometry)
        shift = log2(len(names))

        def of(port: str, name: str) -> Any:
            return getattr(self, f"{port}_{name}")

        for channel in ("ar", "aw", "w"):
            valid, ready = getattr(self, f"{channel}_valid"), getattr(self, f"{channel}_ready")
            takes = []
            for port in names:
                taken = Signal(name=f"{port}_{channel}_taken")
                m.d.comb += of(port, f"{channel}valid").eq(valid & ~taken)
                takes.append(of(port, f"{channel}ready") | taken)
                m.d.sync += taken.eq(valid & takes[-1] & ~ready)
            m.d.comb += ready.eq(Cat(*takes).all())
        for number, port in enumerate(names):
            low, high = number * width, (number + 1) * width
            for channel in ("ar", "aw"):
                m.d.comb += [
                    of(port, f"{channel}addr").eq(getattr(self, f"{channel}_addr") >> shift),
                    of(port, f"{channel}len").eq(getattr(self, f"{channel}_len")),
                    of(port, f"{channel}size").eq(log2(width)),
                    of(port, f"{channel}burst").eq(INCREMENTING),
                ]
            m.d.comb += [
                of(port, "wdata").eq(self.w_data[8 * low : 8 * high]),
                of(port, "wstrb").eq(self.w_strb[low:high]),
                of(port, "wlast").eq(self.w_last),
                of(port, "rready").eq(self.r_valid),
                of(port, "bready").eq(self.b_valid),
            ]
        m.d.comb += [
            self.r_valid.eq(Cat(*(of(port, "rvalid") for port in names)).all()),
            self.r_data.eq(Cat(*(of(port, "rdata") for port in names))),
            self.r_error.eq(Cat(*(of(port, "rresp")[1] for port in names)).any()),
            self.b_valid.eq(Cat(*(of(port, "bvalid") for port in names)).all()),
            self.b_error.eq(Cat(*(of(port, "bresp")[1] for port in names)).any()),
        ]
        return m
