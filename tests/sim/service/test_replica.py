"""A replica's scheduler beside one that goes through every token, and beside queueing theory."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.costs import EQUAL, RequestLengths, StepPassage
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.log import Activity, Intervals
from tests.in_turn import in_turn
from tests.sim.service import naive


class Linear:
    """Costs that are a sum, as `naive.linear` has them."""

    def __init__(self, base, per_prompt_token, per_request, per_context):
        self.numbers = base, per_prompt_token, per_request, per_context
        self.seconds = naive.linear(*self.numbers)
        self.asked = 0

    def steps(self, chunks, ended, count, contexts, lengths=EQUAL):
        base, per_token, per_request, per_context = self.numbers
        self.asked += 1
        first = base + per_token * sum(n for n, _ in chunks) + per_request * count
        return first + per_context * count * contexts, np.ones(len(contexts))


class Staged(Linear):
    """The same dealt to stages, behind a host, with a way from one to the next."""

    def __init__(self, numbers, shares, host, hop):
        super().__init__(*numbers)
        self.shares, self.host, self.hop = shares, host, hop

    def passage(self, chunks, ended, count, context, lengths=EQUAL):
        seconds = float(super().steps(chunks, ended, count, np.array([context]))[0][0])
        return StepPassage(self.host, tuple(share * seconds for share in self.shares), self.hop)

    def steps(self, chunks, ended, count, contexts, lengths=EQUAL):
        seconds, joules = super().steps(chunks, ended, count, contexts)
        return self.host + seconds * sum(self.shares) + self.hop * (len(self.shares) - 1), joules

    def written_out(self, chunks, contexts):
        seconds = self.seconds(chunks, contexts)
        return self.host, tuple(share * seconds for share in self.shares), self.hop


def served(rows, costs, blocks, *, count=1, prompts=0, handover=0.0, stages=1, **keys):
    """A fleet that has served (arrival, prompt, output, priority) rows."""
    arrival, prompt, output, priority = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output, priority=priority)
    group = ReplicaGroup(costs, blocks, count, stages=stages)
    first = [ReplicaGroup(costs, blocks, prompts)] if prompts else []
    fleet = Fleet(ServeSettings(**keys), requests, [group], first, lambda tokens: handover * tokens)
    fleet.run()
    return fleet


def rules_of(mode, *, by_priority, **keys):
    """The settings of a replica whose scheduler is `naive.Engine` with this mode."""
    return {
        "batching": "continuous" if mode == "unchunked" else mode,
        "chunked": mode != "unchunked",
        "order": "priority" if by_priority else "fcfs",
        **keys,
    }


def apart(rows):
    """Rows in order; steps take multiples of 10 us, and none ends just when a request comes, which rounding decides."""
    times = sorted({row[0] for row in rows})
    moved = {when: when + times.index(when) * math.pi * 1e-6 * (when > 0) for when in times}
    return sorted(((moved[when], *rest) for when, *rest in rows), key=lambda row: row[0])


ROWS = st.lists(
    st.tuples(st.floats(0, 3).map(lambda x: round(x, 3)), st.integers(1, 90), st.integers(1, 40), st.integers(0, 3)),
    min_size=1,
    max_size=14,
).map(apart)


@pytest.mark.slow(seconds=1)
@settings(max_examples=250)
@given(
    ROWS,
    st.sampled_from([(1, 12), (4, 30), (16, 9), (16, 60)]),
    st.integers(1, 8),
    st.sampled_from([8, 17, 64, 2048]),
    st.sampled_from(["continuous", "prefill_first", "unchunked"]),
    st.booleans(),
)
@example([(0.0, 60, 40, 0), (0.0, 60, 40, 0), (0.0, 60, 40, 0)], (16, 9), 3, 64, "continuous", False)
def test_every_request_is_as_one_that_goes_through_every_token_has_it(rows, memory, most, budget, mode, by_priority):
    block, spare = memory
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / block) + spare
    costs = Linear(0.01, 1e-4, 2e-3, 1e-5)
    most = min(most, budget)
    fleet = served(
        rows,
        costs,
        blocks,
        **rules_of(mode, by_priority=by_priority, block=block, max_sequences=most, token_budget=budget),
    )
    asked, steps = naive.serve(
        rows, costs.seconds, blocks=blocks, block=block, most=most, budget=budget, mode=mode, by_priority=by_priority
    )
    log = fleet.log
    for name, ours in (("scheduled", log.scheduled), ("first", log.first), ("finished", log.finished)):
        assert ours == pytest.approx([getattr(r, name) for r in asked], rel=1e-9, abs=1e-12), name
    assert log.preempted.tolist() == [r.preempted for r in asked]
    replica = fleet.replicas[0]
    assert replica.account.steps == steps
    assert costs.asked <= steps
    gaps = [b - a for r in asked for a, b in zip(r.tokens, r.tokens[1:], strict=False)]
    assert replica.account.intervals.count == len(gaps)
    assert replica.account.intervals.total == pytest.approx(sum(gaps), rel=1e-9, abs=1e-12)
    assert replica.account.intervals.most == pytest.approx(max(gaps, default=0.0), rel=1e-9)
    assert replica.account.tokens == sum(o for _, _, o, _ in rows)
    assert replica.account.present_s == pytest.approx(float((log.finished - log.arrival).sum()), rel=1e-9)


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=150)
@given(
    ROWS,
    st.sampled_from([(1, 12), (4, 30), (16, 9), (16, 60)]),
    st.sampled_from([8, 17, 64, 2048]),
    st.sampled_from([(0.5, 0.5), (0.7, 0.3), (0.2, 0.5, 0.3), (0.25, 0.25, 0.25, 0.25), (0.1, 0.9)]),
    st.sampled_from([(0.0, 0.0), (0.004, 0.0), (0.0, 0.003), (0.001, 0.0005)]),
)
def test_schedulers_of_a_pipeline_are_as_one_that_looks_who_is_in_which_stage(rows, memory, budget, shares, ways):
    block, spare = memory
    stages = len(shares)
    blocks = (math.ceil(max(p + o for _, p, o, _ in rows) / block) + spare) * stages
    costs = Staged((0.01, 1e-4, 2e-3, 1e-5), shares, *ways)
    most = min(8, budget)
    fleet = served(
        rows, costs, blocks, stages=stages, block=block, max_sequences=most, token_budget=budget, prefix_cache=False
    )
    expected, steps = naive.pipelined(
        rows, costs.written_out, stages, blocks=blocks, block=block, most=most, budget=budget
    )
    log = fleet.log
    for column, name in ((log.scheduled, "scheduled"), (log.first, "first"), (log.finished, "finished")):
        np.testing.assert_allclose(column, [getattr(r, name) for r in expected], rtol=1e-9, err_msg=name)
    assert log.preempted.tolist() == [r.preempted for r in expected]
    assert sum(engine.account.steps for engine in fleet.engines) == steps
    present = sum(engine.account.present_s for engine in fleet.engines)
    assert present == pytest.approx(float((log.finished - log.arrival).sum()))


def test_a_pipeline_with_one_request_takes_its_whole_way_and_with_many_its_slowest_stage():
    costs = Staged((0.01, 0.0, 0.0, 0.0), (0.3, 0.5, 0.2), 0.001, 0.002)
    alone = served([(0.0, 1, 101, 0)], costs, 999, stages=3)
    assert alone.log.finished[0] == pytest.approx(101 * (0.001 + 0.01 + 2 * 0.002))
    assert alone.replicas[0].busy_s == pytest.approx(101 * 0.01 / 3)
    many = served([(0.0, 1, 101, 0)] * 30, Staged((0.1, 0.0, 0.0, 0.0), (0.3, 0.5, 0.2), 0.001, 0.002), 999, stages=3)
    assert many.log.finished.max() == pytest.approx(101 * 3 * 0.05, rel=0.01)


SERVED = 10_000
"""Of the draws of a queue, how many a fleet serves."""


@pytest.mark.parametrize("load", in_turn([0.9, 0.3, 0.7], 3))
def test_one_server_of_one_length_waits_as_m_d_1_says(load):
    """Pollaczek and Khinchine: with deterministic service the mean wait is rho / (2 (1 - rho)) services.

    Lindley's recursion has that mean over many draws, and each wait of the first of them.
    """
    gaps = np.random.default_rng(5).exponential(1 / load, 120_000)
    walk = np.concatenate([[0.0], np.cumsum(1 - gaps[1:])])
    waits = walk - np.minimum.accumulate(walk)
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.04 if load > 0.8 else 0.02)
    arrival = np.cumsum(gaps)[:SERVED]
    rows = ServedRequests(arrival, np.full(SERVED, 8), np.ones(SERVED, np.int64))
    fleet = Fleet(ServeSettings(max_sequences=1), rows, [ReplicaGroup(Linear(1.0, 0, 0, 0), 10, 1)])
    fleet.run()
    np.testing.assert_allclose(fleet.log.scheduled - fleet.log.arrival, waits[:SERVED], atol=1e-6)


@pytest.mark.parametrize(("servers", "load"), in_turn([(4, 0.7), (2, 0.6)], 2))
def test_several_servers_wait_as_m_m_c_says(servers, load):
    """Answers of geometric length on so many places at once are exponential servers, as steps go to nothing.

    Kiefer and Wolfowitz's recursion is exact: over many draws it has the mean of Erlang's formula C, and over the first
    of them, which are served, the mean of these.
    """
    random, count, mean = np.random.default_rng(9), 40_000, 400
    output = random.geometric(1 / mean, count) + 1
    arrival = np.cumsum(random.exponential(mean / (servers * load), count))
    requests = ServedRequests(arrival[:SERVED], np.ones(SERVED, np.int64), output[:SERVED])
    fleet = Fleet(ServeSettings(max_sequences=servers), requests, [ReplicaGroup(Linear(1.0, 0, 0, 0), 10**6, 1)])
    fleet.run()
    offered = servers * load
    last = offered**servers / math.factorial(servers) / (1 - load)
    waits = last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
    expected = waits * mean / (servers * (1 - load))
    waited = float((fleet.log.scheduled - fleet.log.arrival).mean())
    places, exact = [0.0] * servers, []
    for at, service in zip(arrival.tolist(), output.tolist(), strict=True):
        begins = max(at, heapq.heappop(places))
        heapq.heappush(places, begins + service)
        exact.append(begins - at)
    assert waited == pytest.approx(np.mean(exact[:SERVED]), rel=0.01)
    assert np.mean(exact) == pytest.approx(expected, rel=0.08)  # which is as far as so many draws are off


@pytest.mark.slow(seconds=1.5)
@given(ROWS, st.integers(1, 5), st.sampled_from([1, 16]), st.integers(0, 40), st.integers(0, 5))
def test_guesses_that_are_all_right_or_all_wrong(rows, guesses, block, spare, seed):
    """All right: as many tokens more a step, and as few steps; all wrong: what it is without any. Nothing is lost."""
    blocks = math.ceil((max(p + o for _, p, o, _ in rows) + guesses) / block) + spare
    costs = Linear(0.01, 1e-4, 2e-3, 0)
    keys = {"block": block, "max_sequences": 4}
    plain = served(rows, costs, 10_000, **keys)
    none = served(rows, costs, 10_000, speculate=guesses, acceptance=0.0, seed=seed, **keys)
    wrong = served(rows, costs, blocks, speculate=guesses, acceptance=0.0, seed=seed, **keys)
    right = served(rows, costs, blocks, speculate=guesses, acceptance=1.0, seed=seed, **keys)
    assert none.log.finished == pytest.approx(plain.log.finished, rel=1e-9)  # with room for what is thrown away
    for fleet in (wrong, right):
        assert fleet.replicas[0].account.tokens == sum(o for _, _, o, _ in rows)
        assert fleet.replicas[0].account.intervals.count == sum(o - 1 for _, _, o, _ in rows)
    alone = served(rows[:1], costs, blocks, speculate=guesses, acceptance=1.0, **keys)
    _, _, output, _ = rows[0]
    assert alone.replicas[0].account.steps == 1 + math.ceil((output - 1) / (guesses + 1))


@pytest.mark.parametrize(("chance", "guesses"), [(0.8, 4), (0.5, 2), ((0.9, 0.5, 0.1), 3)])
def test_tokens_of_a_step_are_what_chances_say(chance, guesses):
    """(1 - a^(k + 1)) / (1 - a) tokens a step (Leviathan et al., 2023, equation 1), the mean of many answers."""
    rows = [(0.0, 8, 4001, 0)] * 8
    fleet = served(rows, Linear(0.01, 0, 0, 0), 10_000, speculate=guesses, acceptance=chance, max_sequences=8)
    chances = chance if isinstance(chance, tuple) else (chance,) * guesses
    expected = 1 + sum(math.prod(chances[: n + 1]) for n in range(guesses))
    steps = (fleet.log.finished - fleet.log.first) / 0.01
    assert 4000 / steps.mean() == pytest.approx(expected, rel=0.02)
    assert len(set(steps.round().tolist())) > 1  # each has its own luck
    assert fleet.replicas[0].account.accepted / fleet.replicas[0].account.guessed == pytest.approx(
        (expected - 1) / guesses, rel=0.02
    )


@pytest.mark.parametrize(
    ("tree", "ranks"), [((4, 2, 1), (0.5, 0.2, 0.1, 0.05)), ((2, 2), (0.6, 0.3)), ((3,), (0.4,) * 2 + (0.2,))]
)
def test_tokens_of_a_step_are_what_a_tree_of_guesses_holds(tree, ranks):
    """In every place one of the first guesses is right or none: drawn one by one, down the tree, in 200,000 steps."""
    rows = [(0.0, 8, 4001, 0)] * 8
    fleet = served(rows, Linear(0.01, 0, 0, 0), 10_000, speculate=tree, acceptance=ranks, max_sequences=8)
    random = np.random.default_rng(7)
    places = random.choice(len(ranks) + 1, (200_000, len(tree)), p=[*ranks, max(1 - sum(ranks), 0)])
    expected = 1 + np.cumprod(places < np.array(tree), axis=1).sum(axis=1).mean()
    steps = (fleet.log.finished - fleet.log.first) / 0.01
    assert 4000 / steps.mean() == pytest.approx(expected, rel=0.02)
    nodes = sum(math.prod(tree[: n + 1]) for n in range(len(tree)))
    assert fleet.replicas[0].account.accepted / fleet.replicas[0].account.guessed == pytest.approx(
        (expected - 1) / nodes, rel=0.03
    )


@pytest.mark.slow(seconds=1)
@given(ROWS, st.integers(1, 4), st.floats(0, 1), st.integers(0, 5))
def test_a_tree_of_one_branch_is_a_chain(rows, guesses, chance, seed):
    blocks = math.ceil((max(p + o for _, p, o, _ in rows) + guesses) / 16) + 2
    chain, tree = (
        served(rows, Linear(0.01, 1e-4, 2e-3, 1e-5), blocks, seed=seed, max_sequences=4, **keys)
        for keys in (
            {"speculate": guesses, "acceptance": chance},
            {"speculate": (1,) * guesses, "acceptance": (chance,)},
        )
    )
    assert tree.log.finished.tolist() == chain.log.finished.tolist()


@given(ROWS, st.integers(1, 5))
def test_a_static_batch_ends_together(rows, most):
    fleet = served(rows, Linear(0.01, 1e-4, 2e-3, 1e-5), 500, batching="static", max_sequences=most)
    log = fleet.log
    for when in set(log.scheduled.tolist()):
        members = log.scheduled == when
        assert members.sum() <= most
        assert len(set(log.finished[members].tolist())) == 1
        others = log.scheduled > when
        assert not others.any() or log.scheduled[others].min() >= log.finished[members][0] - 1e-12


@given(ROWS, st.integers(1, 3), st.integers(1, 3), st.floats(0, 0.01))
def test_prompts_and_answers_on_replicas_of_their_own(rows, prompts, answers, handover):
    """An answer's second token is not before its cache has come, and nothing is lost on the way."""
    costs = Linear(0.01, 1e-4, 2e-3, 1e-5)
    fleet = served(rows, costs, 500, count=answers, prompts=prompts, handover=handover)
    log = fleet.log
    for number, (_, prompt, output, _) in enumerate(rows):
        if output > 1:
            least = log.first[number] + handover * prompt + (output - 1) * 0.012
            assert log.finished[number] >= least - 1e-9
            assert log.replica[number] >= prompts
        else:
            assert log.finished[number] == log.first[number]
            assert log.replica[number] < prompts
    made = [r.account.tokens for r in fleet.replicas]
    assert sum(made[:prompts]) == len(rows)
    assert sum(made) == sum(o for _, _, o, _ in rows)


