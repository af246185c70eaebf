"""Blocks and the tree of prefixes: nothing lost, nothing twice, and what is found is what was there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.blocks import BlockPool
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from tests.sim.service.test_replica import Linear

PATHS = st.lists(st.integers(0, 3), min_size=0, max_size=5)
LENGTHS = {0: 5, 1: 16, 2: 33, 3: 7}
"""Tokens of each segment, wherever it stands."""


def path_of(numbers):
    return tuple((n, LENGTHS[n]) for n in numbers)


@pytest.mark.slow(seconds=1)
@settings(max_examples=300)
@given(st.lists(st.tuples(PATHS, st.integers(0, 40), st.integers(0, 2)), min_size=1, max_size=25), st.integers(12, 60))
def test_blocks_are_conserved_and_used_prefixes_stay(requests, blocks):
    """Requests come, run side by side for a while, and go; memory is short."""
    block, pool = 8, BlockPool(blocks, 8)
    live = []
    for numbers, more, stay in requests:
        path = path_of(numbers)
        prompt = sum(n for _, n in path) + more + 1
        node, known = pool.match(path)
        assert known <= sum(n for _, n in path)
        known = min(known, prompt - 1) // block * block
        need = -(-prompt // block) - known // block
        idle, at = 0, node
        while at is not None:
            idle += at.blocks * (at.users == 0)
            at = at.parent
        if need <= pool.available - idle:
            pool.enter(node)
            pool.take(need)
            node, held = pool.extend(node, path, need)
            live.append([node, held, stay, path])
            pool.check(sum(h for _, h, _, _ in live))
            again, found = pool.match(path)
            assert found == sum(n for _, n in path) or again is node
        for each in list(live):
            each[2] -= 1
            if each[2] < 0:
                pool.give(each[1])
                pool.leave(each[0])
                live.remove(each)
        pool.check(sum(h for _, h, _, _ in live))
        for node, _, _, _ in live:  # what somebody runs on is not taken back
            while node is not None:
                assert node.users > 0
                assert node.blocks >= 0
                node = node.parent
    for node, held, _, _ in live:
        pool.give(held)
        pool.leave(node)
    assert pool.available == blocks
    pool.take(blocks)  # all of it can be had again
    pool.give(blocks)
    assert pool.cached == 0
    assert all(pool.match(path_of([n]))[1] < block for n in LENGTHS)


@given(st.lists(PATHS, min_size=1, max_size=20))
def test_with_room_for_all_a_prompt_finds_what_any_earlier_one_began_with(paths):
    block, pool, seen = 8, BlockPool(10_000, 8), set()
    for numbers in paths:
        path = path_of(numbers)
        expected = max((n for n in range(len(numbers) + 1) if tuple(numbers[:n]) in seen), default=0)
        node, known = pool.match(path)
        assert known == sum(n for _, n in path[:expected])
        pool.enter(node)
        need = -(-(sum(n for _, n in path) + 1) // block) - known // block
        pool.take(need)
        node, held = pool.extend(node, path, need)
        pool.give(held)
        pool.leave(node)
        seen |= {tuple(numbers[:n]) for n in range(1, len(numbers) + 1)}


@given(
    st.lists(st.tuples(PATHS, st.integers(1, 60), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(0, 40),
    st.sampled_from([32, 2048]),
)
def test_requests_with_prefixes_and_turns_are_all_served(rows, spare, budget):
    """Conversations wait for their answers, no more than the prompt is cached, and everything is given back."""
    paths = [path_of(numbers) for numbers, _, _, _ in rows]
    prompt = np.array([sum(n for _, n in path) + more for path, (_, more, _, _) in zip(paths, rows, strict=True)])
    output = np.array([out for _, _, out, _ in rows])
    session = np.array([name - 1 for _, _, _, name in rows])
    answer = np.where(session < 0, -1, 1000 + np.arange(len(rows)))
    arrival = np.arange(len(rows)) * 0.05
    requests = ServedRequests(arrival, prompt, output, tuple(paths), answer, session)
    blocks = int(-(-(prompt + output).max() // 8)) + spare
    keys = {"block": 8, "token_budget": budget, "max_sequences": 8}
    fleet = Fleet(ServeSettings(**keys), requests, [ReplicaGroup(Linear(0.01, 1e-4, 1e-3, 0), blocks, 2)])
    fleet.run()
    log = fleet.log
    assert (log.cached < prompt * (1 + log.preempted)).all()
    last = {}
    for number, name in enumerate(session.tolist()):
        if name >= 0:
            assert log.arrival[number] >= max(arrival[number], last.get(name, 0.0)) - 1e-12
            last[name] = log.finished[number]
        else:
            assert log.arrival[number] == arrival[number]
    for replica in fleet.replicas:
        assert replica.pool.available == blocks


def test_a_prefix_that_is_cached_is_not_computed_again():
    segments = (((7, 64),),) * 3
    requests = ServedRequests(np.array([0.0, 1.0, 2.0]), np.array([80, 80, 80]), np.array([4, 4, 4]), segments)
    made = {}
    for caches in (True, False):
        fleet = Fleet(ServeSettings(prefix_cache=caches), requests, [ReplicaGroup(Linear(0.01, 1e-3, 0, 0), 100, 1)])
        fleet.run()
        made[caches] = fleet.log.cached.tolist(), (fleet.log.first - fleet.log.arrival).tolist()
    assert made[False][0] == [0, 0, 0]
    assert made[True][0] == [0, 64, 64]
    assert made[True][1] == pytest.approx([0.09, 0.026, 0.026])
    assert made[False][1] == pytest.approx([0.09] * 3)


def test_a_turn_finds_the_answer_before_it():
    """What was said and answered is cached, and goes on where another conversation made the beginning meanwhile."""
    segments, answers, sessions, prompts, outputs = [], [], [], [], []
    for name in range(3):  # three conversations that begin alike, at once
        first = ((5, 64), (100 + name, 16))
        segments += [first, (*first, (200 + name, 32), (300 + name, 16))]
        answers += [200 + name, 400 + name]
        sessions += [name, name]
        prompts += [80, 128]
        outputs += [32, 8]
    arrival = np.array([0.0, 5.0] * 3)
    order = np.argsort(arrival, kind="stable")
    requests = ServedRequests(
        arrival[order],
        np.array(prompts)[order],
        np.array(outputs)[order],
        tuple(segments[i] for i in order),
        np.array(answers)[order],
        np.array(sessions)[order],
    )
    fleet = Fleet(ServeSettings(), requests, [ReplicaGroup(Linear(0.01, 0, 0, 0), 1000, 1)])
    fleet.run()
    assert fleet.log.cached[3:].tolist() == [96, 96, 96]  # 64 + 16 + 31 tokens, in complete blocks of 16


def test_a_prompt_that_lies_in_the_cache_is_computed_to_its_last_token():
    segments = (((7, 64),),) * 2
    requests = ServedRequests(np.array([0.0, 1.0]), np.array([64, 64]), np.array([2, 2]), segments)
    fleet = Fleet(ServeSettings(), requests, [ReplicaGroup(Linear(0.01, 1e-3, 0, 0), 100, 1)])
    fleet.run()
    assert fleet.log.cached.tolist() == [0, 48]
    assert fleet.log.first[1] - 1.0 == pytest.approx(0.01 + 16e-3)
