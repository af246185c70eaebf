"""States and transitions that are kept and found again, and a tile that goes on from what it wrote down of itself."""

import copy
from functools import reduce
from operator import or_

import numpy as np
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.isa import Opcode
from siliconloom.sim.chip import kernel, recurrence, snapshot
from siliconloom.sim.chip.engine import NOTHING
from siliconloom.sim.chip.state import CYCLES, EVENTS, SEQ, TileMachine, Wishes, initial_state
from siliconloom.sim.chip.tables import build_tables
from siliconloom.sim.timing.recurrence import (
    LIMIT,
    MOST,
    OUTCOME,
    RESUME,
    STATE,
    TRANSITIONS,
    WORK,
    add_times,
    coming,
    earn,
    empty_seen,
    find,
    forget,
    full_credit,
    intern,
    keep,
    place_of_outcome,
    room,
    spend,
    take_outcome,
)
from siliconloom.sim.timing.rows import hashed, slot_of
from tests.sim.programs import chips, pipelines

ROWS = st.lists(st.lists(st.integers(-2, 3), max_size=5), max_size=60)


@given(ROWS, st.sampled_from([np.int32, np.int64]))
def test_a_state_has_one_number_as_long_as_it_is_known(rows, kind):
    seen, numbers = empty_seen(40, 1, 6, pool=120, kind=kind), {}
    for row in rows:
        adding = len(row) != 3
        found = intern(seen, np.array(row, np.int64), len(row), adding)
        room_left = len(numbers) < 40 and sum(map(len, numbers)) + len(row) <= 120
        if tuple(row) in numbers:
            assert found == numbers[tuple(row)]
        elif adding and room_left:
            assert found == len(numbers)
            numbers[tuple(row)] = found
        else:
            assert found == -1
    forget(seen)
    assert all(intern(seen, np.array(row, np.int64), len(row), False) == -1 for row in rows)


def test_what_a_room_cannot_hold_has_no_number():
    seen = empty_seen(4, 1, 6, pool=100, kind=np.int32)
    assert intern(seen, np.array([2**31 - 1]), 1, True) == 0
    assert intern(seen, np.array([2**31]), 1, True) == -1
    assert intern(seen, np.array([1]), -1, True) == -1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3), st.integers(0, 2)), max_size=40))
def test_the_latest_transition_of_a_key_is_found_and_outcomes_do_not_overlap(keys):
    rooms = empty_seen(4, 30, 7, pool=80, keys=3, levels=2)
    seen, other, kept = room(rooms, 1), room(rooms, 0), {}
    for length, key in enumerate(keys):
        row = seen.transition[coming(seen)]
        row[STATE], row[WORK], row[WORK + 1] = key
        assert find(seen) == kept.get(key, -1)
        place = place_of_outcome(seen, length % 5)
        if place < 0:
            assert coming(seen) == 30 or sum(i % 5 for i in range(length + 1)) > 80
            break
        row[OUTCOME] = place
        seen.outcome[place : place + length % 5] = length
        take_outcome(seen, length % 5)
        kept[key] = coming(seen)
        keep(seen)
    for number in range(seen.used[TRANSITIONS]):
        place = seen.transition[number, OUTCOME]
        assert np.all(seen.outcome[place : place + number % 5] == number)
    assert find(other) == -1


@given(st.lists(st.integers(0, 2**62), max_size=40), st.lists(st.integers(0, 2**62), max_size=40))
def test_a_hash_is_of_the_row_alone_and_names_a_slot(one, other):
    behind = np.array(one + other, np.int64)
    hash = int(hashed(behind, len(one)))
    assert hash == int(hashed(np.array(one, np.int64), len(one)))
    assert 0 <= slot_of(hash, np.zeros(64, np.int64)) < 64


def test_neighbours_in_a_grid_of_rows_spread_over_slots():
    table, slots = np.zeros(1 << 13, np.int64), set()
    for number in range(4096):
        row = np.array([number & 15, number >> 4 & 15, number >> 8, 7, 7, 7], np.int64)
        slots.add(int(slot_of(hashed(row, 6), table)))
    assert len(slots) > 2500  # of 4,096 thrown at random into 8,192 slots 3,223 are expected


@given(st.lists(st.integers(0, 2**61), min_size=1, max_size=5), st.data())
def test_sums_grow_together_or_not_at_all(begun, data):
    rises = data.draw(st.lists(st.integers(0, 2**40), min_size=len(begun), max_size=len(begun)))
    times = data.draw(st.integers(0, 2**30))
    ended = [a + b for a, b in zip(begun, rises, strict=True)]
    now = np.array(ended, np.int64)
    fits = add_times(now, np.array(begun, np.int64), np.array(ended, np.int64), len(begun), times)
    exact = [a + times * b for a, b in zip(ended, rises, strict=True)]
    assert now.tolist() == (exact if fits else ended)
    assert not fits or max(exact) < LIMIT
    assert fits or max(a + b for a, b in zip(exact, rises, strict=True)) >= LIMIT


