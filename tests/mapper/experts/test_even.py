"""Placements for even loads alone: against every placement, and against counts by hand."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.mapper.experts import Copies, loads_of, place_evenly, place_loads
from siliconloom.mapper.experts.search import level


def skewed(seed, layers, experts, each=2):
    return np.random.default_rng(seed).dirichlet(np.full(experts, 0.7), size=layers) * each


def fullest(loads, place, gpus):
    """Load of the fullest GPU over the mean, of each layer, counted one by one."""
    found = []
    for load, at in zip(loads, place, strict=True):
        held = [sum(load[e] for e in range(len(load)) if at[e] == gpu) for gpu in range(gpus)]
        found.append(max(held) / (sum(held) / gpus))
    return np.array(found)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (5, 5), (5, 1)]), st.integers(0, 999))
def test_no_placement_of_a_few_experts_is_more_even(shape, seed):
    experts, gpus = shape
    loads = skewed(seed, 2, experts)
    every = np.array(sorted(set(permutations(np.repeat(np.arange(gpus), experts // gpus).tolist()))))
    held = np.stack([(loads[:, None, :] * (every == gpu)).sum(axis=2) for gpu in range(gpus)])
    best = held.max(axis=0).min(axis=1) / (loads.sum(axis=1) / gpus)
    found = place_evenly(loads, gpus)
    np.testing.assert_allclose(fullest(loads, found, gpus), best, rtol=1e-7)
    assert all((np.bincount(at, minlength=gpus) == experts // gpus).all() for at in found)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(16, 4), (32, 8), (24, 2)]), st.integers(0, 999), st.integers(0, 2))
def test_balanced_is_at_least_as_even_as_in_order_and_copies_help(shape, seed, spare):
    experts, gpus = shape
    loads = skewed(seed, 3, experts)
    even, ordered = (place_loads(loads, gpus, how, spare).imbalances(loads) for how in ("balanced", "in_order"))
    assert (even <= ordered + 1e-12).all()
    assert (even >= 1 - 1e-12).all()
    assert (even <= place_loads(loads, gpus, "balanced").imbalances(loads) + 1e-12).all()
    held = place_loads(loads, gpus, "balanced", spare).holds
    assert held.any(axis=2).all()
    assert held.sum(axis=1).max() <= experts // gpus + spare


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(8, 4), (16, 4), (64, 8)]), st.integers(0, 999), st.integers(1, 3))
def test_loads_are_those_of_the_trace(shape, seed, each):
    experts, gpus = shape
    rng = np.random.default_rng(seed)
    trace = np.argsort(rng.random((40, 3, experts)) ** rng.uniform(0.2, 3, (1, 3, experts)), axis=2)[:, :, :each]
    loads = loads_of(trace, experts)
    ordered = place_loads(loads, gpus, "in_order")
    by_hand = []
    for layer in range(3):
        rows = np.zeros(gpus)
        for token in trace[:, layer]:
            for expert in token:
                rows[expert // (experts // gpus)] += 1
        by_hand.append(rows.max() / (40 * each / gpus))
    np.testing.assert_allclose(ordered.imbalances(loads), by_hand)
    assert ordered.imbalance(loads) == pytest.approx(max(by_hand))


@pytest.mark.parametrize("placement", ["in_order", "balanced"])
@pytest.mark.parametrize(("gpus", "spare"), [(1, 0), (2, 0), (4, 1), (8, 0)])
def test_uniform_loads_are_even_anyhow(placement, gpus, spare):
    loads = np.full((3, 8), 0.25)
    assert place_loads(loads, gpus, placement, spare).imbalances(loads) == pytest.approx(np.ones(3))


def test_a_copy_takes_half_of_a_hot_expert():
    loads = np.array([[1.2, 0.2, 0.2, 0.4]])
    assert place_loads(loads, 2, "balanced").imbalances(loads) == pytest.approx([1.4])
    found = place_loads(loads, 2, "balanced", 1)
    assert isinstance(found, Copies)
    assert found.holds[0, 0].all()
    assert found.imbalances(loads) == pytest.approx([1.0])


def test_swaps_take_load_from_above_the_cap():
    loads, place = np.array([[0.5, 0.4, 0.1, 0.0]]), np.array([[0, 0, 1, 1]])
    level(loads, np.array([0.5]), place, 2)
    assert fullest(loads, place, 2) == pytest.approx([1.0])


def test_what_does_not_divide_is_refused():
    loads = np.full((1, 8), 0.25)
    with pytest.raises(LoomError, match="8 cannot lie on 3 GPUs"):
        place_loads(loads, 3, "balanced")
    with pytest.raises(LoomError, match="4 and 5 copies on each GPU are more than all 8"):
        place_loads(loads, 2, "in_order", 5)
