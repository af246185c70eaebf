"""Costs of many tilings at once, beside each tiling, each transfer and each choice by itself."""

import random

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from siliconloom.mapper.chip.gemm_cost import pick_cheapest
from siliconloom.mapper.chip.gemm_moves import AllMoved, GemmMemories, Moved, PortCycles, _Transfer
from siliconloom.mapper.chip.objective import OBJECTIVES, Objective
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import choose_tilings, gemm_tiling
from siliconloom.sim.timing.units import passing_cycles
from siliconloom.workloads import Gemm
from tests.mapper.chip.improvements import made_chip, random_chip
from tests.mapper.chip.test_bounds import COMMON
from tests.mapper.chip.test_looked import divisions


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_a_tiling_costs_among_others_what_it_costs_by_itself(seed):
    r = random.Random(seed)
    chip = made_chip(random_chip(r))
    m, n, k = (r.choice([r.randint(1, 40), r.randint(1, 700)]) for _ in range(3))
    gemm = Gemm(m=m, n=n, k=k, batch=r.choice([1, 3]), weight=r.random() < 0.7, **COMMON)
    shape, slots = gemm_shape(gemm, Task(gemm, depends=False)), divisions(chip, r)
    memories = GemmMemories(chip.nearest, chip.nearest, chip.nearest)
    every = [(each, t) for each, some in zip(slots, choose_tilings(chip, slots, shape), strict=True) for t in some]
    assume(every)
    for each, t in r.sample(every, min(len(every), 20)):
        alone = gemm_tiling(chip, shape, memories, (t.m, t.n, t.k), t.order, t.resident, each.values, t.held)
        event(t.order)
        assert alone == t


NUMBERS = st.integers(0, 5)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 30), st.data())
def test_picks_are_those_of_a_sorted_list(kept, rows, count, data):
    """Few different numbers, so that many are equal."""
    taken, moved, cycles = (np.array(data.draw(st.lists(NUMBERS, min_size=count, max_size=count))) for _ in range(3))
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    among = np.array([data.draw(flags) for _ in range(rows)])
    found = np.empty((rows, kept + 2), np.int64)
    pick_cheapest(among, taken.astype(np.float64), moved, cycles, found)
    for fits, picks in zip(among, found.tolist(), strict=True):
        some = np.flatnonzero(fits).tolist()
        if not some:
            assert set(picks) == {-1}
            continue
        cheapest = sorted(some, key=lambda i: (taken[i], i))
        assert picks[0] == min(some, key=lambda i: (taken[i], moved[i], cycles[i], i))
        assert [pick for pick in picks[1:-1] if pick >= 0] == cheapest[:kept]
        assert picks[-1] == min(some, key=lambda i: (cycles[i], taken[i], i))


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_transfers_together_hold_the_port_as_long_as_each_by_itself(seed):
    """With channels that have a busiest one, decompressors, and transfers that only some of the tiles take."""
    r = random.Random(seed)
    g, chip = np.random.default_rng(seed), made_chip(random_chip(r))
    striped, packed = r.random() < 0.5, r.random() < 0.3

    def transfer():
        shape = r.choice([(3, 1, 4), (3, 5, 1), (1, 1, 1)])
        moved = g.integers(1, 10**5, shape)
        made = g.integers(1, 10**5, (1, 1, shape[2])) if packed and r.random() < 0.5 else None
        where = g.random((3, 1, 1)) < 0.5 if r.random() < 0.5 else None
        return _Transfer(moved, moved + g.integers(0, 50, shape) if striped else None, made, where)

    def cycles(each, memory):
        held = passing_cycles(chip, memory, each.moved, each.busiest)
        held = held if each.made is None else np.maximum(held, each.made)
        return held if each.where is None else np.where(each.where, held, 0)

    tiles = [Moved([transfer() for _ in range(r.randint(1, 3))]) for _ in range(r.randint(1, 4))]
    many = [(g.integers(0, 9, r.choice([(1, 5, 1), (3, 1, 1), (3, 5, 4), (4,), (1, 1, 1)])), each) for each in tiles]
    several = g.random() < 0.3  # memories
    slow = chip.nearest.model_copy(update={"bandwidth": max(chip.nearest.bandwidth // 3, 1)})
    asked = [*tiles, AllMoved(many), AllMoved([])]
    memories = [slow if several and n % 2 else chip.nearest for n in range(len(asked))]
    places = np.array([g.integers(0, size, 20) for size in (3, 5, 4)])
    held = PortCycles(asked).at(chip, memories, places)

    def at(values):
        return np.broadcast_to(values, (3, 5, 4))[tuple(places)]

    for each, memory, row in zip(tiles, memories, held, strict=False):
        assert np.array_equal(row, at(sum(cycles(one, memory) for one in each.transfers)))
    every = sum(count * sum(cycles(one, memories[len(tiles)]) for one in each.transfers) for count, each in many)
    assert np.array_equal(held[-2], at(every))
    assert not held[-1].any()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_many_costs_are_those_of_each(seed):
    """Of every objective, with a price of bytes or without."""
    r, g = random.Random(seed), np.random.default_rng(seed)
    price = r.choice([0.0, 0.01, 1.0, r.random()])
    cost = Objective(r.choice(OBJECTIVES), lambda _: 0, r.choice([1.0, 0.001, r.random()]), price)
    cycles, read, written = g.integers(0, 2 ** r.choice([10, 30, 50]), (3, 20))
    moved, found = cost.of_all(cycles, read, written)
    assert moved.tolist() == (read + written).tolist()
    assert found.tolist() == np.asarray(cost.of(cycles, read + written), np.float64).tolist()
