"""Placement of experts: against trying everything, bounds, copies, hops counted on the trace itself."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.mapper.experts import (
    Copies,
    balance_copies,
    copy_hot,
    expert_hops,
    fanout_of,
    hops_of,
    imbalance_of,
    place_experts,
    return_hops,
    routing_of,
    traffic_of,
)
from siliconloom.mapper.experts.assignment import best_assignment
from siliconloom.mapper.experts.copies import single
from siliconloom.mapper.experts.search import most_kept, value_of


def trace_of(seed, tokens, layers, experts, sharp=0.3, each=1):
    """Tokens that walk from expert to expert, each preferring some of the next layer."""
    rng = np.random.default_rng(seed)
    chain = rng.dirichlet(np.full(experts, sharp), size=(layers, experts))
    picks = np.empty((tokens, layers, each), int)
    for token in range(tokens):
        at = rng.integers(experts)
        for layer in range(layers):
            p = chain[layer, at] + 1e-3
            picks[token, layer] = rng.choice(experts, size=each, replace=False, p=p / p.sum())
            at = picks[token, layer, 0]
    return picks if each > 1 else picks[..., 0]


def balanced(experts, groups):
    """Every placement of a layer."""
    return sorted(set(permutations(np.repeat(np.arange(groups), experts // groups).tolist())))


def best_of_all(routing, gpus, together=0.0, imbalance=None):
    """Most value over every placement of every layer, the first one's labels fixed by symmetry or not."""
    layers, experts = routing.loads.shape
    cap = np.full(layers, np.inf) if imbalance is None else imbalance * routing.loads.sum(axis=1) / gpus
    penalty = 1e4 * (routing.transitions.sum() + (together * routing.together).sum() + 1)
    args = (routing.transitions, together * routing.together, routing.loads, cap, 0.0 if imbalance is None else penalty)
    every = product(balanced(experts, gpus), repeat=layers)
    return args, max(value_of(*args, np.array(place), gpus) for place in every)


@pytest.mark.slow(seconds=1)
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(4, 2, 3), (4, 4, 2), (6, 2, 2), (4, 2, 4), (3, 3, 3)]),
    st.integers(0, 999),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([None, 1.1]),
)
def test_the_best_of_all_is_found(shape, seed, together, imbalance):
    experts, gpus, layers = shape
    routing = routing_of(trace_of(seed, 60, layers, experts, each=2), experts)
    args, most = best_of_all(routing, gpus, together, imbalance)
    found = place_experts(routing, gpus, together=together, imbalance=imbalance)
    assert found.exact
    assert value_of(*args, found.gpu, gpus) == pytest.approx(most, rel=1e-9)
    near = place_experts(routing, gpus, together=together, imbalance=imbalance, exhaustive=False)
    assert value_of(*args, near.gpu, gpus) <= most + 1e-9
    assert near.bound <= found.hops + 1e-9


