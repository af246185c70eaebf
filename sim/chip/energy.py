"""Energy of a run, per component, from its counters and the technology table."""

from __future__ import annotations

from siliconloom.arch.area import logic_transistors
from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip
from siliconloom.arch.pim import Command, PimTile
from siliconloom.arch.technology import (
    BANK_ENERGY,
    CLOCK_SHARE,
    MEMORY_BACKGROUND,
    MEMORY_BYTE,
    SRAM_BYTE_TRANSISTORS,
    TECHNOLOGIES,
    Technology,
    mac_transistors,
)
from siliconloom.arch.tile import NpuTile
from siliconloom.sim.chip.levels import READ, WRITE
from siliconloom.sim.chip.tables import Counter, Int

COMPONENTS = ("array", "scratchpad", "accumulator", "vector", "memory")
"""What work takes energy for."""
STANDING = ("static", "clock", "background")
"""What time takes energy for: idle transistors, the clock tree, standby and refresh of main memory."""
EXCLUDED = (
    "networks and links",
    "DMA and sequencer",
    "registers, wires and conversions of the array",
    "board: regulators, fans, host",
)
"""What no component counts."""
EXCLUDED_BY_BOARDS = ("host",)
"""The same of a GPU's energy, which is its board's."""


def excluded(chip: Chip) -> list[str]:
    """What no component of a chip counts: that of a channel beside its tile for which there are no figures, too."""
    tile = chip.tile
    own = not isinstance(tile, PimTile) and tile.array.energy is not None
    left = [each.replace("registers", "clock tree") if own else each for each in EXCLUDED]
    if not isinstance(tile, NpuTile) or tile.pim is None:
        return left
    commands = [] if tile.pim.dram.standard in BANK_ENERGY else ["commands of the banks"]
    return [*left, "static power of the lanes", *commands]


def standing_power(chip: Chip) -> dict[str, float]:
    """Watts of the whole chip and its memories, by `STANDING`, whether it works or not.

    Of the arithmetic's formats the largest counts: an element holds one of that size.
    """
    technology, tile = TECHNOLOGIES[chip.technology], chip.tile
    watts = dict.fromkeys(STANDING, 0.0)
    if isinstance(tile, PimTile):
        watts["background"] = tile.channels * _background(tile.dram.standard, tile.dram.organization.capacity)
        return watts
    elements = tile.array.products
    operand = max(tile.array.operands, key=mac_transistors)
    logic = logic_transistors(tile)
    transistors = logic.array
    own = tile.array.energy
    work = 0.0 if own is not None else elements * technology.mac(operand)
    if isinstance(tile, NpuTile):
        wide = (tile.vector.format or operand).accumulator
        transistors += logic.vector
        transistors += (tile.scratchpad.capacity + tile.accumulator.capacity) * SRAM_BYTE_TRANSISTORS
        work += tile.vector.slot * technology.mac(wide)
    watts["static"] = chip.tile_count * transistors * technology.transistor
    clocked = work * CLOCK_SHARE / (1 - CLOCK_SHARE) + (0.0 if own is None else elements * own.clock)
    watts["clock"] = chip.tile_count * clocked * chip.clock
    for memory in chip.memory.values():
        if memory.kind == "sram":
            watts["static"] += memory.total_capacity * SRAM_BYTE_TRANSISTORS * technology.transistor
        else:
            watts["background"] += _background(memory.kind, memory.total_capacity)
    if isinstance(tile, NpuTile) and tile.pim is not None:
        watts["background"] += _background(tile.pim.dram.standard, tile.pim.dram.organization.capacity)
    return watts


def _background(kind: str, capacity: int) -> float:
    """Watts of standby and refresh of a memory level or of channels of a DRAM standard."""
    return MEMORY_BACKGROUND[kind.lower()] * capacity / 2**30