def test_look_ups_in_vain_end_and_pay_off_when_they_find_something():
    credit, looked = full_credit(), 0
    for number in range(100_000):
        if number >= credit[RESUME]:
            looked += 1
            spend(credit, number)
    assert MOST < looked < 3 * MOST
    for _ in range(MOST):
        earn(credit)
    assert credit.tolist()[:2] == [MOST, MOST]


def loops_of(program):
    """`recurrence.find_loops`, instruction by instruction."""
    found, opened = {}, [(None, [], [], [])]
    idle = (Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER, Opcode.END)
    for pc, i in enumerate(program.instructions):
        if i.opcode is Opcode.LOOP:
            opened.append((pc, [], [], []))
        _, works, every, length = opened[-1]
        works += [i.operator] if i.opcode not in idle else []
        every.append(i)
        length.append(1)
        if i.opcode is Opcode.NEXT:
            start, works, every, length = opened.pop()
            counted = works or [each.operator for each in every]
            masks = [reduce(or_, (getattr(each, name) for each in every)) for name in ("first", "last")]
            found[start] = [pc, min(counted), max(counted), *masks, sum(length)]
            outer = opened[-1]
            outer[1].extend(works)
            outer[2].extend(every)
            outer[3].append(program.instructions[start].m * sum(length))
    return found


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips())
def test_loops_are_found_with_what_is_in_them(program, chip):
    found, told = recurrence.find_loops(build_tables(program, chip)), loops_of(program)
    for pc, column in enumerate(found.T.tolist()):
        assert column == told.get(pc, [-1] * 6)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips(), st.sampled_from([1, 20, 300]))
def test_a_tile_takes_as_long_whichever_jumps_are_looked_for(program, chip, worth):
    tables, ends = build_tables(program, chip), []
    machine = TileMachine(tables.instructions, tables.causes, tables.constants, recurrence.find_loops(tables))
    for wishes in (Wishes(True, NOTHING, NOTHING), Wishes(True, NOTHING, NOTHING, worth)):
        state = initial_state(tables, len(program.operators), 0, 0)
        try:
            assert kernel.run(machine, wishes, recurrence.empty_snapshots(), state, 10**7) == kernel.DONE
        except LoomError:
            assume(False)
        ends.append([state.clock[[CYCLES, EVENTS]].tolist(), state.stalls.tolist(), state.operator.tolist()])
    assert ends[0] == ends[1]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips(), st.floats(0, 1))
def test_a_tile_goes_on_from_what_it_wrote_down_of_itself(program, chip, share):
    """Past times are gone from the row, and the rest of the run does not miss them; restored later, it ends later."""
    tables = build_tables(program, chip)
    machine = TileMachine(tables.instructions, tables.causes, tables.constants, recurrence.find_loops(tables))
    wishes, snapshots = Wishes(False, NOTHING, NOTHING), recurrence.empty_snapshots()
    state = initial_state(tables, len(program.operators), 0, 0)
    whole = copy.deepcopy(state)
    try:
        assert kernel.run(machine, wishes, snapshots, whole, 10**7) == kernel.DONE
    except LoomError:
        assume(False)
    events = int(share * whole.clock[kernel.EVENTS])
    kernel.run(machine, wishes, snapshots, state, events)
    fetched = tables.constants.fetch_first + tables.constants.fetch_interval * len(program.instructions)
    later = 1000 * int(fetched <= state.clock[SEQ])  # instructions are fetched at times of their own
    event(f"later {later > 0}")
    row, ledger = np.zeros(snapshot.WIDTH, np.int64), np.zeros(snapshot.WIDTH, np.int64)
    everything = 0, len(program.operators) - 1, 0, len(program.instructions) - 1
    now = int(snapshot.capture(machine, state, *everything, row, ledger))
    marks = slice(0, snapshot.M_OPERATORS + len(program.operators))
    ledger[marks] += later
    written = row.copy()
    snapshot.restore(machine, state, row, now + later, ledger)
    assert snapshot.capture(machine, state, *everything, row, ledger) == now + later
    assert np.array_equal(row, written)
    assert kernel.run(machine, wishes, snapshots, state, 10**7) == kernel.DONE
    assert state.clock[CYCLES] == whole.clock[CYCLES] + later
    for name in ("executions", "stalls"):
        assert np.array_equal(getattr(state, name), getattr(whole, name))
    assert np.array_equal(state.unit[kernel.WAITING], whole.unit[kernel.WAITING])
