"""Training in what steps leave over, beside a second schedule that goes from step to step and tries every window."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.costs import COUNTS
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.tuning import Tuner, Tuning
from tests.sim.service import naive
from tests.sim.service.test_replica import ROWS, Linear


class Trained(Linear):
    """Costs that are a sum, those of a window's way back among them."""

    def backward(self, new, known):
        return 3e-5 * new + 1e-7 * known, 2.0 * new


class NaiveTuner:
    def __init__(self, costs, sequence, limit, read_s, update_s):
        self.costs, self.sequence, self.limit = costs, sequence, limit
        self.read_s, self.update_s = read_s, update_s
        self.forward, self.done, self.tokens, self.sequences = True, 0, 0, 0

    def taken(self, size, chunks, contexts):
        """Seconds of a step with a window of so many tokens."""
        plain = self.costs.seconds(chunks, contexts) if chunks or contexts else 0.0
        if self.forward:
            return self.costs.seconds([*chunks, (size, self.done)], contexts) + self.read_s
        known = self.sequence - self.done - size
        back = self.costs.seconds([(size, known)], []) + self.costs.backward(size, known)[0] + self.read_s
        return plain + back + (self.update_s if known == 0 else 0.0)

    def step(self, chunks, contexts, budget):
        room = min(self.sequence - self.done, budget - len(contexts) - sum(size for size, _ in chunks))
        fitting = [n for n in {*COUNTS, room} if 0 < n <= room and self.taken(n, chunks, contexts) <= self.limit]
        if not fitting:
            return self.costs.seconds(chunks, contexts) if chunks or contexts else math.inf
        size = max(fitting)
        seconds = self.taken(size, chunks, contexts)
        self.done += size
        self.tokens += size * (not self.forward)
        if self.done == self.sequence:
            self.sequences += not self.forward
            self.forward, self.done = not self.forward, 0
        return seconds


def naive_serve(rows, tuner, *, budget, **rules):
    asked = [naive.Asked(n, *row) for n, row in enumerate(rows)]
    to_come, engine, now = list(asked), naive.Engine(budget=budget, **rules), 0.0
    while True:
        while to_come and to_come[0].arrival <= now:
            engine.waiting.append(to_come.pop(0))
        if engine.waiting or engine.running:
            now += tuner.step(*engine.step(now), budget)
            engine.end(now)
        elif to_come:
            now += tuner.step([], [], budget)
        else:
            return asked


@pytest.mark.slow(seconds=2)
@settings(max_examples=200)
@given(
    ROWS,
    st.sampled_from([(4, 30), (16, 9), (16, 60)]),
    st.integers(1, 8),
    st.sampled_from([17, 64, 2048]),
    st.integers(1, 300),
    st.floats(0.0125, 0.08),
    st.sampled_from(["continuous", "prefill_first"]),
)
def test_training_is_as_where_every_window_is_tried(rows, memory, most, budget, sequence, limit, mode):
    block, spare = memory
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / block) + spare
    costs, most = Trained(0.01, 1e-4, 2e-3, 1e-5), min(most, budget)
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    tuning = Tuning(costs, sequence, limit, 1.3e-4, 0.7e-3)
    if not Tuner(tuning, budget).fits:
        return
    asked = ServeSettings(block=block, max_sequences=most, token_budget=budget, batching=mode)
    fleet = Fleet(asked, ServedRequests(arrival, prompt, output), [ReplicaGroup(costs, blocks, 1, tuning=tuning)])
    fleet.run()
    tuner = NaiveTuner(costs, sequence, limit, 1.3e-4, 0.7e-3)
    found = naive_serve(rows, tuner, budget=budget, blocks=blocks, block=block, most=most, mode=mode)
    log = fleet.log
    for name, ours in (("scheduled", log.scheduled), ("first", log.first), ("finished", log.finished)):
        assert ours == pytest.approx([getattr(r, name) for r in found], rel=1e-9, abs=1e-12), name
    assert log.preempted.tolist() == [r.preempted for r in found]
    (replica,) = fleet.replicas
    assert (replica.tuner.tokens, replica.tuner.sequences) == (tuner.tokens, tuner.sequences)


