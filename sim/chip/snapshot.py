"""Snapshots: the state of a tile as one row of integers, to be compared, shifted and restored.

A snapshot has four sections:

- *counts*: which instructions wait in the queues, semaphore counts, predicates. Equal or the states differ.
- *times*: when things become free or arrive. Two snapshots agree when each time is later by the same shift, or lies on
  both sides so far back that nothing can wait for it any more (at most `horizon`). The sequencer's time and those at
  which waiting instructions were dispatched come first and are always shifted: waiting is measured from them.
- *marks*: times that statistics are measured from. They move with the shift when their owner did anything.
- *sums*: everything that only grows: stalls, executions, events.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.isa import SEMAPHORES
from siliconloom.arch.kernels import part
from siliconloom.sim.chip.state import (
    ACCOUNTED,
    CYCLES,
    DISPATCHED,
    EVENTS,
    FIRST_TOKEN,
    FRONTIER,
    HEAD,
    LAST_BEAT,
    LENGTH,
    LOAD_FREE,
    OP_END,
    OP_EXCLUSIVE,
    OP_START,
    PORT,
    SEQ,
    STALLS,
    STARTS,
    STREAM_FREE,
    TOKENS,
    TRANSFERS,
    UNITS,
    WAITING,
    State,
    TileMachine,
)
from siliconloom.sim.chip.tables import COLUMNS
from siliconloom.sim.timing.rows import copy_row, same_rows

WIDTH = 6144
"""Longest snapshot; a state that needs more is run, not jumped."""
_OPERATOR = COLUMNS["operator"]
COUNTS_END, TIMES_END, MARKS_END, SUMS_END, OP_LOW, OP_HIGH, PC_LOW, PC_HIGH, FLAGS, QUEUED_END = range(10)
"""Places in a snapshot's header: where its sections end; operators and instructions it counts; predicates of outer
loops; where the times that always shift end."""
_HEADER = 10
_COUNTED_UNITS = 2 * UNITS
M_FRONTIER, M_CYCLES, M_OPERATORS = UNITS, UNITS + 1, UNITS + 2
S_EVENTS, S_STARTS, _S_WAITING, _S_STALLS = 0, 1, 1 + UNITS, 1 + 2 * UNITS
_S_EXECUTIONS = 1 + 2 * UNITS + UNITS * STALLS
"""Places within the marks (M) and the sums (S)."""


@part(inside=False)
def horizon(snapshot: Any) -> Any:
    """No instruction that has not started yet can start, or compare a time, before this cycle."""
    earliest = snapshot[snapshot[COUNTS_END]]
    for at in range(snapshot[COUNTS_END] + 1, snapshot[QUEUED_END]):
        earliest = min(earliest, snapshot[at])
    return earliest


@part(inside=False)
def copy_snapshot(snapshot: Any, into: Any) -> None:
    """Copy all sections of a snapshot."""
    copy_row(snapshot, into, snapshot[SUMS_END])


@part(inside=False)
def _offsets(constants: Any) -> Any:
    """What is always added to times before they are compared: to starts, last beats, and when the array is free."""
    return constants.refill, constants.array_rows, max(constants.loader_gap, 0)


@part(inside=False)
def capture(
    machine: TileMachine, state: State, op_low: Any, op_high: Any, pc_low: Any, pc_high: Any, snapshot: Any
) -> Any:
    """Write the state into ``snapshot``, without predicates; false when it does not fit.

    Times are written as they are read: with what is always added to them before they are compared.
    """
    clock, depth, outstanding = state.clock, state.started.shape[1], state.in_flight.shape[1]
    refill, array_rows, gap = _offsets(machine.constants)
    waiting, left, tokens, engines = 0, 0, 0, 0
    for unit in range(1, UNITS):
        engines += machine.constants.engines >> unit & 1
        waiting += state.unit[LENGTH, unit]
        left += min(state.unit[DISPATCHED, unit], depth) - state.unit[LENGTH, unit]
        for place in range(state.unit[LENGTH, unit]):  # instructions of earlier operators are still to be counted
            operator = machine.table[state.queue[unit, (state.unit[HEAD, unit] + place) % depth, 0], _OPERATOR]
            op_low, op_high = min(op_low, operator), max(op_high, operator)
    for s in range(SEMAPHORES):
        tokens += state.semaphore[TOKENS, s]
    operators, instructions = op_high - op_low + 1, pc_high - pc_low + 1
    counts_end = _HEADER + _COUNTED_UNITS + SEMAPHORES + 3 * waiting
    times_end = counts_end + 5 + 4 * UNITS + waiting + left + engines * outstanding + tokens
    marks_end = times_end + UNITS + 2 + 2 * operators
    sums_end = marks_end + _S_EXECUTIONS + instructions + operators
    if sums_end > snapshot.shape[0]:
        return False
    snapshot[COUNTS_END], snapshot[TIMES_END] = counts_end, times_end
    snapshot[MARKS_END], snapshot[SUMS_END] = marks_end, sums_end
    snapshot[OP_LOW], snapshot[OP_HIGH], snapshot[PC_LOW], snapshot[PC_HIGH] = op_low, op_high, pc_low, pc_high
    snapshot[FLAGS], snapshot[QUEUED_END] = 0, counts_end + 1 + waiting
    at = _HEADER
    for unit in range(UNITS):
        snapshot[at + unit] = state.unit[LENGTH, unit]
        snapshot[at + UNITS + unit] = min(state.unit[DISPATCHED, unit], depth)
    at += _COUNTED_UNITS
    for s in range(SEMAPHORES):
        snapshot[at + s] = state.semaphore[TOKENS, s]
    at += SEMAPHORES
    when = counts_end + 1
    for unit in range(1, UNITS):
        for place in range(state.unit[LENGTH, unit]):
            entry = state.queue[unit, (state.unit[HEAD, unit] + place) % depth]
            snapshot[at], snapshot[at + 1], snapshot[at + 2] = entry[0], entry[2], entry[3]
            snapshot[when] = entry[1]
            at += 3
            when += 1
    snapshot[counts_end] = clock[SEQ]
    snapshot[when], snapshot[when + 1], snapshot[when + 2] = (
        clock[PORT],
        clock[LOAD_FREE] + gap,
        clock[STREAM_FREE] + gap,
    )
    snapshot[when + 3] = clock[LAST_BEAT] + array_rows
    when += 4
    for row in range(4):
        for unit in range(UNITS):
            snapshot[when] = state.unit[row, unit]
            when += 1
    for unit in range(UNITS):
        known = min(state.unit[DISPATCHED, unit], depth)
        for number in range(
            state.unit[DISPATCHED, unit] - known, state.unit[DISPATCHED, unit] - state.unit[LENGTH, unit]
        ):
            snapshot[when] = state.started[unit, number % depth] + refill
            when += 1
    for unit in range(1, UNITS):
        for place in range(outstanding if machine.constants.engines >> unit & 1 else 0):
            snapshot[when] = state.in_flight[unit, (state.unit[TRANSFERS, unit] + place) % outstanding]
            when += 1
    for s in range(SEMAPHORES):
        for place in range(state.semaphore[TOKENS, s]):
            snapshot[when] = state.token[s, (state.semaphore[FIRST_TOKEN, s] + place) % state.token.shape[1]]
            when += 1
    at = times_end
    for unit in range(UNITS):
        snapshot[at + unit] = state.unit[ACCOUNTED, unit]
    snapshot[at + M_FRONTIER], snapshot[at + M_CYCLES] = clock[FRONTIER], clock[CYCLES]
    at += M_OPERATORS
    for operator in range(op_low, op_high + 1):
        snapshot[at], snapshot[at + operators] = state.operator[OP_END, operator], state.operator[OP_START, operator]
        at += 1
    at = marks_end
    snapshot[at + S_EVENTS] = clock[EVENTS]
    for unit in range(UNITS):
        snapshot[at + S_STARTS + unit] = state.unit[STARTS, unit]
        snapshot[at + _S_WAITING + unit] = state.unit[WAITING, unit]
        for cause in range(STALLS):
            snapshot[at + _S_STALLS + unit * STALLS + cause] = state.stalls[unit, cause]
    at += _S_EXECUTIONS
    for pc in range(pc_low, pc_high + 1):
        snapshot[at] = state.executions[pc]
        at += 1
    for operator in range(op_low, op_high + 1):
        snapshot[at] = state.operator[OP_EXCLUSIVE, operator]
        at += 1
    return True


@part(inside=False)
def same_lengths(state: State, snapshot: Any) -> Any:
    """Whether queues and semaphores hold as many as in a snapshot; false where taking a new one would be in vain."""
    same = True
    for unit in range(UNITS):
        same = same and state.unit[LENGTH, unit] == snapshot[_HEADER + unit]
    for s in range(SEMAPHORES):
        same = same and state.semaphore[TOKENS, s] == snapshot[_HEADER + _COUNTED_UNITS + s]
    return same


@part(inside=False)
def restore(machine: TileMachine, state: State, snapshot: Any) -> None:
    """Bring the state to what a snapshot shows: the inverse of `capture`."""
    clock, depth, outstanding = state.clock, state.started.shape[1], state.in_flight.shape[1]
    refill, array_rows, gap = _offsets(machine.constants)
    op_low, op_high, pc_low, pc_high = snapshot[OP_LOW], snapshot[OP_HIGH], snapshot[PC_LOW], snapshot[PC_HIGH]
    at, when = _HEADER, snapshot[COUNTS_END] + 1
    for unit in range(UNITS):
        state.unit[LENGTH, unit], state.unit[DISPATCHED, unit] = snapshot[at + unit], snapshot[at + UNITS + unit]
    at += _COUNTED_UNITS
    for s in range(SEMAPHORES):
        state.semaphore[TOKENS, s] = snapshot[at + s]
    at += SEMAPHORES
    for unit in range(1, UNITS):
        for place in range(state.unit[LENGTH, unit]):
            entry = state.queue[unit, (state.unit[HEAD, unit] + place) % depth]
            entry[0], entry[1], entry[2], entry[3] = snapshot[at], snapshot[when], snapshot[at + 1], snapshot[at + 2]
            at += 3
            when += 1
    clock[SEQ] = snapshot[snapshot[COUNTS_END]]
    clock[PORT], clock[LOAD_FREE], clock[STREAM_FREE] = (
        snapshot[when],
        snapshot[when + 1] - gap,
        snapshot[when + 2] - gap,
    )
    clock[LAST_BEAT] = snapshot[when + 3] - array_rows
    when += 4
    for row in range(4):
        for unit in range(UNITS):
            state.unit[row, unit] = snapshot[when]
            when += 1
    for unit in range(UNITS):
        for number in range(state.unit[DISPATCHED, unit] - state.unit[LENGTH, unit]):
            state.started[unit, number % depth] = snapshot[when] - refill
            when += 1
    for unit in range(1, UNITS):
        for place in range(outstanding if machine.constants.engines >> unit & 1 else 0):
            state.in_flight[unit, (state.unit[TRANSFERS, unit] + place) % outstanding] = snapshot[when]
            when += 1
    for s in range(SEMAPHORES):
        for place in range(state.semaphore[TOKENS, s]):
            state.token[s, (state.semaphore[FIRST_TOKEN, s] + place) % state.token.shape[1]] = snapshot[when]
            when += 1
    at = snapshot[TIMES_END]
    for unit in range(UNITS):
        state.unit[ACCOUNTED, unit] = snapshot[at + unit]
    clock[FRONTIER], clock[CYCLES] = snapshot[at + M_FRONTIER], snapshot[at + M_CYCLES]
    at += M_OPERATORS
    for operator in range(op_low, op_high + 1):
        state.operator[OP_END, operator] = snapshot[at]
        at += 1
    at = snapshot[MARKS_END]
    clock[EVENTS] = snapshot[at + S_EVENTS]
    for unit in range(UNITS):
        state.unit[STARTS, unit], state.unit[WAITING, unit] = (
            snapshot[at + S_STARTS + unit],
            snapshot[at + _S_WAITING + unit],
        )
        for cause in range(STALLS):
            state.stalls[unit, cause] = snapshot[at + _S_STALLS + unit * STALLS + cause]
    at += _S_EXECUTIONS
    for pc in range(pc_low, pc_high + 1):
        state.executions[pc] = snapshot[at]
        at += 1
    for operator in range(op_low, op_high + 1):
        state.operator[OP_EXCLUSIVE, operator] = snapshot[at]
        at += 1


@part(inside=False)
def shift_between(before: Any, after: Any) -> Any:
    """By how many cycles ``after`` is the same state later than ``before``; -1 when it is another state."""
    counts_end, times_end = before[COUNTS_END], before[TIMES_END]
    if not same_rows(before, after, counts_end):
        return -1
    shift, past, passed = after[counts_end] - before[counts_end], horizon(before), horizon(after)
    queued_end = before[QUEUED_END]
    for at in range(counts_end, queued_end):
        if after[at] - before[at] != shift:
            return -1
    for at in range(queued_end, times_end):
        if after[at] - before[at] != shift and (before[at] > past or after[at] > passed):
            return -1
    return shift


@part(inside=False)
def owners_move(constants: Any, shift: Any, before: Any, after: Any, begun: Any, ended: Any) -> Any:
    """Whether every mark whose owner acted from ``begun`` to ``ended`` is ``shift`` later in ``after`` than ``before``.

    Minus one when one is not; otherwise whether anything acted, plus two when that was more than reads of main memory.
    """
    mark, acted, acting = before[TIMES_END], begun[MARKS_END] + S_STARTS, ended[MARKS_END] + S_STARTS
    anything, work = False, False
    for unit in range(1, UNITS):
        if ended[acting + unit] == begun[acted + unit]:
            continue
        anything, work = True, work or not constants.ahead >> unit & 1
        if after[mark + unit] - before[mark + unit] != shift:
            return -1
    if work and after[mark + M_FRONTIER] - before[mark + M_FRONTIER] != shift:
        return -1
    if anything and after[mark + M_CYCLES] - before[mark + M_CYCLES] != shift:
        return -1
    return anything + 2 * work
