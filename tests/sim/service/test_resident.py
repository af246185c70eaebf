"""LoRA adapters and models in slots, and clients that share a replica fairly."""

import math
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.resident import ResidentSlots
from siliconloom.sim.service.waiting import RequestQueue
from siliconloom.workloads.serving.trace import trace_of
from tests.sim.service import naive
from tests.sim.service.test_replica import ROWS, Linear, rules_of


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 4)), max_size=60), st.integers(1, 3))
def test_slots_hold_what_was_used_last_and_all_that_run(events, slots):
    """Beside a list that is ordered by use, of which nothing that runs is thrown away."""
    kept, users, found = OrderedDict(), {}, ResidentSlots(slots, 2.0, 0.5)
    running = []
    for enters, adapter in events:
        if not enters:
            if running:
                gone = running.pop(0)
                found.leave(gone)
                users[gone] -= 1
            continue
        active = {name for name, count in users.items() if count and name >= 0}
        fits = adapter < 0 or adapter in kept or len(active) < slots
        assert found.fits(adapter) is fits
        if not fits:
            continue
        expected = 0.0 if adapter < 0 or adapter in kept else 2.0
        if adapter >= 0:
            if adapter not in kept and len(kept) == slots:
                del kept[next(name for name in kept if name not in active)]
            kept[adapter] = None
            kept.move_to_end(adapter)
        assert found.enter(adapter) == expected
        users[adapter] = users.get(adapter, 0) + 1
        running.append(adapter)
        assert found.step_s == 0.5 * len({name for name, count in users.items() if count and name >= 0})


def served(rows, *, adapters=(0, 0.0, 0.0), **keys):
    arrival, prompt, output, adapter, client = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output, adapter=adapter, client=client)
    group = ReplicaGroup(Linear(0.01, 0, 0, 0), 1000, 1, adapters=adapters)
    fleet = Fleet(ServeSettings(**keys), requests, [group])
    fleet.run()
    return fleet


def test_an_adapter_is_loaded_once_and_read_in_every_step():
    rows = [(0.0, 8, 3, 5, -1), (1.0, 8, 3, 5, -1), (2.0, 8, 3, -1, -1)]
    fleet = served(rows, adapters=(1, 0.5, 0.001))
    first = fleet.log.first - fleet.log.arrival
    assert first == pytest.approx([0.511, 0.011, 0.01])
    assert fleet.log.finished - fleet.log.first == pytest.approx([0.022, 0.022, 0.02])
    assert fleet.replicas[0].adapters.loads == 1


def test_requests_of_more_adapters_than_slots_take_turns():
    rows = [(0.0, 8, 10, 1, -1), (0.0, 8, 10, 2, -1), (0.0, 8, 10, 1, -1)]
    log = served(rows, adapters=(1, 0.5, 0.0)).log
    assert log.scheduled[1] >= log.finished[0]
    assert served(rows, adapters=(2, 0.5, 0.0)).log.scheduled[1] == 0.0


def asked_of_models(rows, models, slots, load_s, costs, *, blocks=1000, count=1, **keys):
    """A fleet that has served (arrival, prompt, output, priority) rows, each asked of one of several models."""
    arrival, prompt, output, priority = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output, priority=priority, model=np.array(models))
    fleet = Fleet(ServeSettings(**keys), requests, [ReplicaGroup(costs, blocks, count, models=(slots, load_s))])
    fleet.run()
    return fleet


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=200)
@given(
    ROWS,
    st.lists(st.integers(0, 3), min_size=14, max_size=14),
    st.integers(1, 4),
    st.sampled_from([(4, 30), (16, 9), (16, 60)]),
    st.integers(1, 8),
    st.sampled_from([8, 17, 64, 2048]),
    st.sampled_from(["continuous", "prefill_first", "unchunked"]),
    st.booleans(),
)
def test_models_take_turns_as_where_every_token_is_gone_through(
    rows, models, slots, memory, most, budget, mode, by_priority
):
    block, spare = memory
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / block) + spare
    costs, load_s, most = Linear(0.01, 1e-4, 2e-3, 1e-5), 0.0203, min(most, budget)
    models = models[: len(rows)]
    fleet = asked_of_models(
        rows,
        models,
        slots,
        load_s,
        costs,
        blocks=blocks,
        **rules_of(mode, by_priority=by_priority, block=block, max_sequences=most, token_budget=budget),
    )
    loads = []
    asked, steps = naive.serve(
        [(*row, model) for row, model in zip(rows, models, strict=True)],
        costs.seconds,
        loads=loads,
        blocks=blocks,
        block=block,
        most=most,
        budget=budget,
        mode=mode,
        by_priority=by_priority,
        models=(slots, load_s),
    )
    log = fleet.log
    for name, ours in (("scheduled", log.scheduled), ("first", log.first), ("finished", log.finished)):
        assert ours == pytest.approx([getattr(r, name) for r in asked], rel=1e-9, abs=1e-12), name
    assert log.preempted.tolist() == [r.preempted for r in asked]
    assert fleet.replicas[0].account.steps == steps
    assert fleet.replicas[0].models.loads == loads[-1]