def energy(chip: Chip, dtype: DataType, counters: Int, traffic: Int, commands: Int | None = None) -> dict[str, float]:
    """Joules per component of counters (one row of `Run.counters` and of `Run.traffic`, or their sums).

    With the ``commands`` of a channel that computes its own energy is memory's, too.
    """
    technology, tile = TECHNOLOGIES[chip.technology], chip.tile
    joules = dict.fromkeys(COMPONENTS, 0.0)
    rounded = isinstance(tile, NpuTile) and tile.rounds and dtype is tile.circuit_format
    operand = tile.array.circuit_format if isinstance(tile, NpuTile) and rounded else None
    joules["array"] = int(counters[Counter.MACS]) * product_energy(chip, operand or dtype)
    if isinstance(tile, PimTile) or not isinstance(tile, NpuTile):
        return joules
    wide = dtype.accumulator
    scratchpad = int(counters[Counter.SCRATCHPAD_READ] + counters[Counter.SCRATCHPAD_WRITE])
    accumulator = int(counters[Counter.ACCUMULATOR_READ] + counters[Counter.ACCUMULATOR_WRITE])
    joules["scratchpad"] = scratchpad * technology.sram_byte(tile.scratchpad.capacity // tile.scratchpad.banks)
    joules["accumulator"] = accumulator * technology.sram_byte(tile.accumulator.capacity // tile.scratchpad.banks)
    joules["vector"] = int(counters[Counter.VECTOR_SLOTS]) * technology.mac(wide)
    joules["memory"] = sum(memory_energy(chip, traffic).values())
    if tile.pim is not None and commands is not None:
        joules["memory"] += channel_energy(tile.pim, technology, commands)
    return joules


def product_energy(chip: Chip, dtype: DataType) -> float:
    """Joules of a product and its sum in an element of a chip's array."""
    own = None if isinstance(chip.tile, PimTile) else chip.tile.array.energy
    return TECHNOLOGIES[chip.technology].mac(dtype) if own is None else own.product


def channel_energy(pim: PimTile, technology: Technology, commands: Int) -> float:
    """Joules of commands of a channel beside an npu tile, by `arch.pim.Command`; of reads and writes those of bytes."""
    computing = pim_energy(pim, technology, DataType.BF16, commands) or {}
    moved = int(commands[Command.RD] + commands[Command.WR]) * pim.dram.organization.request_bytes
    return sum(computing.values()) + moved * MEMORY_BYTE[pim.dram.standard.lower()]


def memory_energy(chip: Chip, traffic: Int) -> dict[str, float]:
    """Joules per memory level of a row of `Run.traffic`, or of the sum of some."""
    joules = {}
    for (name, memory), moved in zip(chip.memory.items(), traffic.tolist(), strict=True):
        per_byte = MEMORY_BYTE[memory.kind] if memory.energy is None else memory.energy
        joules[name] = int(moved[READ] + moved[WRITE]) * per_byte
    return joules


def pim_energy(pim: PimTile, technology: Technology, dtype: DataType, counts: Int) -> dict[str, float] | None:
    """Joules of computation's own commands, by what they are spent on, or ``None`` where no figures are known.

    ``rows``: opening them; ``banks``: bursts from sense amplifiers to the lanes; ``lanes``: multiply-accumulates;
    ``vectors``: the global buffer's and the results' way over the pins. ``counts`` is indexed by `arch.pim.Command`.
    """
    figures = BANK_ENERGY.get(pim.dram.standard)
    if figures is None:
        return None
    o = pim.dram.organization
    dots = int(counts[Command.PIM_DOT]) * (pim.banks if pim.commands == "all_bank" else 1)
    return {
        "rows": int(counts[Command.PIM_ACT]) * pim.activate_group * o.row_bytes * figures.row,
        "banks": dots * o.request_bytes * figures.array,
        "lanes": dots * pim.burst_elements(dtype) * technology.mac(dtype),
        "vectors": int(counts[Command.PIM_READ] + counts[Command.PIM_WRITE]) * o.request_bytes * figures.pins,
    }
