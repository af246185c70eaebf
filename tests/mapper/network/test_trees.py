"""Double binary trees: every chip's data in every sum, load evenly spread, latency of a tree, leaves of any sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.network import Endpoint, LinkPort, Topology, wire
from siliconloom.mapper.network.collectives import collective
from siliconloom.sim.network.messages import run_transfers

LINK = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})


def behind_leaves(leaves):
    return replace(wire(Topology(kind="switch"), LINK, sum(leaves)), leaves=tuple(leaves))


@pytest.mark.slow(seconds=1)
@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12).filter(lambda s: sum(s) > 1))
def test_sums_have_every_chip_once_and_come_to_all(leaves):
    """Numbers are added as the messages say; half of the data is in each tree, told apart by the order of messages."""
    wiring = behind_leaves(leaves)
    n = wiring.chips
    transfers = collective("all_reduce", "double_tree", wiring, 2.0)
    assert transfers.size == pytest.approx(np.ones(len(transfers)))  # one piece: latency binds
    half = len(transfers) // 2
    for tree in (range(half), range(half, len(transfers))):
        held = np.eye(n)
        for message in tree:
            source, target = transfers.source[message], transfers.target[message]
            waits = transfers.waits[transfers.first[message] : transfers.first[message + 1]]
            heard = {int(w) for w in np.flatnonzero(transfers.target[: tree[-1] + 1] == source) if w in tree}
            if transfers.adds[message]:
                assert set(waits.tolist()) >= {w for w in heard if transfers.adds[w]}
                held[target] += held[source]
            else:
                total = {w for w in heard if not transfers.adds[w]}  # none at the root, whose sum it is
                assert set(waits.tolist()) == (total or heard)
                held[target] = held[source]
        assert (held == 1).all()


def test_no_leaf_passes_on_more_than_twice_the_data():
    """In one tree or the other every chip has at most two children: it sends and gets about twice the input."""
    for n in (2, 3, 7, 8, 33, 64):
        transfers = collective("all_reduce", "double_tree", wire(Topology(kind="switch"), LINK, n), 64e6)
        sent = np.bincount(transfers.source, weights=transfers.size, minlength=n)
        assert sent.max() <= 2 * 64e6 * (1 + 1e-9)
        assert sent.sum() == pytest.approx(2 * (n - 1) * 64e6)


def test_it_takes_steps_like_a_tree_and_time_like_a_ring():
    wiring = wire(Topology(kind="switch"), LINK, 64)

    def seconds(algorithm, size):
        return run_transfers(wiring, collective("all_reduce", algorithm, wiring, size), Endpoint()).finish * 1e-12

    assert seconds("double_tree", 64.0) < seconds("ring", 64.0) / 6
    assert seconds("double_tree", 2.0**28) < 1.35 * seconds("ring", 2.0**28)
    assert seconds("tree", 2.0**28) > 2 * seconds("double_tree", 2.0**28)


def test_direct_sums_of_many_chips_meet_at_one_place():
    """Waits grow with the square of the chips, not with the cube."""
    transfers = collective("all_reduce", "direct", wire(Topology(kind="switch"), LINK, 300), 300.0)
    assert len(transfers) == 2 * 300 * 299 + 300
    assert len(transfers.waits) == 2 * 300 * 299
