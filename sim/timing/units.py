"""Durations of the NPU's other units, in cycles of the tile's clock; fixed latencies are those of `arch.timing`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import INTERVAL_ONE, Chip
from siliconloom.arch.memory import Memory
from siliconloom.arch.tile import Dma, NpuTile, VectorUnit
from siliconloom.arch.timing import FETCH_START, VECTOR_START
from siliconloom.arch.vector import Count, VectorFunction
from siliconloom.arch.word import WORD_BYTES


def vector_cycles(
    unit: VectorUnit,
    function: VectorFunction,
    rows: Count,
    cols: Count,
    inputs: int = 1,
    dtype: DataType = DataType.INT8,
) -> Count:
    """Cycles of one vector instruction over ``rows`` x ``cols`` elements of a format; ``inputs`` is its ``k``.

    A row function makes each pass over all rows before the next, so it waits for the pipeline once per reduction and
    once at the end. One that recurs makes all slots of a row before those of the next, which wait for their results.
    A slot has several rows (`VectorUnit.sublanes`) but where one goes on from the row before it.
    """
    cost = unit.cost_of(function, dtype)
    blocks, rounds = -(-cols // unit.lanes), cost.rounds(cols, inputs)
    row = blocks * (cost.slot_cycles(unit.lanes, inputs) + rounds) + cost.row_cycles
    groups = rows if cost.recurs else -(-rows // unit.sublanes)
    slots = (_largest(row, unit.latency) if cost.recurs else row) * groups + blocks * cost.setup
    if cost.serial:
        slots = blocks * cost.serial_slots(rows, unit.lanes, unit.together)
    lines = cost.once_lines(unit.lanes) + cost.index_lines(unit.lanes) * rows
    return VECTOR_START + lines + slots + (cost.reductions + rounds + 1) * unit.latency


def moved_bytes(memory: Memory, rows: Count, row_bytes: Count) -> Count:
    """Bytes that a transfer moves: each row is rounded up to the memory's access size."""
    return rows * -(-row_bytes // memory.access_bytes) * memory.access_bytes


def transfer_cycles(chip: Chip, moved: Count, memory: Memory | None = None) -> Count:
    """Cycles for which ``moved`` bytes, spread evenly over a memory's ports, hold the memory port of a tile.

    The memory's time follows the bytes: a last beat that is not full takes its share of a beat's interval. ``memory``
    is the nearest level of ``chip`` when not given.
    """
    assert isinstance(chip.tile, NpuTile)
    bus, interval = chip.tile.dma.bytes_per_cycle, chip.interval_of(memory or chip.nearest)
    passed = moved // bus * interval - (-(moved % bus) * interval // bus)
    return _largest(-(-passed // INTERVAL_ONE), 1)


def striped_bytes(memory: Memory, rows: Count, row_bytes: Count) -> Count:
    """Bytes that all ports could have moved while the busiest one moved its part of a transfer.

    Rows follow one another and each begins at a stripe; a row of fewer stripes than there are ports leaves the other
    ports idle. With one port this is `moved_bytes`.
    """
    row = -(-row_bytes // memory.access_bytes) * memory.access_bytes
    if memory.channels == 1:
        return rows * row
    across = memory.channels * memory.stripe
    rest = -_largest(-(row % across), -memory.stripe)
    return rows * memory.channels * (row // across * memory.stripe + rest)


def access_cycles(chip: Chip, memory: Memory, rows: Count, row_bytes: Count) -> Count:
    """Cycles for which a transfer of ``rows`` x ``row_bytes`` from or to ``memory`` holds a tile's memory port."""
    busiest = None if memory.channels == 1 else striped_bytes(memory, rows, row_bytes)
    return passing_cycles(chip, memory, moved_bytes(memory, rows, row_bytes), busiest)


def passing_cycles(chip: Chip, memory: Memory, moved: Count, busiest: Count | None) -> Count:
    """The same, of a transfer that moves so many bytes; of several ports ``busiest`` are the `striped_bytes`."""
    cycles = transfer_cycles(chip, moved, memory)
    if busiest is None:
        return cycles
    rate, share = memory.total_bandwidth, chip.clock * chip.tile_count
    if isinstance(busiest, int):
        return max(cycles, -(-busiest * share // rate))
    paced: NDArray[np.int64] = np.ceil(busiest * (share / rate)).astype(np.int64)  # the product need not fit 64 bits
    return np.maximum(cycles, paced)


def stored_bytes(memory: Memory, rows: Count, row_bytes: Count, compression: float | None) -> tuple[Count, Count]:
    """Rows and bytes of each that lie in memory for ``rows`` x ``row_bytes`` of local memory, compressed or not.

    What is compressed is one row without gaps.
    """
    if compression is None:
        return rows, row_bytes
    return rows * 0 + 1, compressed_bytes(rows * row_bytes, compression)


def compressed_bytes(size: Count, compression: float) -> Count:
    """Bytes in memory of ``size`` bytes that are compressed without loss, at least one."""
    if isinstance(size, int):
        return max(math.ceil(size * compression), 1)
    found: NDArray[np.int64] = np.maximum(np.ceil(size * compression).astype(np.int64), 1)
    return found


def load_cycles(chip: Chip, memory: Memory, rows: Count, row_bytes: Count, compression: float | None = None) -> Count:
    """Cycles for which a load of ``rows`` x ``row_bytes`` of local memory holds a tile's memory port.

    What is compressed passes the decompressor of the DMA, which gives so many bytes a cycle; the slower of memory and
    decompressor sets the pace.
    """
    held = access_cycles(chip, memory, *stored_bytes(memory, rows, row_bytes, compression))
    if compression is None:
        return held
    assert isinstance(chip.tile, NpuTile)
    made = decompressing_cycles(chip.tile.dma, rows, row_bytes)
    return max(held, made) if isinstance(held, int) and isinstance(made, int) else np.maximum(held, made)


def decompressing_cycles(dma: Dma, rows: Count, row_bytes: Count) -> Count:
    """Cycles in which the decompressor of a DMA gives ``rows`` x ``row_bytes``."""
    assert dma.decompression is not None
    made: Count = -(-rows * row_bytes // dma.decompression)
    return made


def _largest(a: Count, b: int) -> Count:
    """The larger, element by element where there are several."""
    if isinstance(a, int):
        return max(a, b)
    return np.maximum(a, b)


def launch_cycles(chip: Chip, kernels: int) -> int:
    """Cycles from all results before an operator being in memory to its first load, where it has so many programs.

    Each of them is launched, and begins when what the one before it has left is in memory and read from there: twice
    the memory's latency. What it moves is counted as the operator's, and no more.
    """
    assert isinstance(chip.tile, NpuTile)
    launch = chip.tile.sequencer.launch_cycles
    return kernels * launch + 2 * (kernels - 1) * chip.cycles(chip.nearest.latency) if launch else 0


def fetch_cycles(chip: Chip) -> tuple[int, int]:
    """Cycle in which the first instruction can be dispatched, and cycles between instructions, while fetching.

    The program is read once, from its first word to its last, over a port of its own; execution begins with the first
    word and waits for a word that has not come yet.
    """
    assert isinstance(chip.tile, NpuTile)
    beats = -(-WORD_BYTES // min(chip.tile.dma.bytes_per_cycle, chip.tile.dma.port_bytes))
    if chip.tile.sequencer.launch_cycles:  # launching an operator's program has fetched it
        return FETCH_START, beats
    return FETCH_START + chip.cycles(chip.nearest.latency), beats
