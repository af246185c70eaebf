"""Fast-forward: when a tile returns to a state it was in before, the time between is repeated by arithmetic.

What is known stands in rooms of `sim.timing.recurrence`: of a program, what whole loops did from a given state (`enter`
and `leave`); of each open loop, the states in which its iterations ended (`back_edge`), since to be in one again means
a period. `_repeat` does either again. Rows, horizons and ledgers are those of `sim.chip.snapshot`; ``docs/engine.md``
has the proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from siliconloom.arch.isa import Opcode
from siliconloom.arch.kernels import UNCOUNTED, kernel, part
from siliconloom.arch.word import LEVELS
from siliconloom.sim.chip.snapshot import (
    FLAGS,
    M_CYCLES,
    M_FRONTIER,
    M_OPERATORS,
    OP_HIGH,
    OP_LOW,
    PC_HIGH,
    PC_LOW,
    S_EVENTS,
    TIMES_END,
    WIDTH,
    capture,
    ledger_length,
    marks_end,
    owners_move,
    restore,
    same_lengths,
)
from siliconloom.sim.chip.state import (
    BODY,
    COUNT,
    ENTERED,
    EVENTS,
    FOLDED,
    INDEX,
    LEVEL,
    LOOKUPS,
    PC,
    PERIODS,
    SEQ,
    SKIPPED,
    TIME_LIMIT,
    TRACED,
    UNITS,
    State,
    TileMachine,
    Wishes,
)
from siliconloom.sim.chip.tables import COLUMNS, Tables
from siliconloom.sim.timing.recurrence import (
    MORE,
    NEXT,
    OUTCOME,
    RESUME,
    STATE,
    TIME,
    WORK,
    KnownStates,
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
from siliconloom.sim.timing.rows import copy_row

EAGER = 48
"""Iterations for which every state is kept; later only the one at the last power of two (Brent)."""
VISITS = EAGER + 32
"""Most states that are kept of one loop's iterations."""
KNOWN = 1 << 12
"""Most whole loops that are known of a program before all are forgotten."""
POOL = 500_000
"""Most numbers of their states, of their ledgers, and of both of all visits: arrays that NumPy leaves in small pages,
of which only those that are used cost time."""

BEGAN = MORE
"""Column of a transition: horizon of the state that it began in."""
ITERATION = MORE + 1
"""Column of an iteration's end: which it was."""
ROWS, FOLDS = MORE + 2, MORE + 3
"""Columns of how many executions and jumps the trace had at the begin of a transition, or at an iteration's end."""
ROWS_AFTER, FOLDS_AFTER = MORE + 4, MORE + 5
"""Columns of the same at the end of a transition."""
_COLUMNS = MORE + 6

IDLE = frozenset((Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER, Opcode.END))
"""Instructions that give an operator no work, but for barriers that launch its program."""

END, OPERATOR_LOW, OPERATOR_HIGH, FIRST_LEVELS, LAST_LEVELS, LENGTH = range(6)
"""Rows of `find_loops`."""

ANCHORED, POWER, ANCHOR, PENDING, PENDING_BEGAN, PENDING_OUTCOME, PENDING_ROWS, PENDING_FOLDS = range(8)
"""Columns of `Snapshots.level`: the iteration at the last power of two, or -1, that power, and the state then; the
state in which the open loop began, or -1 when that is not to be kept, its horizon, where its ledger stands, and how
many executions and jumps the trace had."""


class Snapshots(NamedTuple):
    """The states kept during a run."""

    loops: KnownStates
    """What whole loops did. A transition's outcome is the ledger before it, then the one after it."""
    visits: KnownStates
    """A room per level: ends of iterations of the open loop, each with its ledger."""
    level: Any
    credit: Any
    row: Any
    """The state of now, and the `ledger` beside it."""
    ledger: Any


class Passage(NamedTuple):
    """What led from one state of a tile to another, or back to it."""

    row: Any
    left: Any
    """The rows of both."""
    begun: Any
    ended: Any
    """The ledgers before and after it."""
    cycles: int


