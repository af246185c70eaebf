"""The NPU tiles that several files of tests build, so that they are generated and compiled once for all of them."""

from functools import cache

from siliconloom.arch import load_chip
from siliconloom.verification.emission import complete_rtl
from siliconloom.verification.random_tiles import random_npu

SMALL = {
    "tile.array.rows": "4",
    "tile.array.cols": "4",
    "tile.vector.lanes": "4",
    "tile.array.load_rows": "2",
    "tile.scratchpad.capacity": "16 KiB",
    "tile.accumulator.capacity": "2 KiB",
    "tile.dma.bytes_per_cycle": "16",
    "memory.dram.access_bytes": "16",
    "memory.dram.bandwidth": "16 GB/s",
    "memory.dram.latency": "20 ns",
    "tile.sequencer.program_words": "64",
    "tile.dma.outstanding": "4",
    "tile.sequencer.queue_depth": "2",
}


def small_chip():
    """The smallest that has everything."""
    return load_chip("npu-edge-int8", list(SMALL.items()))


def quick_chip():
    """A tile of 4x4 with two data ports, a bus of 8 bytes and a memory that answers soon."""
    chip = random_npu(8)
    dram = chip.memory["dram"].model_copy(update={"latency": 12_000})
    return chip.model_copy(update={"memory": {"dram": dram}})


@cache
def npu(reset="sync", whole=False):
    return complete_rtl(load_chip("npu-edge-int8") if whole else small_chip(), reset=reset)
