"""Fast-forward: when a tile returns to a state it was in before, the time between is repeated by arithmetic.

A *picture* of the machine is one row of integers, in four sections:

- *counts*: which instructions wait in the queues, semaphore counts, predicates. Equal or the states differ.
- *times*: when things become free or arrive. Two pictures agree when each time is later by the same shift, or lies on
  both sides so far back that nothing can wait for it any more (at most `_horizon`). The sequencer's time and those at
  which waiting instructions were dispatched come first and are always shifted: waiting is measured from them.
- *marks*: times that statistics are measured from. They move with the shift when their owner did anything.
- *sums*: everything that only grows: stalls, executions, events.

`back_edge` looks for a period of a loop, `enter` and `leave` remember what a whole loop did from a given state.
``docs/engine.md`` has the proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from siliconloom.arch.isa import LEVELS, SEMAPHORES, Opcode, Unit
from siliconloom.sim.state import (
    ACCOUNTED,
    BODY,
    COUNT,
    CYCLES,
    DISPATCHED,
    EVENTS,
    FIRST_TOKEN,
    FOLDED,
    FRONTIER,
    HEAD,
    INDEX,
    LAST_BEAT,
    LENGTH,
    LEVEL,
    LOAD_FREE,
    LOOKUPS,
    OP_END,
    OP_EXCLUSIVE,
    OP_START,
    PC,
    PERIODS,
    PORT,
    SEQ,
    SKIPPED,
    STALLS,
    STARTS,
    STREAM_FREE,
    TIME_LIMIT,
    TOKENS,
    TRANSFERS,
    UNITS,
    WAITING,
    State,
)  # fmt: skip
from siliconloom.sim.tables import COLUMNS, Tables

WIDTH = 6144
"""Longest picture; a state that needs more is run, not jumped."""
RECENT = 4
"""Iterations just before this one that it is compared with: the usual periods are 1 to 4."""
EAGER = 48
"""Iterations for which every picture is kept; later only the one at the last power of two (Brent)."""
CHOICES = 4
"""Entry states remembered per loop."""

_OPERATOR = COLUMNS["operator"]
_LOAD, _STORE = int(Unit.LOAD), int(Unit.STORE)
_COUNTS_END, _TIMES_END, _MARKS_END, _SUMS_END, _OP_LOW, _OP_HIGH, _PC_LOW, _PC_HIGH, _FLAGS, _QUEUED_END = range(10)
_HEADER = 10
_COUNTED_UNITS = 2 * UNITS
_M_FRONTIER, _M_CYCLES, _M_OPERATORS = UNITS, UNITS + 1, UNITS + 2
_S_EVENTS, _S_STARTS, _S_WAITING, _S_STALLS = 0, 1, 1 + UNITS, 1 + 2 * UNITS
_S_EXECUTIONS = 1 + 2 * UNITS + UNITS * STALLS


END, OPERATOR_LOW, OPERATOR_HIGH, FIRST_LEVELS, LAST_LEVELS, PLACE = range(6)
"""Rows of `find_loops`."""

ANCHORED = 0
POWER = RECENT + 1
PENDING = RECENT + 2
"""Columns of `Album.level`: the iteration in which each of the level's pictures was taken (first the one at a power of
two), or -1; that power; which entry the open loop will complete, or -1."""

COMPLETE, TURN = range(2)
"""Rows of `Album.entry`: whether both pictures of an entry are there; which of a loop's entries is used next."""


class Album(NamedTuple):
    """The pictures kept during a run."""

    anchor: Any
    """Per level: one picture at a power of two, then the most recent ones."""
    entered: Any
    left: Any
    """Per entry: pictures at a loop's entry and after its end."""
    level: Any
    entry: Any
    scratch: Any
    """The picture of now, and the one to go on from."""


