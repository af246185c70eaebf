"""Energy of a run, per component, from its counters and the technology table."""

from __future__ import annotations

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile, PimTile
from siliconloom.arch.technology import MEMORY_BYTE, TECHNOLOGIES
from siliconloom.sim.levels import READ, WRITE
from siliconloom.sim.tables import Counter, Int

COMPONENTS = ("array", "scratchpad", "accumulator", "vector", "memory")


def energy(chip: Chip, dtype: DataType, counters: Int, traffic: Int) -> dict[str, float]:
    """Joules per component of one tile's counters (one row of `Run.counters` and of `Run.traffic`, or their sums)."""
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
