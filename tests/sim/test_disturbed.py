"""Chips that fall behind and links that fail while messages run: closed forms, retries, ways around."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import LoomError
from siliconloom.arch.network import Endpoint, LinkPort, Topology, wire
from siliconloom.arch.transfers import Transfers
from siliconloom.mapper.network.collectives import candidates, collective
from siliconloom.sim.network.disturbed import Disturbance, run_disturbed
from siliconloom.sim.network.messages import run_transfers
from siliconloom.sim.timing.changes import read_changes, work_end

LINK = LinkPort.model_validate({"bandwidth": "1 GB/s", "latency": "1 us"})  # 1 ns a byte
END = Endpoint.model_validate({"delay": "1 ns"})
US = 1_000_000


def wiring(kind="ring", chips=4, **more):
    return wire(Topology.model_validate({"kind": kind, **more}), LINK, chips)


def one_message(source=0, target=1, size=10_000.0):
    """10 us on a link, then 1 us of latency and 1 ns at its end."""
    nothing = np.zeros(0, np.int64)
    ends = np.array([source], np.int32), np.array([target], np.int32)
    return Transfers(*ends, np.array([size]), np.zeros(1, bool), np.zeros(2, np.int64), nothing, np.zeros(1, np.int32))


def link_of(machine, source, target):
    return int(np.flatnonzero((machine.source == source) & (machine.target == target))[0])


def both_ways(machine, a, b, at, failed):
    return [Disturbance(at, link=link_of(machine, *ends), failed=failed) for ends in ((a, b), (b, a))]


def finish(machine, transfers, disturbances, timeout=5 * US):
    run, again = run_disturbed(machine, transfers, END, disturbances, timeout=timeout)
    return run.finish, int(again.sum())


@pytest.mark.slow(seconds=1)
@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.integers(0, 60), st.sampled_from([0.5, 1.0, 2.0, 4.0]), max_size=5),
    st.integers(0, 40),
    st.integers(1, 40),
)
def test_work_takes_its_factor_at_every_moment(factors, start, work):
    changes = read_changes(1, [(0, at, factor) for at, factor in factors.items()])
    left, now = float(work), start
    while left > 0:  # half units, so that every rate divides them
        factor = next((factors[at] for at in sorted(factors, reverse=True) if at <= now), 1.0)
        left -= 0.5 / factor
        now += 0.5
    assert work_end(changes.first, changes.at, changes.factor, 0, start, work) == np.ceil(now)


@pytest.mark.slow(seconds=1)
@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["ring", "mesh", "torus", "switch"]), st.integers(2, 12), st.data())
def test_without_disturbances_the_times_are_the_same(kind, chips, data):
    machine = wiring(kind, chips, forwarding=data.draw(st.sampled_from(["cut_through", "store_and_forward"])))
    operation = data.draw(st.sampled_from(["all_reduce", "all_to_all", "broadcast"]))
    transfers = collective(operation, data.draw(st.sampled_from(candidates(operation, machine))), machine, 1e5)
    run, again = run_disturbed(machine, transfers, END, [], timeout=US)
    plain = run_transfers(machine, transfers, END, exact=True)
    assert np.array_equal(run.done, plain.done)
    assert np.array_equal(run.busy, plain.busy)
    assert not again.any()


def test_a_link_that_loses_bandwidth_halfway_takes_the_rest_slower():
    machine = wiring()
    link = link_of(machine, 0, 1)
    assert finish(machine, one_message(), [])[0] == 11 * US + 1000
    assert finish(machine, one_message(), [Disturbance(4 * US, link=link, factor=2.0)])[0] == 17 * US + 1000
    back = [Disturbance(4 * US, link=link, factor=2.0), Disturbance(8 * US, link=link, factor=1.0)]
    assert finish(machine, one_message(), back)[0] == 13 * US + 1000


def test_a_message_on_a_link_that_fails_goes_another_way_after_the_timeout():
    machine = wiring()
    down = both_ways(machine, 0, 1, 4 * US, True)
    # lost at 4 us, sent again at 9 us over three links: 10 us on the last one, 1 us of latency each
    assert finish(machine, one_message(), down) == (9 * US + 10 * US + 3 * US + 1000, 1)
    assert finish(machine, one_message(), both_ways(machine, 0, 1, 10 * US, True)) == (11 * US + 1000, 0)
    assert finish(machine, one_message(), both_ways(machine, 0, 1, 0, True)) == (13 * US + 1000, 0)


def test_what_waits_for_a_failing_link_is_lost_with_it():
    machine = wiring()
    two = one_message()
    two = Transfers(
        *(np.repeat(c, 2) for c in (two.source, two.target, two.size, two.adds)),
        np.zeros(3, np.int64),
        two.waits,
        np.zeros(2, np.int32),
    )
    run, again = run_disturbed(machine, two, END, both_ways(machine, 0, 1, 4 * US, True), timeout=5 * US)
    assert again.tolist() == [1, 1]
    assert sorted(run.done.tolist()) == [22 * US + 1000, 32 * US + 1000]


def test_a_message_without_a_path_waits_for_the_links_return_or_is_an_error():
    machine = wiring("mesh", 2, shape=[1, 2])
    down = both_ways(machine, 0, 1, 4 * US, True)
    back = [*down, *both_ways(machine, 0, 1, 30 * US, False)]
    assert finish(machine, one_message(), back) == (30 * US + 11 * US + 1000, 1)
    with pytest.raises(LoomError, match="no path from chip 0 to chip 1 after the failures of links up to 4 us"):
        finish(machine, one_message(), down)


def test_a_slow_chip_takes_longer_for_its_work_and_its_sums():
    machine = wiring("ring", 2)
    work = replace(one_message(1, 1, 0.0), work=np.array([10 * US]))
    assert finish(machine, work, [Disturbance(5 * US, chip=1, factor=3.0)])[0] == 20 * US
    assert finish(machine, work, [Disturbance(5 * US, chip=0, factor=3.0)])[0] == 10 * US
    sums = collective("all_reduce", "ring", machine, 1e6)
    slow = finish(machine, sums, [Disturbance(0, chip=1, factor=1000.0)])[0]
    assert slow > finish(machine, sums, [])[0]


@pytest.mark.slow(seconds=1)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_fails_every_message_comes_or_has_no_path(data):
    """In a torus of eight chips any one link may be out at any time: all is delivered, nothing twice."""
    machine = wiring("torus", 8, shape=[2, 4])
    transfers = collective("all_reduce", data.draw(st.sampled_from(["ring", "direct", "double_tree"])), machine, 1e5)
    a, b = data.draw(st.sampled_from([(0, 1), (0, 4), (1, 2), (3, 7)]))
    since = data.draw(st.integers(0, 300)) * US
    until = since + data.draw(st.integers(1, 100)) * US
    events = [*both_ways(machine, a, b, since, True), *both_ways(machine, a, b, until, False)]
    run, again = run_disturbed(machine, transfers, END, events, timeout=7 * US)
    assert (run.done >= 0).all()
    waits = np.repeat(np.arange(len(transfers)), np.diff(transfers.first))
    assert (run.done[waits] >= run.done[transfers.waits]).all()
    assert (run.busy <= run.finish).all()
    if not again.any():
        assert run.carried.sum() >= run_transfers(machine, transfers, END).carried.sum() * (1 - 1e-9)
