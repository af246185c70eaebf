"""Every slow test has its turn, and no day has many more seconds of them than another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.in_turn import LONG, USUAL, period, runs, turns

SECONDS = st.dictionaries(
    st.text("abcdefghij[]", min_size=1, max_size=6), st.floats(0.1, 5 * LONG), min_size=1, max_size=60
)


@given(seconds=SECONDS, share=st.integers(1, 16), first=st.integers(0, 400))
def test_every_test_runs_once_in_its_period(seconds, share, first):
    days = [runs(seconds, share, first + day) for day in range(2 * share)]
    for name, taken in seconds.items():
        assert sum(name in day for day in days) == 2 * share // period(taken, share)
        assert any(name in day for day in days[: period(taken, share)])


@given(seconds=SECONDS, share=st.integers(1, 16))
def test_no_day_has_more_than_the_mean_and_what_one_test_takes(seconds, share):
    every = {name: period(taken, share) for name, taken in seconds.items()}
    mean = sum(taken / every[name] for name, taken in seconds.items())
    days = [sum(seconds[name] for name in runs(seconds, share, day)) for day in range(2 * share)]
    # of a test with two days the fuller one counts, so that the other may stay below the mean
    assert max(days) <= 2 * mean + max(seconds.values())
    assert turns(seconds, share) == turns(dict(reversed(seconds.items())), share), "whichever order they are found in"


@pytest.mark.slow(seconds=1)
@given(seconds=st.lists(st.floats(0.1, 5 * LONG), min_size=60, max_size=120), share=st.integers(4, 16))
def test_a_test_that_is_written_moves_few_others(seconds, share):
    before = {f"test {number}": taken for number, taken in enumerate(seconds)}
    days, after = turns(before, share), turns(before | {"one more": 5.0}, share)
    assert sum(days[name] != after[name] for name in before) <= len(before) // 3


def test_short_tests_have_their_turn_more_often_in_proportion():
    assert [period(each, 48) for each in (0.1, 1.0, 2.0, 3.0, USUAL, LONG)] == [2, 12, 24, 48, 48, 96]


def test_long_tests_are_dealt_out_to_days_of_their_own():
    seconds = {f"long {n}": 2 * LONG for n in range(32)} | {f"short {n}": USUAL for n in range(80)}
    days = [sum(seconds[name] for name in runs(seconds, 16, day)) for day in range(32)]
    mean = sum(taken / period(taken, 16) for taken in seconds.values())
    assert max(days) <= 1.2 * mean
