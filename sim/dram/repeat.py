"""Stretches of a trace that a DRAM has been through before, in the same state, are not run again.

A trace is cut into blocks of `BLOCK` requests. A block's *pattern* is what its requests are relative to its first:
reads and writes, banks, rows, columns, and the first row and column after it. At the start of a block whose pattern
occurs more than once the machine's snapshot (`sim.dram.snapshot`) is taken. Snapshot, pattern, arrivals relative to now
and, where a refresh was due or pending, the cycles until the next and whose turn it is, decide everything up to the
start of the next block; what it was is kept under them: cycles, counts, when each request entered and was answered, the
next snapshot. Where all of them are met again, that is what happens again (`sim.timing.recurrence`). A block without
refresh also happens like that whenever the next refresh is not due before its end.

The last block is always run: only there does the controller see that nothing else will come.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from siliconloom.arch.kernels import UNCOUNTED, kernel, part
from siliconloom.sim.dram.kernel import advance
from siliconloom.sim.dram.snapshot import restore, restore_phase, take_phase, take_snapshot
from siliconloom.sim.dram.state import ANSWERED, FINISH, LAST, LEFT, NEVER, NEXT_REFRESH, NO_REFRESH, NOW, OFFERED, SUMS
from siliconloom.sim.timing.recurrence import (
    MORE,
    NEXT,
    OUTCOME,
    RESUME,
    STATE,
    STATES,
    TIME,
    WORK,
    KnownStates,
    add_times,
    coming,
    earn,
    empty_seen,
    find,
    full_credit,
    intern,
    keep,
    place_of_outcome,
    slots_for,
    spend,
    take_outcome,
)
from siliconloom.sim.timing.rows import copy_row, mixed, slot_of

BLOCK = 64
"""Requests between two looks at the machine's state."""
POOL, EACH = 1 << 22, 2048
"""Most numbers kept of snapshots, and of outcomes: of a whole trace, and for each block that has others like it."""
LONGEST = 1 << 15
"""Numbers in the longest snapshot that is looked up."""
_ARRIVALS, _REFRESH, _PHASE = range(MORE, MORE + 3)
"""The rest of a transition's key; its work is the pattern."""
_KEYS = 5
_PHASE_LATER, _REFRESH_LATER, _ANSWERS, _LAST, _FINISH, _QUIET_SO_FAR = range(MORE + 3, MORE + 9)
_BEGUN, _ENDED = MORE + 9, MORE + 9 + SUMS
_COLUMNS = _ENDED + SUMS
"""Other columns of a transition: what follows, what it added, sums before and after it."""
_QUIET = -1
"""Refresh and phase of a block that no refresh was due or pending in."""
REQUESTS, BLOCKS, SNAPSHOTS = range(3)


class Collapse(Struct, frozen=True):
    """Requests and blocks whose outcome was known from before, and states that were kept."""

    requests: int
    blocks: int
    snapshots: int


