"""Which points a method chooses."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.sweeps.axes import axes_of, sets_at, size_of
from siliconloom.sweeps.designs import design_of
from siliconloom.sweeps.metrics import described_metric
from siliconloom.sweeps.run import run_sweep
from siliconloom.sweeps.search import PointSearch
from tests.sweeps.small import sweep

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def keys_of(sizes):
    return {f"key{number}": list(range(size)) for number, size in enumerate(sizes)}


@given(SIZES)
def test_a_grid_has_every_combination_once(sizes):
    described = sweep(keys=keys_of(sizes))
    points = design_of(described, axes_of(described))
    assert points == list(itertools.product(*map(range, sizes)))


@given(SIZES, st.integers(0, 9), st.data())
def test_random_points_are_different_ones_of_the_grid(sizes, seed, data):
    size = size_of(axes_of(sweep(keys=keys_of(sizes))))
    points = data.draw(st.integers(1, size))
    described = sweep(keys=keys_of(sizes), method="random", points=points, seed=seed)
    found = design_of(described, axes_of(described))
    assert len(set(found)) == points
    assert set(found) <= set(itertools.product(*map(range, sizes)))
    assert found == design_of(described, axes_of(described))


@given(SIZES, st.integers(1, 90), st.integers(0, 9))
def test_a_latin_hypercube_takes_every_value_as_often(sizes, points, seed):
    described = sweep(keys=keys_of(sizes), method="latin_hypercube", points=points, seed=seed)
    found = design_of(described, axes_of(described))
    assert len(found) == points
    for number, size in enumerate(sizes):
        counts = Counter(place[number] for place in found)
        assert {counts[level] for level in range(size)} <= {points // size, -(-points // size)}


@pytest.mark.parametrize("seed", range(5))
def test_points_of_a_latin_hypercube_are_different_while_there_are_many(seed):
    described = sweep(keys=keys_of([3, 4, 5]), method="latin_hypercube", points=40, seed=seed)
    found = design_of(described, axes_of(described))
    assert len(set(found)) == 40
    assert sorted(Counter(place[0] for place in found).values()) == [13, 13, 14]


def test_a_method_that_cannot_do_what_it_is_for_says_so():
    """More points than combinations, and a search of one generation."""
    found = run_sweep(sweep(method="latin_hypercube", points=30), workers=1)
    assert any(f"{30 - found.counts.distinct} of 30 points are the same" in note for note in found.notes)
    assert not run_sweep(sweep(method="latin_hypercube", points=6), workers=1).counts.distinct < 6
    for method, points, population, told in (
        ("nsga2", 4, None, "the first 50 points of nsga2 are drawn"),
        ("nsga2", 6, 4, None),
        ("tpe", 9, 4, "the first 12 points of tpe are drawn"),
    ):
        changed = {} if population is None else {"population": population}
        notes = run_sweep(sweep(method=method, points=points, **changed), workers=1).notes
        assert any(told in note for note in notes) if told else not notes


def test_keys_that_move_together_do():
    described = sweep(keys={"a": {"values": [1, 2], "with": ["b"]}, "c": {"values": ["x"], "with": {"d": ["y"]}}})
    assert sets_at(axes_of(described), [("a.e", "9")], (1, 0)) == (
        ("a", "2"),
        ("a.e", "9"),
        ("b", "2"),
        ("c", "x"),
        ("d", "y"),
    )


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_a_search_comes_closer_than_chance_and_keeps_constraints(method):
    """The least of a bowl over 30 x 30 values, in a corner of what is allowed."""
    described = sweep(
        keys={"a": list(range(30)), "b": list(range(30))},
        method=method,
        points=150,
        population=10,
        objectives=["time"],
        constraints=[{"metric": "power", "at_least": 0}],
    )
    axes = axes_of(described)
    search = PointSearch(described, axes, [described_metric("time")])
    found = []
    for _ in range(15):
        batch = search.ask(10)
        told = [((a - 25) ** 2 + (b - 4) ** 2, a - 20) for a, b in batch]
        search.tell([None if cost == 50 else ([cost], [excess]) for cost, excess in told])
        found += told
    first, last = (sum(cost for cost, _ in part) for part in (found[:50], found[-50:]))
    assert last < 0.7 * first
    assert min(cost for cost, excess in found[50:] if excess <= 0) < min(c for c, e in found[:20] if e <= 0)
