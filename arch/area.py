"""Area of a chip's arithmetic, registers and SRAM, from published cells and one floor plan.

**Logic** is counted in transistors (`logic_transistors`: what `arch.technology` takes of static power is of the same
count), four of which are a NAND2 gate: 0.798 um2 in the Nangate 45 nm library. Other nodes are scaled by A. Stillmaker,
B. Baas, "Scaling equations for the accurate prediction of CMOS device performance from 180 nm to 7 nm", Integration 58
(2017), its table of area (0.16, 0.072, 0.033, 0.03 and 0.0092 of 130 nm at 45, 32, 20, 16 and 7 nm, 0.23 at 65 nm, as
transcribed in public cost models; 28 nm is between 32 and 20 in the logarithms).

**SRAM** is bits of the foundries' densest six-transistor cells: 0.525, 0.346, 0.127, 0.074 and 0.027 um2 at 65, 45, 28,
16 and 7 nm. Not verified; 0.021 um2 at 5 nm, the next of that row, is in TSMC's paper at IEDM 2022 as reported.

**What goes around cells** (rows that are not filled, clock and power, wires, periphery of macros, repair, test) is one
factor each for logic and SRAM, from one published floor plan: of 331 mm2 at 28 nm TPU v1 has 24 % for 65,536 int8
multiply-accumulates and 29 % for 24 MiB of buffer (N. Jouppi et al., "In-Datacenter Performance Analysis of a Tensor
Processing Unit", ISCA 2017, figure 2; from memory of the paper).

**Error**: good to a factor of two. Of five dies that are not used above (`PUBLISHED`, `tests/arch/test_area.py`) what
is counted comes to 0.39, 0.41, 0.59, 0.61 and 1.22 of the published area, which has more in it than what is counted.
Ratios of variants of one chip are better than that.
"""

from __future__ import annotations

import math

from msgspec import Struct

from siliconloom.arch.array import Element, SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip
from siliconloom.arch.pim import PimTile
from siliconloom.arch.technology import NAND2_AREA, REGISTER_TRANSISTORS, adder_transistors, mac_transistors
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.word import stored_bits

LOGIC = {65: 0.23 / 0.16, 45: 1.0, 32: 0.072 / 0.16, 20: 0.033 / 0.16, 16: 0.03 / 0.16, 7: 0.0092 / 0.16}
"""Area of logic over that at 45 nm, by node in nanometres."""
BITCELL = {65: 0.525, 45: 0.346, 28: 0.127, 16: 0.074, 7: 0.027}
"""Square micrometres of a bit of SRAM."""
AREA_EXCLUDED = (
    "DMA, sequencer and bus interfaces but for the program memory",
    "functions of the vector unit beyond a multiply-accumulate a lane",
    "memory controllers, PHYs, links, pads",
)
"""What no part counts."""
CHANNEL_EXCLUDED = "the channel that computes: banks, lanes, buffers"
"""What no part counts, either, of a tile with one."""
PARTS = ("array", "vector", "scratchpad", "accumulator", "program", "memory")
MM2 = 1e-6
"""Square millimetres of a square micrometre."""


class Logic(Struct, frozen=True):
    """Transistors of a tile's arithmetic and of the registers of its array."""

    array: float
    vector: float


def logic_transistors(tile: object) -> Logic:
    """Transistors of one tile; of the arithmetic's formats the largest counts: an element holds one of that size."""
    if isinstance(tile, PimTile):
        raise AssertionError("the circuits of a memory that computes are not counted")
    array: SystolicArray = tile.array  # type: ignore[attr-defined]
    elements, operand = array.rows * array.cols, max(array.operands, key=mac_transistors)
    vector = 0.0
    if isinstance(tile, NpuTile):
        vector = tile.vector.slot * mac_transistors((tile.vector.format or operand).accumulator)
    return Logic(elements * element_transistors(operand, array.element, array.depth), vector)


def element_transistors(operand: DataType, element: Element = "multiply_add", depth: int = 1) -> float:
    """An element of an array: its arithmetic, two operands, the moving and the stationary one with its successor.

    Each product more has a multiplier and an adder. What sums without an adder has as many full adders, and a second
    register for a sum, or two for each weight of digits; what takes one digit a cycle has no multipliers.
    """
    register = REGISTER_TRANSISTORS * operand.accumulator.bits
    whole = mac_transistors(operand)
    if element == "digit_serial":
        whole = adder_transistors(operand) + register
    sums = {"multiply_add": 1, "compressor": operand.bits}.get(element, 2)
    more = (depth - 1) * (whole - register) + (sums - 1) * register
    return whole + more + 3 * depth * operand.bits * REGISTER_TRANSISTORS