@pytest.mark.slow(seconds=2)
@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(8, 2), (8, 4), (8, 8), (6, 3)]), st.integers(0, 999))
def test_search_comes_near_the_best(shape, seed):
    experts, gpus = shape
    routing = routing_of(trace_of(seed, 300, 6, experts), experts)
    best = place_experts(routing, gpus)
    near = place_experts(routing, gpus, exhaustive=False)
    assert best.exact
    assert not near.exact
    kept, most = (5 - p.hops for p in (near, best))
    assert most * 0.9 - 1e-9 <= kept <= most + 1e-9
    assert near.bound <= best.hops + 1e-9
    for found in (best, near):
        counts = np.stack([np.bincount(layer, minlength=gpus) for layer in found.gpu])
        assert (counts == experts // gpus).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 999))
def test_assignment_is_the_best_permutation(n, seed):
    gain = np.random.default_rng(seed).normal(size=(n, n))
    found = best_assignment(gain)
    assert sorted(found.tolist()) == list(range(n))
    most = max(sum(gain[i, p[i]] for i in range(n)) for p in permutations(range(n)))
    assert gain[np.arange(n), found].sum() == pytest.approx(most)


@pytest.mark.slow(seconds=1)
@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(4, 2), (6, 2), (6, 3), (4, 4)]), st.integers(0, 999))
def test_no_pair_of_layers_keeps_more_than_the_bound(shape, seed):
    experts, gpus = shape
    gain = np.random.default_rng(seed).exponential(size=(experts, experts)) ** 2
    every = np.array(balanced(experts, gpus))
    most = max(float((gain * (a[:, None] == b[None, :])).sum()) for a in every for b in every)
    assert most <= most_kept(gain, experts // gpus) + 1e-9


@pytest.mark.slow(seconds=1)
@given(st.integers(0, 99), st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_hops_are_those_of_the_trace(seed, each):
    trace = trace_of(seed, 50, 5, 8, each=each)
    routing = routing_of(trace, 8)
    gpu = place_experts(routing, 4).gpu
    picks = trace.reshape(50, 5, each)
    at = np.stack([gpu[layer][picks[:, layer]] for layer in range(5)], axis=1)
    crossing = at[:, :-1, :, None] != at[:, 1:, None, :]
    assert hops_of(routing.transitions, gpu) == pytest.approx(crossing.mean(axis=(2, 3)).sum() / 50)
    assert routing.transitions.sum(axis=(1, 2)) == pytest.approx(np.ones(4))
    assert routing.loads.sum(axis=1) == pytest.approx(np.full(5, each))


@given(st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_traffic_and_fanout_are_those_of_the_trace(seed):
    trace = trace_of(seed, 40, 4, 8, each=2)
    routing = routing_of(trace, 8)
    place = place_experts(routing, 4, together=1.0).gpu
    traffic = traffic_of(routing.transitions, place, 4)
    expected = np.zeros((3, 4, 4))
    for layer, token, a, b in product(range(3), range(40), range(2), range(2)):
        ends = place[layer, trace[token, layer, a]], place[layer + 1, trace[token, layer + 1, b]]
        expected[(layer, *ends)] += 1 / 160
    np.testing.assert_allclose(traffic, expected)
    assert traffic.sum() - np.trace(traffic, axis1=1, axis2=2).sum() == pytest.approx(
        hops_of(routing.transitions, place)
    )
    distinct = [[len({place[layer, e] for e in picks}) for layer, picks in enumerate(token)] for token in trace]
    np.testing.assert_allclose(fanout_of(trace, place), np.mean(distinct, axis=0))


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_at_random_all_but_a_share_of_transitions_cross(gpus):
    transitions = np.full((31, 8, 8), 1 / 64)
    place = np.stack([np.random.default_rng(n).permutation(np.arange(8) % gpus) for n in range(32)])
    assert hops_of(transitions, place) == pytest.approx(31 * (gpus - 1) / gpus)
    assert return_hops(32, gpus) == 64 * (gpus - 1) / gpus


def test_a_chain_that_a_placement_can_follow_costs_nothing():
    rng = np.random.default_rng(1)
    order = np.stack([rng.permutation(16) for _ in range(6)])
    trace = order[:, rng.integers(16, size=200)].T
    found = place_experts(routing_of(trace, 16), 4)
    assert found.hops == 0.0
    assert found.bound == pytest.approx(0.0)


def test_nodes_come_before_their_gpus():
    routing = routing_of(trace_of(3, 400, 6, 8), 8)
    flat, nested = place_experts(routing, 4), place_experts(routing, 4, nodes=2)
    assert nested.exact
    assert nested.node_hops == pytest.approx(place_experts(routing, 2).hops)
    assert nested.node_hops <= hops_of(routing.transitions, flat.gpu // 2) + 1e-9
    assert flat.hops <= nested.hops + 1e-9
    assert nested.bound <= flat.hops + 1e-9


def test_even_loads_cost_hops():
    routing = routing_of(trace_of(5, 400, 6, 8, sharp=0.1), 8)
    free, even = place_experts(routing, 4), place_experts(routing, 4, imbalance=1.0)
    assert even.imbalance < free.imbalance
    assert even.hops >= free.hops
    assert even.imbalance == imbalance_of(routing.loads, even.gpu, 4)


@pytest.mark.slow(seconds=1)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.sampled_from([2, 4]), st.integers(0, 2))
def test_copies_even_out_loads(seed, gpus, spare):
    routing = routing_of(trace_of(seed, 200, 3, 8, sharp=0.1), 8)
    placed = place_experts(routing, gpus)
    base = single(placed.gpu, gpus)
    hot = copy_hot(routing, placed.gpu, gpus, spare)
    assert base.imbalance(routing.loads) == pytest.approx(placed.imbalance)
    assert hot.imbalance(routing.loads) <= base.imbalance(routing.loads) + 1e-9
    assert (hot.holds | ~base.holds).all()
    for copies in (hot, balance_copies(routing, gpus, spare)):
        assert copies.holds.any(axis=2).all()
        assert (copies.holds.sum(axis=1) <= 8 // gpus + spare).all()
        assert copies.loads(routing.loads).sum(axis=1) == pytest.approx(np.ones(3))


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999))
def test_hops_of_copies(seed):
    routing = routing_of(trace_of(seed, 200, 4, 8), 8)
    gpu = place_experts(routing, 4).gpu
    hops, each = expert_hops(routing, single(gpu, 4))
    assert hops == pytest.approx(hops_of(routing.transitions, gpu))
    assert each == pytest.approx(single(gpu, 4).loads(routing.loads))
    everywhere = Copies(np.ones((4, 8, 4), bool))
    assert expert_hops(routing, everywhere)[0] == pytest.approx(0.0)
    assert expert_hops(routing, copy_hot(routing, gpu, 4, 1))[1].sum(axis=1) == pytest.approx(np.ones(4))


def test_bad_placements_are_refused():
    routing = routing_of(trace_of(0, 20, 3, 8), 8)
    with pytest.raises(LoomError, match="8 cannot lie on 3 GPUs"):
        place_experts(routing, 3)
    with pytest.raises(LoomError, match="from 0 to 3"):
        routing_of([[0, 4]], 4)
    with pytest.raises(LoomError, match="too many ways"):
        place_experts(routing_of(trace_of(0, 20, 2, 16), 16), 4, exhaustive=True)
