"""Replicas that come and go, beside a simulation that goes from one event to the next and looks everything up."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.elastic import LOOK_S
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from tests.sim.service import naive
from tests.sim.service.test_replica import ROWS, Linear, Staged, apart, served

COSTS = (0.01, 1e-4, 2e-3, 1e-5)


def due(engine):
    """Tokens that an engine has to do once the step that it is in has ended."""
    total = 0
    for r in [*engine.waiting, *engine.running]:
        total += r.output - r.made + (0 if r.answering else r.target - r.cached)
    if engine.ends is not None:
        plan, decoding = engine.doing
        total -= len(decoding) + sum(size + (r.cached + size == r.target) for r, size in plan.items())
    return total


THREE = apart([(0.0, 90, 40, 0), (0.1, 90, 40, 0), (0.2, 90, 40, 0)])


class ByArrival(naive.Engine):
    """Who came to it first is first: requests come back in an order that is not that of their numbers."""

    def key(self, r):
        return (r.place,)


class Oracle:
    """States of places are looked up at every event; every step is one."""

    def __init__(self, rows, seconds, count, least, scale_at, start_s, mean, restart_s, router, **rules):
        self.rows = [naive.Asked(n, *row) for n, row in enumerate(rows)]
        self.engines = [ByArrival(**rules) for _ in range(count)]
        self.rules, self.seconds = rules, seconds
        self.state, self.since, self.lives = ["away"] * count, [None] * count, [0] * count
        self.random = [np.random.default_rng((0, 1, place)) for place in range(count)]
        self.least, self.scale_at, self.start_s, self.mean, self.restart_s = least, scale_at, start_s, mean, restart_s
        self.router, self.turn, self.paid, self.remade, self.started = router, 0, 0.0, 0, 0
        self.events, self.at_router = [], []
        for engine in self.engines:
            engine.ends = None

    def places(self, *states):
        return [p for p, state in enumerate(self.state) if state in states]

    def open(self, p, now):
        self.state[p] = "open"
        if self.since[p] is None:
            self.since[p] = now
        if self.mean:
            self.events.append((now + self.random[p].exponential(self.mean), "lost", (p, self.lives[p])))
        waiting, self.at_router = self.at_router, []
        for r in waiting:
            self.give(r)

    def give(self, r):
        there = self.places("open")
        if not there:
            self.at_router.append(r)
            return
        if len(there) == 1:
            p = there[0]
        elif self.router == "round_robin":
            p = there[self.turn % len(there)]
            self.turn += 1
        else:
            p = min(there, key=lambda p: (due(self.engines[p]), p))
        self.engines[p].arrived = getattr(self.engines[p], "arrived", 0) + 1
        r.place = self.engines[p].arrived
        r.target, r.cached, r.blocks = r.prompt + r.made, 0, 0
        self.engines[p].waiting.append(r)

    def gone(self, p, now):
        self.paid += now - self.since[p]
        self.since[p], self.state[p] = None, "away"
        self.lives[p] += 1
        engine = self.engines[p]
        back = [*engine.waiting, *engine.running]
        engine.waiting.clear()
        engine.running.clear()
        return sorted(back, key=lambda r: r.place)

    def look(self, now):
        self.settle(now)
        if self.least is None:
            return
        total = sum(due(self.engines[p]) for p in self.places("open"))
        total += sum(r.output - r.made + r.prompt for r in self.at_router)
        number = len(self.places("open", "starting", "dying, returns"))
        while total > self.scale_at * number and number < len(self.engines):
            number += 1
            if self.places("draining"):
                p = self.places("draining")[0]
                self.state[p] = "open"
                total += due(self.engines[p])
                continue
            if not self.places("away"):
                break
            p = self.places("away")[0]
            self.state[p], self.since[p] = "starting", now
            self.started += 1
            self.events.append((now + self.start_s, "up", p))
        if not self.places("starting", "dying, returns"):
            while number > self.least and total <= self.scale_at / 2 * (number - 1):
                p = min(reversed(self.places("open")), key=lambda p: due(self.engines[p]))
                total -= due(self.engines[p])
                number -= 1
                self.state[p] = "draining"
        self.settle(now)

    def settle(self, now):
        for p in self.places("draining"):
            engine = self.engines[p]
            if not engine.waiting and not engine.running and engine.ends is None:
                self.gone(p, now)

    def lost(self, p, now):
        returns = self.state[p] == "open"
        self.state[p] = "dying, returns" if returns else "dying"
        at = now if self.engines[p].ends is None else self.engines[p].ends
        self.events.append((at, "dead", (p, returns)))

    def run(self):
        begin = self.rows[0].arrival
        self.events = [(r.arrival, "come", r) for r in self.rows]
        if self.least is not None:
            self.events.append((begin + LOOK_S, "look", None))
        for p in range(self.least or len(self.engines)):
            self.open(p, begin)
        now = begin
        while any(r.finished is None for r in self.rows):
            self.events.sort(key=lambda event: event[0])
            ends = min((e.ends, p) for p, e in enumerate([*self.engines, NEVER]) if e.ends is not None)
            if ends[0] <= self.events[0][0]:
                now, engine = ends[0], self.engines[ends[1]]
                engine.end(now)
                engine.ends = None
                self.settle(now)
            else:
                now, kind, what = self.events.pop(0)
                self.happens(now, kind, what)
                if any(event[0] == now for event in self.events):
                    continue
            for p, engine in enumerate(self.engines):
                if engine.ends is None and "dying" not in self.state[p] and (engine.waiting or engine.running):
                    engine.ends = now + self.seconds[p](*engine.step(now))
        self.paid += sum(now - since for since in self.since if since is not None)
        return self

    def happens(self, now, kind, what):
        if kind == "come":
            self.give(what)
            self.look(now)
        elif kind == "look":
            self.look(now)
            self.events.append((now + LOOK_S, "look", None))
        elif kind == "up":
            self.open(what, now)
        elif kind == "lost":
            p, life = what
            if self.lives[p] == life and self.state[p] in ("open", "draining"):
                self.lost(p, now)
        else:
            p, returns = what
            back = self.gone(p, now)
            self.remade += len(back)
            if returns:
                self.state[p] = "starting"
                self.events.append((now + self.restart_s, "up", p))
            for r in back:
                self.events.append((now, "come", r))


class NEVER:
    ends = math.inf


@pytest.mark.slow(seconds=1)
@settings(max_examples=150)
@given(
    ROWS,
    st.integers(2, 4),
    st.sampled_from([None, 1, 1, 2]),
    st.integers(5, 300),
    st.sampled_from([0.0123, 0.2345, 1.7531]),
    st.sampled_from([None, 0.3, 1.0, 5.0]),
    st.sampled_from([0.0431, 0.6173]),
    st.sampled_from(["least_loaded", "round_robin"]),
    st.sampled_from([(4, 30), (16, 9)]),
)
@example(THREE, 2, 1, 20, 0.0123, 0.3, 0.0431, "least_loaded", (4, 30))
def test_replicas_that_come_and_go_are_as_one_that_looks_everything_up(
    rows, count, least, scale_at, start_s, mean, restart_s, router, memory
):
    if least is None and mean is None:
        mean = 1.0
    least = None if least is None or least >= count else least
    if least is None and mean is None:
        return
    block, spare = memory
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / block) + spare
    keys = {} if least is None else {"replicas_least": least, "scale_at": scale_at, "start_s": start_s}
    keys |= {} if mean is None else {"lost_every": mean, "restart_s": restart_s}
    rules = {"block": block, "max_sequences": 8, "token_budget": 64}
    costs = [
        Linear(COSTS[0] * (1 + place * math.sqrt(2) * 1e-5), *COSTS[1:]) for place in range(count)
    ]  # no two in step
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    groups = [ReplicaGroup(each, blocks, 1) for each in costs]
    fleet = Fleet(ServeSettings(router=router, **rules, **keys), ServedRequests(arrival, prompt, output), groups)
    fleet.run()
    oracle = Oracle(
        rows, [each.seconds for each in costs], count, least, scale_at, start_s, mean, restart_s, router,
        blocks=blocks, block=block, most=8, budget=64,
    ).run()  # fmt: skip
    log, elastic = fleet.log, fleet.elastic
    for name in ("scheduled", "first", "finished"):
        assert getattr(log, name) == pytest.approx([getattr(r, name) for r in oracle.rows], rel=1e-9), name
    last = float(log.finished.max())
    assert sum(elastic.paid(rows[0][0], last)) == pytest.approx(oracle.paid, rel=1e-9, abs=1e-9)
    assert elastic.started == oracle.started
    assert int(log.lost.sum()) == oracle.remade
    assert sum(r.account.tokens for r in fleet.replicas) == sum(o for _, _, o, _ in rows)  # no token is made twice
    present = sum(engine.account.present_s for engine in fleet.engines) + fleet.apart_s
    assert present == pytest.approx(float((log.finished - log.arrival).sum()), rel=1e-9)
    for replica, able in zip(fleet.replicas, elastic.able(rows[0][0], last), strict=True):
        assert replica.busy_s <= able * (1 + 1e-9) + 1e-9


@pytest.mark.slow(seconds=1)
@settings(max_examples=60)
@given(
    ROWS,
    st.integers(1, 3),
    st.sampled_from([0.4, 2.0]),
    st.integers(1, 3),
    st.sampled_from(["fcfs", "fair", "shortest"]),
    st.booleans(),
    st.booleans(),
)
def test_what_is_lost_is_answered_once_whatever_replicas_are(rows, count, mean, stages, order, shared, scales):
    """Pipelines, turns of conversations, prefixes, clients and guesses: no request, token, block or second is lost."""
    number = len(rows)
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    session = np.arange(number) % 3
    requests = ServedRequests(
        arrival.astype(float),
        prompt,
        output,
        segments=tuple(((7, int(p)),) if shared else () for p in prompt) if shared else (),
        answer=np.full(number, -1),
        session=session if shared else np.full(number, -1),
        client=session,
    )
    costs = Linear(*COSTS) if stages == 1 else Staged(COSTS, (1 / stages,) * stages, 0.001, 0.0005)
    guesses = {"speculate": 2, "acceptance": 0.6} if stages == 1 and not shared else {}
    more = {"replicas_least": 1, "scale_at": 50.0, "start_s": 0.3} if scales else {}
    more |= {"shared_attention": True} if shared else {}
    chosen = ServeSettings(lost_every=mean, restart_s=0.2, order=order, block=4, **guesses, **more)
    fleet = Fleet(chosen, requests, [ReplicaGroup(costs, 400 * stages, count + 1, stages=stages)])
    fleet.run()
    log = fleet.log
    assert log.complete
    assert sum(engine.account.tokens for engine in fleet.engines) == output.sum()
    intervals = sum(engine.account.intervals.count for engine in fleet.engines)
    assert intervals == int((output - 1).sum())
    waited = sum(engine.account.intervals.total for engine in fleet.engines)
    assert waited == pytest.approx(float((log.finished - log.first).sum()), rel=1e-9, abs=1e-9)
    present = sum(engine.account.present_s for engine in fleet.engines) + fleet.apart_s
    assert present == pytest.approx(float((log.finished - log.arrival).sum()), rel=1e-9)


@given(ROWS, st.integers(2, 4), st.sampled_from(["round_robin", "least_loaded"]))
def test_replicas_that_are_never_lost_are_as_those_that_stay(rows, count, router):
    stay, live = (
        served(rows, Linear(*COSTS), 500, count=count, router=router, **keys)
        for keys in ({}, {"lost_every": 1e12, "restart_s": 1.0})
    )
    for name in ("scheduled", "first", "finished", "replica"):
        assert getattr(live.log, name) == pytest.approx(getattr(stay.log, name), rel=1e-9), name
    last = float(live.log.finished.max())
    assert live.elastic.paid(rows[0][0], last) == pytest.approx([last - rows[0][0]] * count)


@pytest.mark.slow(seconds=1.5)
def test_replicas_are_up_as_long_as_lives_and_restarts_say():
    """An alternating renewal process: of all time, a replica is there for life / (life + restart)."""
    rows = [(float(at), 1, 1, 0) for at in range(20000)]
    fleet = served(rows, Linear(*COSTS), 500, count=4, router="least_loaded", lost_every=30.0, restart_s=10.0)
    able = np.array(fleet.elastic.able(0.0, 19999.0)) / 19999.0
    cycles = 20000 / 40
    assert able.mean() == pytest.approx(0.75, abs=4 * 0.75 * 0.25 / math.sqrt(4 * cycles) * math.sqrt(2))
    assert fleet.elastic.lost == pytest.approx(4 * cycles, rel=0.1)


def test_a_request_that_takes_longer_than_replicas_live_is_told():
    with pytest.raises(LoomError, match=r"serve\.lost_every 0\.001: request 1 was lost 1,000 times"):
        served(
            [(0.0, 90, 2, 0)],
            Linear(0.01, 0.1, 0, 0),
            500,
            token_budget=8,
            max_sequences=8,
            lost_every=0.001,
            restart_s=0.0,
        )


def test_what_was_cached_is_gone_with_its_replica():
    life = np.random.default_rng((0, 1, 0)).exponential(4.0)
    times = np.array([0.0, 0.8 * life, life + 1.5])
    requests = ServedRequests(times, np.full(3, 80), np.full(3, 2), segments=(((7, 64),),) * 3)
    fleet = Fleet(ServeSettings(lost_every=4.0, restart_s=1.0), requests, [ReplicaGroup(Linear(*COSTS), 500, 1)])
    fleet.run()
    assert fleet.log.cached.tolist() == [0, 64, 0]


def test_a_replica_goes_where_the_others_would_have_half_of_what_starts_one():
    """One token a second: of the last answer's 300, 121 are due after 180 s and 106 after 195; 240 start another."""
    rows = [(0.0, 1, 100, 0), (0.001, 1, 100, 0), (0.01, 1, 300, 0), (1e4, 1, 1, 0)]
    scales = {"replicas_least": 1, "scale_at": 240.0, "start_s": 0.0}
    fleet = served(rows, Linear(1.0, 0, 0, 0), 500, count=2, router="least_loaded", **scales)
    assert fleet.log.replica.tolist() == [0] * 4
    assert [each.end for each in fleet.elastic.periods if each.place == 1] == [195.0]


def test_what_a_pipeline_loses_while_it_waits_for_the_host_was_there_until_then():
    """A scheduler that waits for the host has a clock of before; its requests were here until they were lost."""
    rows = apart([(0.0, 1, 1, 0), (0.0, 9, 40, 0), (1.088, 1, 1, 0), (1.088, 1, 1, 0)])
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    costs = Staged(COSTS, (0.5, 0.5), 0.001, 0.0005)
    for seed in range(30):
        keys = {"lost_every": 0.4, "restart_s": 0.2, "seed": seed}
        chosen = ServeSettings(block=4, replicas_least=1, scale_at=50.0, start_s=0.3, **keys)
        requests = ServedRequests(arrival.astype(float), prompt, output)
        fleet = Fleet(chosen, requests, [ReplicaGroup(costs, 800, 2, stages=2)])
        fleet.run()
        present = sum(engine.account.present_s for engine in fleet.engines) + fleet.apart_s
        assert present == pytest.approx(float((fleet.log.finished - fleet.log.arrival).sum()), rel=1e-9)
