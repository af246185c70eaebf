"""Divisions of the buffers in which the best tiles of a product just fit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.mapper.chip import divisions
from siliconloom.mapper.chip.bounds import operator_bound
from siliconloom.mapper.chip.divisions import _least
from siliconloom.mapper.chip.fitted import fitted
from siliconloom.mapper.chip.layout import banks_of
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.objective import ESTIMATED
from siliconloom.mapper.chip.program import blocks_of
from siliconloom.sim.chip.engine import Stopwatch
from tests.mapper.chip.improvements import made_chip, odd_chip, random_chip, random_workload, workload

SMALL = {
    "clock": 500 * 10**6,
    "tile_count": 1,
    "tile.array.dataflow": "weight_stationary",
    "tile.array.rows": 8,
    "tile.array.cols": 128,
    "tile.array.load_rows": 2,
    "tile.scratchpad.capacity": 64 << 10,
    "tile.accumulator.capacity": 64 << 10,
    "tile.vector.lanes": 128,
    "tile.dma.bytes_per_cycle": 16,
    "memory.dram.bandwidth": 5 * 10**9,
    "memory.dram.latency": 100,
    "memory.dram.access_bytes": 256,
}
PRODUCT = """
kind: gemms
name: list
precision: int8
gemms: [{name: g, m: 512, n: 127, k: 768}]
"""


@pytest.mark.parametrize(("bus", "most"), [(16, 186_000), (32, 199_000)])
def test_small_buffers_are_divided_for_the_product(bus, most):
    """No shares had room for 64 x 127 x 112: 214,118 cycles with a bus of 16 bytes, 226,542 with one of 32."""
    chip, graph = made_chip(SMALL | {"tile.dma.bytes_per_cycle": bus}), workload(PRODUCT)
    plan = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert plan.bound.lower_bound_cycles <= Stopwatch(chip)(plan.program) <= most
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divisions, "fitted", lambda *asked: [])
        without = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert Stopwatch(chip)(without.program) > 1.1 * Stopwatch(chip)(plan.program)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), odd=st.booleans())
def test_what_is_fitted_has_banks_of_its_own_and_room_for_the_least_of_all(seed, odd):
    r = random.Random(seed)
    chip, graph = made_chip((odd_chip if odd else random_chip)(r)), workload(random_workload(r))
    tile, (part, *_) = chip.tile, blocks_of(chip, graph, None)
    bounds = [operator_bound(chip, task.operator, task.fused) for task in part.tasks]
    least = _least(part.tasks, chip, tile)[0][1]
    for made in fitted(chip, tile, part.tasks, bounds, least, (1,), ESTIMATED):
        assert banks_of(tile, made) <= tile.scratchpad.banks
        assert all(getattr(made, ring) >= need for ring, need in least.items() if ring != "context")