@given(ROWS, st.integers(2, 5), st.sampled_from(["round_robin", "least_loaded", "prefix"]))
def test_every_request_is_answered_once_whatever_the_router(rows, count, router):
    fleet = served(rows, Linear(0.01, 1e-4, 2e-3, 1e-5), 500, count=count, router=router)
    assert sum(r.left for r in fleet.replicas) == len(rows)
    assert sum(r.account.tokens for r in fleet.replicas) == sum(o for _, _, o, _ in rows)
    if router == "round_robin":
        assert fleet.log.replica.tolist() == [n % count for n in range(len(rows))]


def test_the_least_loaded_replica_is_the_one_that_is_idle():
    rows = [(0.0, 64, 200, 0), (0.1, 8, 2, 0), (0.2, 8, 2, 0)]
    fleet = served(rows, Linear(0.01, 0, 0, 0), 500, count=2, router="least_loaded")
    assert fleet.log.replica.tolist() == [0, 1, 1]


def test_what_is_swapped_is_not_computed_again():
    rows = [(0.0, 60, 60, 0), (0.0, 60, 60, 0), (0.0, 60, 60, 0)]
    made = {}
    for kind in ("recompute", "swap"):
        keys = {"host_bandwidth": "1 GB/s"} if kind == "swap" else {}
        fleet = served(rows, Linear(0.01, 1e-4, 2e-3, 1e-5), 18, preemption=kind, **keys)
        assert fleet.log.preempted.sum()
        made[kind] = fleet.replicas[0].account.prompt_tokens
    assert made["swap"] == 180 < made["recompute"]


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(1, 9)), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_percentiles_of_intervals_are_right_to_half_a_percent(given_intervals, share):
    counted = Intervals()
    for seconds, tokens in given_intervals:
        counted.add(seconds, tokens)
    every = np.sort(np.repeat([s for s, _ in given_intervals], [n for _, n in given_intervals]))
    expected = every[max(math.ceil(share * len(every) - 1e-9), 1) - 1]
    assert counted.quantile(share) == pytest.approx(expected, rel=0.0051)
    assert counted.total == pytest.approx(float(every.sum()))
    together = Intervals()
    for seconds, tokens in given_intervals:
        together.add_all(np.array([seconds]), tokens)
    assert (together.bins == counted.bins).all()


