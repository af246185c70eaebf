"""Costs of many tilings at once, beside each tiling, each transfer and each choice by itself."""

import random

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from siliconloom.mapper.chip.attention_estimate import AttentionCosts, TilingSizes
from siliconloom.mapper.chip.gemm_cost import pick_cheapest
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.gemm_moves import AllMoved, GemmMemories, Moved, PortCycles, _Transfer, spread
from siliconloom.mapper.chip.objective import OBJECTIVES, Objective
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import choose_tilings, gemm_tiling
from siliconloom.sim.timing.units import passing_cycles
from siliconloom.workloads import Attention, Gemm
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


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_values_at_places_are_those_of_the_grid(seed):
    """Of values that differ along some axes of a grid, or along none."""
    r, g = random.Random(seed), np.random.default_rng(seed)
    grid = tuple(r.randint(1, 5) for _ in range(3))
    shapes = [tuple(r.choice([1, size]) for size in grid)[r.randrange(4) :] for _ in range(r.randint(1, 6))]
    values = [g.integers(-(10**9), 10**9, shape) if r.random() < 0.8 else g.random(shape) < 0.5 for shape in shapes]
    places = np.array([g.integers(0, size, 12) for size in grid])
    found = spread(values, places)
    for row, each in zip(found, values, strict=True):
        assert row.tolist() == np.broadcast_to(each, grid)[tuple(places)].astype(np.int64).tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_layouts_say_the_same_of_a_tile_by_itself_again_and_among_others(seed):
    r = random.Random(seed)
    chip = made_chip(random_chip(r))
    m, n, k = (r.randint(1, 300) for _ in range(3))
    gemm = Gemm(m=m, n=n, k=k, weight=r.random() < 0.7, **COMMON)
    layout = GemmLayout(chip.tile, gemm_shape(gemm, Task(gemm, depends=False)))
    some = [tuple(r.randint(1, size) for size in (m, n, k)) for _ in range(5)]
    rows, cols, deep = np.array(some, np.int64).T
    for _ in range(2):
        for number, (tall, wide, depth) in enumerate(some):
            assert layout.passing(tall, wide) == layout.passing(rows, cols)[number]
            assert layout.result_rows(tall, wide, depth) == layout.result_rows(rows, cols, deep)[number]
            assert layout.b_tile(wide, depth) == layout.b_tile(cols, deep)[number]
            assert layout.sums(tall, wide) == layout.sums(rows, cols)[number]
            for each in (layout.a_local, layout.c_local, layout.c_fills, layout.columns, layout.split, layout.apart):
                assert each(wide) == np.broadcast_to(each(cols), cols.shape)[number]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_attention_costs_alike_among_others_by_itself_and_again(seed):
    r = random.Random(seed)
    chip = made_chip(random_chip(r) | {"tile.array.dataflow": "weight_stationary"})
    heads, dim, length = r.choice([1, 2, 4]), r.choice([8, 24, 64]), r.randint(1, 200)
    sizes = {"batch": r.randint(1, 2), "heads": heads, "kv_heads": r.choice([1, heads]), "head_dim": dim}
    reads = {"q_len": r.choice([1, length]), "kv_len": length, "v_head_dim": dim, "causal": r.random() < 0.5}
    shape = Attention(**COMMON, **sizes, **reads)
    some = [TilingSizes(r.randint(1, shape.q_len), r.randint(1, length), 1, r.random() < 0.3, False) for _ in range(6)]
    costs, apart = AttentionCosts(chip, shape), r.random() < 0.5
    found = costs.of(some[:4], apart=apart)
    assert costs.of(some, apart=apart)[:4] == found
    for each, made in zip(some, costs.of(some, apart=apart), strict=True):
        assert AttentionCosts(chip, shape).of([each], apart=apart) == [made]
