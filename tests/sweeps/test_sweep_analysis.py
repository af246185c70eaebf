"""The front, main effects, sensitivity and monotone keys, each against what they are by definition."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.swept import SweptConstraint, SweptMetric, SweptPoint
from siliconloom.sweeps.analysis import ParetoFront, direction_of, effects_of, feasible, monotone_breaks, sensitivity_of
from siliconloom.sweeps.axes import Axis, axes_of
from siliconloom.sweeps.designs import design_of
from tests.sweeps.small import sweep

FIGURES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30)
TIME, RATE = SweptMetric("time", "s", True), SweptMetric("throughput", "tokens/s", False)


def point(number, time, **metrics):
    return SweptPoint(
        number=number,
        values={},
        asked=1,
        state="done",
        why=None,
        metrics={"time": float(time), **metrics},
        feasible=True,
        bound=None,
    )


@given(FIGURES)
def test_the_front_is_what_no_other_point_beats(figures):
    front = ParetoFront([TIME, RATE])
    for number, (time, rate) in enumerate(figures):
        front.add(number, {"time": time, "throughput": rate})
    beaten = {
        n
        for n, (time, rate) in enumerate(figures)
        for other in figures
        if other != (time, rate) and other[0] <= time and other[1] >= rate
    }
    assert set(front.numbers()) == set(range(len(figures))) - beaten
    times = [figures[number][0] for number in front.numbers()]
    assert times == sorted(times)


@given(st.floats(-9, 9), st.floats(-9, 9))
def test_a_constraint_is_kept_at_its_bound_and_on_one_side(bound, value):
    assert feasible({"power": value}, [SweptConstraint("power", bound, None)]) == (value <= bound)
    assert feasible({"power": value}, [SweptConstraint("power", None, bound)]) == (value >= bound)


AXES = (
    Axis("memory.dram.bandwidth", {"memory.dram.bandwidth": ("4 GB/s", "8 GB/s", "16 GB/s")}),
    Axis("memory.dram.latency", {"memory.dram.latency": ("50 ns", "1 us")}),
    Axis("tile.array.dataflow", {"tile.array.dataflow": ("weight_stationary", "output_stationary")}),
)
PLACES = [(a, b, c) for a in range(3) for b in range(2) for c in range(2)]


@given(st.lists(st.integers(1, 5), min_size=12, max_size=12))
def test_every_pair_of_neighbours_of_which_the_better_machine_is_slower_is_told(times):
    points = [point(n, time) for n, time in enumerate(times)]
    at = dict(zip(PLACES, times, strict=True))
    told = {(b.key, b.smaller_point, b.larger_point) for b in monotone_breaks(AXES, points, PLACES)}
    expected = set()
    for a, b, c in PLACES:
        if a < 2 and at[a + 1, b, c] > at[a, b, c] * 1.01:
            pair = PLACES.index((a, b, c)), PLACES.index((a + 1, b, c))
            expected.add(("memory.dram.bandwidth", *pair))
        if b == 1 and at[a, 0, c] > at[a, 1, c] * 1.01:
            expected.add(("memory.dram.latency", PLACES.index((a, 1, c)), PLACES.index((a, 0, c))))
    assert told == expected


def test_a_direction_is_said_of_sizes_alone():
    assert [direction_of(axis) for axis in AXES] == [1, -1, 0]
    paths = ("tile.array.rows", "tile.array.cols")
    assert direction_of(Axis(paths[0], dict.fromkeys(paths, ("8", "16")))) == 1
    assert direction_of(Axis(paths[0], {paths[0]: ("8", "16"), "memory.a.latency": ("1 ns", "2 ns")})) == 0


@given(st.lists(st.integers(1, 50), min_size=12, max_size=12))
def test_a_bar_of_the_tornado_spans_the_means_of_a_keys_values(times):
    points = [point(n, time) for n, time in enumerate(times)]
    bars, notes = effects_of(AXES, [TIME], points, PLACES)
    assert not notes
    for bar in bars:
        number = next(n for n, axis in enumerate(AXES) if axis.path == bar.key)
        means = []
        for level in range(len(AXES[number])):
            own = [t for t, place in zip(times, PLACES, strict=True) if place[number] == level]
            means.append(sum(own) / len(own))
        assert (bar.least, bar.most) == pytest.approx((min(means), max(means)))
        assert bar.mean == pytest.approx(sum(times) / 12)
        assert bar.points == 12


WIDE = (*AXES[:1], Axis("clock", {"clock": tuple("1234")}), *AXES[2:])


@given(st.lists(st.sampled_from(list(itertools.product(range(3), range(4), range(2)))), unique=True), st.data())
def test_a_key_that_does_nothing_has_no_effect_whatever_points_are_missing(places, data):
    """And every key has a bar, or a note of why it has none, or one value alone."""
    idle = data.draw(st.integers(0, 2))
    points = [
        point(n, 0.1 + sum(3.7**k * x for k, x in enumerate(place) if k != idle)) for n, place in enumerate(places)
    ]
    failed = data.draw(st.sets(st.sampled_from(range(len(places)))) if places else st.just(set()))
    points = [replace(p, state="failed", metrics={}) if p.number in failed else p for p in points]
    bars, notes = effects_of(WIDE, [TIME], points, places)
    done = [place for n, place in enumerate(places) if n not in failed]
    for number, axis in enumerate(WIDE):
        bar = next((bar for bar in bars if bar.key == axis.path), None)
        values = {place[number] for place in done}
        assert (bar is not None) + any(f"no tornado of {axis.path}: " in note for note in notes) == (len(values) > 1)
        if bar is not None:
            assert bar.points <= len(done)
            assert any(f"{axis.path} {bar.points} of {len(done)}" in note for note in notes) == (bar.points < len(done))
            assert (bar.least == bar.mean == bar.most) == (number == idle) or bar.mean == pytest.approx(bar.least)


def test_bars_are_of_points_equal_in_all_other_keys():
    """Of batch 64 in a small memory there is no time: the memory's mean was that of batch 1 alone."""
    axes = Axis("workload.batch", {"workload.batch": ("1", "64")}), Axis("capacity", {"capacity": ("1 B", "8 GiB")})
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    points = [point(0, 1), point(1, 1), replace(point(2, 0), state="failed", metrics={}), point(3, 13)]
    (batch, capacity), notes = effects_of(axes, [TIME], points, places)
    assert (batch.least, batch.most, batch.points) == (1, 13, 2)
    assert (capacity.least, capacity.most, capacity.points) == (1, 1, 2)
    assert notes == [
        "the tornado compares points that are equal in all other keys: workload.batch 2 of 3, capacity 2 of 3"
    ]