def test_the_watermark_keeps_blocks_free_when_a_request_is_admitted():
    rows = [(0.0, 64, 3, 0), (0.0, 64, 3, 0)]
    free, kept = (served(rows, Linear(0.01, 0, 0, 0), 12, watermark=share).log for share in (0.0, 0.5))
    assert free.scheduled.tolist() == [0.0, 0.0]
    assert kept.scheduled[1] == kept.finished[0]  # 4 + 4 blocks leave 4, and 6 are to stay free beside its own


def test_a_swap_takes_the_time_of_its_tokens_each_way():
    """Two requests of 30 tokens with answers of 12, and room for 80 tokens in blocks of 4."""
    rows, seconds = [(0.0, 30, 12, 0), (0.0, 30, 12, 0)], 1e-3
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output)
    logs = []
    for swap_s in (0.0, seconds):
        group = ReplicaGroup(Linear(0.01, 0, 0, 0), 20, 1, swap_s)
        keys = {"preemption": "swap", "host_bandwidth": "1 GB/s", "block": 4}
        fleet = Fleet(ServeSettings(**keys), requests, [group])
        fleet.run()
        logs.append(fleet.log)
    free, slow = logs
    assert free.preempted.tolist() == slow.preempted.tolist() == [0, 1]
    moved = round((slow.finished[1] - free.finished[1]) / seconds) / 2
    assert moved in (39, 40)  # out and in, as many tokens as it had
    assert slow.finished[0] - free.finished[0] == pytest.approx(moved * seconds)