def test_nobody_waits_longer_than_a_step_may_take():
    """Training alone, a request that comes in the middle of a window, and training up to the last answer."""
    costs = Trained(0.01, 1e-4, 2e-3, 0)
    tuning = Tuning(costs, 256, 0.05)
    requests = ServedRequests(np.array([0.0, 1.013, 5.0]), np.array([16] * 3), np.array([4] * 3))
    fleet = Fleet(ServeSettings(), requests, [ReplicaGroup(costs, 100, 2, tuning=tuning)])
    fleet.run()
    waited = fleet.log.scheduled - fleet.log.arrival
    assert (waited >= 0).all()
    assert waited.max() <= 0.05
    assert waited[1] > 0
    plain = Fleet(ServeSettings(), requests, [ReplicaGroup(costs, 100, 2)])
    plain.run()
    assert (plain.log.scheduled == plain.log.arrival).all()
    assert (fleet.log.finished - fleet.log.first).max() <= 3 * 0.05 + 1e-9
    for replica in fleet.replicas:
        alone = Tuner(tuning, 2048)
        ways = [float(alone.step().seconds[0]) for _ in range(2)]
        assert replica.tuner.tokens >= 256 * (4.5 / sum(ways) - 2)
        assert replica.clock >= fleet.log.finished.max()
        assert replica.account.joules >= 2.0 * replica.tuner.tokens
        table = replica.account.activity.table()
        assert table["joules"].sum() == pytest.approx(replica.account.joules)
        assert table["seconds"].sum() == pytest.approx(replica.busy_s)
        assert replica.account.joules > plain.replicas[0].account.joules


@pytest.mark.slow(seconds=1)
@settings(max_examples=60)
@given(ROWS, st.integers(1, 300), st.floats(0.021, 0.08))
def test_replicas_of_prompts_and_of_answers_train_both(rows, sequence, limit):
    """Those of prompts are as one that is asked for a token each; those of answers wait for no longer than a step."""
    costs = Trained(0.01, 1e-4, 2e-3, 1e-5)
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    group = ReplicaGroup(costs, 1000, 1, tuning=Tuning(costs, sequence, limit))
    if not Tuner(group.tuning, 2048).fits:
        return
    fleet = Fleet(ServeSettings(), ServedRequests(arrival, prompt, output), [group], [group])
    fleet.run()
    tuner = NaiveTuner(costs, sequence, limit, 0.0, 0.0)
    found = naive_serve([(at, tokens, 1, 0) for at, tokens, _, _ in rows], tuner, budget=2048, blocks=1000)
    assert fleet.log.first == pytest.approx([r.first for r in found], rel=1e-9)
    for replica in fleet.replicas:
        assert replica.clock >= fleet.log.finished.max()
        assert replica.tuner.tokens <= sequence * (replica.tuner.sequences + 1)
        assert replica.account.joules >= 2.0 * replica.tuner.tokens


def test_a_step_with_adapters_takes_no_longer_than_it_may():
    """What reading adapters takes is a part of it."""
    costs = Trained(0.01, 1e-4, 1e-3, 0)
    requests = ServedRequests(np.zeros(4), np.array([16] * 4), np.array([40] * 4), adapter=np.arange(4))
    group = ReplicaGroup(costs, 100, 1, adapters=(4, 0.0, 3e-3), tuning=Tuning(costs, 4096, 0.05))
    fleet = Fleet(ServeSettings(), requests, [group])
    fleet.run()
    table = fleet.replicas[0].account.activity.table()
    steps = table["seconds"][table["decoding"] > 0]
    assert len(steps)
    assert 0.04 < steps.max() <= 0.05


@given(st.integers(1, 5000), st.integers(1, 4096), st.floats(0.0102, 1.0))
def test_every_token_goes_forward_and_back_once(sequence, budget, limit):
    class Seen(Trained):
        def steps(self, chunks, ended, count, contexts, lengths=()):
            assert ended == sum(size for size, _ in chunks)  # every token of a window has logits
            return super().steps(chunks, ended, count, contexts)

    tuner = Tuner(Tuning(Seen(0.01, 1e-5, 0, 0), sequence, limit), budget)
    if not tuner.fits:
        return
    ahead, back = [], []
    while tuner.sequences < 1:
        before = tuner.tokens
        step = tuner.step()
        assert 0 < step.size <= budget
        assert float(step.seconds[0]) <= limit
        (back if tuner.tokens > before else ahead).append(step.size)
    assert sum(ahead) == sum(back) == sequence == tuner.tokens