def test_models_that_all_fit_differ_by_their_passes_alone():
    """A pass of each model has what a step takes anyway; what tokens take is the same as of one model."""
    rows = [(0.0, 8, 30, 0)] * 6
    alone = asked_of_models(rows, [0] * 6, 1, 0.0, Linear(0.0, 1e-4, 1e-3, 1e-5)).log
    three = asked_of_models(rows, [0, 1, 2] * 2, 3, 0.0, Linear(0.0, 1e-4, 1e-3, 1e-5)).log
    assert three.finished == pytest.approx(alone.finished)
    one, more = (
        asked_of_models(rows, models, 3, 0.0, Linear(0.01, 0, 0, 0)).log for models in ([0] * 6, [0, 1, 2] * 2)
    )
    assert more.finished == pytest.approx(3 * one.finished)


def test_a_pass_is_asked_with_its_own_prompts_that_end():
    class Asked(Linear):
        def steps(self, chunks, ended, count, contexts, lengths=()):
            told.append((len(chunks), ended, count))
            return super().steps(chunks, ended, count, contexts)

    told = []
    asked_of_models(
        [(0.0, 40, 2, 0), (0.0, 60, 2, 0), (0.0, 20, 1, 0)],
        [0, 1, 1],
        2,
        0.0,
        Asked(0.01, 0, 0, 0),
        token_budget=64,
        max_sequences=8,
    )
    # 40 and 24 tokens, then what is left of the second prompt beside the first one's next token, and the third
    assert told == [(1, 1, 0), (1, 0, 0), (2, 2, 0), (0, 0, 1), (0, 0, 1)]


def test_a_request_goes_where_its_model_lies():
    rows = [(float(n), 8, 4, 0) for n in range(24)]
    models = [0, 0, 1, 0, 2, 2, 1, 1, 0, 2, 0, 0, 1, 2, 1, 0, 0, 2, 1, 1, 2, 0, 2, 1]
    costs = Linear(0.01, 0, 0, 0)
    there = asked_of_models(rows, models, 1, 0.5, costs, count=3, router="resident")
    assert [replica.models.loads for replica in there.replicas] == [1, 1, 1]
    turns = asked_of_models(rows, models, 1, 0.5, costs, count=3, router="least_loaded")
    assert sum(replica.models.loads for replica in turns.replicas) > 3
    busy = asked_of_models(
        [(0.0, 8, 400, 0)] * 2 + [(0.1, 8, 4, 0)], [0, 1, 2], 1, 0.5, costs, count=2, router="resident"
    )
    assert busy.log.finished[2] > 4.0  # every replica has another one, which answers


def test_of_replicas_that_lack_a_model_the_one_with_the_fewest_takes_it():
    """The fourth model goes beside the first, though the other replica was used longer ago."""
    times, models = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0, 1, 0, 2, 0, 3, 1]
    fleet = asked_of_models(
        [(at, 8, 4, 0) for at in times], models, 2, 0.1, Linear(0.01, 0, 0, 0), count=2, router="resident"
    )
    assert [replica.models.loads for replica in fleet.replicas] == [2, 2]


def test_answers_on_replicas_of_their_own_bring_the_model_there_too():
    rows = [(0.0, 8, 3, 0), (1.0, 8, 3, 0), (2.0, 8, 3, 0)]
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival, prompt, output, model=np.array([0, 1, 1]))
    group = ReplicaGroup(Linear(0.01, 0, 0, 0), 1000, 1, models=(1, 0.5))
    fleet = Fleet(ServeSettings(), requests, [group], [group])
    fleet.run()
    assert [replica.models.loads for replica in fleet.replicas] == [2, 2]
    assert fleet.log.first - arrival == pytest.approx([0.51, 0.51, 0.01])
    # the third comes in the middle of the step for which the model of the second is brought
    assert fleet.log.finished - fleet.log.first == pytest.approx([0.52, 0.52, 0.03])