def find_loops(tables: Tables) -> Any:
    """What there is to know of each loop, in the column of the instruction that opens it.

    Rows: its last instruction; lowest and highest operator that does work inside; loop levels that instructions inside
    have a ``first`` and a ``last`` predicate on; the first of the loop's `CHOICES` entries in an `Album`.
    """
    rows = tables.instructions
    opcode, operator = rows[:, COLUMNS["opcode"]], rows[:, COLUMNS["operator"]]
    works = ~np.isin(opcode, (Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER, Opcode.END))
    found = np.full((6, max(len(rows), 1)), -1, np.int64)
    opened, place = [], 0
    for pc in range(len(rows)):
        if opcode[pc] == Opcode.LOOP:
            opened.append(pc)
            found[PLACE, pc], place = place, place + CHOICES
        elif opcode[pc] == Opcode.NEXT:
            start = opened.pop()
            inside = slice(start, pc + 1)
            found[END, start] = pc
            counted = operator[inside][works[inside]] if works[inside].any() else operator[inside]
            found[OPERATOR_LOW, start], found[OPERATOR_HIGH, start] = counted.min(), counted.max()
            found[FIRST_LEVELS, start] = np.bitwise_or.reduce(rows[inside, COLUMNS["first"]])
            found[LAST_LEVELS, start] = np.bitwise_or.reduce(rows[inside, COLUMNS["last"]])
    return found


def empty_album(loops: Any) -> Album:
    """Room for the pictures of a run; pages that are never written cost nothing."""
    places = max(int(loops[PLACE].max()) + CHOICES, 1)
    return Album(
        anchor=np.zeros((LEVELS, RECENT + 1, WIDTH), np.int64),
        entered=np.zeros((places, WIDTH), np.int64),
        left=np.zeros((places, WIDTH), np.int64),
        level=np.full((LEVELS, RECENT + 3), -1, np.int64),
        entry=np.zeros((2, places), np.int64),
        scratch=np.zeros((2, WIDTH), np.int64),
    )


@njit(cache=True)
def _horizon(picture: Any) -> Any:
    """No instruction that has not started yet can start, or compare a time, before this cycle."""
    earliest = picture[picture[_COUNTS_END]]
    for at in range(picture[_COUNTS_END] + 1, picture[_QUEUED_END]):
        earliest = min(earliest, picture[at])
    return earliest


@njit(cache=True)
def _copy(picture: Any, into: Any) -> None:
    for at in range(picture[_SUMS_END]):
        into[at] = picture[at]