def test_the_shortest_prompt_is_next():
    rows = [(0.0, 50, 2, 0), (0.001, 90, 2, 0), (0.002, 10, 2, 0)]
    log = served(rows, Linear(0.01, 0, 0, 0), 100, order="shortest", max_sequences=1).log
    assert log.scheduled.argsort().tolist() == [0, 2, 1]


def test_a_static_batch_pays_for_those_that_have_ended():
    """Ten next tokens of two requests, of which one has ended after the first."""
    fleet = served([(0.0, 8, 2, 0), (0.0, 8, 11, 0)], Linear(0.01, 0, 1e-3, 0), 100, batching="static")
    assert fleet.log.finished == pytest.approx([0.01 + 10 * 0.012] * 2)


def test_joules_are_those_of_every_step():
    fleet = served([(0.0, 8, 11, 0), (0.5, 8, 11, 0)], Linear(0.01, 0, 0, 0), 100)
    assert fleet.replicas[0].account.joules == fleet.replicas[0].account.steps == 22


def test_a_request_that_comes_during_a_swap_is_seen_when_it_ends():
    """What a step takes for swaps counts where steps are taken together up to the next arrival."""
    rows = [(0.252, 89, 14, 0), (0.278, 10, 29, 0), (0.653, 47, 16, 0)]
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    keys = {"preemption": "swap", "host_bandwidth": "1 GB/s", "block": 4, "max_sequences": 3, "token_budget": 17}
    requests = ServedRequests(arrival, prompt, output)
    fleet = Fleet(ServeSettings(**keys), requests, [ReplicaGroup(Linear(0.01, 1e-4, 2e-3, 1e-5), 26, 1, 1e-3)])
    fleet.run()
    starts = fleet.replicas[0].account.activity.table()["start_s"]
    first = starts[starts >= 0.653].min()
    assert fleet.log.scheduled[2] == pytest.approx(first)
    table = fleet.replicas[0].account.activity.table()
    before = np.flatnonzero(table["start_s"] < 0.653)[-1]
    assert table["steps"][before] == 1 or table["start_s"][before] + table["seconds"][before] <= first + 1e-9