def test_a_value_at_which_points_failed_is_left_out_and_told():
    axes = AXES[0], Axis("clock", {"clock": tuple(map(str, range(1, 9)))})
    places = [(a, b) for a in range(3) for b in range(8) if a or not b]
    bars, notes = effects_of(axes, [TIME], [point(n, 1 + a) for n, (a, _) in enumerate(places)], places)
    assert {bar.key: (bar.least, bar.most) for bar in bars} == {"memory.dram.bandwidth": (2, 3), "clock": (2.5, 2.5)}
    assert "memory.dram.bandwidth 16 of 17 (without 4 GB/s)" in notes[0]


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("method", ["saltelli", "morris"])
def test_a_key_that_does_all_has_all_of_the_sensitivity(method):
    keys = {"tile.vector.lanes": [8, 16, 32, 64], "memory.dram.bandwidth": ["1 GB/s", "2 GB/s"]}
    described = sweep(method=method, points=512, keys=keys, objectives=["time"])
    axes = axes_of(described)
    asked = [point(n, 3 + 2 * place[0]) for n, place in enumerate(design_of(described, axes))]
    lanes, bandwidth = sensitivity_of(described, axes, [TIME], asked)
    assert (lanes.key, bandwidth.key) == tuple(keys)
    if method == "saltelli":
        assert lanes.first == pytest.approx(1, abs=0.05)
        assert lanes.total == pytest.approx(1, abs=0.05)
        assert bandwidth.total == pytest.approx(0, abs=0.01)
    else:
        assert lanes.mu_star > 1
        assert bandwidth.mu_star == 0
