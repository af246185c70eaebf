"""Which candidates of a task are simulated, and in which order."""

import random

import pytest

from siliconloom.arch import LoomError
from siliconloom.mapper.chip.pool import Outlook
from tests.in_turn import in_turn
from tests.mapper.chip import improvements


def next_one(pool, limit):
    """The candidate to simulate next, by the rule as it is told: one candidate after the other."""
    had = [pool.kinds[number][:2] for number in pool.known]
    near = [
        (2 * had.count(pool.kinds[number][:2]) >= pool.most, pool.value(number), number)
        for number in range(len(pool.all))
        if number not in pool.known and pool.hoped(number, pool.value(number)) < limit
    ]
    return min(near)[2] if near else None


@pytest.mark.parametrize("case", in_turn(range(2), 2, seconds=10))
def test_the_most_promising_candidate_is_simulated_next(monkeypatch, seed, case):
    """Arrays of all candidates say the same as the rule, candidate by candidate."""
    asked, ask = [], Outlook.next

    def compared(outlook, limit):
        asked.append((ask(outlook, limit), next_one(outlook.pool, limit)))
        return asked[-1][0]

    monkeypatch.setattr(Outlook, "next", compared)
    r = random.Random(f"{seed} {case}")
    chip, work = (
        (improvements.random_chip, improvements.random_workload)
        if case
        else (improvements.tiny_chip, improvements.tiny_workload)
    )
    while len(asked) < 60:
        try:
            improvements.mapped(chip(r), improvements.workload(work(r)))
        except LoomError:
            continue
    assert [found for found, _ in asked] == [told for _, told in asked]