def area_excluded(chip: Chip) -> list[str]:
    """What no part of a chip counts."""
    beside = isinstance(chip.tile, NpuTile) and chip.tile.pim is not None
    return [*AREA_EXCLUDED, *([CHANNEL_EXCLUDED] if beside else [])]


def logic_area(transistors: float, node: float) -> float:
    """Square millimetres of so many transistors of logic at a node in nanometres."""
    return transistors / 4 * NAND2_AREA * _at(LOGIC, node) * _around()[0] * MM2


def sram_area(capacity: int, node: float) -> float:
    """Square millimetres of so many bytes of SRAM."""
    return 8 * capacity * _at(BITCELL, node) * _around()[1] * MM2


def chip_area(chip: Chip) -> dict[str, float]:
    """Square millimetres of a chip's tiles and of SRAM beside them, by `PARTS`.

    Nothing of a memory that computes, whose circuits are in a DRAM's process.
    """
    tile, node = chip.tile, node_of(chip)
    area = dict.fromkeys(PARTS, 0.0)
    if isinstance(tile, PimTile):
        return area
    logic = logic_transistors(tile)
    area["array"] = logic_area(logic.array, node)
    area["vector"] = logic_area(logic.vector, node)
    if isinstance(tile, NpuTile):
        area["scratchpad"] = sram_area(tile.scratchpad.capacity, node)
        area["accumulator"] = sram_area(tile.accumulator.capacity, node)
        word = stored_bits(min(tile.dma.bytes_per_cycle, tile.dma.port_bytes))
        area["program"] = sram_area(tile.sequencer.program_words * word // 8, node)
    area = {part: chip.tile_count * square for part, square in area.items()}
    area["memory"] = sum(sram_area(m.total_capacity, node) for m in chip.memory.values() if m.kind == "sram")
    return area


def node_of(chip: Chip) -> float:
    """Nanometres of a chip's technology."""
    return float(chip.technology.removesuffix("nm"))


def _at(table: dict[int, float], node: float) -> float:
    """A table's value at a node, between two of its nodes in the logarithms of both."""
    if not min(table) <= node <= max(table):
        raise AssertionError(f"{node:g} nm is outside of {min(table)} to {max(table)} nm")
    below, above = max(n for n in table if n <= node), min(n for n in table if n >= node)
    if below == above:
        return table[below]
    share = math.log(node / below) / math.log(above / below)
    return float(table[below] ** (1 - share) * table[above] ** share)


FLOOR_PLAN = 28, 331.0, 0.24, 256 * 256, 0.29, 24 * 2**20
"""Of TPU v1: node, square millimetres, share of its elements and how many, share of its buffer and bytes."""


def _around() -> tuple[float, float]:
    """Area of logic and of SRAM in the floor plan over that of their cells."""
    node, die, elements_share, elements, buffer_share, capacity = FLOOR_PLAN
    gates = elements * element_transistors(DataType.INT8) / 4 * NAND2_AREA * _at(LOGIC, node)
    cells = 8 * capacity * _at(BITCELL, node)
    return die * elements_share / (gates * MM2), die * buffer_share / (cells * MM2)


class PublishedDie(Struct, frozen=True):
    """A die that somebody has built or laid out, and what of it the model counts."""

    name: str
    node: float
    mm2: float
    elements: int
    operand: DataType
    sram: int
    source: str


PUBLISHED = (
    PublishedDie(
        "Eyeriss", 65, 12.25, 168, DataType.INT16, 108 * 1024 + 168 * 520, "Chen et al., JSSC 2017: core area"
    ),
    PublishedDie("DianNao", 65, 3.02, 256, DataType.INT16, 44 * 1024, "Chen et al., ASPLOS 2014: layout"),
    PublishedDie(
        "Simba chiplet", 16, 6.0, 1024, DataType.INT8, 16 * 43 * 1024 + 64 * 1024, "Shao et al., MICRO 2019: die"
    ),
    PublishedDie(
        "TPU v4i", 7, 400.0, 4 * 128 * 128, DataType.BF16, 144 * 2**20, "Jouppi et al., ISCA 2021: under 400 mm2"
    ),
    PublishedDie(
        "TPU v4", 7, 600.0, 8 * 128 * 128, DataType.BF16, 160 * 2**20, "Jouppi et al., ISCA 2023: under 600 mm2"
    ),
)
"""Dies that no figure above comes from; figures from memory of the papers."""


def published_area(die: PublishedDie) -> float:
    """Square millimetres of what the model counts of a published die."""
    logic = logic_area(die.elements * element_transistors(die.operand), die.node)
    return logic + sram_area(die.sram, die.node)


__all__ = [
    "AREA_EXCLUDED",
    "CHANNEL_EXCLUDED",
    "PARTS",
    "PUBLISHED",
    "PublishedDie",
    "area_excluded",
    "chip_area",
    "logic_area",
    "logic_transistors",
    "published_area",
    "sram_area",
]