def test_who_comes_later_stands_behind_whatever_its_number():
    """A turn whose answer took long is not before those that came while it waited for it."""
    arrival = np.array([0.0, 0.01, *np.linspace(0.02, 0.1, 6)])
    session = np.array([0, 0, *[-1] * 6])
    ones = np.full(8, 16)
    requests = ServedRequests(arrival, ones * 2, ones, session=session, answer=np.full(8, -1))
    fleet = Fleet(ServeSettings(max_sequences=1), requests, [ReplicaGroup(Linear(0.01, 0, 0, 0), 100, 1)])
    fleet.run()
    assert fleet.log.arrival[1] == fleet.log.finished[0]
    waiting = fleet.log.arrival < fleet.log.arrival[1]
    assert fleet.log.scheduled[1] >= fleet.log.scheduled[waiting].max()


def test_conversations_and_prompts_apart_are_refused():
    requests = ServedRequests(np.zeros(2), np.full(2, 8), np.full(2, 8), session=np.zeros(2, int))
    group = ReplicaGroup(Linear(0.01, 0, 0, 0), 100, 1)
    with pytest.raises(NotSupported, match="conversations"):
        Fleet(ServeSettings(), requests, [group], [group]).run()


@given(ROWS, st.integers(2, 4), st.floats(0.05, 1.0), st.booleans())
def test_what_is_left_of_an_interrupted_run_is_what_had_ended_by_then(rows, count, when, apart):
    """Nothing later than the time that all replicas have come to, and all of it as in the whole run."""
    whole = served(rows, Linear(0.01, 1e-4, 2e-3, 1e-5), 500, count=count, prompts=2 * apart)
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output)
    costs = Linear(0.01, 1e-4, 2e-3, 1e-5)
    group = ReplicaGroup(costs, 500, count)
    fleet = Fleet(ServeSettings(), requests, [group], [ReplicaGroup(costs, 500, 2)] if apart else [])
    left = round(costs.asked + when * sum(o for _, _, o, _ in rows))
    ask = costs.steps

    def asked(*what):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return ask(*what)

    costs.steps = asked
    try:
        fleet.run()
    except KeyboardInterrupt:
        now = fleet.stop()
        for name in ("scheduled", "first", "finished"):
            found, full = getattr(fleet.log, name), getattr(whole.log, name)
            known = ~np.isnan(found)
            assert (found[known] <= now).all()
            assert found[known] == pytest.approx(full[known], rel=1e-9)
        if not apart:
            assert (np.isnan(fleet.log.finished) == (whole.log.finished > now)).all()


