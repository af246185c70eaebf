"""Which guesses are right, and whose next ones are there when a check ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.decoding import DecodingRequests
from siliconloom.sim.service.guesses import Guesses
from siliconloom.sim.service.live import LiveRequest

AHEAD = {"draft": "gpt2", "draft_on": "l40s", "draft_latency_s": 0.0, "draft_ahead": True}


def guesses(acceptance, **more):
    return Guesses(ServeSettings(speculate=len(acceptance), acceptance=acceptance, **more), 0)


def requests(outputs):
    return [LiveRequest(number, number, 8, output) for number, output in enumerate(outputs)]


@pytest.mark.parametrize("ahead", [{}, AHEAD])
def test_each_place_has_its_chance_and_what_follows_has_that_of_the_last_place(ahead):
    chances = (0.9, 0.3, 0.6)
    found = guesses(chances, **ahead).drawn(requests([5] * 20_000)).mean(axis=0)
    assert found == pytest.approx([*chances, *([0.6] if ahead else [])], abs=0.02)


def test_without_guesses_ahead_the_draws_are_those_of_numpy():
    """A run of an earlier version is the same run."""
    expected = np.random.default_rng((0, 0)).random((7, 2)) < [0.9, 0.3]
    assert (guesses((0.9, 0.3)).drawn(requests([5] * 7)) == expected).all()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()), max_size=6), st.data())
def test_guesses_are_ready_where_all_was_right_and_a_check_follows(rows, data):
    """A check behind which the answer has all of its tokens is the last: nothing is guessed for it ahead."""
    made, places = guesses((0.5, 0.5, 0.5), **AHEAD), 3
    some = requests([output + given for output, given, _ in rows])
    for each, (_, _, ready) in zip(some, rows, strict=True):
        each.ready = ready
    drawn = np.array(
        [data.draw(st.lists(st.booleans(), min_size=places + 1, max_size=places + 1)) for _ in rows], np.bool_
    ).reshape(-1, places + 1)
    found = made.ahead(some, drawn, lambda each: rows[each.number][1])
    right = [all(row) and left > places + 1 for row, (left, _, _) in zip(drawn.tolist(), rows, strict=True)]
    assert [each.ready for each in some] == right
    assert (found.ready, found.right) == (sum(ready for _, _, ready in rows), sum(right))
    assert (made.checks, made.ready) == (len(rows), found.ready)


def test_a_request_that_comes_back_to_its_answer_is_guessed_for_anew():
    decoding, (each,) = DecodingRequests(4), requests([9])
    each.target = 8
    decoding.enter(each)
    each.ready = True
    decoding.leave(each)
    decoding.enter(each)
    assert not each.ready
