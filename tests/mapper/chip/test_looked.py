"""Tiles that were looked at for other chips: what they compute and move is the same, what they take is not."""

import random
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.mapper.chip import looked
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import choose_tilings
from siliconloom.workloads import Gemm
from tests.mapper.chip.improvements import made_chip, random_chip
from tests.mapper.chip.test_bounds import COMMON, layout
from tests.mapper.chip.test_drafts import CHANGES

MEMORY = ("clock", "memory.dram.bandwidth", "memory.dram.latency", "memory.dram.access_bytes", "memory.dram.ports")
OTHERS = (*MEMORY, "tile_count", "tile.dma.bytes_per_cycle", "tile.array.rows", "tile.vector.lanes")


def divisions(chip, r):
    """Some ways to divide the buffers, with and without a ring of values."""
    fit, sums = chip.tile.scratchpad.capacity // 8, chip.tile.accumulator.capacity // 4
    rings = {"weights": fit, "moving": fit, "results": fit, "constants": fit // 2, "partial": sums}
    found = [layout(chip, **(rings | {ring: rings[ring] // r.choice([1, 2, 3]) for ring in rings})) for _ in range(3)]
    return [replace(each, values=values) for each, values in zip(found, (0, fit, fit // 2), strict=True)]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_tilings_are_those_that_nothing_is_known_for(seed):
    """Chips one after the other that differ in a key each, beside each of them by itself."""
    r = random.Random(seed)
    base = random_chip(r)
    m, n, k = (r.choice([r.randint(1, 40), r.randint(1, 700)]) for _ in range(3))
    gemm = Gemm(m=m, n=n, k=k, weight=r.random() < 0.7, **COMMON)
    shape, slots = gemm_shape(gemm, Task(gemm, depends=False)), divisions(made_chip(base), r)
    chips = [base, *({**base, key: CHANGES[key](r)} for key in r.sample(OTHERS, 4)), base]
    made = []
    looked.forget()
    for chip in chips:
        made.append(choose_tilings(made_chip(chip), slots, shape))
    for chip, known in zip(chips, made, strict=True):
        looked.forget()
        assert choose_tilings(made_chip(chip), slots, shape) == known


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_kept_is_bounded(seed):
    r = random.Random(seed)
    chip = made_chip(random_chip(r))
    slots = divisions(chip, r)
    looked.forget()
    for size in range(100, 140):
        gemm = Gemm(m=64, n=size, k=size, weight=True, **COMMON)
        choose_tilings(chip, slots, gemm_shape(gemm, Task(gemm, depends=False)))
    kept = looked._KNOWN
    assert kept._tiles == sum(prod(each.shape) for some in kept._kept.values() for each in some) > 0
    before, looked.MOST_LOOKED = looked.MOST_LOOKED, kept._tiles // 2
    try:
        gemm = Gemm(m=65, n=99, k=99, weight=True, **COMMON)
        choose_tilings(chip, slots, gemm_shape(gemm, Task(gemm, depends=False)))
        assert 0 < kept._tiles <= looked.MOST_LOOKED
        assert kept._tiles == sum(prod(each.shape) for some in kept._kept.values() for each in some)
    finally:
        looked.MOST_LOOKED = before
