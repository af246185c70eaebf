"""Energy of a run, per component, from its counters and the technology table."""

from __future__ import annotations

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile, PimTile
from siliconloom.arch.pim import Command
from siliconloom.arch.technology import BANK_ENERGY, MEMORY_BYTE, TECHNOLOGIES, Technology
from siliconloom.sim.levels import READ, WRITE
from siliconloom.sim.tables import Counter, Int

COMPONENTS = ("array", "scratchpad", "accumulator", "vector", "memory")


def energy(chip: Chip, dtype: DataType, counters: Int, traffic: Int) -> dict[str, float]:
    """Joules per component of counters (one row of `Run.counters` and of `Run.traffic`, or their sums)."""
    technology, tile = TECHNOLOGIES[chip.technology], chip.tile
    joules = dict.fromkeys(COMPONENTS, 0.0)
    joules["array"] = int(counters[Counter.MACS]) * technology.mac(dtype)
    if isinstance(tile, PimTile) or not isinstance(tile, NpuTile):
        return joules
    wide = dtype.accumulator
    scratchpad = int(counters[Counter.SCRATCHPAD_READ] + counters[Counter.SCRATCHPAD_WRITE])
    accumulator = int(counters[Counter.ACCUMULATOR_READ] + counters[Counter.ACCUMULATOR_WRITE])
    joules["scratchpad"] = scratchpad * technology.sram_byte(tile.scratchpad.capacity // tile.scratchpad.banks)
    joules["accumulator"] = accumulator * technology.sram_byte(tile.accumulator.capacity // tile.scratchpad.banks)
    joules["vector"] = int(counters[Counter.VECTOR_SLOTS]) * technology.mac(wide)
    joules["memory"] = sum(memory_energy(chip, traffic).values())
    return joules


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
