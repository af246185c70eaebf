"""LoRA adapters in slots, and clients that share a replica fairly."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.adapters import AdapterSlots
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.sim.service.waiting import RequestQueue
from tests.sim.service.test_replica import Linear


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 4)), max_size=60), st.integers(1, 3))
def test_slots_hold_what_was_used_last_and_all_that_run(events, slots):
    """Beside a list that is ordered by use, of which nothing that runs is thrown away."""
    kept, users, found = OrderedDict(), {}, AdapterSlots(slots, 2.0, 0.5)
    running = []
    for enters, adapter in events:
        if not enters:
            if running:
                gone = running.pop(0)
                found.leave(gone)
                users[gone] -= 1
            continue
        active = {name for name, count in users.items() if count and name >= 0}
        fits = adapter < 0 or adapter in kept or len(active) < slots
        assert found.fits(adapter) is fits
        if not fits:
            continue
        expected = 0.0 if adapter < 0 or adapter in kept else 2.0
        if adapter >= 0:
            if adapter not in kept and len(kept) == slots:
                del kept[next(name for name in kept if name not in active)]
            kept[adapter] = None
            kept.move_to_end(adapter)
        assert found.enter(adapter) == expected
        users[adapter] = users.get(adapter, 0) + 1
        running.append(adapter)
        assert found.step_s == 0.5 * len({name for name, count in users.items() if count and name >= 0})


def served(rows, *, adapters=(0, 0.0, 0.0), **keys):
    arrival, prompt, output, adapter, client = (np.array(column) for column in zip(*rows, strict=True))
    requests = ServedRequests(arrival.astype(float), prompt, output, adapter=adapter, client=client)
    group = ReplicaGroup(Linear(0.01, 0, 0, 0), 1000, 1, adapters=adapters)
    fleet = Fleet(ServeSettings(**keys), requests, [group])
    fleet.run()
    return fleet


def test_an_adapter_is_loaded_once_and_read_in_every_step():
    rows = [(0.0, 8, 3, 5, -1), (1.0, 8, 3, 5, -1), (2.0, 8, 3, -1, -1)]
    fleet = served(rows, adapters=(1, 0.5, 0.001))
    first = fleet.log.first - fleet.log.arrival
    assert first == pytest.approx([0.511, 0.011, 0.01])
    assert fleet.log.finished - fleet.log.first == pytest.approx([0.022, 0.022, 0.02])
    assert fleet.replicas[0].adapters.loads == 1


def test_requests_of_more_adapters_than_slots_take_turns():
    rows = [(0.0, 8, 10, 1, -1), (0.0, 8, 10, 2, -1), (0.0, 8, 10, 1, -1)]
    log = served(rows, adapters=(1, 0.5, 0.0)).log
    assert log.scheduled[1] >= log.finished[0]
    assert served(rows, adapters=(2, 0.5, 0.0)).log.scheduled[1] == 0.0


@pytest.mark.slow(seconds=1)
@given(st.integers(20, 60), st.integers(2, 6))
def test_a_client_that_floods_does_not_hold_up_another(many, few):
    """With fair turns both get tokens alike as long as both wait; by arrival the second waits for all of the first."""
    rows = [(0.0, 16, 8, -1, 0)] * many + [(0.0, 16, 8, -1, 1)] * few
    fair, fcfs = (served(rows, order=order, max_sequences=2).log for order in ("fair", "fcfs"))
    assert fair.finished[many:].max() <= fair.finished[2 * few + 2 : many].min() + 0.2
    assert fcfs.finished[many:].min() >= fcfs.finished[:many].max() - 0.2
    assert fair.finished.max() == pytest.approx(fcfs.finished.max(), rel=0.1)


class Ask:
    def __init__(self, order, rank=0.0, client=0):
        self.order, self.rank, self.client = order, rank, client


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_a_queue_is_by_rank_and_then_by_order(asked):
    queue = RequestQueue(fair=False)
    for order, (rank, client) in enumerate(asked):
        queue.push(Ask(order, float(rank), client))
    found = []
    while len(queue):
        assert queue.first() is queue.first()
        found.append(queue.pop())
    assert [(a.rank, a.order) for a in found] == sorted((float(r), n) for n, (r, _) in enumerate(asked))


def test_a_client_that_comes_back_has_no_claim_on_what_it_left_out():
    queue = RequestQueue(fair=True)
    for order in range(6):
        queue.push(Ask(order, client=0))
    for _ in range(4):
        queue.serve(0, 100.0)
        queue.pop()
    queue.push(Ask(6, client=1))
    queue.push(Ask(7, client=1))
    taken = []
    for _ in range(4):
        each = queue.pop()
        taken.append(each.client)
        queue.serve(each.client, 100.0)
    assert taken == [0, 1, 0, 1]
