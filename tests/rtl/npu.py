"""The NPU tiles that tests of the flows build: the smallest that has everything, and the library's."""

from functools import cache

from siliconloom.arch import load_chip
from siliconloom.verification.emission import complete_rtl

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
    return load_chip("npu-edge-int8", list(SMALL.items()))


@cache
def npu(reset="sync", whole=False):
    return complete_rtl(load_chip("npu-edge-int8") if whole else small_chip(), reset=reset)