def test_what_is_cached_again_after_a_preemption_counts_again():
    rows = [(0.0, 40, 40, 0), (0.05, 40, 40, 0), (0.05, 40, 40, 0)]
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    segments = (((1, 32),),) * 3
    fleet = Fleet(
        ServeSettings(block=8),
        ServedRequests(arrival.astype(float), prompt, output, segments),
        [ReplicaGroup(Linear(0.01, 0, 0, 0), 18, 1)],
    )
    fleet.run()
    assert fleet.log.preempted.sum() >= 1
    again = fleet.log.cached[fleet.log.preempted > 0]
    assert again.tolist() == [2 * 32]  # each time that it was taken up it found what they share


def test_a_chunk_is_asked_with_what_lies_before_it():
    """Of a prompt of 50 tokens in steps of 16, four chunks, each behind the others."""
    asked = []

    class Heard(Linear):
        def steps(self, chunks, ended, count, contexts, lengths=EQUAL):
            asked.extend((*chunk, ended) for chunk in chunks)
            return super().steps(chunks, ended, count, contexts, lengths)

    served([(0.0, 50, 1, 0)], Heard(0.01, 0, 0, 0), 100, token_budget=16, max_sequences=4)
    assert asked == [(16, 0, 0), (16, 16, 0), (16, 32, 0), (2, 48, 1)]


