"""Experts that come from the host: which lie on the chips, which tokens use, and what a step waits for."""

import random
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service import offload
from siliconloom.sim.service.costs import EQUAL
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.offload import OFTEN, ONE_BY_ONE, ExpertRouting, OffloadedExperts
from siliconloom.workloads.popularity import chances_of, rows_of
from tests.sim.service.test_replica import ROWS, Linear

EIGHT = (0.25,) * 8


def lru(there, slots, used):
    """A step of one layer: those that are there first, then the others one by one; returns how many came."""
    hits = [each for each in used if each in there]
    missing = [each for each in used if each not in there]
    for each in hits:
        there.move_to_end(each)
    for each in missing:
        if len(there) == slots:
            there.popitem(last=False)
        there[each] = None
    return len(missing)


@given(
    st.integers(1, 9),
    st.lists(st.lists(st.sets(st.integers(0, 8)), min_size=2, max_size=2), max_size=12),
    st.booleans(),
)
def test_chips_have_what_was_used_last(slots, steps, loses):
    """Beside an ordered dictionary of each layer."""
    found = OffloadedExperts(ExpertRouting(2, (1 / 9,) * 9, slots, 0.5), 0, 0)
    there = [OrderedDict((each, None) for each in reversed(range(slots))) for _ in range(2)]
    for number, layers in enumerate(steps):
        if loses and number == len(steps) // 2:
            found.clear()
            there = [OrderedDict((each, None) for each in reversed(range(slots))) for _ in range(2)]
        used = np.zeros((2, 9), np.bool_)
        for layer, some in enumerate(layers):
            used[layer, sorted(some)] = True
        expected = [lru(each, slots, sorted(some)) for each, some in zip(there, layers, strict=True)]
        assert found.bring(used).tolist() == expected
    assert found.used == sum(len(some) for layers in steps for some in layers)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.integers(1, 4))
def test_chances_are_rows_of_many_tokens(weights, used):
    """In proportion to weights, a whole one at most, as many as a token uses."""
    if sum(weight > 0 for weight in weights) < used:
        with pytest.raises(ValueError, match="must have tokens"):
            chances_of(weights, used)
        return
    found = chances_of(weights, used)
    assert sum(found) == pytest.approx(used)
    assert [round(each * 10**6) for each in found] == pytest.approx(rows_of(weights, 10**6, used), abs=1)


@pytest.mark.parametrize("most", [ONE_BY_ONE, 0])
@pytest.mark.parametrize("often", [OFTEN, 0])
@pytest.mark.parametrize("weights", [(1,) * 8, (5, 4, 3, 2, 1, 1, 1, 1), (100, 1, 1, 1, 1)])
def test_tokens_use_experts_with_their_chances(monkeypatch, weights, most, often):
    """One token uses two different ones; shares are the same whether tokens draw one by one or all at once."""
    monkeypatch.setattr(offload, "ONE_BY_ONE", most)
    monkeypatch.setattr(offload, "OFTEN", often)
    chances = tuple(chances_of(weights, 2))
    found = OffloadedExperts(ExpertRouting(400, chances, 1, 0.0), 3, 0)
    if most or (often and len(set(weights)) == 1):
        assert all((found.drawn(1).sum(axis=1) == 2).all() for _ in range(10))
    for tokens in (1, 3):
        used = np.concatenate([found.drawn(tokens) for _ in range(10)])
        expected = 1 - (1 - np.array(chances)) ** tokens
        spread = np.sqrt(expected * (1 - expected) / len(used))
        assert (np.abs(used.mean(axis=0) - expected) <= 5 * spread + 1e-9).all()


@given(st.sampled_from([(256, 8), (128, 4), (64, 6), (8, 2), (8, 8), (16, 1)]), st.integers(1, 140), st.booleans())
def test_no_more_experts_are_used_than_tokens_can_use(experts, tokens, popular):
    """As long as tokens draw one by one; all where each token uses all."""
    number, used = experts
    chances = chances_of([1 + (popular and place < 2) for place in range(number)], used)
    drawn = OffloadedExperts(ExpertRouting(7, tuple(chances), 1, 0.0), 1, 0).drawn(tokens)
    few = tokens * number <= ONE_BY_ONE if popular else tokens * used <= OFTEN * number
    most = min(tokens * used, number)
    if few or used == number:
        assert (drawn.sum(axis=1) <= most).all()
        assert (drawn.sum(axis=1) >= used).all()
    if used == number:
        assert drawn.all()


