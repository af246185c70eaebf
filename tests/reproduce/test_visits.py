"""Jobs that visit nodes: one at a time, first come first served, never more than there is room for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.reproduce.paths import Visit, follow, round_trip
from siliconloom.reproduce.visits import ExpertJob, Stay, run_visits


def trip(path, name="job", ready=0, after=None, duration=10, rest=0):
    stays = tuple(Stay(stop.node, duration, rest, stop.holds) for stop in round_trip(path))
    return ExpertJob(name, stays, ready, after)


@st.composite
def cases(draw):
    """Paths that rise, so that nodes full of jobs can always be left."""
    nodes = draw(st.integers(1, 5))
    jobs = []
    for number in range(draw(st.integers(1, 10))):
        path = sorted(draw(st.sets(st.integers(0, nodes - 1), min_size=1)))
        after = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        jobs.append(
            trip(
                path,
                f"job {number}",
                draw(st.integers(0, 30)),
                after,
                draw(st.integers(1, 20)),
                draw(st.integers(0, 3)),
            )
        )
    delays = np.array(
        draw(st.lists(st.lists(st.integers(0, 9), min_size=nodes, max_size=nodes), min_size=nodes, max_size=nodes))
    )
    return jobs, delays, [draw(st.integers(1, 4)) for _ in range(nodes)]


@pytest.mark.slow(seconds=1)
@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_node_does_one_visit_at_a_time_and_holds_what_it_can(case):
    jobs, delays, room = case
    run = run_visits(jobs, delays, room)
    at = {}
    for number, job in enumerate(jobs):
        since = max(job.ready, run.end[job.after][-1] if job.after is not None else 0)
        for place, stay in enumerate(job.stays):
            begin, end = run.start[number][place], run.end[number][place]
            assert begin >= since
            assert end == begin + stay.duration
            at.setdefault(stay.node, []).append((begin, end, stay))
            if place + 1 < len(job.stays):
                since = end + delays[stay.node, job.stays[place + 1].node]
    for node, visits in at.items():
        visits.sort(key=lambda v: v[:2])
        for (_, end, stay), (begin, _, _) in pairwise(visits):
            assert begin >= end + stay.rest
        changes = sorted([(b, 1) for b, _, s in visits if s.room > 0] + [(e, -1) for _, e, s in visits if s.room < 0])
        held = np.cumsum([amount for _, amount in changes])
        assert held.max() == run.most[node] <= room[node]
    assert run.finish == max(end for ends in run.end for end in ends)


def test_those_who_came_first_are_served_first_and_newcomers_last():
    nothing = np.zeros((2, 2), np.int64)
    jobs = [
        ExpertJob("long", (Stay(0, 10),)),
        ExpertJob("new", (Stay(0, 5),), ready=1),
        ExpertJob("late", (Stay(1, 4), Stay(0, 5))),
        ExpertJob("early", (Stay(1, 3), Stay(0, 5))),
    ]
    run = run_visits(jobs, nothing, [1, 1])
    # "late" is at node 0 at 4, "early" at 7; "new" began to wait at 1, but begins here
    assert [run.start[n][-1] for n in range(4)] == [0, 20, 10, 15]


def test_what_comes_at_the_moment_a_node_is_free_is_late():
    jobs = [
        ExpertJob("a", (Stay(0, 10),)),
        ExpertJob("b", (Stay(0, 5),), ready=1),
        ExpertJob("c", (Stay(1, 10), Stay(0, 5))),
    ]
    run = run_visits(jobs, np.zeros((2, 2), np.int64), [1, 1])
    assert [run.start[1][0], run.start[2][1]] == [10, 15]


def test_nodes_full_of_jobs_that_keep_each_other_out_are_named():
    jobs = [trip([0, 1], "one"), trip([1, 0], "two"), trip([0], "three", after=0)]
    told = r"deadlock: 3 of 3 jobs never end; these wait: one for room at node 1 \(of 1\), two for room at node 0 "
    with pytest.raises(LoomError, match=told):
        run_visits(jobs, np.ones((2, 2), np.int64), [1, 1])
    assert run_visits(jobs, np.ones((2, 2), np.int64), [2, 2]).finish > 0


def test_a_round_trip_goes_there_and_back():
    stops = round_trip([4, 2])
    assert [stop.node for stop in stops] == [4, 2, 4, 2, 4]
    assert [stop.kind for stop in stops] == [Visit.FORWARD, Visit.FORWARD, Visit.LOSS, Visit.BACKWARD, Visit.BACKWARD]
    assert [stop.holds for stop in stops] == [1, 1, 0, -1, -1]
    assert follow({3: 1, 0: 3, 1: 2}) == [0, 3, 1, 2]
    for wrong in ({0: 1, 1: 0}, {0: 1, 2: 3}, {0: 1, 2: 2}):
        with pytest.raises(LoomError, match="a path"):
            follow(wrong)
    with pytest.raises(LoomError, match="none twice"):
        round_trip([1, 1])
