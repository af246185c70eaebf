"""What estimates call the work of a unit beside what runs take: no run is faster than its busiest unit."""

import random

import pytest

from siliconloom.arch import LoomError
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip import mapping
from siliconloom.mapper.chip.pool import busiest
from tests.mapper.chip import improvements
from tests.mapper.chip.test_improvements import gemm

FIRST = 0.9
"""Of its busiest unit's estimated work the least that a run took: the first tiles' transfers may be cut less."""


@pytest.fixture
def runs(monkeypatch):
    """Cycles of every candidate that is run, over those of its busiest unit."""
    alone, found = mapping._alone, []

    def noted(*given):
        cycles, chosen = alone(*given), given[-1]
        found.append(cycles / max(busiest(chosen.tiling, chosen.share), 1))
        return cycles

    monkeypatch.setattr(mapping, "_alone", noted)
    return found


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize(("seed", "each"), [(81, 3), (81, 6), (72, 6)])
def test_no_run_is_faster_than_its_busiest_unit(runs, seed, each):
    """The estimate said seven times what 439 columns of one row took, as if every byte came by itself."""
    r = random.Random(seed)
    for kind in ("random", "tiny"):
        chip, work = getattr(improvements, f"{kind}_chip"), getattr(improvements, f"{kind}_workload")
        for _ in range(each):
            try:
                improvements.mapped(chip(r), improvements.workload(work(r)))
            except LoomError:
                continue
    assert len(runs) > 250
    assert min(runs) > FIRST
    assert sum(run > 0.99 for run in runs) > 0.95 * len(runs)


ROW = {
    "clock": 10**9,
    "tile_count": 2,
    "tile.array.dataflow": "output_stationary",
    "tile.array.rows": 8,
    "tile.array.cols": 4,
    "tile.array.load_rows": 1,
    "tile.scratchpad.capacity": 4096,
    "tile.accumulator.capacity": 4096,
    "tile.vector.lanes": 16,
    "tile.dma.bytes_per_cycle": 4,
    "memory.dram.bandwidth": 10**9,
    "memory.dram.latency": 500,
    "memory.dram.access_bytes": 64,
}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("rows", "k"), [(1, 439), (9, 439), (100, 64)])
def test_blocks_last_rows_adjoin(runs, rows, k):
    """Of an output stationary array: the last block is read as a whole where a tile begins with it."""
    improvements.mapped(ROW, gemm(rows, 3, k))
    assert min(runs) > 0.99


@pytest.mark.slow(seconds=1)
def test_tables_of_parts_of_a_row_begin_at_multiples_of_two_parts(runs):
    """Rotary angles are two for each column: tiles of 1,040 of 8,256 were said to be cut twice as often as they are."""
    sets = {"workload.layers": "1", "workload.sequence": "64", "memory.dram.capacity": "32GiB"}
    simulate("npu-edge-int8", "deepseek-v3", list(sets.items()))
    assert min(runs) > 0.999
