"""Fast-forward: when a tile returns to a state it was in before, the time between is repeated by arithmetic.

`back_edge` looks for a period of a loop, `enter` and `leave` remember what a whole loop did from a given state; states
are compared as snapshots (`sim.chip.snapshot`). ``docs/engine.md`` has the proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from siliconloom.arch.isa import LEVELS, Opcode
from siliconloom.arch.kernels import part
from siliconloom.sim.chip.snapshot import (
    COUNTS_END,
    FLAGS,
    M_CYCLES,
    M_FRONTIER,
    M_OPERATORS,
    MARKS_END,
    OP_HIGH,
    OP_LOW,
    PC_HIGH,
    PC_LOW,
    S_EVENTS,
    S_STARTS,
    SUMS_END,
    TIMES_END,
    WIDTH,
    capture,
    copy_snapshot,
    horizon,
    owners_move,
    restore,
    same_lengths,
    shift_between,
)
from siliconloom.sim.chip.state import (
    BODY,
    COUNT,
    CYCLES,
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
    UNITS,
    State,
    TileMachine,
    Wishes,
)
from siliconloom.sim.chip.tables import COLUMNS, Tables

RECENT = 4
"""Iterations just before this one that it is compared with: the usual periods are 1 to 4."""
EAGER = 48
"""Iterations for which every snapshot is kept; later only the one at the last power of two (Brent)."""
CHOICES = 4
"""Entry states remembered per loop."""

IDLE = frozenset((Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER, Opcode.END))
"""Instructions that give an operator no work."""

END, OPERATOR_LOW, OPERATOR_HIGH, FIRST_LEVELS, LAST_LEVELS, PLACE = range(6)
"""Rows of `find_loops`."""

ANCHORED = 0
POWER = RECENT + 1
PENDING = RECENT + 2
"""Columns of `Snapshots.level`: the iteration in which each of the level's snapshots was taken (first the one at a
power of two), or -1; that power; which entry the open loop will complete, or -1."""

COMPLETE, TURN = range(2)
"""Rows of `Snapshots.entry`: whether both snapshots of an entry are there; which of a loop's entries is used next."""


class Snapshots(NamedTuple):
    """The snapshots kept during a run."""

    anchor: Any
    """Per level: one snapshot at a power of two, then the most recent ones."""
    entered: Any
    left: Any
    """Per entry: snapshots at a loop's entry and after its end."""
    level: Any
    entry: Any
    scratch: Any
    """The snapshot of now, and the one to go on from."""


def find_loops(tables: Tables) -> Any:
    """What there is to know of each loop, in the column of the instruction that opens it.

    Rows: its last instruction; lowest and highest operator that does work inside; loop levels that instructions inside
    have a ``first`` and a ``last`` predicate on; the first of the loop's `CHOICES` entries in an `Snapshots`.
    """
    columns = [COLUMNS[name] for name in ("opcode", "operator", "first", "last")]
    rows = tables.instructions[:, columns].tolist()
    found = np.full((6, max(len(rows), 1)), -1, np.int64)
    # of each open loop: where it begins, its place, operators inside that do work, operators inside, both predicates
    opened: list[list[Any]] = [[0, 0, [], [], 0, 0]]
    place = 0
    for pc, (opcode, operator, first, last) in enumerate(rows):
        if opcode == Opcode.LOOP:
            opened.append([pc, place, [], [], 0, 0])
            place += CHOICES
        inner = opened[-1]
        if opcode not in IDLE:
            inner[2].append(operator)
        inner[3].append(operator)
        inner[4] |= first
        inner[5] |= last
        if opcode == Opcode.NEXT:
            start, number, works, all_, first, last = opened.pop()
            counted = works or all_
            found[:, start] = pc, min(counted), max(counted), first, last, number
            outer = opened[-1]
            outer[2] += works
            outer[3] += all_
            outer[4] |= first
            outer[5] |= last
    return found


def empty_snapshots(loops: Any) -> Snapshots:
    """Room for the snapshots of a run; pages that are never written cost nothing."""
    places = max(int(loops[PLACE].max()) + CHOICES, 1)
    return Snapshots(
        anchor=np.zeros((LEVELS, RECENT + 1, WIDTH), np.int64),
        entered=np.zeros((places, WIDTH), np.int64),
        left=np.zeros((places, WIDTH), np.int64),
        level=np.full((LEVELS, RECENT + 3), -1, np.int64),
        entry=np.zeros((2, places), np.int64),
        scratch=np.zeros((2, WIDTH), np.int64),
    )


