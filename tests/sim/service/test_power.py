"""A limit to the power of all replicas, beside a simulation that has every step by itself."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.costs import EQUAL
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from tests.sim.service import naive
from tests.sim.service.test_migration import check_conserved
from tests.sim.service.test_replica import ROWS, Linear, apart

COSTS = (0.01, 1e-4, 2e-3, 1e-5)
WATTS, STANDING = 300.0, 50.0


class Drawing(Linear):
    """A step at a share of the clock takes longer and draws less, two thirds of each as if all of it computed."""

    def __init__(self, numbers, clock=1.0):
        super().__init__(*(each * (1 + 2 / clock) / 3 for each in numbers))
        self.watts = WATTS * (1 + 2 * clock**3) / 3

    def steps(self, chunks, ended, count, contexts, lengths=EQUAL):
        seconds, _ = super().steps(chunks, ended, count, contexts, lengths)
        return seconds, seconds * self.watts


def looked(rows, costs, clocks, limit, every, blocks, block):
    """Finishing times and looks where replicas step one by one, and what each drew is summed over all its steps."""
    asked = [naive.Asked(n, *row) for n, row in enumerate(rows)]
    engines = [naive.Engine(blocks=blocks, block=block, most=8, budget=64) for _ in costs]
    ends, drawn, level, looks = [None] * len(costs), [], 0, {}
    to_come, look, turn = list(asked), rows[0][0] + every, 0
    while any(r.finished is None for r in asked):
        first = min((end, p) for p, end in enumerate([*ends, math.inf]) if end is not None)
        come = to_come[0].arrival if to_come else math.inf
        now = min(first[0], come, look)
        if now == first[0]:
            engines[first[1]].end(now)
            ends[first[1]] = None
        elif now == come:
            while to_come and to_come[0].arrival == now:
                engines[turn % len(engines)].waiting.append(to_come.pop(0))
                turn += 1
        else:
            joules = sum(w * max(min(b, now) - max(a, now - every), 0) for a, b, w in drawn)
            watts, chosen = joules / every, [1.0, *clocks]
            looks[look] = watts + STANDING * len(costs)
            guess = [STANDING * len(costs) + watts * (clock / chosen[level]) ** 2 for clock in chosen]
            if looks[look] > limit * (1 + 1e-9):
                level = next(
                    (at for at in range(level + 1, len(chosen)) if guess[at] <= limit * (1 + 1e-9)), len(clocks)
                )
            elif level and guess[level - 1] <= limit * (1 + 1e-9):
                level -= 1
            look += every
        for p, engine in enumerate(engines):
            if ends[p] is None and (engine.waiting or engine.running):
                cost = costs[p][level]
                ends[p] = now + cost.seconds(*engine.step(now))
                drawn.append((now, ends[p], cost.watts))
    return asked, looks


BUSY = apart([(0.0, 60, 40, 0), (0.01, 60, 40, 0), (0.02, 60, 40, 0), (0.4, 60, 40, 0), (1.5, 30, 40, 0)])


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=120)
@given(
    ROWS,
    st.integers(1, 3),
    st.sampled_from([(0.5,), (0.9, 0.7, 0.5), (0.3,)]),
    st.floats(0.2, 1.1),
    st.sampled_from([0.0217, 0.1313, 0.7177]),
)
@example(BUSY, 2, (0.9, 0.7, 0.5), 0.6, 0.0217)
@example(BUSY, 2, (0.5,), 0.5, 0.1313)
def test_clocks_are_lowered_as_where_every_step_is_one(rows, count, clocks, share, every):
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / 4) + 30
    limit = count * (STANDING + share * WATTS)
    numbers = [(COSTS[0] * (1 + place * math.sqrt(2) * 1e-5), *COSTS[1:]) for place in range(count)]
    costs = [[Drawing(each, clock) for clock in (1.0, *clocks)] for each in numbers]
    groups = [ReplicaGroup(each[0], blocks, 1, lowered=tuple(each[1:]), standing_w=STANDING) for each in costs]
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    chosen = ServeSettings(
        block=4, max_sequences=8, token_budget=64, power_limit=limit, capped_clock=clocks, power_every=every
    )
    fleet = Fleet(chosen, ServedRequests(arrival, prompt, output), groups)
    fleet.run()
    asked, looks = looked(rows, costs, clocks, limit, every, blocks, 4)
    for name in ("scheduled", "first", "finished"):
        assert getattr(fleet.log, name) == pytest.approx([getattr(r, name) for r in asked], rel=1e-9), name
    power = fleet.elastic.power
    for look in power.looks[:-1]:  # the last one is at the end
        near = min(looks, key=lambda at: abs(at - look.at), default=look.at)
        if look.at - look.begin < 1.5 * every and abs(near - look.at) < 1e-9:
            assert look.watts == pytest.approx(looks[near], rel=1e-6)
    joules = sum(look.watts * (look.at - look.begin) for look in power.looks)
    spent = sum(engine.account.joules for engine in fleet.engines) + count * STANDING * (power.looked - arrival[0])
    assert joules == pytest.approx(spent, rel=1e-6)
    check_conserved(fleet, output)
    end = float(fleet.log.finished.max())
    above = sum((look.at - look.begin) * (look.watts > limit * (1 + 1e-9)) for look in power.looks)
    assert power.result(end)["over"] == pytest.approx(above / (power.looked - arrival[0]))


def test_what_is_never_reached_changes_nothing_and_what_always_is_lowers_every_clock():
    rows = [(0.01 * n, 60, 40, 0) for n in range(20)]
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    ends = []
    for limit in (None, 1e6, 2 * STANDING + 1):
        keys = {} if limit is None else {"power_limit": limit, "capped_clock": 0.5, "power_every": 0.05}
        group = ReplicaGroup(
            Drawing(COSTS), 900, 2, lowered=(Drawing(COSTS, 0.5),) if keys else (), standing_w=STANDING
        )
        fleet = Fleet(ServeSettings(**keys), ServedRequests(arrival.astype(float), prompt, output), [group])
        fleet.run()
        ends.append(fleet.log.finished)
        if limit == 1e6:
            assert fleet.elastic.power.result(float(ends[-1].max()))["capped_s"] == 0
    assert ends[1] == pytest.approx(ends[0])
    assert ends[2].max() - 0.1 == pytest.approx((ends[0].max() - 0.1) * 5 / 3, rel=0.1)