def test_replicas_draw_experts_of_their_own():
    routing = ExpertRouting(4, EIGHT, 2, 0.0)
    one, other = (OffloadedExperts(routing, 0, index).drawn(1) for index in range(2))
    assert (one != other).any()
    fleet = run([(0.1 * n, 8, 8, 0) for n in range(8)], routing, 2)
    assert fleet.engines[0].experts.loads != fleet.engines[1].experts.loads


@given(
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(1, 40),
    st.lists(st.sampled_from([0.0, 0.001, 0.3]), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([0.0, 0.2155, 1.0145, float("inf")]),
)
def test_steps_wait_for_what_comes(layers, slots, tokens, own, ahead, limit):
    """Beside a second one that is told the same draws: all of it, or what takes longer than the layer before."""
    routing = ExpertRouting(layers, EIGHT, slots, 0.01, ahead)
    found, other = OffloadedExperts(routing, 5, 1), OffloadedExperts(routing, 5, 1)
    seconds = found.steps(tokens, np.array(own), limit, np.array(own) / 3)
    elapsed = waited = 0.0
    for number, each in enumerate(own):
        if number and elapsed >= limit:
            assert len(seconds) == number
            break
        loads = other.bring(other.drawn(tokens)).tolist()
        wait = 0.0
        for layer, many in enumerate(loads):
            hidden = each / 3 if ahead and layer else 0.0
            wait += max(many * 0.01 - hidden, 0.0)
        assert seconds[number] == pytest.approx(each + wait)
        elapsed, waited = elapsed + each + wait, waited + wait
    assert found.waited_s == pytest.approx(waited)
    assert found.loads == other.loads


def run(rows, routing=None, count=1, **keys):
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output)
    group = ReplicaGroup(Linear(0.01, 1e-4, 2e-3, 1e-5), 4000, count, experts=routing)
    fleet = Fleet(ServeSettings(**keys), requests, [group])
    fleet.run()
    return fleet


@settings(max_examples=40)
@given(ROWS, st.integers(1, 7), st.integers(1, 3), st.sampled_from(["continuous", "static", "prefill_first"]))
def test_experts_that_come_at_once_change_nothing(rows, slots, count, batching):
    bare = run(rows, count=count, batching=batching)
    free = run(rows, ExpertRouting(3, EIGHT, slots, 0.0), count, batching=batching)
    for name in ("first", "finished", "scheduled"):
        assert getattr(free.log, name) == pytest.approx(getattr(bare.log, name), abs=1e-9)
    assert sum(each.experts.loads for each in free.engines) > 0 or slots == 7
    assert [each.account.joules for each in free.engines] == pytest.approx([e.account.joules for e in bare.engines])


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("guesses", [0, 2])
def test_every_token_of_a_step_draws(monkeypatch, batching, guesses):
    """Prompts, next tokens, guesses, and of static batches those that wait for the others."""
    told = []
    monkeypatch.setattr(
        OffloadedExperts, "steps", lambda self, tokens, seconds, *_: told.extend([tokens] * len(seconds)) or seconds
    )
    rows = [(0.0, 10, 3, 0), (0.0, 20, 7, 0)]
    if guesses and batching == "static":
        return
    keys = {"speculate": guesses, "acceptance": 0.0} if guesses else {}
    run(rows, ExpertRouting(1, EIGHT, 1, 0.0), batching=batching, **keys)
    if batching == "static":  # the shorter answer's places are computed until the longer one ends
        assert told == [30, *[2] * 6]
    else:
        assert told == [30, *[2 * (1 + guesses)] * 2, *[1 + guesses] * 4]


