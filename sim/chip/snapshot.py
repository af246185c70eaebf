"""Snapshots of a tile: its state as one row of integers, and beside it a ledger of what no state depends on.

The row says what the tile does next (`sim.timing.recurrence`) and has two sections:

- *counts*: which instructions wait in the queues, semaphore counts, predicates.
- *times*: when things become free or arrive, relative to the *horizon*, which is the tile's now: the earliest of the
  sequencer's time and the times at which waiting instructions were dispatched. A time so far back that nothing can wait
  for it any more counts as the horizon.

The ledger has two more:

- *marks*: times that statistics are measured from. They move with the state when their owner did anything.
- *sums*: everything that only grows: stalls, executions, events.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import part
from siliconloom.arch.word import SEMAPHORES
from siliconloom.sim.chip.state import (
    ACCOUNTED,
    CYCLES,
    DISPATCHED,
    EVENTS,
    FIRST_TOKEN,
    FRONTIER,
    HEAD,
    KNOWN,
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
    UNKNOWN,
    WAITING,
    State,
    TileMachine,
)
from siliconloom.sim.chip.tables import COLUMNS

WIDTH = 6144
"""Longest row, and longest ledger; a state that needs more is run, not jumped."""
_OPERATOR = COLUMNS["operator"]
COUNTS_END, TIMES_END, OP_LOW, OP_HIGH, PC_LOW, PC_HIGH, FLAGS = range(7)
"""Places in a row's header: where its sections end; operators and instructions that the ledger counts; predicates of
outer loops."""
_HEADER = 7
_COUNTED_UNITS = 2 * UNITS
M_FRONTIER, M_CYCLES, M_OPERATORS = UNITS, UNITS + 1, UNITS + 2
"""Marks of a ledger: one per unit, the work whose time has been given to an operator, the run; then an end per
operator, then a start."""
S_EVENTS, S_STARTS, _S_WAITING, _S_STALLS = 0, 1, 1 + UNITS, 1 + 2 * UNITS
_S_EXECUTIONS = 1 + 2 * UNITS + UNITS * STALLS
"""Places within the sums of a ledger."""


@part()
def marks_end(row: Any) -> Any:
    """Where the marks of the ledger beside a row end, and the sums begin."""
    return M_OPERATORS + 2 * (row[OP_HIGH] - row[OP_LOW] + 1)


@part()
def ledger_length(row: Any) -> Any:
    """Numbers of the ledger beside a row."""
    return marks_end(row) + _S_EXECUTIONS + row[PC_HIGH] - row[PC_LOW] + 1 + row[OP_HIGH] - row[OP_LOW] + 1


@part()
def _after(slot: Any, size: Any) -> Any:
    """The next place of a ring."""
    return slot + 1 if slot + 1 < size else 0


@part(inside=False)
def _offsets(constants: Any) -> Any:
    """What is always added to times before they are compared: to starts, last beats, and when the array is free."""
    return constants.refill, constants.array_rows, max(constants.loader_gap, 0)


@part(inside=False)
def capture(
    machine: TileMachine, state: State, op_low: Any, op_high: Any, pc_low: Any, pc_high: Any, row: Any, ledger: Any
) -> Any:
    """Write the state into ``row``, without predicates, and into ``ledger``; its horizon, or -1 when it does not fit.

    Times are written as they are read: with what is always added to them before they are compared.
    """
    clock, depth, outstanding = state.clock, state.started.shape[1], state.in_flight.shape[1]
    refill, array_rows, gap = _offsets(machine.constants)
    waiting, left, tokens, engines, now = 0, 0, 0, 0, clock[SEQ]
    for unit in range(1, UNITS):
        engines += machine.constants.engines >> unit & 1
        waiting += state.unit[LENGTH, unit]
        left += min(state.unit[DISPATCHED, unit], depth) - state.unit[LENGTH, unit]
        slot = state.unit[HEAD, unit]
        for _ in range(state.unit[LENGTH, unit]):  # instructions of earlier operators are still to be counted
            operator = machine.table[state.queue[unit, slot, 0], _OPERATOR]
            op_low, op_high = min(op_low, operator), max(op_high, operator)
            now = min(now, state.queue[unit, slot, 1])
            slot = _after(slot, depth)
    for s in range(SEMAPHORES):
        tokens += state.semaphore[TOKENS, s]
    operators, instructions = op_high - op_low + 1, pc_high - pc_low + 1
    counts_end = _HEADER + _COUNTED_UNITS + SEMAPHORES + 3 * waiting
    times_end = counts_end + 5 + 4 * UNITS + waiting + left + engines * outstanding + tokens
    sums = M_OPERATORS + 2 * operators
    if times_end > row.shape[0] or sums + _S_EXECUTIONS + instructions + operators > ledger.shape[0]:
        return -1
    row[COUNTS_END], row[TIMES_END] = counts_end, times_end
    row[OP_LOW], row[OP_HIGH], row[PC_LOW], row[PC_HIGH] = op_low, op_high, pc_low, pc_high
    row[FLAGS] = 0
    at = _HEADER
    for unit in range(UNITS):
        row[at + unit] = state.unit[LENGTH, unit]
        row[at + UNITS + unit] = min(state.unit[DISPATCHED, unit], depth)
    at += _COUNTED_UNITS
    for s in range(SEMAPHORES):
        row[at + s] = state.semaphore[TOKENS, s]
    at += SEMAPHORES
    when = counts_end + 1
    for unit in range(1, UNITS):
        slot = state.unit[HEAD, unit]
        for _ in range(state.unit[LENGTH, unit]):
            entry = state.queue[unit, slot]
            row[at], row[at + 1], row[at + 2], row[when] = entry[0], entry[2], entry[3], entry[1] - now
            slot = _after(slot, depth)
            at += 3
            when += 1
    row[counts_end] = clock[SEQ] - now
    row[when], row[when + 1] = max(clock[PORT] - now, 0), max(clock[LOAD_FREE] + gap - now, 0)
    row[when + 2] = max(clock[STREAM_FREE] + gap - now, 0)
    row[when + 3] = max(clock[LAST_BEAT] + array_rows - now, 0)
    when += 4
    for each in range(4):
        for unit in range(UNITS):
            row[when] = max(state.unit[each, unit] - now, 0)
            when += 1
    for unit in range(UNITS):
        known = min(state.unit[DISPATCHED, unit], depth)
        slot = (state.unit[DISPATCHED, unit] - known) % depth
        for _ in range(known - state.unit[LENGTH, unit]):
            row[when] = max(state.started[unit, slot] + refill - now, 0)
            slot = _after(slot, depth)
            when += 1
    for unit in range(1, UNITS):
        slot = state.unit[TRANSFERS, unit] % outstanding
        for _ in range(outstanding if machine.constants.engines >> unit & 1 else 0):
            row[when] = max(state.in_flight[unit, slot] - now, 0)
            slot = _after(slot, outstanding)
            when += 1
    for s in range(SEMAPHORES):
        slot = state.semaphore[FIRST_TOKEN, s]
        for _ in range(state.semaphore[TOKENS, s]):
            row[when] = max(state.token[s, slot] - now, 0)
            slot = _after(slot, state.token.shape[1])
            when += 1
    at = 0
    for unit in range(UNITS):
        ledger[at + unit] = state.unit[ACCOUNTED, unit]
    ledger[at + M_FRONTIER], ledger[at + M_CYCLES] = clock[FRONTIER], clock[CYCLES]
    at += M_OPERATORS
    for operator in range(op_low, op_high + 1):
        ledger[at], ledger[at + operators] = state.operator[OP_END, operator], state.operator[OP_START, operator]
        at += 1
    at = sums
    ledger[at + S_EVENTS] = clock[EVENTS]
    for unit in range(UNITS):
        ledger[at + S_STARTS + unit] = state.unit[STARTS, unit]
        ledger[at + _S_WAITING + unit] = state.unit[WAITING, unit]
        for cause in range(STALLS):
            ledger[at + _S_STALLS + unit * STALLS + cause] = state.stalls[unit, cause]
    at += _S_EXECUTIONS
    for pc in range(pc_low, pc_high + 1):
        ledger[at] = state.executions[pc]
        at += 1
    for operator in range(op_low, op_high + 1):
        ledger[at] = state.operator[OP_EXCLUSIVE, operator]
        at += 1
    return now


@part(inside=False)
def same_lengths(state: State, row: Any) -> Any:
    """Whether queues and semaphores hold as many as in a row; false where taking a new one would be in vain."""
    same = True
    for unit in range(UNITS):
        same = same and state.unit[LENGTH, unit] == row[_HEADER + unit]
    for s in range(SEMAPHORES):
        same = same and state.semaphore[TOKENS, s] == row[_HEADER + _COUNTED_UNITS + s]
    return same


@part(inside=False)
def restore(machine: TileMachine, state: State, row: Any, now: Any, ledger: Any) -> None:
    """Bring the state to what a row with this horizon, and a ledger, show: the inverse of `capture`."""
    clock, depth, outstanding = state.clock, state.started.shape[1], state.in_flight.shape[1]
    refill, array_rows, gap = _offsets(machine.constants)
    op_low, op_high, pc_low, pc_high = row[OP_LOW], row[OP_HIGH], row[PC_LOW], row[PC_HIGH]
    at, when = _HEADER, row[COUNTS_END] + 1
    for unit in range(UNITS):
        state.unit[LENGTH, unit], state.unit[DISPATCHED, unit] = row[at + unit], row[at + UNITS + unit]
        state.outlook[KNOWN, unit] = UNKNOWN
    at += _COUNTED_UNITS
    for s in range(SEMAPHORES):
        state.semaphore[TOKENS, s] = row[at + s]
    at += SEMAPHORES
    for unit in range(1, UNITS):
        slot = state.unit[HEAD, unit]
        for _ in range(state.unit[LENGTH, unit]):
            entry = state.queue[unit, slot]
            slot = _after(slot, depth)
            entry[0], entry[1], entry[2], entry[3] = row[at], now + row[when], row[at + 1], row[at + 2]
            at += 3
            when += 1
    clock[SEQ] = now + row[row[COUNTS_END]]
    clock[PORT], clock[LOAD_FREE], clock[STREAM_FREE] = (
        now + row[when],
        now + row[when + 1] - gap,
        now + row[when + 2] - gap,
    )
    clock[LAST_BEAT] = now + row[when + 3] - array_rows
    when += 4
    for each in range(4):
        for unit in range(UNITS):
            state.unit[each, unit] = now + row[when]
            when += 1
    for unit in range(UNITS):
        for number in range(state.unit[DISPATCHED, unit] - state.unit[LENGTH, unit]):
            state.started[unit, number] = now + row[when] - refill
            when += 1
    for unit in range(1, UNITS):
        slot = state.unit[TRANSFERS, unit] % outstanding
        for _ in range(outstanding if machine.constants.engines >> unit & 1 else 0):
            state.in_flight[unit, slot] = now + row[when]
            slot = _after(slot, outstanding)
            when += 1
    for s in range(SEMAPHORES):
        slot = state.semaphore[FIRST_TOKEN, s]
        for _ in range(state.semaphore[TOKENS, s]):
            state.token[s, slot] = now + row[when]
            slot = _after(slot, state.token.shape[1])
            when += 1
    at = 0
    for unit in range(UNITS):
        state.unit[ACCOUNTED, unit] = ledger[at + unit]
    clock[FRONTIER], clock[CYCLES] = ledger[at + M_FRONTIER], ledger[at + M_CYCLES]
    at += M_OPERATORS
    for operator in range(op_low, op_high + 1):
        state.operator[OP_END, operator] = ledger[at]
        at += 1
    at = marks_end(row)
    clock[EVENTS] = ledger[at + S_EVENTS]
    for unit in range(UNITS):
        state.unit[STARTS, unit], state.unit[WAITING, unit] = (
            ledger[at + S_STARTS + unit],
            ledger[at + _S_WAITING + unit],
        )
        for cause in range(STALLS):
            state.stalls[unit, cause] = ledger[at + _S_STALLS + unit * STALLS + cause]
    at += _S_EXECUTIONS
    for pc in range(pc_low, pc_high + 1):
        state.executions[pc] = ledger[at]
        at += 1
    for operator in range(op_low, op_high + 1):
        state.operator[OP_EXCLUSIVE, operator] = ledger[at]
        at += 1


@part(inside=False)
def owners_move(constants: Any, row: Any, shift: Any, begun: Any, ended: Any, ledger: Any) -> Any:
    """Units that acted from ``begun`` to ``ended``, a bit each; -1 when marks forbid that they do it again.

    Every mark whose owner acted must be ``shift`` later in ``ledger`` than in ``begun``.
    """
    started, acted = marks_end(row) + S_STARTS, 0
    for unit in range(1, UNITS):
        if ended[started + unit] != begun[started + unit]:
            acted |= 1 << unit
            if ledger[unit] - begun[unit] != shift:
                return -1
    if acted & ~constants.ahead and ledger[M_FRONTIER] - begun[M_FRONTIER] != shift:
        return -1
    if acted and ledger[M_CYCLES] - begun[M_CYCLES] != shift:
        return -1
    return acted
