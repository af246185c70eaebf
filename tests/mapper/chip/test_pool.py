"""Which candidates of a task are simulated, and in which order."""

import random

import pytest

from siliconloom.arch import LoomError
from siliconloom.mapper.chip import choice
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


@pytest.mark.parametrize("case", in_turn(range(2), 2, seconds=10))
def test_picks_are_the_cheapest_one_by_one(monkeypatch, seed, case):
    """Under each layout, whatever is known by then, and at whatever part of the price of bytes."""
    r, compared, ranked = random.Random(f"picks {seed} {case}"), [0], choice._ranked

    def rule(pool, layout):
        def key(number):
            chosen = pool.all[number]
            waits = getattr(chosen.tiling, "order", "") == "n_outer"
            return pool.worth_of(number), chosen.bytes_moved, waits, number

        return min(pool.under[layout], key=key)

    def compared_ranked(parts, pools, fitting, of_price):
        found = ranked(parts, pools, fitting, of_price)
        totals = {}
        for number in fitting:
            picks = [
                (part.count, pools[task], rule(pools[task], number)) for part in parts for task in part.levels.items()
            ]
            assert [pool.pick(number) for _, pool, _ in picks] == [pick for _, _, pick in picks]
            assert all(pool.worths()[pick] == pool.worth_of(pick) for _, pool, pick in picks)
            totals[number] = sum(count * pool.worth_of(pick) for count, pool, pick in picks)
            compared[0] += len(picks)
        assert found == sorted(fitting, key=lambda number: (totals[number], number))
        return found

    monkeypatch.setattr(choice, "_ranked", compared_ranked)
    chip, work = (
        (improvements.random_chip, improvements.random_workload)
        if case
        else (improvements.tiny_chip, improvements.tiny_workload)
    )
    while compared[0] < 1000:
        try:
            improvements.mapped(chip(r), improvements.workload(work(r)))
        except LoomError:
            continue