def test_a_replica_that_was_lost_begins_anew():
    """Its successor has the first experts again, of whatever was there before."""
    life = next(seed for seed in range(1000) if 20 < np.random.default_rng((seed, 1, 0)).exponential(1e3) < 90)
    rows = [(0.0, 8, 20, 0), (100.0, 1, 1, 0)]
    kept = {}
    for lost in ({}, {"lost_every": 1e3, "restart_s": 1.0}):
        fleet = run(rows, ExpertRouting(400, (1.0, *[0.0] * 7), 1, 0.0), **lost, seed=life if lost else 0)
        kept[bool(lost)] = fleet.engines[0].experts
    assert (kept[True]._step, kept[False]._step) == (1, 21)  # counted since the last life began


class Layered(Linear):
    """A tenth of a step is a layer's."""

    def layer_seconds(self, chunks, ended, count, contexts, lengths=EQUAL):
        return self.steps(chunks, ended, count, contexts, lengths)[0] / 10


def test_a_layer_hides_what_comes_for_the_next_one():
    waited = {}
    for ahead in (False, True):
        requests = ServedRequests(np.zeros(1), np.array([8]), np.array([40]))
        routing = ExpertRouting(5, EIGHT, 2, 0.0005, ahead)
        fleet = Fleet(ServeSettings(), requests, [ReplicaGroup(Layered(0.01, 0, 0, 0), 4000, 1, experts=routing)])
        fleet.run()
        waited[ahead] = fleet.engines[0].experts
    assert waited[True].loads == waited[False].loads  # a layer takes 1 ms, as two experts do
    assert 0 < waited[True].waited_s < 0.5 * waited[False].waited_s


@settings(max_examples=40)
@given(ROWS, st.integers(1, 6), st.sampled_from(["continuous", "static"]))
def test_one_request_after_the_other_waits_as_long_as_steps_do(rows, slots, batching):
    """Nobody is beside another one: what is slower than without is what steps waited, draw for draw."""
    rows = [(1000.0 * number, prompt, output, 0) for number, (_, prompt, output, _) in enumerate(rows)]
    bare = run(rows, batching=batching)
    slow = run(rows, ExpertRouting(3, EIGHT, slots, 0.02), batching=batching)
    experts = slow.engines[0].experts
    assert (slow.log.finished - bare.log.finished).sum() == pytest.approx(experts.waited_s)
    assert experts.waited_s == pytest.approx(experts.loads * 0.02)
    assert slow.engines[0].busy_s - bare.engines[0].busy_s == pytest.approx(experts.waited_s)
    tokens = int(slow.requests.prompt.sum() + (slow.requests.output - 1).sum())
    assert experts.used <= min(2 * 3 * tokens, 8 * 3 * slow.engines[0].account.steps)


@pytest.mark.parametrize(("slots", "tokens"), [(2, 1), (4, 1), (6, 4)])
def test_as_many_come_as_where_tokens_draw_by_themselves(slots, tokens):
    """Beside tokens that each take two of eight by Python's own choice, over 6,000 steps of a layer."""
    found = OffloadedExperts(ExpertRouting(1, EIGHT, slots, 1.0), 11, 0)
    found.steps(tokens, np.zeros(6000), float("inf"))
    chance, there, loads, uses = random.Random(2), OrderedDict.fromkeys(range(slots)), 0, 0
    for _ in range(6000):
        used = sorted({each for _ in range(tokens) for each in chance.sample(range(8), 2)})
        loads, uses = loads + lru(there, slots, used), uses + len(used)
    assert found.loads / found.used == pytest.approx(loads / uses, rel=0.04)
    if tokens == 1:  # all as likely: what was used last is no likelier to be used next
        assert found.loads / found.used == pytest.approx(1 - slots / 8, abs=0.02)


def test_guesses_use_experts_too():
    """A step of a request with three guesses passes four tokens."""
    rows = [(0.0, 8, 40, 0)]
    guessing = run(rows, ExpertRouting(1, EIGHT, 1, 0.0), speculate=3, acceptance=0.0)
    plain = run(rows, ExpertRouting(1, EIGHT, 1, 0.0))
    steps = guessing.engines[0].account.steps
    assert steps == plain.engines[0].account.steps
    assert guessing.engines[0].experts.used > 1.7 * plain.engines[0].experts.used
