"""Equal messages run once: the same as all of them, one by one, to the picosecond and the byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.network import Edge, Endpoint, LinkPort, Topology, wire
from siliconloom.mapper.network.collectives import algorithms, candidates, pattern
from siliconloom.sim.network import symmetry
from siliconloom.sim.network.messages import find_routes, run_transfers
from siliconloom.sim.network.patterns import run_pattern
from siliconloom.sim.network.symmetry import fold

KINDS = ["ring", "switch", "fully_connected", "mesh", "torus", "fat_tree", "hierarchical", "dragonfly"]
OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_receive"]


@st.composite
def machines(draw, most=128):
    """A topology of 4 to ``most`` chips, now and then with a link that is not like the others."""
    kind = draw(st.sampled_from(KINDS))
    more = {"forwarding": draw(st.sampled_from(["cut_through", "store_and_forward"]))}
    if kind in ("mesh", "torus"):
        shape = draw(st.lists(st.sampled_from([2, 3, 4, 5, 8]), min_size=1, max_size=3))
        while np.prod(shape) > most or np.prod(shape) < 4:
            shape = [*shape[1:]] if np.prod(shape) > most else [*shape, 4]
        chips, more["shape"] = int(np.prod(shape)), shape
    elif kind in ("fat_tree", "hierarchical", "dragonfly"):
        leaf, leaves = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([2, 4, 8, 16]))
        while leaf * leaves > most:
            leaves //= 2
        chips, more["chips_per_leaf"] = max(leaf * leaves, 4), leaf
        more |= {"spines": draw(st.integers(1, 4)), "routing": draw(st.sampled_from(["static", "ecmp"]))}
        more |= {"routers": draw(st.sampled_from([1, 2]))} if kind == "dragonfly" and leaves > 1 else {}
    else:
        chips = draw(st.integers(4, most if kind != "fully_connected" else 32))
        more |= {"adds": draw(st.booleans())} if kind == "switch" else {}
    link = LinkPort.model_validate(
        {"bandwidth": f"{draw(st.sampled_from([7, 50, 333]))} GB/s", "latency": f"{draw(st.sampled_from([1, 500]))} ns"}
    )
    wiring = wire(Topology.model_validate({"kind": kind, **more}), link, chips)
    if draw(st.integers(0, 4)) == 0:
        odd = draw(st.integers(0, len(wiring.source) - 1))
        rates = wiring.bandwidth.copy()
        rates[odd] /= 3
        wiring = replace(wiring, bandwidth=rates)
    return wiring


@st.composite
def cases(draw, most=128):
    wiring = draw(machines(most))
    operation = draw(st.sampled_from(OPERATIONS))
    more = ["double_tree"] if operation == "all_reduce" else []
    algorithm = draw(st.sampled_from([*candidates(operation, wiring), *more]))
    if algorithm == "direct" and operation != "send_receive" and wiring.chips > 40:
        algorithm = "ring"
    return wiring, pattern(operation, algorithm, wiring, draw(st.sampled_from([0.0, 1.0, 1e5, 1e6, 12345677.0])))


@pytest.mark.slow(seconds=2)
@settings(max_examples=150, deadline=None)
@given(cases())
def test_what_is_folded_takes_what_every_message_takes(case):
    wiring, found = case
    every = run_transfers(wiring, found.transfers(), Endpoint(), exact=True)
    for worth in (1.0, 1e9):  # folded where anything is equal; never folded, but turn by turn
        once = run_pattern(wiring, found, Endpoint(), few=0, worth=worth).run
        assert once.finish == every.finish
        assert np.array_equal(once.busy, every.busy)
        assert np.array_equal(once.carried, every.carried)


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(cases(most=32))
def test_flows_that_are_folded_take_what_every_flow_takes(case):
    """To the rounding of sums of rates, whose order is another."""
    wiring, found = case
    every = run_pattern(wiring, found, Endpoint(), flows=True)
    once = run_pattern(wiring, found, Endpoint(), flows=True, few=0, worth=1.0)
    assert once.run.finish == pytest.approx(every.run.finish, rel=1e-6)
    assert once.run.carried == pytest.approx(every.run.carried)


CLASSES = [
    ("ring", {}, 64, "ring", 2),
    ("ring", {}, 63, "bidirectional_ring", 4),
    ("torus", {"shape": [8, 8]}, 64, "ring", 2),
    ("torus", {"shape": [4, 8, 2]}, 64, "hierarchical", 6),
    ("switch", {"adds": True}, 64, "in_switch", 3),
    ("fat_tree", {"chips_per_leaf": 8, "spines": 4}, 64, "hierarchical", 32),
]


@pytest.mark.parametrize(("kind", "more", "chips", "algorithm", "classes"), CLASSES)
def test_a_symmetric_network_has_few_classes(kind, more, chips, algorithm, classes):
    link = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})
    wiring = wire(Topology.model_validate({"kind": kind, **more}), link, chips)
    found = pattern("all_reduce", algorithm, wiring, 1e6)
    folded = fold(wiring, found, find_routes(wiring, found.slots))
    assert folded is not None
    assert len(folded.pattern.slots) <= classes


def test_one_odd_link_leaves_a_ring_without_symmetry():
    link = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})
    odd = Edge.model_validate({"between": [3, 4], "bandwidth": "1 GB/s"})
    wiring = wire(Topology(kind="ring", edges=(odd,)), link, 64)
    found = pattern("all_reduce", "ring", wiring, 1e6)
    assert fold(wiring, found, find_routes(wiring, found.slots)) is None


@pytest.mark.slow(seconds=1)
@settings(max_examples=50, deadline=None)
@given(cases(most=24))
def test_a_collision_of_hashes_is_noticed(case):
    """Classes that are too large are refused by the comparison, whatever put them together."""
    wiring, found = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetry, "_refine", lambda slot, lane, *rest: (rest[-2].fill(0), rest[-1].fill(0)))
        once = run_pattern(wiring, found, Endpoint(), few=0, worth=1.0).run
    every = run_transfers(wiring, found.transfers(), Endpoint(), exact=True)
    assert once.finish == every.finish
    assert np.array_equal(once.busy, every.busy)


def test_every_algorithm_was_meant():
    assert {name for operation in OPERATIONS for name in algorithms(operation)} >= {"double_tree", "in_switch", "tree"}
