"""Rows that are transposed for an array that keeps its sums: their blocks begin where a transfer may."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.layout import line_values, window_of
from siliconloom.mapper.chip.cache_layout import CacheLayout
from siliconloom.mapper.chip.gemm_layout import BlockRows, GemmLayout
from siliconloom.mapper.chip.operands import Turned
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.transfers import pieces
from tests.mapper.chip.improvements import made_chip, mapped, workload

CHIP = {
    "clock": 10**9,
    "tile_count": 1,
    "tile.array.dataflow": "output_stationary",
    "tile.array.rows": 32,
    "tile.array.cols": 8,
    "tile.array.load_rows": 1,
    "tile.scratchpad.capacity": 8 << 20,
    "tile.accumulator.capacity": 64 << 10,
    "tile.vector.lanes": 8,
    "tile.dma.bytes_per_cycle": 64,
    "memory.dram.bandwidth": 5 * 10**9,
    "memory.dram.latency": 500,
    "memory.dram.access_bytes": 256,
}


def product(m, n, k):
    gemms = [{"name": "g", "m": m, "n": n, "k": k}]
    return workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))


@settings(deadline=None)
@given(
    rows=st.sampled_from([4, 6, 32, 128]),
    bus=st.sampled_from([16, 64, 256]),
    tokens=st.integers(1, 300),
    columns=st.integers(1, 300),
)
def test_a_block_is_one_transfer_and_lies_where_writer_and_reader_look_for_it(rows, bus, tokens, columns):
    """The task that transposes and the product have one pitch and one plane; blocks do not overlap."""
    chip = made_chip(CHIP | {"tile.array.rows": rows, "tile.dma.bytes_per_cycle": bus})
    (gemm,) = product(tokens, 8, columns).operators()
    written = CacheLayout(chip.tile, chip.nearest, Turned(gemm))
    read = GemmLayout(chip.tile, gemm_shape(gemm, Task(gemm, (), False)))
    assert [written.at(rows), written.plane] == [read.a_pitch, read.a_plane(tokens)]
    block = rows * columns
    assert block <= read.a_pitch < block + bus
    assert read.a_plane(tokens) >= columns * tokens
    assert read.a_pitch % window_of(bus, block) == 0
    (only,) = pieces(bus, 1, block, read.a_pitch, block, read.a_pitch)
    assert only.fields["m"] == 1


@given(rows=st.sampled_from([4, 6, 32]), tokens=st.integers(1, 100), columns=st.integers(1, 80), seed=st.integers(0, 9))
def test_rows_are_read_as_they_were_laid(rows, tokens, columns, seed):
    """Column by column in each block, whatever lies between blocks."""
    values = np.random.default_rng(seed).integers(0, 256, (tokens, columns), dtype=np.uint8)
    blocks = BlockRows(made_chip(CHIP | {"tile.array.rows": rows}).tile, columns, 8)
    plane = np.full(blocks.plane(tokens), 77, np.uint8)
    for start in range(0, tokens, rows):
        part = values[start : start + rows]
        line = line_values(len(part), rows)
        held = np.zeros((columns, line), np.uint8)
        held[:, : len(part)] = part.T
        plane[start // rows * blocks.pitch :][: held.size] = held.ravel()
    assert np.array_equal(blocks.read(plane, tokens, np.dtype(np.uint8)), values)


def test_a_wider_bus_is_not_slower_where_blocks_are_no_whole_beats():
    """Two blocks of 4,064 bytes begin at whole beats of 64 and not of 128: 341,776 cycles, and 386,872."""
    graph = product(512, 768, 127)
    chips = [CHIP | {"tile.dma.bytes_per_cycle": bus} for bus in (64, 128, 1024)]
    cycles = [mapped(chip, graph).run.cycles for chip in chips]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] <= 212_644