def test_time_between_replicas_is_told_and_the_first_interval_has_it():
    fleet = served([(0.0, 10, 3, 0)], Linear(0.01, 0, 0, 0), 100, prompts=1, handover=0.05)
    assert fleet.apart_s == pytest.approx(0.5)
    assert fleet.replicas[1].account.intervals.most == pytest.approx(0.51)
    present = sum(replica.account.present_s for replica in fleet.replicas)
    assert present + fleet.apart_s == pytest.approx(fleet.log.finished[0])


def test_a_static_batch_has_blocks_for_whole_answers():
    rows = [(0.0, 16, 64, 0), (0.0, 16, 64, 0)]
    log = served(rows, Linear(0.01, 0, 0, 0), 8, batching="static").log
    assert log.scheduled[1] == log.finished[0]  # five blocks of sixteen tokens each


def test_the_nearest_prefix_wins_where_the_load_is_the_same_and_speed_weighs_it():
    segments = (((1, 64),), ((2, 64),), ((2, 64),), ((1, 64),))
    requests = ServedRequests(np.array([0.0, 0.001, 5.0, 10.0]), np.full(4, 80), np.full(4, 2), segments)
    group = ReplicaGroup(Linear(0.01, 0, 0, 0), 100, 2)
    fleet = Fleet(ServeSettings(router="prefix"), requests, [group])
    fleet.run()
    assert fleet.log.replica.tolist() == [0, 1, 1, 0]
    rows = ServedRequests(np.zeros(3), np.full(3, 80), np.full(3, 2))
    slow, fast = (ReplicaGroup(Linear(0.01, 0, 0, 0), 100, 1, speed=speed) for speed in (0.25, 1.0))
    fleet = Fleet(ServeSettings(router="least_loaded"), rows, [slow, fast])
    fleet.run()
    assert fleet.log.replica.tolist() == [0, 1, 1]


