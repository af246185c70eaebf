"""Which of the slow tests run on a day: cases of a parametrised test that take their turn, and the turns of all."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

USUAL = 4.0
"""Processor seconds that a slow test takes of which nothing else is known; shorter ones have their turn more often."""
LONG = 10.0
"""Processor seconds from which on a test has its turn half as often as others."""


def in_turn(cases: Iterable[Any], every: int, seconds: float = USUAL) -> list[Any]:
    """The first of every so many cases as they are; the others are marked slow, so a part of them runs each day.

    Where ``every`` is zero all of them are. ``seconds`` are those of the marker: what one of them takes.
    """
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*value, marks=() if every and number % every == 0 else pytest.mark.slow(seconds=seconds))
        for number, value in enumerate(values)
    ]


def examples(few: int, many: int, seconds: float) -> pytest.MarkDecorator:
    """A parameter ``examples``: a few each day, many in turn with other slow tests, which take so many seconds."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow(seconds=seconds))])


def seconds_of(marker: pytest.Mark) -> float:
    """About how many processor seconds a test with this marker of slow ones takes; the whole file's, where it is one.

    A marker says so where it is ``slow(seconds=20)``.
    """
    return float(marker.kwargs.get("seconds", USUAL))


def period(seconds: float, share: int) -> int:
    """In how many days a test of so many seconds has its turn once: of short ones in fewer, in proportion."""
    if seconds >= LONG and share > 1:
        return 2 * share
    return next(d for d in range(1, share + 1) if share % d == 0 and d * USUAL >= share * min(seconds, USUAL))


FULL = 1.2
"""Times the mean: a day with so many seconds takes no more tests, if others have fewer."""


def turns(seconds: Mapping[str, float], share: int) -> dict[str, int]:
    """On which day of its `period` each of these tests runs.

    A test's name says in which order it tries the days, and it takes the first that is not full. So a test that comes
    or goes moves few others, and none waits for ever while tests are written (consistent hashing with bounded loads,
    Mirrokni, Thorup and Zadimoghaddam, 2018).
    """
    mean = sum(taken / period(taken, share) for taken in seconds.values())
    days, found = [0.0] * (2 * share), dict[str, int]()
    for name in sorted(seconds, key=_drawn):
        every = period(seconds[name], share)
        tried = sorted(range(every), key=lambda day, name=name: _drawn(f"{day} {name}"))
        room = (day for day in tried if max(days[day::every]) + seconds[name] <= FULL * mean)
        day = next(room, None)
        day = min(tried, key=lambda day: max(days[day::every])) if day is None else day
        found[name] = day
        for each in range(day, 2 * share, every):
            days[each] += seconds[name]
    return found


def _drawn(text: str) -> bytes:
    """A number that is always the same for a text, and otherwise like drawn."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def runs(seconds: Mapping[str, float], share: int, seed: int) -> set[str]:
    """Those of the tests whose turn it is with this seed; all of them if ``share`` is 1."""
    return {name for name, day in turns(seconds, share).items() if (seed - day) % period(seconds[name], share) == 0}
