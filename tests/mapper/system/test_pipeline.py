"""Pipeline schedules: complete, free of circles, as long and as full as theory says."""

import time
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.mapper.system.pipeline import (
    PassKind,
    StagePlacement,
    gpipe,
    greedy,
    interleaved,
    most_held,
    one_forward_one_backward,
)
from siliconloom.mapper.system.step import Slowdown, run_pipeline
from siliconloom.sim.system.streams import Tasks, run_tasks

sizes = st.tuples(st.integers(1, 8), st.integers(1, 24))


def passes(schedule, kind):
    return [(step.microbatch, step.chunk) for steps in schedule for step in steps if step.kind is kind]


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from([gpipe, one_forward_one_backward]))
def test_simple_schedules_take_their_closed_form(size, maker):
    """(m + p - 1) times a forward and a backward pass, where stages are equal and messages free."""
    p, m = size
    schedule = maker(p, m)
    for kind in (PassKind.FORWARD, PassKind.BACKWARD):
        assert sorted(passes(schedule, kind)) == sorted([(i, 0) for i in range(m)] * p)
    run = run_pipeline(schedule, StagePlacement(p), [1e-6] * p, [2e-6] * p)
    assert run.seconds == pytest.approx((m + p - 1) * 3e-6)
    assert run.bubble == pytest.approx((p - 1) / (m + p - 1))


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_1f1b_holds_as_many_as_stages_follow(size):
    p, m = size
    assert most_held(one_forward_one_backward(p, m)) == [min(p - s, m) for s in range(p)]
    assert most_held(gpipe(p, m)) == [m] * p


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(2, 4))
def test_interleaving_divides_the_bubble(p, groups, chunks):
    """Narayanan et al., SC 2021, section 2.2.2: (p - 1) (f + b) / v of bubble."""
    m = groups * p
    run = run_pipeline(interleaved(p, m, chunks), StagePlacement(p, chunks), [1e-6] * p * chunks, [2e-6] * p * chunks)
    assert run.seconds == pytest.approx(m * chunks * 3e-6 + (p - 1) * 3e-6)


def test_interleaving_needs_full_groups():
    with pytest.raises(LoomError, match="takes groups of 4 microbatches: 6 is no multiple, 8 is"):
        interleaved(4, 6, 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 16), st.booleans(), st.integers(0, 6))
def test_greedy_schedules_are_whole_and_keep_their_limit(p, m, vee, extra):
    placement = StagePlacement(p, 2, vee=True) if vee else StagePlacement(p)
    most = (p + 2 if vee else p) + extra
    schedule = greedy(placement, m, most)
    for kind in PassKind:
        assert len(passes(schedule, kind)) == m * placement.stages
    assert max(most_held(schedule)) <= most
    stages = placement.stages
    times = [1e-6] * stages
    run = run_pipeline(schedule, placement, times, times, times)
    assert run.seconds >= m * placement.chunks * 3e-6 * (1 - 1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 32)])
def test_weight_passes_fill_bubbles(p, m):
    """Cutting the backward pass saves most of what 1F1B waits; more microbatches held save more."""
    whole = run_pipeline(one_forward_one_backward(p, m), StagePlacement(p), [1e-6] * p, [2e-6] * p).seconds
    cut = [
        run_pipeline(greedy(StagePlacement(p), m, most), StagePlacement(p), *[[1e-6] * p] * 3).seconds
        for most in (p, 2 * p)
    ]
    assert cut[1] <= cut[0] < whole


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_streams_are_longest_paths(data):
    """Against plain recursion over the same waits."""
    count = data.draw(st.integers(1, 25))
    tasks, waits = Tasks(), []
    for i in range(count):
        tasks.add(f"t{i}", data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9)))
        mine = [(j, data.draw(st.integers(0, 3))) for j in range(i) if data.draw(st.integers(0, 5)) == 0]
        waits.append(mine)
        for j, lag in mine:
            tasks.wait(i, j, lag)
    run = run_tasks(tasks)
    end: list[int] = []
    for i in range(count):
        before = [end[j] for j in range(i) if tasks.stream[j] == tasks.stream[i]][-1:]
        start = max([0, *before, *(end[j] + lag for j, lag in waits[i])])
        assert run.start[i] == start
        end.append(start + tasks.duration[i])
    assert run.end.tolist() == end


def test_a_circle_of_tasks_is_named():
    tasks = Tasks()
    a, b = tasks.add("send of rank 0", 0, 1), tasks.add("receive of rank 1", 1, 1)
    tasks.wait(a, b)
    tasks.wait(b, a)
    with pytest.raises(LoomError, match=r"deadlock: 2 tasks never start.*send of rank 0, receive of rank 1"):
        run_tasks(tasks)


@settings(max_examples=60, deadline=None)
@given(sizes, st.data(), st.sampled_from([gpipe, one_forward_one_backward]))
def test_a_slow_device_is_one_with_longer_passes(size, data, maker):
    p, m = size
    device = data.draw(st.integers(0, p - 1))
    factor = data.draw(st.sampled_from([1.0, 1.5, 4.0]))

    def seconds(slow=(), forward=1e-6):
        times = [forward if d == device else 1e-6 for d in range(p)]
        return run_pipeline(maker(p, m), StagePlacement(p), times, [2 * t for t in times], hop=1e-7, slow=slow).seconds

    whole = seconds()
    assert seconds([Slowdown(0.0, factor, device=device)]) == pytest.approx(seconds(forward=factor * 1e-6))
    assert seconds([Slowdown(whole, factor, device=device)]) == whole
    late = seconds([Slowdown(whole / 2, factor, device=device)])
    assert whole <= late <= seconds(forward=factor * 1e-6) * (1 + 1e-9)


def test_a_link_that_slows_down_or_stops_holds_the_pipeline_up():
    def seconds(*slow):
        return run_pipeline(gpipe(2, 3), StagePlacement(2), [1e-6] * 2, [1e-6] * 2, hop=2e-7, slow=slow).seconds

    usual = (2 * 3 + 2) * 1e-6 + 2 * 2e-7
    assert seconds() == pytest.approx(usual)
    assert seconds(Slowdown(0.0, 1.0, link=0)) == pytest.approx(usual)
    # forward results leave at 1, 2 and 3 us and take 2 us each, one after the other; so do gradients
    assert seconds(Slowdown(0.0, 10.0, link=0)) == pytest.approx(1e-6 + 6e-6 + 1e-6 + 1e-6 + 2e-6 * 3 + 1e-6)
    stopped = seconds(Slowdown(1.1e-6, inf, link=0), Slowdown(5.1e-6, 1.0, link=0))
    assert stopped == pytest.approx(usual + 4e-6)
    with pytest.raises(LoomError, match="never goes on"):
        seconds(Slowdown(0.0, inf, device=0))
    with pytest.raises(LoomError, match="link must be from 0 to 0"):
        seconds(Slowdown(0.0, 2.0, link=1))


@pytest.mark.slow(seconds=1.5)
def test_the_greedy_order_takes_time_in_proportion_to_its_passes():
    """480,000 passes in two seconds; looking through all that waits for every one of them took minutes."""
    began = time.process_time()
    schedule = greedy(StagePlacement(8), 20_000, 8, (10, 9, 8))
    assert sum(map(len, schedule)) == 480_000
    assert time.process_time() - began < 20