@njit(cache=True)
def capture(state: State, table: Any, constants: Any, op_low: Any, op_high: Any, pc_low: Any, pc_high: Any,
            picture: Any) -> Any:  # fmt: skip
    """Write the state into ``picture``, without predicates; false when it does not fit.

    Times are written as they are read: with what is always added to them before they are compared.
    """
    clock, depth, outstanding = state.clock, state.started.shape[1], state.in_flight.shape[1]
    refill, array_rows, gap = constants[8], constants[3], max(constants[9], 0)
    waiting, left, tokens = 0, 0, 0
    for unit in range(1, UNITS):
        waiting += state.unit[LENGTH, unit]
        left += min(state.unit[DISPATCHED, unit], depth) - state.unit[LENGTH, unit]
        for place in range(state.unit[LENGTH, unit]):  # instructions of earlier operators are still to be counted
            operator = table[state.queue[unit, (state.unit[HEAD, unit] + place) % depth, 0], _OPERATOR]
            op_low, op_high = min(op_low, operator), max(op_high, operator)
    for s in range(SEMAPHORES):
        tokens += state.semaphore[TOKENS, s]
    operators, instructions = op_high - op_low + 1, pc_high - pc_low + 1
    counts_end = _HEADER + _COUNTED_UNITS + SEMAPHORES + 3 * waiting
    times_end = counts_end + 5 + 4 * UNITS + waiting + left + 2 * outstanding + tokens
    marks_end = times_end + UNITS + 2 + 2 * operators
    sums_end = marks_end + _S_EXECUTIONS + instructions + operators
    if sums_end > picture.shape[0]:
        return False
    picture[_COUNTS_END], picture[_TIMES_END] = counts_end, times_end
    picture[_MARKS_END], picture[_SUMS_END] = marks_end, sums_end
    picture[_OP_LOW], picture[_OP_HIGH], picture[_PC_LOW], picture[_PC_HIGH] = op_low, op_high, pc_low, pc_high
    picture[_FLAGS], picture[_QUEUED_END] = 0, counts_end + 1 + waiting
    at = _HEADER
    for unit in range(UNITS):
        picture[at + unit] = state.unit[LENGTH, unit]
        picture[at + UNITS + unit] = min(state.unit[DISPATCHED, unit], depth)
    at += _COUNTED_UNITS
    for s in range(SEMAPHORES):
        picture[at + s] = state.semaphore[TOKENS, s]
    at += SEMAPHORES
    when = counts_end + 1
    for unit in range(1, UNITS):
        for place in range(state.unit[LENGTH, unit]):
            entry = state.queue[unit, (state.unit[HEAD, unit] + place) % depth]
            picture[at], picture[at + 1], picture[at + 2] = entry[0], entry[2], entry[3]
            picture[when] = entry[1]
            at += 3
            when += 1
    picture[counts_end] = clock[SEQ]
    picture[when], picture[when + 1], picture[when + 2] = clock[PORT], clock[LOAD_FREE] + gap, clock[STREAM_FREE] + gap
    picture[when + 3] = clock[LAST_BEAT] + array_rows
    when += 4
    for row in range(4):
        for unit in range(UNITS):
            picture[when] = state.unit[row, unit]
            when += 1
    for unit in range(UNITS):
        known = min(state.unit[DISPATCHED, unit], depth)
        for number in range(
            state.unit[DISPATCHED, unit] - known, state.unit[DISPATCHED, unit] - state.unit[LENGTH, unit]
        ):
            picture[when] = state.started[unit, number % depth] + refill
            when += 1
    for unit in range(_LOAD, _STORE + 1):
        for place in range(outstanding):
            picture[when] = state.in_flight[unit, (state.unit[TRANSFERS, unit] + place) % outstanding]
            when += 1
    for s in range(SEMAPHORES):
        for place in range(state.semaphore[TOKENS, s]):
            picture[when] = state.token[s, (state.semaphore[FIRST_TOKEN, s] + place) % state.token.shape[1]]
            when += 1
    at = times_end
    for unit in range(UNITS):
        picture[at + unit] = state.unit[ACCOUNTED, unit]
    picture[at + _M_FRONTIER], picture[at + _M_CYCLES] = clock[FRONTIER], clock[CYCLES]
    at += _M_OPERATORS
    for operator in range(op_low, op_high + 1):
        picture[at], picture[at + operators] = state.operator[OP_END, operator], state.operator[OP_START, operator]
        at += 1
    at = marks_end
    picture[at + _S_EVENTS] = clock[EVENTS]
    for unit in range(UNITS):
        picture[at + _S_STARTS + unit] = state.unit[STARTS, unit]
        picture[at + _S_WAITING + unit] = state.unit[WAITING, unit]
        for cause in range(STALLS):
            picture[at + _S_STALLS + unit * STALLS + cause] = state.stalls[unit, cause]
    at += _S_EXECUTIONS
    for pc in range(pc_low, pc_high + 1):
        picture[at] = state.executions[pc]
        at += 1
    for operator in range(op_low, op_high + 1):
        picture[at] = state.operator[OP_EXCLUSIVE, operator]
        at += 1
    return True


