"""Requests that move between replicas, beside a simulation that copies engines to see what their step will leave."""

import copy
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from tests.sim.service import naive
from tests.sim.service.test_replica import ROWS, Linear, apart, served

COSTS = (0.01, 1e-4, 2e-3, 1e-5)


class Engine(naive.Engine):
    """A scheduler that blocks are held at for requests on their way, and that these come to before all others."""

    def __init__(self, **rules):
        super().__init__(**rules)
        self.coming, self.leaving, self.moves, self.ends, self.arrived = [], [], [], None, 0

    def key(self, r):
        return r.place

    def free(self):
        return super().free() - sum(move["held"] for move in self.moves)

    def give_back(self):
        held = [move for move in self.moves if move["held"] and not move["come"]]
        if not held:
            return False
        staying = [move for move in held if not move["left"]]
        (staying or held)[-1]["held"] = 0
        if staying:
            staying[-1]["over"] = True
        return True

    def step(self, now):
        running, waiting, preempted = self.running, self.waiting, False
        waiting.sort(key=self.key)
        while self.reserved() > self.free():
            if not self.give_back():
                self.preempt()
                preempted = True
        preempted = preempted and bool(running)
        plan, left, reserved = {}, self.budget - len([r for r in running if r.answering]), self.reserved()
        for r in [r for r in running if not r.answering]:
            if left <= 0 or r not in running:
                continue
            size = min(left, r.target - r.cached)
            while r in running and self.needs(r, size) > self.free() - reserved:
                if not self.give_back():
                    self.preempt()
                    preempted = True
                    reserved = self.reserved()
            if r not in running:
                break
            r.blocks += self.needs(r, size)
            plan[r] = size
            left -= size
        waiting.sort(key=self.key)
        preempted = preempted and bool(running)
        while (self.coming or waiting) and not preempted and len(running) < self.most:
            if self.coming:
                move = self.coming[0]
                r, there = move["r"], math.ceil(move["r"].cached / self.block)
                more = there + (r.cached % self.block == 0) - move["held"]
                if more > max(self.free() - reserved, 0):
                    if not plan and not running and self.give_back():
                        continue
                    break
                self.coming.pop(0)
                self.moves.remove(move)
                r.blocks = there
                running.append(r)
                reserved = self.reserved()
                left -= 1
                continue
            r = waiting[0]
            size = min(left, r.target)
            if left <= 0:
                break
            if self.needs(r, size) > self.free() - reserved:
                if not plan and not running and self.give_back():
                    continue
                break
            waiting.pop(0)
            running.append(r)
            r.blocks += self.needs(r, size)
            r.scheduled = now if r.scheduled is None else r.scheduled
            plan[r] = size
            left -= size
        decoding = [r for r in running if r.answering]
        self.doing = plan, decoding
        return [(size, r.cached) for r, size in plan.items()], [r.cached + 1 for r in decoding]

    def end(self, now):
        super().end(now)
        for r in self.leaving:
            self.running.remove(r)
            r.blocks = 0
        self.leaving = []

    def later(self):
        """What it will be when the step under way has ended."""
        made = copy.deepcopy(self)
        if made.ends is not None:
            made.end(made.ends)
        return made


