"""All-to-all of any sizes: every chip gets all it should, along every algorithm's way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import NotSupported
from siliconloom.arch.network import Endpoint, LinkPort, Topology, wire
from siliconloom.mapper.network.collectives import candidates, collective
from siliconloom.mapper.network.exchange import exchange_bound
from siliconloom.sim.network.messages import run_transfers

LINK = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})


def two_level(leaves):
    """Chips behind leaves of the given sizes, all under one switch."""
    chips = sum(leaves)
    whole = wire(Topology(kind="switch"), LINK, chips)
    return replace(whole, leaves=tuple(leaves))


@st.composite
def machines(draw):
    if draw(st.booleans()):
        return two_level(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda s: max(s) > 1)))
    shape = draw(st.lists(st.integers(2, 3), min_size=2, max_size=3))
    return wire(Topology(kind=draw(st.sampled_from(["torus", "mesh"])), shape=tuple(shape)), LINK, int(np.prod(shape)))


def places(wiring):
    """Leaf, place and leaf's size of every chip; or coordinates in a grid."""
    if len(wiring.shape) > 1:
        return [tuple(int(c) for c in np.unravel_index(chip, wiring.shape)) for chip in range(wiring.chips)]
    return [(leaf, place, size) for leaf, size in enumerate(wiring.leaves) for place in range(size)]


def travels_with(wiring, source, sink, target, where):
    """Tell whether a part that is at ``source`` for ``target`` goes with a message to ``sink``."""
    if len(wiring.shape) > 1:
        axis = next(a for a in range(len(wiring.shape)) if where[source][a] != where[sink][a])
        return where[target][axis] == where[sink][axis]
    if where[source][0] == where[sink][0]:  # within the leaf: to its target, or to the place like its target's
        if where[target][0] == where[sink][0]:
            return target == sink
        return where[target][1] % where[source][2] == where[sink][1]
    return target == sink


@settings(max_examples=60, deadline=None)
@given(machines(), st.integers(0, 2**32 - 1))
def test_every_part_reaches_its_chip_along_the_hierarchy(wiring, seed):
    """Parts are moved message by message, each one whole; message sizes are the sums of the parts in them."""
    n = wiring.chips
    matrix = np.random.default_rng(seed).integers(0, 3, (n, n)) * 1000.0
    if matrix.sum() == np.trace(matrix):
        matrix[0, 1] = 1000.0
    transfers = collective("all_to_all", "hierarchical", wiring, matrix)
    where = places(wiring)
    at = {(a, b): a for a in range(n) for b in range(n) if matrix[a, b]}
    for step in range(int(transfers.step.max()) + 1):
        moves = {}
        for message in np.flatnonzero((transfers.step == step) & (transfers.source != transfers.target)):
            source, sink = int(transfers.source[message]), int(transfers.target[message])
            taken = [
                part
                for part, here in at.items()
                if here == source and travels_with(wiring, source, sink, part[1], where)
            ]
            assert transfers.size[message] == sum(matrix[part] for part in taken)
            assert not set(taken) & set(moves)
            moves |= dict.fromkeys(taken, sink)
        at |= moves
    assert all(here == target for (_, target), here in at.items())


@settings(max_examples=60, deadline=None)
@given(machines(), st.sampled_from(["direct", "ring", "hierarchical"]), st.integers(0, 2**32 - 1))
def test_bytes_out_and_in_are_the_squares_and_no_run_beats_the_bound(wiring, algorithm, seed):
    n = wiring.chips
    matrix = np.random.default_rng(seed).exponential(1e5, (n, n)).round()
    transfers = collective("all_to_all", algorithm, wiring, matrix)
    gained = np.bincount(transfers.target, weights=transfers.size, minlength=n)
    gained -= np.bincount(transfers.source, weights=transfers.size, minlength=n)
    assert gained == pytest.approx(matrix.sum(axis=0) - matrix.sum(axis=1), abs=1e-3)
    if algorithm != "hierarchical":
        off = matrix - np.diag(np.diag(matrix))
        assert transfers.size.sum() == off.sum()
    run = run_transfers(wiring, transfers, Endpoint())
    assert run.finish * 1e-12 >= exchange_bound(wiring, matrix) * (1 - 1e-9)
    assert np.array_equal(run.done, run_transfers(wiring, transfers, Endpoint(), exact=True).done)


@pytest.mark.parametrize("algorithm", ["direct", "ring", "hierarchical"])
def test_equal_parts_are_a_square_of_them(algorithm):
    wiring = wire(Topology(kind="torus", shape=(2, 4)), LINK, 8)
    equal = collective("all_to_all", algorithm, wiring, 8e5)
    square = collective("all_to_all", algorithm, wiring, np.full((8, 8), 1e5))
    assert run_transfers(wiring, equal, Endpoint()).finish == run_transfers(wiring, square, Endpoint()).finish


def test_small_parts_gain_from_going_together():
    """64 chips in nodes of 8: 7 + 7 messages a chip instead of 63, at the price of the bytes within nodes."""
    topology = Topology.model_validate(
        {"kind": "hierarchical", "chips_per_leaf": 8, "uplink": {"bandwidth": "25 GB/s", "latency": "5 us"}}
    )
    wiring = wire(topology, LINK, 64)
    assert "hierarchical" in candidates("all_to_all", wiring)
    slow = Endpoint.model_validate({"delay": "1 us"})
    made = {algorithm: collective("all_to_all", algorithm, wiring, 64.0) for algorithm in ("ring", "hierarchical")}
    small = {algorithm: run_transfers(wiring, each, slow) for algorithm, each in made.items()}
    assert small["hierarchical"].finish < small["ring"].finish / 10
    assert len(made["hierarchical"]) == 64 * (7 + 7) + 2 * 64


def test_what_has_no_dimensions_is_refused():
    with pytest.raises(NotSupported, match="needs two dimensions"):
        collective("all_to_all", "hierarchical", wire(Topology(kind="ring"), LINK, 8), 8.0)
    with pytest.raises(NotSupported, match=r"needs leaves of equal sizes for all_reduce \(got \[2, 3\]\)"):
        collective("all_reduce", "hierarchical", two_level([2, 3]), 8.0)


def test_thin_uplinks_bound_what_leaves_a_leaf():
    """Four chips of a leaf share one uplink of 10 GB/s: their 3 MB for others take 0.3 ms, whatever the algorithm."""
    topology = Topology.model_validate(
        {"kind": "fat_tree", "chips_per_leaf": 4, "spines": 1, "uplink": {"bandwidth": "10 GB/s", "latency": "1 us"}}
    )
    wiring = wire(topology, LINK, 16)
    matrix = np.full((16, 16), 62500.0)
    assert exchange_bound(wiring, matrix) == pytest.approx(4 * 12 * 62500 / 10e9)
    for algorithm in ("direct", "ring", "hierarchical"):
        run = run_transfers(wiring, collective("all_to_all", algorithm, wiring, matrix), Endpoint())
        assert exchange_bound(wiring, matrix) <= run.finish * 1e-12 < 1.2 * exchange_bound(wiring, matrix)