@njit(cache=True)
def restore(state: State, constants: Any, picture: Any) -> None:
    """Bring the state to what a picture shows: the inverse of `capture`."""
    clock, depth, outstanding = state.clock, state.started.shape[1], state.in_flight.shape[1]
    refill, array_rows, gap = constants[8], constants[3], max(constants[9], 0)
    op_low, op_high, pc_low, pc_high = picture[_OP_LOW], picture[_OP_HIGH], picture[_PC_LOW], picture[_PC_HIGH]
    at, when = _HEADER, picture[_COUNTS_END] + 1
    for unit in range(UNITS):
        state.unit[LENGTH, unit], state.unit[DISPATCHED, unit] = picture[at + unit], picture[at + UNITS + unit]
    at += _COUNTED_UNITS
    for s in range(SEMAPHORES):
        state.semaphore[TOKENS, s] = picture[at + s]
    at += SEMAPHORES
    for unit in range(1, UNITS):
        for place in range(state.unit[LENGTH, unit]):
            entry = state.queue[unit, (state.unit[HEAD, unit] + place) % depth]
            entry[0], entry[1], entry[2], entry[3] = picture[at], picture[when], picture[at + 1], picture[at + 2]
            at += 3
            when += 1
    clock[SEQ] = picture[picture[_COUNTS_END]]
    clock[PORT], clock[LOAD_FREE], clock[STREAM_FREE] = picture[when], picture[when + 1] - gap, picture[when + 2] - gap
    clock[LAST_BEAT] = picture[when + 3] - array_rows
    when += 4
    for row in range(4):
        for unit in range(UNITS):
            state.unit[row, unit] = picture[when]
            when += 1
    for unit in range(UNITS):
        for number in range(state.unit[DISPATCHED, unit] - state.unit[LENGTH, unit]):
            state.started[unit, number % depth] = picture[when] - refill
            when += 1
    for unit in range(_LOAD, _STORE + 1):
        for place in range(outstanding):
            state.in_flight[unit, (state.unit[TRANSFERS, unit] + place) % outstanding] = picture[when]
            when += 1
    for s in range(SEMAPHORES):
        for place in range(state.semaphore[TOKENS, s]):
            state.token[s, (state.semaphore[FIRST_TOKEN, s] + place) % state.token.shape[1]] = picture[when]
            when += 1
    at = picture[_TIMES_END]
    for unit in range(UNITS):
        state.unit[ACCOUNTED, unit] = picture[at + unit]
    clock[FRONTIER], clock[CYCLES] = picture[at + _M_FRONTIER], picture[at + _M_CYCLES]
    at += _M_OPERATORS
    for operator in range(op_low, op_high + 1):
        state.operator[OP_END, operator] = picture[at]
        at += 1
    at = picture[_MARKS_END]
    clock[EVENTS] = picture[at + _S_EVENTS]
    for unit in range(UNITS):
        state.unit[STARTS, unit], state.unit[WAITING, unit] = (
            picture[at + _S_STARTS + unit],
            picture[at + _S_WAITING + unit],
        )
        for cause in range(STALLS):
            state.stalls[unit, cause] = picture[at + _S_STALLS + unit * STALLS + cause]
    at += _S_EXECUTIONS
    for pc in range(pc_low, pc_high + 1):
        state.executions[pc] = picture[at]
        at += 1
    for operator in range(op_low, op_high + 1):
        state.operator[OP_EXCLUSIVE, operator] = picture[at]
        at += 1


@njit(cache=True)
def _shift(before: Any, after: Any) -> Any:
    """By how many cycles ``after`` is the same state later than ``before``; -1 when it is another state."""
    counts_end, times_end = before[_COUNTS_END], before[_TIMES_END]
    for at in range(counts_end):
        if before[at] != after[at]:
            return -1
    shift, past, passed = after[counts_end] - before[counts_end], _horizon(before), _horizon(after)
    queued_end = before[_QUEUED_END]
    for at in range(counts_end, queued_end):
        if after[at] - before[at] != shift:
            return -1
    for at in range(queued_end, times_end):
        if after[at] - before[at] != shift and (before[at] > past or after[at] > passed):
            return -1
    return shift


@njit(cache=True)
def _moves(shift: Any, before: Any, after: Any) -> Any:
    """Whether the marks, too, allow the time from ``before`` to ``after`` to be repeated."""
    mark, total = before[_TIMES_END], before[_MARKS_END] + _S_STARTS
    anything, work = False, False
    for unit in range(1, UNITS):
        if after[total + unit] == before[total + unit]:
            continue
        anything, work = True, work or unit != _LOAD
        if after[mark + unit] - before[mark + unit] != shift:
            return False
    if work and after[mark + _M_FRONTIER] - before[mark + _M_FRONTIER] != shift:
        return False
    if anything and after[mark + _M_CYCLES] - before[mark + _M_CYCLES] != shift:
        return False
    operators = before[_OP_HIGH] - before[_OP_LOW] + 1
    for at in range(mark + _M_OPERATORS, mark + _M_OPERATORS + operators):
        if after[at + operators] != before[at + operators]:
            return False
        if after[at] - before[at] != shift and after[at] != 0:
            return False
    return True