class World:
    def __init__(self, rows, seconds, count, below, above, every, copy_s, **rules):
        self.rows = [naive.Asked(n, *row) for n, row in enumerate(rows)]
        self.engines = [Engine(**rules) for _ in range(count)]
        self.seconds, self.below, self.above, self.every, self.copy_s = seconds, below, above, every, copy_s
        self.moved, self.turn, self.most, self.block = 0, 0, rules["most"], rules["block"]

    def free(self, p):
        e = self.engines[p].later()
        first = min(e.waiting, key=e.key, default=None)
        return (e.free() - (math.ceil(first.target / e.block) if first else 0)) * e.block / max(len(e.running), 1)

    def room(self, move, length):
        """Blocks for so many tokens and the next, beside what the next step begins."""
        e = self.engines[move["to"]]
        later, wanted = e.later(), math.ceil((length + 1) / self.block) - move["held"]
        if 0 < wanted > later.free() - later.reserved():
            return False
        move["held"] += wanted
        return True

    def begin(self, now, source, target):
        a, b = self.engines[source], self.engines[target]
        later, there = a.later(), b.later()
        ready = [r for r in later.running if r.answering]
        if not ready or len(there.running) + len(there.waiting) + len(there.coming) >= self.most:
            return
        chosen = min(ready, key=lambda r: (r.cached, r.place))
        r = next(each for each in a.running if each.number == chosen.number)
        move = {"r": r, "of": source, "to": target, "copied": chosen.cached, "rest": chosen.cached, "held": 0}
        move |= {"left": False, "come": False, "over": False, "preempted": r.preempted}
        if self.room(move, chosen.cached):
            b.moves.append(move)
            self.under_way.append(move)
            start = now if a.ends is None else a.ends
            self.events.append((start + self.copy_s(chosen.cached), "copied", move))

    def give(self, r):
        e = self.engines[self.turn % len(self.engines)]
        self.turn += 1
        e.arrived += 1
        r.place, r.target, r.cached, r.blocks = e.arrived, r.prompt + r.made, 0, 0
        e.waiting.append(r)

    def happens(self, now, kind, what):
        if kind == "come":
            self.give(what)
        elif kind == "look":
            self.events.append((now + self.every, "look", None))
            busy = {m["of"] for m in self.under_way if not m["over"]} | {
                m["to"] for m in self.under_way if not m["over"]
            }
            free = {p: self.free(p) for p in range(len(self.engines))}
            low = sorted((f, p) for p, f in free.items() if f < self.below and p not in busy)
            high = sorted((-f, p) for p, f in free.items() if f > self.above and p not in busy)
            for (_, source), (_, target) in zip(low, high, strict=False):
                self.begin(now, source, target)
        elif kind == "copied":
            self.copied(now, what)
        else:
            self.arrives(now, what)

    def copied(self, now, move):
        if move["over"]:
            return
        r, source, target = move["r"], self.engines[move["of"]], self.engines[move["to"]]
        there = [each for each in source.later().running if each.number == r.number and each.answering]
        length = there[0].cached if there else 0
        if not there or there[0].preempted != move["preempted"] or not self.room(move, length):
            target.moves.remove(move)
            self.under_way.remove(move)
            return
        rest = length - move["copied"]
        if rest > self.block and rest < move["rest"]:
            move["copied"], move["rest"] = length, rest
            self.events.append((source.ends + self.copy_s(rest), "copied", move))
            return
        source.leaving.append(r)
        move["left"] = True
        self.events.append((source.ends + self.copy_s(rest), "arrives", move))

    def arrives(self, now, move):
        r, target = move["r"], self.engines[move["to"]]
        self.under_way.remove(move)
        if move["held"]:
            self.moved += 1
            move["come"] = True
            target.arrived += 1
            r.place = target.arrived
            target.coming.append(move)
        else:
            target.moves.remove(move)
            self.give(r)
        if self.free(move["to"]) > self.above and self.free(move["of"]) < self.below:
            self.begin(now, move["of"], move["to"])

    def run(self):
        self.events, self.under_way = [(r.arrival, "come", r) for r in self.rows], []
        self.events.append((self.rows[0].arrival + self.every, "look", None))
        while any(r.finished is None for r in self.rows):
            self.events.sort(key=lambda event: event[0])
            ends, p = min((math.inf if e.ends is None else e.ends, p) for p, e in enumerate(self.engines))
            if ends <= self.events[0][0]:
                now = ends
                self.engines[p].end(now)
                self.engines[p].ends = None
            else:
                now, kind, what = self.events.pop(0)
                self.happens(now, kind, what)
                if self.events and self.events[0][0] == now:
                    continue
            for e, seconds in zip(self.engines, self.seconds, strict=True):
                e.moves = [move for move in e.moves if not move["over"]]
                self.under_way = [move for move in self.under_way if not move["over"]]
                if e.ends is None and (e.waiting or e.running or e.coming):
                    e.ends = now + seconds(*e.step(now))
        return self


MOVING = [(0.0, 60, 40, 0), (0.01, 5, 2, 0), (0.02, 60, 40, 0), (0.03, 5, 2, 0), (0.5, 60, 30, 0)]

SHORT_OF_ROOM = [
    (0.0, 11, 20, 0),
    (0.0, 52, 15, 0),
    (0.0, 61, 28, 0),
    (0.0, 43, 14, 0),
    (0.0, 10, 23, 0),
    (0.0, 60, 2, 0),
]
"""Where one that has left finds that what was held for it was needed."""


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=150)
@given(
    ROWS,
    st.integers(2, 4),
    st.sampled_from([10.0, 30.0, 60.0, 150.0]),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.sampled_from([0.0217, 0.0613, 0.2177]),
    st.sampled_from([1e-5, 1.3e-3, 1.37e-2, 3.1e-2]),
    st.sampled_from([(4, 6), (4, 30), (16, 3), (16, 9)]),
    st.integers(1, 8),
)
@example(apart(MOVING), 2, 60.0, 1.0, 0.0217, 1.3e-3, (4, 6), 8)
@example(apart(MOVING), 2, 60.0, 1.0, 0.0217, 1.37e-2, (4, 6), 8)
@example([(0.0, 1, 15, 0), (0.0, 1, 13, 0), (0.0, 13, 1, 0), (0.0, 1, 1, 0)], 2, 10.0, 1.0, 0.0217, 1e-05, (4, 6), 1)
@example(SHORT_OF_ROOM, 4, 30.0, 1.0, 0.0217, 0.0013, (4, 6), 2)
def test_requests_move_as_where_everything_is_looked_up(rows, count, below, ratio, every, token_s, memory, most):
    block, spare = memory
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / block) + spare
    costs = [Linear(COSTS[0] * (1 + place * math.sqrt(2) * 1e-5), *COSTS[1:]) for place in range(count)]
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    rules = {"block": block, "max_sequences": most, "token_budget": 64}
    limits = {"migrate_below": below, "migrate_above": below * ratio, "migrate_every": every}
    groups = [ReplicaGroup(each, blocks, 1) for each in costs]

    def copy_s(tokens):
        return 1.7e-4 + token_s * tokens

    fleet = Fleet(
        ServeSettings(**rules, **limits), ServedRequests(arrival, prompt, output), groups, (), lambda n: copy_s(n)
    )
    fleet.run()
    seconds = [each.seconds for each in costs]
    world = World(
        rows, seconds, count, below, below * ratio, every, copy_s, blocks=blocks, block=block, most=most, budget=64
    ).run()
    log = fleet.log
    for name in ("scheduled", "first", "finished"):
        assert getattr(log, name) == pytest.approx([getattr(r, name) for r in world.rows], rel=1e-9), name
    assert log.preempted.tolist() == [r.preempted for r in world.rows]
    assert fleet.elastic.migration.moved == world.moved == int(log.moved.sum())
    check_conserved(fleet, output)