@part(inside=False)
def _moves(machine: TileMachine, shift: Any, before: Any, after: Any) -> Any:
    """Whether the marks, too, allow the time from ``before`` to ``after`` to be repeated."""
    if owners_move(machine.constants, shift, before, after, before, after) < 0:
        return False
    mark = before[TIMES_END]
    operators = before[OP_HIGH] - before[OP_LOW] + 1
    for at in range(mark + M_OPERATORS, mark + M_OPERATORS + operators):
        if after[at + operators] != before[at + operators]:
            return False
        if after[at] - before[at] != shift and after[at] != 0:
            return False
    return True


@part(inside=False)
def back_edge(machine: TileMachine, wishes: Wishes, snapshots: Snapshots, state: State) -> Any:
    """At the end of an iteration: jump over whole periods, or remember the state. False on a time beyond the counter.

    ``state.clock`` must be up to date and the level's index already that of the iteration to come. The last iteration
    is never jumped, nor is an event in the cycles of ``wishes.protect``.
    """
    clock, loops, protect = state.clock, machine.loops, wishes.protect
    level = clock[LEVEL] - 1
    index, opened = state.loop[INDEX, level], state.loop[BODY, level] - 1
    remaining = state.loop[COUNT, level] - 1 - index
    if remaining < 1:
        return True
    now, anchored = snapshots.scratch[0], snapshots.level[level]
    waits = index > EAGER and anchored[0] >= 0 and index - anchored[0] < anchored[POWER]
    if waits and not same_lengths(state, snapshots.anchor[level, 0]):
        return True
    if not capture(
        machine, state, loops[OPERATOR_LOW, opened], loops[OPERATOR_HIGH, opened], opened, loops[END, opened], now
    ):
        return True
    for back in range(RECENT + 1):
        choice = 0 if back == RECENT else 1 + (index - 1 - back) % RECENT
        taken = anchored[choice]
        if taken < 0 or (back < RECENT and taken != index - 1 - back):
            continue
        iterations = index - taken
        if iterations > remaining:
            continue
        old = snapshots.anchor[level, choice]
        shift = shift_between(old, now)
        if shift < 0 or not _moves(machine, shift, old, now):
            continue
        periods = remaining // iterations
        if protect[1] > protect[0] and horizon(now) < protect[1]:
            room = protect[0] - clock[CYCLES]
            periods = 0 if room < 0 else min(periods, room // shift) if shift > 0 else periods
        if periods < 1:
            return True
        began = clock[SEQ]
        if not _jump(machine, state, old, now, shift, periods):
            return False
        state.loop[INDEX, level] += periods * iterations
        _fold(state, loops[END, opened], began, shift, periods, iterations)
        return True
    if index <= EAGER:
        choice = 1 + index % RECENT
        anchored[choice] = index
        copy_snapshot(now, snapshots.anchor[level, choice])
    if anchored[0] < 0 or index - anchored[0] >= anchored[POWER]:
        anchored[POWER] = 1 if anchored[0] < 0 else 2 * anchored[POWER]
        anchored[0] = index
        copy_snapshot(now, snapshots.anchor[level, 0])
    return True


@part(inside=False)
def _jump(machine: TileMachine, state: State, old: Any, now: Any, shift: Any, periods: Any) -> Any:
    """Go on from ``now`` with ``periods`` times what led there from ``old``; false when a number would not fit."""
    mark, sums = now[TIMES_END], now[MARKS_END]
    if shift > 0 and periods >= (TIME_LIMIT - now[mark + M_CYCLES]) // shift:
        return False
    for at in range(sums, now[SUMS_END]):
        rise = now[at] - old[at]
        if rise > 0 and periods >= (TIME_LIMIT - now[at]) // rise:
            return False
        now[at] += periods * rise
    for at in range(now[COUNTS_END], sums):
        if at < mark or now[at] != old[at]:
            now[at] += periods * shift
    state.clock[SKIPPED] += now[sums + S_EVENTS] - state.clock[EVENTS]
    state.clock[PERIODS] += periods
    restore(machine, state, now)
    return True


@part(inside=False)
def _fold(state: State, pc: Any, began: Any, shift: Any, periods: Any, iterations: Any) -> None:
    clock = state.clock
    if clock[FOLDED] < state.folds.shape[0]:
        row = state.folds[clock[FOLDED]]
        row[0], row[1], row[2], row[3], row[4], row[5] = pc, began, clock[SEQ], shift, periods, iterations
    clock[FOLDED] += 1


@part(inside=False)
def enter(machine: TileMachine, wishes: Wishes, snapshots: Snapshots, state: State) -> Any:
    """At a loop's first instruction: true when the whole loop was jumped because it began in this state before."""
    clock, loops = state.clock, machine.loops
    opened, level = clock[PC], clock[LEVEL]
    if level < LEVELS:
        for choice in range(RECENT + 1):
            snapshots.level[level, choice] = -1
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
    end, now = loops[END, opened], snapshots.scratch[0]
    interval = machine.constants.fetch_interval
    if interval and machine.constants.fetch_first + interval * (end + 1) > clock[SEQ]:
        return False  # instructions of the loop are still being fetched
    if not capture(machine, state, loops[OPERATOR_LOW, opened], loops[OPERATOR_HIGH, opened], opened, end, now):
        return False
    now[FLAGS] = flags
    for place in range(loops[PLACE, opened], loops[PLACE, opened] + CHOICES):
        if not snapshots.entry[COMPLETE, place]:
            continue
        entered, left = snapshots.entered[place], snapshots.left[place]
        if _repeat(machine, wishes.protect, state, entered, left, now, snapshots.scratch[1]):
            clock[PC] = end + 1
            return True
    turn = snapshots.entry[TURN]
    place = loops[PLACE, opened] + turn[loops[PLACE, opened]] % CHOICES
    turn[loops[PLACE, opened]] += 1
    snapshots.entry[COMPLETE, place] = 0
    copy_snapshot(now, snapshots.entered[place])
    snapshots.level[level, PENDING] = place
    return False


@part(inside=False)
def leave(machine: TileMachine, snapshots: Snapshots, state: State) -> None:
    """After a loop's last iteration: remember what the loop has done from the state it began in."""
    level = state.clock[LEVEL]
    place = snapshots.level[level, PENDING]
    if place < 0:
        return
    snapshots.level[level, PENDING] = -1
    entered = snapshots.entered[place]
    snapshots.entry[COMPLETE, place] = capture(
        machine, state, entered[OP_LOW], entered[OP_HIGH], entered[PC_LOW], entered[PC_HIGH], snapshots.left[place]
    )


@part(inside=False)
def _repeat(machine: TileMachine, protect: Any, state: State, entered: Any, left: Any, now: Any, outcome: Any) -> Any:
    """Do from ``now`` what led from ``entered`` to ``left``; false when the states, or their marks, differ."""
    shift = shift_between(entered, now)
    if shift < 0:
        return False
    # `left` has queues of its own, so its sections begin elsewhere
    mark, gone_mark = now[TIMES_END], left[TIMES_END]
    total, gone_total = now[MARKS_END], left[MARKS_END]
    acted = owners_move(machine.constants, shift, entered, now, entered, left)
    if acted < 0:
        return False
    anything, work = acted & 1 > 0, acted & 2 > 0
    operators = now[OP_HIGH] - now[OP_LOW] + 1
    for each in range(M_OPERATORS, M_OPERATORS + operators):
        before, after, here = entered[mark + each], left[gone_mark + each], now[mark + each]
        if before == after and before != 0 and here - before != shift:
            return False
        if now[mark + operators + each] == TIME_LIMIT and left[gone_mark + operators + each] != TIME_LIMIT:
            return False
    protected = protect[1] > protect[0] and horizon(now) < protect[1]
    if protected and left[gone_mark + M_CYCLES] + shift > protect[0]:
        return False
    if left[gone_mark + M_CYCLES] + shift >= TIME_LIMIT:
        return False
    clock, began = state.clock, now[now[COUNTS_END]]
    copy_snapshot(left, outcome)
    for at in range(left[COUNTS_END], gone_mark):
        outcome[at] += shift
    for unit in range(UNITS):
        idle = left[gone_total + S_STARTS + unit] == entered[total + S_STARTS + unit]
        outcome[gone_mark + unit] = now[mark + unit] if idle else left[gone_mark + unit] + shift
    outcome[gone_mark + M_FRONTIER] = left[gone_mark + M_FRONTIER] + shift if work else now[mark + M_FRONTIER]
    outcome[gone_mark + M_CYCLES] = left[gone_mark + M_CYCLES] + shift if anything else now[mark + M_CYCLES]
    for each in range(M_OPERATORS, M_OPERATORS + operators):
        before, after, here = entered[mark + each], left[gone_mark + each], now[mark + each]
        outcome[gone_mark + each] = here if before == after else max(here, after + shift)
    for each in range(now[SUMS_END] - total):
        outcome[gone_total + each] += now[total + each] - entered[total + each]
        if outcome[gone_total + each] >= TIME_LIMIT:
            return False
    restore(machine, state, outcome)
    clock[SKIPPED] += left[gone_total + S_EVENTS] - entered[total + S_EVENTS]
    clock[LOOKUPS] += 1
    _fold(state, now[PC_HIGH], began, clock[SEQ] - began, 1, 0)
    return True