def find_loops(tables: Tables) -> Any:
    """What there is to know of each loop, in the column of the instruction that opens it.

    Rows: its last instruction; lowest and highest operator that does work inside; loop levels that instructions inside
    have a ``first`` and a ``last`` predicate on; instructions that one iteration executes, loops inside it unrolled.
    """
    rows = tables.instructions
    found = np.full((6, max(len(rows), 1)), -1, np.int64)
    _note_loops(rows, np.empty((LEVELS + 1, 8), np.int64), found)
    return found


WORK_LOW, WORK_HIGH, ALL_LOW, ALL_HIGH, FIRSTS, LASTS, OPENED, INSIDE = range(8)
"""Columns of `_note_loops` for an open loop: lowest and highest operator that does work inside, and of all inside; both
predicates; the instruction that opens it; instructions of an iteration."""
LONGEST = 1 << 40
"""Most instructions of an iteration that are counted."""
_OPCODE, _OPERATOR, _DURATION = COLUMNS["opcode"], COLUMNS["operator"], COLUMNS["duration"]
_FIRST, _LAST, _M = COLUMNS["first"], COLUMNS["last"], COLUMNS["m"]
_LOOP, _NEXT = int(Opcode.LOOP), int(Opcode.NEXT)
_IDLE = tuple(sorted(map(int, IDLE)))


