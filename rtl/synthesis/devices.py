"""FPGAs that a design is held against: what each has of every resource, and how nextpnr is told of it.

Lattice ECP5 family data sheet (FPGA-DS-02012), table 1.1: sysMEM blocks, multipliers, and distributed RAM, of which a
LUT has eight bits. A slice has two LUTs and two flip-flops.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from siliconloom.arch.errors import LoomError, nearest_name

RESOURCES = ("LUT", "FF", "MULT18X18D", "DP16KD")
"""What a part has, by Lattice's names."""


class Device(Struct, frozen=True):
    """An FPGA: its name at the maker's, what it has, and what tells nextpnr that it is meant.

    Parameters
    ----------
    name
        Of the device.
    luts, multipliers, block_rams
        LUTs of four inputs (and as many flip-flops), multipliers of 18 by 18 bits, memories of 18 kbit.
    options
        Of nextpnr-ecp5.
    """

    name: str
    luts: int
    multipliers: int
    block_rams: int
    options: tuple[str, ...]

    @property
    def available(self) -> dict[str, int]:
        """How much there is of each of the `RESOURCES`."""
        return dict(zip(RESOURCES, (self.luts, self.luts, self.multipliers, self.block_rams), strict=True))


PARTS: Mapping[str, Device] = {
    "ecp5-12": Device("LFE5U-12F", 12_144, 28, 32, ("--12k", "--package", "CABGA381")),
    "ecp5-25": Device("LFE5U-25F", 24_288, 28, 56, ("--25k", "--package", "CABGA381")),
    "ecp5-45": Device("LFE5U-45F", 43_848, 72, 108, ("--45k", "--package", "CABGA554")),
    "ecp5-85": Device("LFE5U-85F", 83_640, 156, 208, ("--85k", "--package", "CABGA756")),
}
"""The FPGAs by the names that ``loom synth --part`` takes."""
LARGEST = "ecp5-85"
"""What a design is placed on when no part is named."""


def device_of(part: str) -> Device:
    """The FPGA of a name; raises `LoomError` for one that is not there."""
    if part not in PARTS:
        near = nearest_name(part, PARTS)
        hint = f"; did you mean '{near}'?" if near else f"; a module of the design is --module {part}"
        raise LoomError(f"--part: must be one of {', '.join(PARTS)} (got '{part}'){hint}")
    return PARTS[part]


def used_of(cells: Mapping[str, int], luts: int) -> dict[str, int]:
    """How much a netlist of ECP5 cells, which takes so many LUTs, needs of each of the `RESOURCES`."""
    counts = luts, cells.get("TRELLIS_FF", 0), cells.get("MULT18X18D", 0), cells.get("DP16KD", 0)
    return dict(zip(RESOURCES, counts, strict=True))


def excess(used: Mapping[str, int], device: Device) -> list[str]:
    """What is needed more of than there is, in words; empty when all of it fits."""
    available = device.available
    return [f"{used[name]:,} {name} of {available[name]:,}" for name in RESOURCES if used[name] > available[name]]


__all__ = ["LARGEST", "PARTS", "RESOURCES", "Device", "device_of", "excess", "used_of"]
