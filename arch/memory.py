"""Levels of the memory hierarchy outside a tile: capacity, latency, bandwidth, how devices are interleaved."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import Description
from siliconloom.arch.dram import Dram, NamedDram
from siliconloom.arch.quantity import Bandwidth, Bytes, Energy, Latency, format_bytes, format_si

MemoryKind = Literal[
    "sram", "ddr4", "ddr5", "lpddr5", "lpddr5x", "gddr6", "hbm2", "hbm2e", "hbm3", "hbm3e", "cxl", "flash"
]

Held = Literal["parameters", "cache", "activations"]
"""What a workload keeps in memory: parameters; keys and values; operands and results."""
HELD: tuple[Held, ...] = ("parameters", "cache", "activations")
CXL_WAYS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Devices that a CXL host bridge can interleave over (CXL 3.0, section 8.2.4.20.7, HDM decoder ways)."""
CXL_GRANULARITY = tuple(256 << n for n in range(7))
"""Interleave granularities of a CXL HDM decoder: 256 B to 16 KiB."""
DEFAULT_INTERLEAVE = 256


class Memory(Description):
    """One level of the memory hierarchy outside the tile, with a fixed latency and bandwidth.

    With `dram`, each port is one channel of that DRAM. What a stream gets of its pins, and its latency, then follow
    from its commands (`sim.dram.memory.effective`); `bandwidth` is that of the path to it, the pins' when absent, and
    `latency` that of the path alone.

    A level may be several equal `devices`, each with several `ports` (channels) that share the device's bandwidth
    evenly. Addresses are striped: each `interleave` bytes lie on the next port of the next device, so a row shorter
    than a whole stripe is served by fewer ports and takes as long as the busiest of them.
    """

    kind: MemoryKind = Field(description="sets energies, and CXL's rules of striping; not the timing")
    capacity: Bytes = Field(description="of one device")
    bandwidth: Bandwidth = Field(default=0, description="reads and writes together, of one device")
    latency: Latency = Field(description="from request to first data, and from last data to acknowledge")
    dram: NamedDram | None = Field(
        default=None, description="what lies behind each port: one channel, a description or a library name"
    )
    access_bytes: int = Field(default=64, ge=1, le=65536, description="smallest transfer; shorter rows are rounded up")
    energy: Energy | None = Field(default=None, description="per byte moved; the technology table's value when absent")
    ports: int = Field(default=1, ge=1, le=4096, description="channels of a device that work in parallel")
    devices: int = Field(default=1, ge=1, le=4096, description="equal devices that the addresses are striped over")
    interleave: Bytes | None = Field(
        default=None, description="bytes that lie on one port before the next takes over; 256 B when absent"
    )
    holds: tuple[Held, ...] = Field(default=HELD, min_length=1, description="what may be placed here")

    @model_validator(mode="after")
    def _check(self) -> Memory:
        if self.dram is not None:
            self._check_dram(self.dram)
        elif "bandwidth" not in self.model_fields_set:
            raise ValueError("bandwidth is missing; only a level with dram may leave it out")
        if self.interleave is not None:
            if self.channels == 1:
                raise ValueError("interleave is for a level with several ports or devices")
            if self.interleave % self.access_bytes:
                raise ValueError(f"interleave must be a multiple of access_bytes, {self.access_bytes} B")
        if self.kind == "cxl" and self.devices > 1:
            if self.devices not in CXL_WAYS:
                ways = ", ".join(map(str, CXL_WAYS))
                raise ValueError(f"devices: CXL memory is striped over {ways} devices, not over {self.devices}")
            if self.stripe not in CXL_GRANULARITY:
                raise ValueError(
                    f"interleave: CXL memory is striped by 256 B to 16 KiB, a power of two, not {self.stripe} B"
                )
        return self

    def _check_dram(self, dram: Dram) -> None:
        o = dram.organization
        if o.channels != 1:
            raise ValueError(f"dram.organization describes one channel; give their number as ports ({o.channels})")
        capacity, peak = self.ports * o.capacity, int(self.ports * dram.peak_bandwidth)
        if self.capacity != capacity:
            raise ValueError(
                f"capacity must be that of the ports' DRAM, {self.ports} x {format_bytes(o.capacity)} = "
                f"{format_bytes(capacity)} (got {format_bytes(self.capacity)})"
            )
        if self.access_bytes % o.request_bytes:
            raise ValueError(
                f"access_bytes must be a multiple of the DRAM's burst of {o.request_bytes} bytes "
                f"(got {self.access_bytes})"
            )
        if "bandwidth" not in self.model_fields_set:
            object.__setattr__(self, "bandwidth", peak)
        elif self.bandwidth > peak:
            raise ValueError(
                f"bandwidth must be at most {format_si(peak, 'B/s')}, what the DRAM's pins move "
                f"(got {format_si(self.bandwidth, 'B/s')})"
            )

    @property
    def channels(self) -> int:
        """Ports of all devices together."""
        return self.ports * self.devices

    @property
    def stripe(self) -> int:
        """Bytes on one port before the next takes over; all of them where there is one port."""
        if self.interleave is not None:
            return self.interleave
        return -(-DEFAULT_INTERLEAVE // self.access_bytes) * self.access_bytes

    @property
    def total_capacity(self) -> int:
        """Bytes of all devices."""
        return self.capacity * self.devices

    @property
    def total_bandwidth(self) -> int:
        """Bytes per second of all devices."""
        return self.bandwidth * self.devices