@given(st.lists(st.tuples(st.floats(0.01, 1), st.integers(0, 5)), min_size=1, max_size=60), st.integers(2, 8))
def test_activity_that_is_folded_has_the_same_sums(rows, most):
    kept, found, clock = [], Activity(), 0.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("siliconloom.sim.service.log.MOST_RECORDS", 2 * (most // 2))
        for seconds, tokens in rows:
            row = [clock, seconds, 1.0, seconds, 0.0, 0.0, float(tokens), float(tokens), 0.0, 0.0]
            kept.append(row)
            found.add(row)
            clock += seconds
    table = found.table()
    assert len(table["start_s"]) <= 2 * (most // 2)
    assert table["tokens"].sum() == sum(row[6] for row in kept)
    assert table["busy_s"].sum() == pytest.approx(clock)
    assert table["blocks"].max() == max(row[7] for row in kept)
    ends = table["start_s"] + table["seconds"]
    assert ends[:-1] == pytest.approx(table["start_s"][1:])
    assert ends[-1] == pytest.approx(clock)


@given(
    st.dictionaries(st.integers(0, 60), st.integers(1, 5), min_size=1, max_size=8),
    st.integers(0, 20),
    st.integers(1, 90),
    st.integers(1, 70),
)
def test_tokens_within_a_window_are_those_of_each_request(offsets, step, window, steps):
    lengths = [offset + step + 1 for offset, many in offsets.items() for _ in range(many)]
    contexts = np.mean(lengths) + np.arange(steps)
    expected = [np.mean([min(length + t, window) for length in lengths]) for t in range(steps)]
    assert RequestLengths(offsets, step).within(window, contexts) == pytest.approx(expected)


@given(ROWS, st.integers(1, 4), st.integers(2, 6))
@example(apart([(0.0, 40, 30, 0), (0.0, 38, 30, 0), (0.0, 39, 30, 0)]), 3, 6)
def test_guesses_of_requests_that_come_back_have_blocks(rows, guesses, most):
    """What came back from the host took a block for its next token alone, and guesses some that were not there."""
    blocks = math.ceil((max(p + o for _, p, o, _ in rows) + guesses) / 4) + 3
    keys = {"preemption": "swap", "host_bandwidth": "1 GB/s", "speculate": guesses, "acceptance": 0.8}
    fleet = served(rows, Linear(0.01, 1e-4, 2e-3, 1e-5), blocks, block=4, max_sequences=most, token_budget=64, **keys)
    assert sum(replica.account.tokens for replica in fleet.replicas) == sum(output for _, _, output, _ in rows)