def test_a_replica_that_is_lost_has_no_model():
    fleet = asked_of_models([(0.0, 8, 4, 0)] * 2, [0, 1], 2, 0.1, Linear(0.01, 0, 0, 0))
    (replica,) = fleet.replicas
    assert replica.models.held == 2
    assert replica.lose(10.0) == []
    assert replica.models.held == replica.models.used == 0


def test_a_part_of_a_trace_has_its_models():
    columns = {"prompt_tokens": [8] * 4, "output_tokens": [4] * 4, "model": list("abca")}
    assert trace_of(columns).part(1, 4).model.tolist() == [1, 2, 0]


@pytest.mark.parametrize("column", ["adapter", "model"])
def test_what_was_cached_under_other_weights_is_not_shared(column):
    """A prompt has other keys and values under another model, or another adapter."""
    columns = {"prompt_tokens": [64] * 4, "output_tokens": [4] * 4, "prefix": ["p"] * 4, "prefix_tokens": [48] * 4}
    columns |= {"arrival_s": [0.0, 1.0, 2.0, 3.0]}
    cached = {}
    for name, weights in (("one", ["a"] * 4), ("two", ["a", "b", "a", "b"]), ("four", list("abcd"))):
        trace = trace_of({**columns, column: weights})
        group = ReplicaGroup(Linear(0.01, 0, 0, 0), 1000, 1, adapters=(4, 0.0, 0.0), models=(4, 0.0))
        fleet = Fleet(ServeSettings(), trace, [group])
        fleet.run()
        cached[name] = int(fleet.log.cached.sum())
    assert cached == {"one": 3 * 48, "two": 2 * 48, "four": 0}


def test_turns_of_a_conversation_share_under_the_same_weights_alone():
    columns = {"prompt_tokens": [32, 80, 32, 80], "output_tokens": [16] * 4, "session": [0, 0, 1, 1]}
    for models, share in ((["a", "a", "b", "b"], 2 * 32), (["a", "b", "a", "b"], 0)):
        trace = trace_of({**columns, "arrival_s": [0.0, 1.0, 2.0, 3.0], "model": models})
        fleet = Fleet(ServeSettings(), trace, [ReplicaGroup(Linear(0.01, 0, 0, 0), 1000, 1, models=(2, 0.0))])
        fleet.run()
        assert (int(fleet.log.cached.sum()) >= share) if share else int(fleet.log.cached.sum()) == 0


@pytest.mark.slow(seconds=1)
@given(st.integers(20, 60), st.integers(2, 6))
def test_a_client_that_floods_does_not_hold_up_another(many, few):
    """With fair turns both get tokens alike as long as both wait; by arrival the second waits for all of the first."""
    rows = [(0.0, 16, 8, -1, 0)] * many + [(0.0, 16, 8, -1, 1)] * few
    fair, fcfs = (served(rows, order=order, max_sequences=2).log for order in ("fair", "fcfs"))
    assert fair.finished[many:].max() <= fair.finished[2 * few + 2 : many].min() + 0.2
    assert fcfs.finished[many:].min() >= fcfs.finished[:many].max() - 0.2
    assert fair.finished.max() == pytest.approx(fcfs.finished.max(), rel=0.1)


class Ask:
    def __init__(self, order, rank=0.0, client=0):
        self.order, self.rank, self.client = order, rank, client


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_a_queue_is_by_rank_and_then_by_order(asked):
    queue = RequestQueue(fair=False)
    for order, (rank, client) in enumerate(asked):
        queue.push(Ask(order, float(rank), client))
    found = []
    while len(queue):
        assert queue.first() is queue.first()
        found.append(queue.pop())
    assert [(a.rank, a.order) for a in found] == sorted((float(r), n) for n, (r, _) in enumerate(asked))


def test_a_client_that_comes_back_has_no_claim_on_what_it_left_out():
    queue = RequestQueue(fair=True)
    for order in range(6):
        queue.push(Ask(order, client=0))
    for _ in range(4):
        queue.serve(0, 100.0)
        queue.pop()
    queue.push(Ask(6, client=1))
    queue.push(Ask(7, client=1))
    taken = []
    for _ in range(4):
        each = queue.pop()
        taken.append(each.client)
        queue.serve(each.client, 100.0)
    assert taken == [0, 1, 0, 1]
