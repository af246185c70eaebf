"""Energy of a run, per component, from its counters and the technology table."""

from __future__ import annotations

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile, PimTile
from siliconloom.arch.technology import MEMORY_BYTE, TECHNOLOGIES
from siliconloom.sim.tables import Counter, Int

COMPONENTS = ("array", "scratchpad", "accumulator", "vector", "memory")


def energy(chip: Chip, dtype: DataType, counters: Int) -> dict[str, float]:
    """Joules per component of one tile's counters (one row of `Run.counters`, or their sum)."""
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
    memory = next(iter(chip.memory.values()))
    per_byte = MEMORY_BYTE[memory.kind] if memory.energy is None else memory.energy
    joules["memory"] = int(counters[Counter.READ_BYTES] + counters[Counter.WRITE_BYTES]) * per_byte
    return joules
