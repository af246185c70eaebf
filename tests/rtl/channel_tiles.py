"""A small tile with a small channel of memory that computes: four banks with two lanes each, and bursts of 16 bytes."""

from siliconloom.arch import load_chip

SMALL = {
    "attention": "channel",
    "tile.array.rows": 2,
    "tile.array.cols": 2,
    "tile.array.load_rows": 1,
    "tile.scratchpad.capacity": "64 KiB",
    "tile.accumulator.capacity": "2 KiB",
    "tile.vector.lanes": 2,
    "tile.vector.transpose_rows": 2,
    "tile.vector.format": "null",
    "tile.dma.bytes_per_cycle": 16,
    "tile.dma.port_bytes": 16,
    "memory.dram.access_bytes": 16,
    "tile.pim.dram.organization.bank_groups": 2,
    "tile.pim.dram.organization.banks": 2,
    "tile.pim.dram.organization.bus_bits": 32,
    "tile.pim.dram.organization.columns": 32,
    "tile.pim.dram.organization.rows": 256,
    "tile.pim.lanes": 2,
    "tile.pim.activate_group": 2,
    "tile.pim.global_buffer": "256 B",
}


def small_channel(**sets):
    """The chip, with other values for some keys; ``__`` stands for a dot."""
    changed = SMALL | {name.replace("__", "."): value for name, value in sets.items()}
    return load_chip("npu-pim-edge", [(key, str(value)) for key, value in changed.items()])
