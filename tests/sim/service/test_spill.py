"""Slower memories for prefixes: what they hold, what is brought from them, and what that takes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.spill import SlowMemory, SpillTiers
from tests.sim.service.test_migration import check_conserved
from tests.sim.service.test_replica import ROWS, Linear, Staged

COSTS = (0.01, 1e-4, 2e-3, 1e-5)
PATHS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([5, 16, 40])), min_size=1, max_size=4).map(
    lambda parts: tuple((10 * depth + number, tokens) for depth, (number, tokens) in enumerate(parts))
)


def fixed(path):
    """A segment has one length: that of its number."""
    return tuple((number, (5, 16, 40)[number % 3]) for number, _ in path)


@given(st.lists(PATHS.map(fixed), min_size=1, max_size=12), st.sampled_from([1, 4, 16]), st.integers(0, 200))
def test_a_memory_with_room_for_all_has_what_paths_have_in_common(paths, block, known):
    """Whole blocks of the longest beginning that any path before had, compared segment by segment."""
    tiers = SpillTiers([SlowMemory(10_000, block, 0.5)], block)
    stored = []
    for path in paths:
        common = 0
        for other in stored:
            shared = 0
            for mine, theirs in zip(path, other, strict=False):
                if mine != theirs:
                    break
                shared += mine[1]
            common = max(common, shared)
        most = sum(tokens for _, tokens in path) - 1
        above = min(known, most) // block * block
        expected = max(min(common, most) // block * block, above)
        assert tiers.beyond(path, above, most, 0.0) == (expected, pytest.approx((expected - above) * 0.5))
        before = tiers.brought[0]
        tiers.bring(path, above, most, 0.0)
        assert tiers.brought[0] - before == expected - above
        tiers.store(path, 0.0)
        stored.append(path)
        tiers.check()


def run(requests, *, blocks, spill=(), keys=(), count=1):
    chosen = ServeSettings(block=4, **dict(keys))
    group = ReplicaGroup(Linear(*COSTS), blocks, count, spill=spill, swap_s=1e-4)
    fleet = Fleet(chosen, requests, [group], (), lambda tokens: 1e-4 * tokens)
    fleet.run()
    return fleet


def apart(paths, outputs):
    """Requests that never meet, whose prompts are a path and three tokens more."""
    prompt = np.array([sum(tokens for _, tokens in path) + 3 for path in paths])
    return ServedRequests(np.arange(len(paths)) * 100.0, prompt, np.array(outputs), segments=tuple(paths))


@given(st.lists(PATHS.map(fixed), min_size=2, max_size=12), st.integers(1, 5), st.sampled_from([0.0, 1e-3, 0.02]))
def test_what_was_cached_once_is_brought_and_takes_its_time(paths, output, token_s):
    """Beside a memory that forgets nothing: equal tokens are cached, and bringing is all that takes longer."""
    requests = apart(paths, [output] * len(paths))
    most = max(int(p) for p in requests.prompt) + output
    roomy = run(requests, blocks=10_000)
    tight = run(requests, blocks=-(-most // 4) + 6, spill=((10_000, token_s, False),))
    assert tight.log.cached.tolist() == roomy.log.cached.tolist()
    brought = (tight.log.first - roomy.log.first) / token_s if token_s else np.zeros(1)
    assert brought.sum() == pytest.approx(tight.engines[0].spill.brought[0] if token_s else 0, abs=1e-6)
    assert tight.log.finished - tight.log.first == pytest.approx(roomy.log.finished - roomy.log.first)


def test_what_is_brought_was_used_last_in_the_memory_that_it_came_from():
    """Of three prefixes in a memory for two, the one that nobody brought goes."""
    tiers = SpillTiers([SlowMemory(1, 4, 1e-3), SlowMemory(20, 4, 1e-2)], 4)
    first, second, third = ((1, 40),), ((2, 40),), ((3, 40),)
    tiers.store(first, 0.0)
    tiers.store(second, 0.0)
    tiers.bring(first, 0, 40, 0.0)
    tiers.store(third, 0.0)
    assert [tiers.beyond(path, 0, 40, 0.0)[0] for path in (first, second, third)] == [40, 0, 40]


def test_the_first_memory_that_has_it_is_asked():
    """A small fast one keeps what was used last, a large slow one the rest."""
    path, other = ((1, 40),), ((2, 40),)
    requests = apart([path, other, path, other], [1] * 4)
    fleet = run(requests, blocks=11, spill=((11, 1e-3, False), (100, 1e-2, False)))
    # of 11 blocks the second prompt leaves the first one none above, and one in the fast memory
    assert fleet.log.cached.tolist() == [0, 0, 40, 40]
    assert sum(fleet.engines[0].spill.brought) == 80
    assert fleet.engines[0].spill.brought[1] > fleet.engines[0].spill.brought[0]


def test_answers_are_kept_for_the_turns_behind_them_until_the_replica_is_lost():
    """Three turns of 40, 20 and 40 tokens of answers, others between them that leave no room for them above."""
    paths = [((1, 40),), ((2, 60),), ((1, 40), (3, 20), (4, 20)), ((5, 60),)]
    requests = ServedRequests(
        np.arange(4) * 100.0,
        np.array([40, 60, 81, 60]),
        np.array([21, 1, 1, 1]),
        segments=tuple(paths),
        answer=np.array([3, -1, -1, -1]),
    )
    spill = ((100, 1e-3, False),)
    kept = run(requests, blocks=24, spill=spill)
    assert kept.log.cached.tolist() == [0, 0, 60, 0]
    assert 20 <= kept.engines[0].spill.brought[0] <= 60  # ends of prefixes are taken back first, the answer before all
    # the same with a life that ends between the first turn and the second
    life = next(seed for seed in range(1000) if 110 < np.random.default_rng((seed, 1, 0)).exponential(1e3) < 190)
    lost = run(requests, blocks=24, spill=spill, keys={"lost_every": 1e3, "restart_s": 1.0, "seed": life})
    assert lost.log.cached[2] == 0


@pytest.mark.slow(seconds=1)
@settings(max_examples=80)
@given(
    ROWS,
    st.integers(1, 3),
    st.sampled_from([None, 0.4]),
    st.sampled_from(["round_robin", "prefix"]),
    st.sampled_from(["recompute", "swap"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_nothing_is_lost_beside_slower_memories(rows, count, mean, router, preemption, host, turns):
    number = len(rows)
    arrival, prompt, output, _ = (np.array(column) for column in zip(*rows, strict=True))
    prompt = prompt + 40
    session = np.arange(number) % 3
    requests = ServedRequests(
        arrival.astype(float),
        prompt,
        output,
        segments=tuple(((n % 2, 24), (10 + n % 4, 16 + n % 5)) for n in range(number)),
        answer=np.arange(100, 100 + number) if turns else np.full(number, -1),
        session=session if turns else np.full(number, -1),
    )
    keys = {"max_sequences": 4, "token_budget": 32, "preemption": preemption, "router": router}
    keys |= {"host_bandwidth": "1 GB/s"} if preemption == "swap" else {}
    keys |= {"lost_every": mean, "restart_s": 0.2} if mean else {}
    blocks = -(-int((prompt + output).max() + 4) // 4) + 10
    fleet = run(requests, blocks=blocks, spill=((host, 1e-4, False), (5 * host, 1e-3, False)), keys=keys, count=count)
    check_conserved(fleet, output)


@settings(max_examples=60)
@given(st.lists(PATHS.map(fixed), min_size=2, max_size=12), st.integers(1, 5), st.integers(8, 60))
def test_a_store_of_one_replica_is_its_own_memory(paths, output, host):
    requests = apart(paths, [output] * len(paths))
    blocks = -(-(int(requests.prompt.max()) + output) // 4) + 6
    own, store = (run(requests, blocks=blocks, spill=((host, 1e-3, shared),)) for shared in (False, True))
    assert own.log.cached.tolist() == store.log.cached.tolist()
    assert own.log.finished.tolist() == store.log.finished.tolist()


@settings(max_examples=60)
@given(st.lists(PATHS.map(fixed), min_size=2, max_size=12), st.integers(1, 5), st.integers(2, 3))
def test_what_one_replica_computed_others_find_in_the_store(paths, output, count):
    """Requests that never meet, dealt in turns: as many tokens are cached as where one replica has them all."""
    requests = apart(paths, [output] * len(paths))
    one, many = run(requests, blocks=10_000), run(requests, blocks=10_000, spill=((10_000, 1e-3, True),), count=count)
    assert many.log.cached.tolist() == one.log.cached.tolist()
    alone = run(requests, blocks=10_000, spill=((10_000, 1e-3, False),), count=count)
    assert (alone.log.cached <= one.log.cached).all()


@pytest.mark.parametrize("router", ["round_robin", "prefix", "least_loaded"])
@pytest.mark.parametrize("lost_every", [None, 1e6])
@pytest.mark.parametrize(("second", "cached"), [(0.01, 0), (0.0135, 0), (0.014, 40), (50.0, 40)])
def test_a_store_has_what_a_step_computed_when_it_ends(second, cached, lost_every, router):
    """The first replica computes 43 tokens in 14.3 ms; the second one begins before, as that ends, or later."""
    path = ((1, 40),)
    requests = ServedRequests(np.array([0.0, second]), np.array([43, 43]), np.array([50, 50]), segments=(path, path))
    keys = {"router": router} | ({} if lost_every is None else {"lost_every": lost_every, "restart_s": 1.0})
    fleet = run(requests, blocks=10_000, spill=((10_000, 1e-3, True),), keys=keys, count=2)
    ends = float(fleet.log.first[0])
    assert ends == pytest.approx(0.0143)
    assert fleet.log.cached[1] == (cached if second >= ends or cached == 0 else 0)


def test_a_store_outlives_a_replica():
    """The one replica is lost between two prompts; what it wrote to the store is there, what lay near it is not."""
    path = ((1, 40),)
    requests = apart([path, path], [1, 1])
    life = next(seed for seed in range(1000) if 10 < np.random.default_rng((seed, 1, 0)).exponential(1e3) < 90)
    keys = {"lost_every": 1e3, "restart_s": 1.0, "seed": life}
    found = [run(requests, blocks=24, spill=((100, 1e-3, shared),), keys=keys) for shared in (False, True)]
    assert [fleet.log.cached[1] for fleet in found] == [0, 40]


def test_a_store_keeps_what_was_brought_last_and_outlives_a_replica_that_read_it():
    store, own = SlowMemory(20, 4, 1e-2, shared=True), SlowMemory(20, 4, 1e-2)
    first, second, third = ((1, 40),), ((2, 40),), ((3, 40),)
    for memory in (store, own):
        tiers = SpillTiers([memory], 4)
        tiers.store(first, 1.0)
        tiers.store(second, 2.0)
        assert tiers.beyond(first, 0, 40, 3.0)[0] == 40
        tiers.bring(first, 0, 40, 3.0)
        tiers.store(third, 4.0)
        assert [tiers.beyond(path, 0, 40, 5.0)[0] for path in (first, second, third)] == [40, 0, 40]
        tiers.clear()
        assert tiers.beyond(first, 0, 40, 6.0)[0] == (40 if memory is store else 0)


def test_who_looks_into_the_future_changes_nothing():
    """A router that asks of a prompt as it comes: what is written later is not there yet for anybody."""
    store = SlowMemory(100, 4, 1e-2, shared=True)
    store.store(((1, 40),), 5.0)
    assert store.found(((1, 40),), 4.9) == 0
    assert store.found(((1, 40),), 5.0) == 40


def test_stores_are_apart():
    """A small fast one and a large slow one, which both replicas share."""
    path, other = ((1, 40),), ((2, 40),)
    requests = apart([path, other, other, path], [1] * 4)
    fleet = run(requests, blocks=11, spill=((11, 1e-3, True), (100, 1e-2, True)), count=2)
    assert fleet.log.cached.tolist() == [0, 0, 40, 40]
    # a block of the first path was left in the fast one
    assert [sum(engine.spill.brought[at] for engine in fleet.engines) for at in (0, 1)] == [44, 36]
    assert [memory.blocks for memory in fleet._stores.values()] == [11, 100]


def test_stages_of_a_pipeline_share_the_whole_of_a_store():
    requests = apart([((1, 40),)], [1])
    group = ReplicaGroup(
        Staged(COSTS, (0.5, 0.5), 0.0, 0.0), 40, 1, stages=2, spill=((30, 1e-3, True), (20, 1e-3, False))
    )
    fleet = Fleet(ServeSettings(block=4), requests, [group])
    tiers = [engine.spill._tiers for engine in fleet.engines]
    assert tiers[0][0] is tiers[1][0]
    assert [memory.blocks for memory in tiers[0]] == [30, 10]


def test_who_waits_for_room_in_a_step_sees_what_others_store():
    """Prompts in one piece: the third one fits the step beside an answer when the second one's is in the store."""
    p = ((1, 40),)
    requests = ServedRequests(
        np.array([0.0, 0.005, 0.006]),
        np.array([5, 44, 44]),
        np.array([2000, 2, 2]),
        segments=(((9, 4),), p, p),
        answer=np.full(3, -1),
    )
    keys = {"chunked": False, "token_budget": 44, "max_sequences": 8}
    fleet = run(requests, blocks=10_000, spill=((10_000, 1e-5, True),), keys=keys, count=2)
    assert fleet.log.replica.tolist() == [0, 1, 0]
    assert fleet.log.cached[2] == 40
    assert fleet.log.first[2] < 0.1


def test_late_prompts_change_nothing_of_early_answers():
    """Answers have replicas of their own, one of which a request leaves and comes back to."""
    ends = []
    for late in (0, 3):
        paths = [((1, 40),), ((2, 40),), *(((10 + n, 80),) for n in range(late))]
        requests = ServedRequests(
            np.array([0.0, 1e-3, *(1000.0 + 100 * n for n in range(late))]),
            np.array([43, 43, *[83] * late]),
            np.array([60, 60, *[1] * late]),
            segments=tuple(paths),
            answer=np.full(2 + late, -1),
        )
        spill = ((25, 1e-5, True),)
        answers, prompts = (ReplicaGroup(Linear(*COSTS), blocks, 1, spill=spill) for blocks in (38, 400))
        fleet = Fleet(ServeSettings(block=4, prefill_replicas=1), requests, [answers], [prompts], lambda _: 1e-4)
        fleet.run()
        assert fleet.log.preempted[:2].sum() > 0
        ends.append(fleet.log.finished[:2].tolist())
    assert ends[0] == ends[1]