@kernel(**UNCOUNTED)
def _note_loops(rows: Any, levels: Any, found: Any) -> None:
    """Fill `find_loops`; ``levels`` is room for a row of each open loop, the first of what is in none."""
    level = 0
    _open(levels[0], 0)
    for pc in range(rows.shape[0]):
        row = rows[pc]
        if row[_OPCODE] == _LOOP:
            level += 1
            _open(levels[level], pc)
        inner = levels[level]
        if row[_OPCODE] not in _IDLE or row[_DURATION] != 0:
            inner[WORK_LOW] = min(inner[WORK_LOW], row[_OPERATOR])
            inner[WORK_HIGH] = max(inner[WORK_HIGH], row[_OPERATOR])
        inner[ALL_LOW] = min(inner[ALL_LOW], row[_OPERATOR])
        inner[ALL_HIGH] = max(inner[ALL_HIGH], row[_OPERATOR])
        inner[FIRSTS] |= row[_FIRST]
        inner[LASTS] |= row[_LAST]
        inner[INSIDE] += 1
        if row[_OPCODE] == _NEXT:
            works = inner[WORK_HIGH] >= 0
            opened = inner[OPENED]
            found[END, opened] = pc
            found[OPERATOR_LOW, opened] = inner[WORK_LOW] if works else inner[ALL_LOW]
            found[OPERATOR_HIGH, opened] = inner[WORK_HIGH] if works else inner[ALL_HIGH]
            found[FIRST_LEVELS, opened], found[LAST_LEVELS, opened] = inner[FIRSTS], inner[LASTS]
            found[LENGTH, opened] = inner[INSIDE]
            times = min(rows[opened, _M], LONGEST // inner[INSIDE])
            level -= 1
            outer = levels[level]
            for low, high in ((WORK_LOW, WORK_HIGH), (ALL_LOW, ALL_HIGH)):
                outer[low], outer[high] = min(outer[low], inner[low]), max(outer[high], inner[high])
            outer[FIRSTS] |= inner[FIRSTS]
            outer[LASTS] |= inner[LASTS]
            outer[INSIDE] = min(outer[INSIDE] + times * inner[INSIDE], LONGEST)


@part()
def _open(level: Any, pc: Any) -> None:
    """A loop of which no instruction is known but the one that opens it."""
    level[WORK_LOW], level[WORK_HIGH], level[ALL_LOW], level[ALL_HIGH] = TIME_LIMIT, -1, TIME_LIMIT, -1
    level[FIRSTS], level[LASTS], level[OPENED], level[INSIDE] = 0, 0, pc, 0


def empty_snapshots() -> Snapshots:
    """Room for the states of a run; pages that are never written cost nothing."""
    return Snapshots(
        loops=empty_seen(2 * KNOWN, KNOWN, _COLUMNS, pool=POOL),
        visits=empty_seen(VISITS, VISITS, _COLUMNS, pool=POOL // LEVELS, levels=LEVELS),
        level=np.full((LEVELS, 8), -1, np.int64),
        credit=full_credit(),
        row=np.zeros(WIDTH, np.int64),
        ledger=np.zeros(WIDTH, np.int64),
    )


def empty(snapshots: Snapshots) -> None:
    """Make room of states of another run that of a new one; what is known of open loops is emptied at each opening."""
    loops = snapshots.loops
    if loops.used.any():
        for slots in (loops.used, loops.state_slots, loops.transition_slots):
            slots[...] = 0
    snapshots.level[...] = -1
    snapshots.credit[...] = full_credit()


@part(inside=False)
def back_edge(machine: TileMachine, wishes: Wishes, snapshots: Snapshots, state: State) -> Any:
    """At the end of an iteration: jump over whole periods, or remember the state. False on a time beyond the counter.

    ``state.clock`` must be up to date and the level's index already that of the iteration to come. The last iteration
    is never jumped, nor is an event in the cycles of ``wishes.protect``.
    """
    clock, loops = state.clock, machine.loops
    level = clock[LEVEL] - 1
    index, opened = state.loop[INDEX, level], state.loop[BODY, level] - 1
    remaining = state.loop[COUNT, level] - 1 - index
    if remaining < 1 or remaining * loops[LENGTH, opened] < wishes.worth:
        return True
    row, ledger, anchored = snapshots.row, snapshots.ledger, snapshots.level[level]
    visits = room(snapshots.visits, level)
    anchors = anchored[ANCHORED] < 0 or index - anchored[ANCHORED] >= anchored[POWER]
    kept = anchors or index <= EAGER
    if not kept and not same_lengths(state, visits.numbers[visits.first[anchored[ANCHOR]] :]):
        return True
    end = loops[END, opened]
    now = capture(machine, state, loops[OPERATOR_LOW, opened], loops[OPERATOR_HIGH, opened], opened, end, row, ledger)
    here = intern(visits, row, row[TIMES_END], kept) if now >= 0 else -1
    if here < 0:
        if kept:
            _forget_visits(visits, anchored)
        return True
    visit = visits.transition[coming(visits)]
    visit[STATE], visit[WORK] = here, opened
    found = find(visits)
    if found >= 0:
        before = visits.transition[found]
        iterations, cycles = index - before[ITERATION], now - before[BEGAN]
        if iterations <= remaining:
            period = Passage(row, row, visits.outcome[before[OUTCOME] :], ledger, cycles)
            began = clock[SEQ]
            times = _repeat(machine, wishes, state, period, ledger, now, cycles, remaining // iterations)
            if times < 0:
                return False
            if times > 0:
                state.loop[INDEX, level] += times * iterations
                clock[PERIODS] += times
                if _fold(state, end, began, cycles, times, iterations):
                    _repeats(state, cycles, before[ROWS], clock[TRACED], before[FOLDS], clock[FOLDED])
                clock[FOLDED] += 1
                return True
    length = ledger_length(row)
    place = place_of_outcome(visits, length)
    if kept and place < 0:
        _forget_visits(visits, anchored)
    elif kept:
        copy_row(ledger, visits.outcome[place:], length)
        take_outcome(visits, length)
        visit[NEXT], visit[TIME], visit[OUTCOME], visit[BEGAN], visit[ITERATION] = here, 0, place, now, index
        visit[ROWS], visit[FOLDS] = clock[TRACED], clock[FOLDED]
        keep(visits)
        if anchors:
            anchored[POWER] = 1 if anchored[ANCHORED] < 0 else 2 * anchored[POWER]
            anchored[ANCHORED], anchored[ANCHOR] = index, here
    return True


@part()
def _forget_visits(visits: KnownStates, anchored: Any) -> None:
    """Begin a loop's search for a period anew: it is another loop, or the room is full."""
    forget(visits)
    anchored[ANCHORED] = -1


@part(inside=False)
def enter(machine: TileMachine, wishes: Wishes, snapshots: Snapshots, state: State) -> Any:
    """At a loop's first instruction: true when the whole loop was jumped because it began in this state before."""
    clock, loops, seen, credit = state.clock, machine.loops, snapshots.loops, snapshots.credit
    opened, level = clock[PC], clock[LEVEL]
    if level < LEVELS:
        _forget_visits(room(snapshots.visits, level), snapshots.level[level])
        snapshots.level[level, PENDING] = -1
    again, flags = False, 0
    for outer in range(level):
        index, last = state.loop[INDEX, outer], state.loop[COUNT, outer] - 1
        again = again or index < last or index > 0
        if index == 0:
            flags |= loops[FIRST_LEVELS, opened] & 1 << outer
        if index == last:
            flags |= (loops[LAST_LEVELS, opened] & 1 << outer) << LEVELS
    if not again:
        return False
    end, row, ledger = loops[END, opened], snapshots.row, snapshots.ledger
    interval = machine.constants.fetch_interval
    if interval and machine.constants.fetch_first + interval * (end + 1) > clock[SEQ]:
        return False  # instructions of the loop are still being fetched
    if machine.table[opened, _M] * loops[LENGTH, opened] < wishes.worth:
        return False
    asked = state.clock[ENTERED]
    state.clock[ENTERED] += 1
    if asked < credit[RESUME]:
        return False
    now = capture(machine, state, loops[OPERATOR_LOW, opened], loops[OPERATOR_HIGH, opened], opened, end, row, ledger)
    if now < 0:
        return False
    row[FLAGS] = flags
    length = ledger_length(row)
    here, place = intern(seen, row, row[TIMES_END], True), place_of_outcome(seen, 2 * length)
    if here < 0 or place < 0:
        forget(seen)
        for each in range(LEVELS):
            snapshots.level[each, PENDING] = -1
        return False
    key = seen.transition[coming(seen)]
    key[STATE], key[WORK] = here, opened
    found = find(seen)
    if found >= 0:
        known = seen.transition[found]
        begun, ended = seen.outcome[known[OUTCOME] :], seen.outcome[known[OUTCOME] + length :]
        loop, began = Passage(row, seen.numbers[seen.first[known[NEXT]] :], begun, ended, known[TIME]), clock[SEQ]
        if _repeat(machine, wishes, state, loop, ledger, now, now - known[BEGAN], 1) > 0:
            clock[PC] = end + 1
            clock[LOOKUPS] += 1
            if _fold(state, end, began, clock[SEQ] - began, 1, 0):
                shift = now - known[BEGAN]
                _repeats(state, shift, known[ROWS], known[ROWS_AFTER], known[FOLDS], known[FOLDS_AFTER])
            clock[FOLDED] += 1
            earn(credit)
            return True
    spend(credit, asked)
    copy_row(ledger, seen.outcome[place:], length)
    take_outcome(seen, 2 * length)
    pending = snapshots.level[level]
    pending[PENDING], pending[PENDING_BEGAN], pending[PENDING_OUTCOME] = here, now, place
    pending[PENDING_ROWS], pending[PENDING_FOLDS] = clock[TRACED], clock[FOLDED]
    return False


@part(inside=False)
def leave(machine: TileMachine, snapshots: Snapshots, state: State) -> None:
    """After a loop's last iteration: remember what the loop has done from the state it began in."""
    pending, seen, row, ledger = snapshots.level[state.clock[LEVEL]], snapshots.loops, snapshots.row, snapshots.ledger
    began_in = pending[PENDING]
    if began_in < 0:
        return
    pending[PENDING] = -1
    entered = seen.numbers[seen.first[began_in] :]
    opened, length = entered[PC_LOW], ledger_length(entered)
    now = capture(machine, state, entered[OP_LOW], entered[OP_HIGH], opened, entered[PC_HIGH], row, ledger)
    after = intern(seen, row, row[TIMES_END], True) if now >= 0 else -1
    if after < 0 or place_of_outcome(seen, 0) < 0:
        return
    copy_row(ledger, seen.outcome[pending[PENDING_OUTCOME] + length :], length)
    known = seen.transition[coming(seen)]
    known[NEXT], known[TIME], known[OUTCOME] = after, now - pending[PENDING_BEGAN], pending[PENDING_OUTCOME]
    known[STATE], known[WORK], known[BEGAN] = began_in, opened, pending[PENDING_BEGAN]
    known[ROWS], known[FOLDS] = pending[PENDING_ROWS], pending[PENDING_FOLDS]
    known[ROWS_AFTER], known[FOLDS_AFTER] = state.clock[TRACED], state.clock[FOLDED]
    keep(seen)


@part(inside=False)
def _repeat(
    machine: TileMachine, wishes: Wishes, state: State, known: Passage, ledger: Any, now: Any, shift: Any, times: Any
) -> Any:
    """Do again, up to ``times`` times, what led from the state of now to another, or back to it.

    ``ledger`` is the one of now, which is ``shift`` later than that passage began. How often it was done; 0 when marks,
    or cycles in which nothing may be jumped, stand against it; -1 when a number would not fit. Unless it was done,
    nothing has changed.
    """
    begun, ended, cycles, row = known.begun, known.ended, known.cycles, known.row
    acted = owners_move(machine.constants, row, shift, begun, ended, ledger)
    if acted < 0:
        return 0
    operators, sums = row[OP_HIGH] - row[OP_LOW] + 1, marks_end(row)
    for each in range(M_OPERATORS, M_OPERATORS + operators):
        if begun[each] == ended[each] and begun[each] != 0 and ledger[each] - begun[each] != shift:
            return 0
        if ledger[operators + each] == TIME_LIMIT and ended[operators + each] != TIME_LIMIT:
            return 0
    later = shift - cycles  # what comes first is so much later than `ended`, and each time after it `cycles` more
    if wishes.protect[1] > wishes.protect[0] and now < wishes.protect[1]:
        free = wishes.protect[0] - ended[M_CYCLES] - later
        if free < cycles:
            return 0
        times = min(times, free // cycles) if cycles > 0 else times
    if cycles > 0 and times >= (TIME_LIMIT - ended[M_CYCLES] - later) // cycles:
        return -1
    clock, events = state.clock, ledger[sums + S_EVENTS]
    if not add_times(ledger[sums:], begun[sums:], ended[sums:], ledger_length(row) - sums, times):
        return -1
    # in a period ``ended`` is ``ledger``, whose sums have changed now
    later += times * cycles
    for unit in range(UNITS):
        if acted >> unit & 1:
            ledger[unit] = ended[unit] + later
    if acted & ~machine.constants.ahead:
        ledger[M_FRONTIER] = ended[M_FRONTIER] + later
    if acted:
        ledger[M_CYCLES] = ended[M_CYCLES] + later
    for each in range(M_OPERATORS, M_OPERATORS + operators):
        if ended[each] != begun[each]:
            ledger[each] = max(ledger[each], ended[each] + later)
    restore(machine, state, known.left, now + times * cycles, ledger)
    clock[SKIPPED] += clock[EVENTS] - events
    return times


@part(inside=False)
def _fold(state: State, pc: Any, began: Any, shift: Any, periods: Any, iterations: Any) -> Any:
    """Write when a jump was and over what; false when there is no room."""
    clock = state.clock
    if clock[FOLDED] >= state.folds.shape[0]:
        return False
    row = state.folds[clock[FOLDED]]
    row[0], row[1], row[2], row[3], row[4], row[5] = pc, began, clock[SEQ], shift, periods, iterations
    return True


@part()
def _repeats(state: State, later: Any, rows: Any, rows_after: Any, folds: Any, folds_after: Any) -> None:
    """Write which executions and jumps of the trace a jump did again, how much later, and what was before it."""
    row = state.folds[state.clock[FOLDED]]
    row[6], row[7], row[8], row[9], row[10], row[11] = later, rows, rows_after, folds, folds_after, state.clock[TRACED]