@njit(cache=True)
def back_edge(state: State, table: Any, constants: Any, loops: Any, album: Album, protect: Any) -> Any:
    """At the end of an iteration: jump over whole periods, or remember the state. False on a time beyond the counter.

    ``state.clock`` must be up to date and the level's index already that of the iteration to come. The last iteration
    is never jumped, nor is an event in the cycles from ``protect[0]`` to ``protect[1]``.
    """
    clock = state.clock
    level = clock[LEVEL] - 1
    index, opened = state.loop[INDEX, level], state.loop[BODY, level] - 1
    remaining = state.loop[COUNT, level] - 1 - index
    if remaining < 1:
        return True
    now, anchored = album.scratch[0], album.level[level]
    if not capture(state, table, constants, loops[OPERATOR_LOW, opened], loops[OPERATOR_HIGH, opened], opened,
                   loops[END, opened], now):  # fmt: skip
        return True
    for back in range(RECENT + 1):
        choice = 0 if back == RECENT else 1 + (index - 1 - back) % RECENT
        taken = anchored[choice]
        if taken < 0 or (back < RECENT and taken != index - 1 - back):
            continue
        iterations = index - taken
        if iterations > remaining:
            continue
        old = album.anchor[level, choice]
        shift = _shift(old, now)
        if shift < 0 or not _moves(shift, old, now):
            continue
        periods = remaining // iterations
        if protect[1] > protect[0] and _horizon(now) < protect[1]:
            room = protect[0] - clock[CYCLES]
            periods = 0 if room < 0 else min(periods, room // shift) if shift > 0 else periods
        if periods < 1:
            return True
        began = clock[SEQ]
        if not _jump(state, constants, old, now, shift, periods):
            return False
        state.loop[INDEX, level] += periods * iterations
        _fold(state, loops[END, opened], began, shift, periods, iterations)
        return True
    if index <= EAGER:
        choice = 1 + index % RECENT
        anchored[choice] = index
        _copy(now, album.anchor[level, choice])
    if anchored[0] < 0 or index - anchored[0] >= anchored[POWER]:
        anchored[POWER] = 1 if anchored[0] < 0 else 2 * anchored[POWER]
        anchored[0] = index
        _copy(now, album.anchor[level, 0])
    return True


@njit(cache=True)
def _jump(state: State, constants: Any, old: Any, now: Any, shift: Any, periods: Any) -> Any:
    """Go on from ``now`` with ``periods`` times what led there from ``old``; false when a number would not fit."""
    mark, sums = now[_TIMES_END], now[_MARKS_END]
    if shift > 0 and periods >= (TIME_LIMIT - now[mark + _M_CYCLES]) // shift:
        return False
    for at in range(sums, now[_SUMS_END]):
        rise = now[at] - old[at]
        if rise > 0 and periods >= (TIME_LIMIT - now[at]) // rise:
            return False
        now[at] += periods * rise
    for at in range(now[_COUNTS_END], sums):
        if at < mark or now[at] != old[at]:
            now[at] += periods * shift
    state.clock[SKIPPED] += now[sums + _S_EVENTS] - state.clock[EVENTS]
    state.clock[PERIODS] += periods
    restore(state, constants, now)
    return True


@njit(cache=True)
def _fold(state: State, pc: Any, began: Any, shift: Any, periods: Any, iterations: Any) -> None:
    clock = state.clock
    if clock[FOLDED] < state.folds.shape[0]:
        row = state.folds[clock[FOLDED]]
        row[0], row[1], row[2], row[3], row[4], row[5] = pc, began, clock[SEQ], shift, periods, iterations
    clock[FOLDED] += 1


@njit(cache=True)
def enter(state: State, table: Any, constants: Any, loops: Any, album: Album, protect: Any) -> Any:
    """At a loop's first instruction: true when the whole loop was jumped because it began in this state before."""
    clock = state.clock
    opened, level = clock[PC], clock[LEVEL]
    if level < LEVELS:
        for choice in range(RECENT + 1):
            album.level[level, choice] = -1
        album.level[level, PENDING] = -1
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
    end, now = loops[END, opened], album.scratch[0]
    interval = constants[12]
    if interval and constants[11] + interval * (end + 1) > clock[SEQ]:
        return False  # instructions of the loop are still being fetched
    if not capture(
        state, table, constants, loops[OPERATOR_LOW, opened], loops[OPERATOR_HIGH, opened], opened, end, now
    ):
        return False
    now[_FLAGS] = flags
    for place in range(loops[PLACE, opened], loops[PLACE, opened] + CHOICES):
        if not album.entry[COMPLETE, place]:
            continue
        if _repeat(state, constants, album.entered[place], album.left[place], now, album.scratch[1], protect):
            clock[PC] = end + 1
            return True
    turn = album.entry[TURN]
    place = loops[PLACE, opened] + turn[loops[PLACE, opened]] % CHOICES
    turn[loops[PLACE, opened]] += 1
    album.entry[COMPLETE, place] = 0
    _copy(now, album.entered[place])
    album.level[level, PENDING] = place
    return False


@njit(cache=True)
def leave(state: State, table: Any, constants: Any, album: Album) -> None:
    """After a loop's last iteration: remember what the loop has done from the state it began in."""
    level = state.clock[LEVEL]
    place = album.level[level, PENDING]
    if place < 0:
        return
    album.level[level, PENDING] = -1
    entered = album.entered[place]
    album.entry[COMPLETE, place] = capture(
        state, table, constants, entered[_OP_LOW], entered[_OP_HIGH], entered[_PC_LOW], entered[_PC_HIGH],
        album.left[place],
    )  # fmt: skip


@njit(cache=True)
def _repeat(state: State, constants: Any, entered: Any, left: Any, now: Any, outcome: Any, protect: Any) -> Any:
    """Do from ``now`` what led from ``entered`` to ``left``; false when the states, or their marks, differ."""
    shift = _shift(entered, now)
    if shift < 0:
        return False
    # `left` has queues of its own, so its sections begin elsewhere
    mark, gone_mark = now[_TIMES_END], left[_TIMES_END]
    total, gone_total = now[_MARKS_END], left[_MARKS_END]
    anything, work = False, False
    for unit in range(1, UNITS):
        if left[gone_total + _S_STARTS + unit] == entered[total + _S_STARTS + unit]:
            continue
        anything, work = True, work or unit != _LOAD
        if now[mark + unit] - entered[mark + unit] != shift:
            return False
    if work and now[mark + _M_FRONTIER] - entered[mark + _M_FRONTIER] != shift:
        return False
    if anything and now[mark + _M_CYCLES] - entered[mark + _M_CYCLES] != shift:
        return False
    operators = now[_OP_HIGH] - now[_OP_LOW] + 1
    for each in range(_M_OPERATORS, _M_OPERATORS + operators):
        before, after, here = entered[mark + each], left[gone_mark + each], now[mark + each]
        if before == after and before != 0 and here - before != shift:
            return False
        if now[mark + operators + each] == TIME_LIMIT and left[gone_mark + operators + each] != TIME_LIMIT:
            return False
    protected = protect[1] > protect[0] and _horizon(now) < protect[1]
    if protected and left[gone_mark + _M_CYCLES] + shift > protect[0]:
        return False
    if left[gone_mark + _M_CYCLES] + shift >= TIME_LIMIT:
        return False
    clock, began = state.clock, now[now[_COUNTS_END]]
    _copy(left, outcome)
    for at in range(left[_COUNTS_END], gone_mark):
        outcome[at] += shift
    for unit in range(UNITS):
        idle = left[gone_total + _S_STARTS + unit] == entered[total + _S_STARTS + unit]
        outcome[gone_mark + unit] = now[mark + unit] if idle else left[gone_mark + unit] + shift
    outcome[gone_mark + _M_FRONTIER] = left[gone_mark + _M_FRONTIER] + shift if work else now[mark + _M_FRONTIER]
    outcome[gone_mark + _M_CYCLES] = left[gone_mark + _M_CYCLES] + shift if anything else now[mark + _M_CYCLES]
    for each in range(_M_OPERATORS, _M_OPERATORS + operators):
        before, after, here = entered[mark + each], left[gone_mark + each], now[mark + each]
        outcome[gone_mark + each] = here if before == after else max(here, after + shift)
    for each in range(now[_SUMS_END] - total):
        outcome[gone_total + each] += now[total + each] - entered[total + each]
        if outcome[gone_total + each] >= TIME_LIMIT:
            return False
    restore(state, constants, outcome)
    clock[SKIPPED] += left[gone_total + _S_EVENTS] - entered[total + _S_EVENTS]
    clock[LOOKUPS] += 1
    _fold(state, now[_PC_HIGH], began, clock[SEQ] - began, now[_FLAGS] * 0 + 1, now[_FLAGS] * 0)
    return True
