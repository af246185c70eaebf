"""Attention to what requests share: who shares what, beside sets of blocks and a scheduler that goes token by token."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.costs import EQUAL
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from tests.sim.service.test_replica import apart

BASE, PER_TOKEN, PER_REQUEST, PER_KEY = 0.01, 1e-4, 2e-3, 1e-5


def seconds(chunks, count, keys, parts):
    """Of a step that reads every key once for each request, but those of parts once."""
    spared = sum(tokens * (requests - 1) for tokens, requests in parts)
    return BASE + PER_TOKEN * sum(n for n, _ in chunks) + PER_REQUEST * count + PER_KEY * (keys - spared)


class Sharing:
    """Costs of such steps, which look at each one's parts."""

    def __init__(self):
        self.look = lambda parts: None

    def steps(self, chunks, ended, count, contexts, lengths=EQUAL):
        parts = [(part.tokens, part.requests) for part in lengths.shared]
        self.look(parts)
        return seconds(chunks, count, count * contexts, parts), np.ones(len(contexts))


def served(rows, costs, blocks, **keys):
    """A fleet of one replica for (arrival, prompt, output, path) rows."""
    arrival, prompt, output = (np.array(column) for column in list(zip(*rows, strict=True))[:3])
    requests = ServedRequests(arrival.astype(float), prompt, output, tuple(row[3] for row in rows))
    settings = ServeSettings(shared_attention=True, **keys)
    return Fleet(settings, requests, [ReplicaGroup(costs, blocks, 1)])


def by_sets(replica):
    """Parts by the blocks that each request at its answer has: those that all on a node have, by who they are."""
    block = replica.settings.block
    on = defaultdict(dict)
    for each in (r for r in replica._running.values() if r.deciding):
        node = each.node
        while node is not None:
            first = node.start // block
            mine = set(range(first, min(first + node.blocks, each.shared)))
            if mine:
                on[node][each.number] = mine
            node = node.parent
    found = Counter()
    for members in on.values():
        if len(members) > 1:
            found[frozenset(members)] += len(set.intersection(*members.values())) * block
    return sorted((tokens, len(who)) for who, tokens in found.items())


TIMES = st.floats(0, 2).map(lambda x: round(x, 3))
TREES = st.lists(  # a path of up to three segments, of which each name has one length
    st.tuples(TIMES, st.integers(1, 30), st.integers(1, 30), st.lists(st.integers(0, 1), max_size=3)),
    min_size=2,
    max_size=12,
)


@pytest.mark.slow(seconds=1)
@settings(max_examples=80)
@given(TREES, st.sampled_from([1, 4, 16]), st.sampled_from([20, 2048]), st.booleans())
def test_parts_are_the_blocks_that_the_same_requests_have(tree, block, budget, tight):
    rows, names = [], {}
    for when, more, output, turns in tree:
        path, above = [], ()
        for turn in turns:
            above = (*above, turn)
            path.append((names.setdefault(above, len(names) + 1), 7 + 13 * turn + 5 * len(above)))
        rows.append((when, sum(n for _, n in path) + more % 4, output, tuple(path)))  # some prompts are all shared
    rows = [(when, max(prompt, 1), output, path) for when, prompt, output, path in rows]
    rows = apart(rows)
    longest = max(prompt + output for _, prompt, output, _ in rows)
    # where it is tight a segment whose end was taken back may lie there twice, and its only request goes back for it
    blocks = math.ceil(longest / block) + (3 if tight else 1000)
    costs = Sharing()
    most = min(256, budget)
    fleet = served(rows, costs, blocks, block=block, token_budget=budget, max_sequences=most)
    (replica,) = fleet.engines
    looked = []

    def look(parts):
        assert sorted(parts) == by_sets(replica)
        looked.append(parts)

    costs.look = look
    fleet.run()
    assert looked


class Asked:
    def __init__(self, number, arrival, prompt, output, prefix, length):
        self.number, self.arrival, self.prompt, self.output = number, arrival, prompt, output
        self.prefix, self.length = prefix, length
        self.cached = self.made = self.common = 0
        self.first = self.finished = None


def one_by_one(rows, block, budget):
    """Every step of a replica with room for all, request by request; a prefix lies there once its prompt is done."""
    to_come = [Asked(n, *row) for n, row in enumerate(rows)]
    asked, waiting, running, known = list(to_come), [], [], set()
    now = 0.0
    while to_come or waiting or running:
        while to_come and to_come[0].arrival <= now:
            waiting.append(to_come.pop(0))
        if not waiting and not running:
            now = to_come[0].arrival
            continue
        answering = [r for r in running if r.made]
        left = budget - len(answering)
        plan = []
        for r in [r for r in running if not r.made] + waiting[:]:
            if left <= 0:
                break
            if r in waiting:
                waiting.remove(r)
                running.append(r)
                if r.prefix in known:
                    r.cached = r.common = min(r.length, r.prompt - 1) // block * block
            size = min(left, r.prompt - r.cached)
            plan.append((r, size))
            left -= size
        together = defaultdict(list)
        for r in answering:
            if r.common:
                together[r.prefix].append(r.common)
        parts = [(min(common), len(common)) for common in together.values() if len(common) > 1]
        chunks = [(size, r.cached) for r, size in plan]
        now += seconds(chunks, len(answering), sum(r.cached + 1 for r in answering), parts)
        for r in answering:
            r.cached, r.made = r.cached + 1, r.made + 1
        for r, size in plan:
            r.cached += size
            if r.cached == r.prompt:
                r.made, r.first = 1, now
                known.add(r.prefix)
                r.common = r.common or r.length // block * block
        for r in [r for r in running if r.made == r.output]:
            r.finished = now
            running.remove(r)
    return asked


PREFIXES = st.lists(
    st.tuples(TIMES, st.integers(0, 40), st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=12
)


@pytest.mark.slow(seconds=1)
@settings(max_examples=80)
@given(PREFIXES, st.sampled_from([1, 4, 16]), st.sampled_from([17, 64, 2048]))
def test_steps_in_a_row_are_those_of_a_scheduler_that_takes_each_by_itself(rows, block, budget):
    length = {0: 24, 1: 33, 2: 64}
    rows = apart([(when, length[name] + more, output, name, length[name]) for when, more, output, name in rows])
    given_rows = [(when, prompt, output, ((name, n),)) for when, prompt, output, name, n in rows]
    fleet = served(given_rows, Sharing(), 100_000, block=block, token_budget=budget, max_sequences=12)
    fleet.run()
    found = one_by_one(rows, block, budget)
    assert fleet.log.first == pytest.approx(np.array([r.first for r in found]), rel=1e-9)
    assert fleet.log.finished == pytest.approx(np.array([r.finished for r in found]), rel=1e-9)
