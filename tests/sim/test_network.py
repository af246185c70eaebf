"""Messages over links: bounds, known formulas, two engines, what every chip learns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import LoomError
from siliconloom.arch.names import network_names
from siliconloom.arch.network import Edge, Endpoint, LinkPort, Topology, load_network, wire
from siliconloom.arch.transfers import Transfers, pattern_of
from siliconloom.mapper.network.collectives import (
    algorithms,
    candidates,
    collective,
    cost,
    lower_bound,
    pattern,
    sample,
)
from siliconloom.sim.network.flows import run_flows
from siliconloom.sim.network.messages import farthest, find_routes, run_transfers

LINK = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})
FAST = Endpoint.model_validate({"memory": "1000000 TB/s", "delay": "1 ps"})
KINDS = ["ring", "switch", "fully_connected", "mesh", "torus"]
OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def topology(kind, forwarding="cut_through", **more):
    return Topology.model_validate({"kind": kind, "forwarding": forwarding, **more})


@st.composite
def cases(draw):
    """A topology, its chips, a collective by an algorithm that it allows, and a size."""
    kind = draw(st.sampled_from(KINDS))
    chips = draw(st.integers(2, 20))
    more = {"adds": draw(st.booleans())} if kind == "switch" else {}
    wiring = wire(topology(kind, draw(st.sampled_from(["cut_through", "store_and_forward"])), **more), LINK, chips)
    operation = draw(st.sampled_from(OPERATIONS))
    more = ["double_tree"] if operation == "all_reduce" else []
    algorithm = draw(st.sampled_from(candidates(operation, wiring) + more))
    return wiring, operation, algorithm, draw(st.sampled_from([1.0, 4096.0, 1e6, 3e8]))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_no_collective_beats_its_bound_and_both_engines_agree(case):
    wiring, operation, algorithm, size = case
    transfers = collective(operation, algorithm, wiring, size)
    run = run_transfers(wiring, transfers, Endpoint())
    exact = run_transfers(wiring, transfers, Endpoint(), exact=True)
    assert np.array_equal(run.done, exact.done)
    assert np.array_equal(run.busy, exact.busy)
    bound = lower_bound(operation, wiring, size, in_switch=algorithm == "in_switch", hops=farthest(wiring))
    assert run.finish * 1e-12 >= bound * (1 - 1e-9)
    assert (run.busy <= run.finish).all()


@pytest.mark.slow(seconds=1)
@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_every_chip_hears_of_every_other(case, seed):
    """Whatever the links' speeds, what a chip has when it sends is enough for all to have all in the end."""
    wiring, operation, algorithm, size = case
    random = np.random.default_rng(seed)
    speeds = wiring.bandwidth * random.choice([1.0, 0.03, 0.3], len(wiring.bandwidth))
    wiring = replace(wiring, bandwidth=speeds, latency=wiring.latency * random.integers(1, 40, len(wiring.latency)))
    transfers = collective(operation, algorithm, wiring, size)
    done = run_transfers(wiring, transfers, FAST).done
    events = []
    for message in np.flatnonzero(transfers.source != transfers.target).tolist():
        waits = transfers.waits[transfers.first[message] : transfers.first[message + 1]]
        events += [(int(done[waits].max(initial=0)), 1, message), (int(done[message]), 0, message)]
    known = {node: {node} for node in range(wiring.nodes)}
    carries = {}
    for _, leaves, message in sorted(events):
        if leaves:
            carries[message] = set(known[int(transfers.source[message])])
        else:
            known[int(transfers.target[message])] |= carries[message]
    everyone = set(range(wiring.chips))
    assert all(known[chip] >= everyone for chip in range(wiring.chips))