def collapsed(machine: Any, state: Any, trace: Any, counts: Any) -> bool:
    """Run a whole trace, and no stretch twice; as `advance`. ``counts`` gets the numbers of a `Collapse`."""
    blocks = max((len(trace.cycle) - 1) // BLOCK, 0)
    pattern, next_known = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
    known = int(_find_patterns(machine, trace, pattern, next_known, np.zeros(slots_for(blocks), np.int64)))
    # states are taken at both ends of a block; phases and arrivals are kept like states
    pool = min(POOL, EACH * known)
    seen = empty_seen(4 * known + 4, known, _COLUMNS, pool=pool, kind=np.int32, keys=_KEYS)
    scratch, latest = np.empty(LONGEST, np.int64), np.zeros(2, np.int64)
    run = TraceBlocks(pattern, next_known, seen, scratch, latest, full_credit())
    return bool(_run_blocks(machine, state, trace, run, counts))


class TraceBlocks(NamedTuple):
    """What there is to know of a trace's blocks, and what is seen of them."""

    pattern: Any
    """Per block the first one with the same pattern, -1 when there is no other."""
    next_known: Any
    """Per block the next one, itself included, whose pattern has others."""
    seen: KnownStates
    """A transition's outcome is when each request entered, then of each one answered how far it lies from the first,
    and when."""
    scratch: Any
    latest: Any
    """Last answer and end of the last burst before the stretch that is run."""
    credit: Any


@kernel(**UNCOUNTED)
def _run_blocks(machine: Any, state: Any, trace: Any, run: TraceBlocks, counts: Any) -> Any:
    clock, blocks, seen, scratch = state.clock, len(run.pattern), run.seen, run.scratch
    refreshing = machine.policy.refresh != NO_REFRESH
    here, phase, live = -1, -1, True  # the state is snapshot `here`; `live`: the arrays of `state` are in it
    moving = True
    while clock[LEFT] > 0 and moving:
        n = clock[OFFERED]
        k = n // BLOCK
        resume = max(k, run.credit[RESUME])
        target = run.next_known[resume] if resume < blocks else blocks
        if k >= blocks or target != k:
            if not live:
                _awaken(machine, state, trace, seen, here, phase)
                live = True
            _note_latest(clock, run.latest)
            moving = advance(machine, state, trace, target * BLOCK if target < blocks else NEVER)
            here = -1
            continue
        if here < 0:
            here = intern(seen, scratch, take_snapshot(machine, state, trace, scratch), True)
            phase = intern(seen, scratch, take_phase(state, scratch), True)
        distance = clock[NEXT_REFRESH] - clock[NOW] if refreshing else NEVER
        new = seen.transition[coming(seen)]
        new[STATE], new[WORK], new[_ARRIVALS] = here, run.pattern[k], _arrivals(seen, trace, scratch, n, clock[NOW])
        searched = here >= 0 and phase >= 0 and new[_ARRIVALS] >= 0
        if searched:
            found = _found(seen, new, distance, phase)
            if found >= 0:
                known = seen.transition[found]
                _repeat(seen, state, trace, known, run.latest)
                here, live = known[NEXT], False
                if known[_REFRESH] != _QUIET:
                    phase = known[_PHASE_LATER]
                counts[REQUESTS] += BLOCK
                counts[BLOCKS] += 1
                earn(run.credit)
                continue
        if not live:
            _awaken(machine, state, trace, seen, here, phase)
            live = True
        spend(run.credit, k)
        _note_latest(clock, run.latest)
        _begin(state, new, distance, phase)
        began = clock[NOW]
        moving = advance(machine, state, trace, n + BLOCK)
        if moving:
            here = intern(seen, scratch, take_snapshot(machine, state, trace, scratch), True)
            phase = intern(seen, scratch, take_phase(state, scratch), True)
            if searched and here >= 0 and phase >= 0:
                new[NEXT], new[_PHASE_LATER] = here, phase
                _keep(seen, state, trace, new, n, began)
    _note_latest(clock, run.latest)
    clock[LAST], clock[FINISH] = run.latest[0], run.latest[1]
    counts[SNAPSHOTS] = seen.used[STATES]
    return moving


@part(inside=False)
def _found(seen: KnownStates, key: Any, distance: Any, phase: Any) -> Any:
    """What is known of a block, be it one without refresh that is over before the next, or one with; or -1."""
    key[_REFRESH], key[_PHASE] = _QUIET, _QUIET
    found = find(seen)
    if found >= 0 and seen.transition[found, TIME] <= distance:
        return found
    key[_REFRESH], key[_PHASE] = distance, phase
    return find(seen)


@part()
def _note_latest(clock: Any, latest: Any) -> None:
    """Put the last answer and end of a burst aside, so that those of the next stretch are seen alone."""
    latest[0], latest[1] = max(latest[0], clock[LAST]), max(latest[1], clock[FINISH])
    clock[LAST], clock[FINISH], clock[ANSWERED] = 0, 0, 0


@part(inside=False)
def _begin(state: Any, new: Any, distance: Any, phase: Any) -> None:
    """Before a block is run: write down where everything stands."""
    clock = state.clock
    quiet = True
    for pending in state.due.flat:
        quiet = quiet and pending == 0
    new[_QUIET_SO_FAR], new[_REFRESH], new[_PHASE], new[_REFRESH_LATER] = quiet, distance, phase, clock[NEXT_REFRESH]
    copy_row(clock[LEFT:], new[_BEGUN:], SUMS)


@part(inside=False)
def _keep(seen: KnownStates, state: Any, trace: Any, new: Any, n: Any, began: Any) -> None:
    """After a block was run: keep what came of it."""
    clock, outcome, answers = state.clock, seen.outcome, state.clock[ANSWERED]
    first = place_of_outcome(seen, BLOCK + 2 * answers)
    if first < 0 or clock[NOW] - began > seen.largest:
        return
    if new[_QUIET_SO_FAR] and clock[NEXT_REFRESH] == new[_REFRESH_LATER]:
        new[_REFRESH], new[_PHASE] = _QUIET, _QUIET
    new[_REFRESH_LATER] = clock[NEXT_REFRESH] - clock[NOW]
    new[_LAST] = clock[LAST] - began if clock[LAST] else -NEVER
    new[_FINISH] = clock[FINISH] - began if clock[FINISH] else -NEVER
    copy_row(clock[LEFT:], new[_ENDED:], SUMS)
    new[TIME], new[OUTCOME], new[_ANSWERS] = clock[NOW] - began, first, answers
    for i in range(BLOCK):
        outcome[first + i] = trace.entered[n + i] - began
    for i in range(answers):
        request, at = trace.answered[i], first + BLOCK + 2 * i
        outcome[at], outcome[at + 1] = request - n, trace.done[request] - began
    take_outcome(seen, BLOCK + 2 * answers)
    keep(seen)


@part(inside=False)
def _repeat(seen: KnownStates, state: Any, trace: Any, known: Any, latest: Any) -> None:
    """Let a block happen as it did before, but for the arrays of queues and banks."""
    outcome, clock = seen.outcome, state.clock
    n, now, first = clock[OFFERED], clock[NOW], known[OUTCOME]
    for i in range(BLOCK):
        trace.entered[n + i] = now + outcome[first + i]
    first += BLOCK
    for i in range(known[_ANSWERS]):
        trace.done[n + outcome[first + 2 * i]] = now + outcome[first + 2 * i + 1]
    clock[NOW] = now + known[TIME]
    clock[OFFERED] = n + BLOCK
    if known[_REFRESH] != _QUIET:
        clock[NEXT_REFRESH] = clock[NOW] + known[_REFRESH_LATER]
    add_times(clock[LEFT:], known[_BEGUN:], known[_ENDED:], SUMS, 1)
    latest[0], latest[1] = max(latest[0], now + known[_LAST]), max(latest[1], now + known[_FINISH])


@part(inside=False)
def _awaken(machine: Any, state: Any, trace: Any, seen: KnownStates, snapshot: Any, phase: Any) -> None:
    """Bring the arrays of the state to a snapshot that was reached without them."""
    first = seen.first[snapshot]
    restore(machine, state, trace, seen.numbers[first : first + seen.length[snapshot]])
    restore_phase(state, seen.numbers[seen.first[phase] :])


@kernel(**UNCOUNTED)
def _find_patterns(machine: Any, trace: Any, pattern: Any, next_known: Any, slots: Any) -> Any:
    """Write ``pattern`` and ``next_known`` of `TraceBlocks` with empty ``slots``; how many blocks have others alike."""
    blocks, mask = len(pattern), len(slots) - 1
    for k in range(blocks):
        n = k * BLOCK
        hash = 0
        for i in range(n, n + BLOCK):
            word = (
                np.int64(trace.row[i + 1] - trace.row[n]) * 8191 + np.int64(trace.column[i + 1] - trace.column[n]) * 131
            )
            word += trace.bank[i] * 8 + trace.channel[i] * 2 + trace.write[i]
            hash = mixed(hash, word)
        slot = slot_of(hash, slots)
        while slots[slot] > 0 and not _same_pattern(machine, trace, (slots[slot] - 1) * BLOCK, n):
            slot = slot + 1 & mask
        next_known[k] = 0  # here, of the first one of its pattern: how many others there are
        if slots[slot] == 0:
            slots[slot] = k + 1
        else:
            next_known[slots[slot] - 1] += 1
        pattern[k] = slots[slot] - 1
    known, following = 0, blocks
    for k in range(blocks - 1, -1, -1):
        if pattern[k] == k and next_known[k] == 0:
            pattern[k] = -1
        else:
            known, following = known + 1, k
        next_known[k] = following
    return known


@part(inside=False)
def _same_pattern(machine: Any, trace: Any, a: Any, b: Any) -> Any:
    rows, columns = machine.shape.rows - 1, machine.shape.columns - 1
    row, column = trace.row[b] - trace.row[a], trace.column[b] - trace.column[a]
    for i in range(BLOCK):
        if trace.bank[a + i] != trace.bank[b + i] or trace.channel[a + i] != trace.channel[b + i]:
            return False
        if trace.write[a + i] != trace.write[b + i]:
            return False
        if (trace.row[b + i + 1] - trace.row[a + i + 1] - row) & rows:
            return False
        if (trace.column[b + i + 1] - trace.column[a + i + 1] - column) & columns:
            return False
    return True


@part(inside=False)
def _arrivals(seen: KnownStates, trace: Any, scratch: Any, n: Any, now: Any) -> Any:
    """Which arrivals a block has relative to now: 0 when all its requests are there, -1 when there is no room."""
    if trace.cycle[n + BLOCK - 1] <= now:
        return 0
    for i in range(BLOCK):
        scratch[i] = max(trace.cycle[n + i] - now, 0)
    number = intern(seen, scratch, BLOCK, True)
    return number + 1 if number >= 0 else -1