def check_conserved(fleet, output):
    """No request, token, interval or second is lost, nor a block held."""
    log, engines = fleet.log, fleet.engines
    assert log.complete
    assert sum(engine.account.tokens for engine in engines) == output.sum()
    assert sum(engine.account.intervals.count for engine in engines) == int((output - 1).sum())
    waited = sum(engine.account.intervals.total for engine in engines)
    assert waited == pytest.approx(float((log.finished - log.first).sum()), rel=1e-9, abs=1e-9)
    present = sum(engine.account.present_s for engine in engines) + fleet.apart_s
    assert present == pytest.approx(float((log.finished - log.arrival).sum()), rel=1e-9)
    assert all(engine.pool.free + engine.pool.cached == engine.pool.blocks for engine in engines)


@pytest.mark.slow(seconds=1)
@settings(max_examples=60)
@given(
    ROWS,
    st.integers(2, 3),
    st.sampled_from(["fcfs", "fair", "shortest", "priority"]),
    st.sampled_from([None, 0.4, 2.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["recompute", "swap"]),
)
def test_nothing_is_lost_on_the_way_whatever_replicas_are(rows, count, order, mean, shared, scales, preemption):
    """Orders, prefixes, turns, guesses, replicas that are lost or let go while requests are on their way."""
    number = len(rows)
    arrival, prompt, output, priority = (np.array(column) for column in zip(*rows, strict=True))
    session = np.arange(number) % 3
    requests = ServedRequests(
        arrival.astype(float),
        prompt,
        output,
        segments=tuple(((7, int(p)),) for p in prompt) if shared else (),
        answer=np.full(number, -1),
        session=session if shared else np.full(number, -1),
        client=session,
        priority=priority,
    )
    more = {"replicas_least": 1, "scale_at": 50.0, "start_s": 0.3} if scales else {}
    more |= {"lost_every": mean, "restart_s": 0.2} if mean else {}
    more |= {"speculate": 2, "acceptance": 0.6} if not shared else {"shared_attention": True}
    more |= {"preemption": "swap", "host_bandwidth": "1 GB/s"} if preemption == "swap" else {}
    chosen = ServeSettings(
        order=order, block=4, max_sequences=4, token_budget=32, migrate_below=30.0, migrate_every=0.05, **more
    )
    blocks = math.ceil((max(prompt + output) + 4) / 4) + 8
    group = ReplicaGroup(Linear(*COSTS), blocks, count, swap_s=1e-4)
    fleet = Fleet(chosen, requests, [group], (), lambda tokens: 1e-3 + 2e-4 * tokens)
    fleet.run()
    check_conserved(fleet, output)


def test_a_replica_whose_memory_is_short_sends_its_shortest_request_to_one_that_has_room():
    """Two long requests on one replica, whose blocks run out, and nothing to do on the other."""
    rows = [(0.0, 48, 60, 0), (0.001, 1, 1, 0), (0.002, 32, 60, 0)]
    keys = {"block": 4, "max_sequences": 8, "token_budget": 64}
    stays = served(rows, Linear(*COSTS), 30, count=2, handover=1e-6, **keys)
    moves = served(rows, Linear(*COSTS), 30, count=2, handover=1e-6, migrate_below=20.0, migrate_every=0.01, **keys)
    assert stays.log.preempted.tolist() == [0, 0, 1]
    assert stays.log.replica.tolist() == [0, 1, 0]
    assert moves.log.preempted.tolist() == [0, 0, 0]
    assert moves.log.moved.tolist() == [0, 0, 1]
    assert moves.log.replica.tolist() == [0, 1, 1]
    assert moves.log.finished[2] < stays.log.finished[2]


@pytest.mark.slow(seconds=1)
@given(ROWS, st.integers(2, 3))
def test_replicas_with_room_enough_keep_their_requests(rows, count):
    stay, live = (served(rows, Linear(*COSTS), 500, count=count, **keys) for keys in ({}, {"migrate_below": 1.0}))
    for name in ("scheduled", "first", "finished", "replica"):
        assert getattr(live.log, name) == pytest.approx(getattr(stay.log, name), rel=1e-9), name
    assert live.elastic.migration.moved == 0