@pytest.mark.parametrize("chips", [2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("size", [1024.0, 2.0**26])
def test_ring_all_reduce_is_its_formula(chips, size):
    """2 (n - 1) (S / n / B + latency + delay), and n - 1 sums that read and write memory."""
    end = Endpoint()
    found = run_transfers(
        wire(topology("ring"), LINK, chips),
        collective("all_reduce", "ring", wire(topology("ring"), LINK, chips), size),
        end,
    ).finish
    part = size / chips
    step = np.ceil(part / 50e9 * 1e12) + LINK.latency + end.delay
    assert found == 2 * (chips - 1) * step + (chips - 1) * np.ceil(2 * part / end.memory * 1e12)


@pytest.mark.parametrize(
    ("forwarding", "kind", "chips", "algorithm", "size", "nanoseconds"),
    [
        # ASTRA-sim 2, analytical backend (congestion unaware and aware), 50 GiB/s, 500 ns, endpoint delay 10 ns.
        ("cut_through", "ring", 4, "ring", 65536, 4936),
        ("cut_through", "ring", 8, "ring", 67108864, 2247234),
        ("cut_through", "switch", 8, "ring", 1048576, 49143),
        ("cut_through", "switch", 8, "halving_doubling", 65536, 8222),
        ("cut_through", "switch", 8, "halving_doubling", 67108864, 2216106),
        ("store_and_forward", "switch", 4, "ring", 1048576, 65356),
        ("store_and_forward", "switch", 8, "ring", 67108864, 4441734),
        ("store_and_forward", "switch", 8, "halving_doubling", 67108864, 4403606),
        ("store_and_forward", "ring", 8, "halving_doubling", 65536, 10744),
        ("store_and_forward", "ring", 8, "halving_doubling", 67108864, 3779606),
    ],
)
def test_against_astra_sim(forwarding, kind, chips, algorithm, size, nanoseconds):
    link = LinkPort.model_validate({"bandwidth": "50 GiB/s", "latency": "500 ns"})
    wiring = wire(topology(kind, forwarding), link, chips)
    found = run_transfers(wiring, collective("all_reduce", algorithm, wiring, float(size)), Endpoint())
    assert found.finish / 1e3 == pytest.approx(nanoseconds, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_bytes_on_the_links_are_those_of_the_messages(case):
    wiring, operation, algorithm, size = case
    transfers = collective(operation, algorithm, wiring, size)
    routes = find_routes(wiring, transfers)
    hops = np.diff(routes.first)[routes.pair]
    run = run_transfers(wiring, transfers, Endpoint(), routes)
    assert run.carried.sum() == pytest.approx((transfers.size * hops).sum())


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring", "direct", "halving_doubling", "hierarchical"])
def test_volume_is_the_least(operation, algorithm):
    """(n - 1) / n of the buffer out of every chip, twice for all-reduce."""
    wiring = wire(topology("torus"), LINK, 16)
    transfers = collective(operation, algorithm, wiring, 16e6)
    sent = np.bincount(transfers.source, weights=transfers.size, minlength=16)
    assert sent == pytest.approx(np.full(16, 15e6 * (2 if operation == "all_reduce" else 1)))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_flows_keep_the_bound_and_agree_where_nothing_queues(case):
    wiring, operation, algorithm, size = case
    transfers = collective(operation, algorithm, wiring, size)
    flows, messages = run_flows(wiring, transfers, Endpoint()), run_transfers(wiring, transfers, Endpoint())
    bound = lower_bound(operation, wiring, size, in_switch=algorithm == "in_switch", hops=farthest(wiring))
    assert flows.finish * 1e-12 >= bound * (1 - 1e-6)
    if algorithm == "ring" and wiring.topology.kind == "ring" and operation != "all_to_all":
        assert flows.finish == pytest.approx(messages.finish, rel=1e-3)


@pytest.mark.parametrize("name", network_names())
def test_library_networks_are_whole(name):
    network = load_network(name)
    wiring = wire(network.topology, network.link, network.chips)
    assert farthest(wiring) >= 1
    assert algorithms("all_reduce")
    run = run_transfers(wiring, collective("all_to_all", "direct", wiring, 1e6), network.endpoint)
    assert (run.done > 0).all()


def test_a_circle_of_messages_is_a_deadlock_with_names():
    wiring = wire(topology("ring"), LINK, 4)
    first, waits = np.array([0, 1, 2]), np.array([1, 0])
    ends = np.array([0, 2], np.int32), np.array([1, 3], np.int32)
    stuck = Transfers(*ends, np.ones(2), np.zeros(2, bool), first, waits, np.zeros(2, np.int32))
    for run in (run_transfers, run_flows):
        with pytest.raises(LoomError, match=r"deadlock: 2 messages never leave.*chip 0 to chip 1, chip 2 to chip 3"):
            run(wiring, stuck, Endpoint())


def test_a_failed_link_is_gone_around_and_a_cut_is_named():
    broken = topology("ring", edges=[{"between": [0, 1], "failed": True}])
    wiring = wire(broken, LINK, 4)
    whole = wire(topology("ring"), LINK, 4)
    times = [run_transfers(w, collective("all_gather", "ring", w, 1e6), Endpoint()).finish for w in (wiring, whole)]
    assert times[0] > times[1]
    cut = wire(topology("mesh", shape=[1, 2], edges=[Edge(between=(0, 1), failed=True).model_dump()]), LINK, 2)
    with pytest.raises(LoomError, match="no path from chip 0 to chip 1"):
        run_transfers(cut, collective("all_gather", "ring", cut, 1e6), Endpoint())


def test_ecmp_spreads_what_static_routes_pile_up():
    def busiest(routing):
        tree = topology("fat_tree", chips_per_leaf=8, spines=8, routing=routing)
        wiring = wire(tree, LINK, 64)
        run = run_transfers(wiring, collective("all_to_all", "direct", wiring, 64e6), Endpoint())
        return run.finish

    assert busiest("ecmp") < busiest("static")


def test_the_bound_counts_latency():
    """A byte to the other side of a ring of 16 takes eight links; the same bound is asserted of every result."""
    wiring = wire(topology("ring"), LINK, 16)
    assert farthest(wiring) == 8
    bound = lower_bound("all_gather", wiring, 1.0, in_switch=False, hops=8)
    assert bound == pytest.approx(8 * LINK.latency * 1e-12)
    run = run_transfers(wiring, collective("all_gather", "direct", wiring, 1.0), Endpoint())
    assert run.finish * 1e-12 >= bound


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_cost_of_a_sample_is_that_of_all_steps(case):
    wiring, operation, algorithm, size = case

    def costed(found):
        routes = find_routes(wiring, found.slots)
        return cost(wiring, found, routes.pair, routes.first, routes.links, Endpoint())

    found = pattern(operation, algorithm, wiring, size)
    whole = costed(pattern_of(found.transfers()))
    assert costed(found) == pytest.approx(whole)
    assert sum(n * costed(part) for part, n in sample(found)) == pytest.approx(whole)
