"""Stretches of a trace that a DRAM has been through before, in the same state, are not run again.

A trace is cut into blocks of `BLOCK` requests. A block's *pattern* is what its requests are relative to its first:
reads and writes, banks, rows, columns, and the first row and column after it. At the start of a block whose pattern
occurs more than once the machine's snapshot (`sim.dram.snapshot`) is taken. Snapshot, pattern, arrivals relative to now
and, where a refresh was due or pending, the cycles until the next and whose turn it is, decide everything up to the
start of the next block; what it was is kept under them: cycles, counts, when each request entered and was answered, the
next snapshot. Where all of them are met again, that is what happens again; they are compared number by number, hashes
only find them. A block without refresh also happens like that whenever the next refresh is not due before its end.

The last block is always run: only there does the controller see that nothing else will come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from siliconloom.arch.kernels import kernel
from siliconloom.sim.dram.kernel import advance
from siliconloom.sim.dram.snapshot import restore, restore_phase, take_phase, take_snapshot
from siliconloom.sim.dram.state import (
    ANSWERED,
    BURSTS,
    FINISH,
    HITS,
    LAST,
    LEFT,
    MISSES,
    NEVER,
    NEXT_REFRESH,
    NO_REFRESH,
    NOW,
    OFFERED,
    REFRESHES,
)
from siliconloom.sim.timing.rows import copy_row, mixed, same_rows, slot_of

BLOCK = 64
"""Requests between two looks at the machine's state."""
POOL = 1 << 22
"""Most numbers kept of snapshots, and of outcomes."""
LONGEST = 1 << 15
"""Numbers in the longest snapshot that is looked up."""
CREDIT, WORTH, AGAIN = 2048, 4, 128
"""Most misses that are paid in advance; misses that a block which was known pays for; those after a pause. A pause
lasts `CREDIT` blocks, and each one twice as long as that before, until all credit is earned back."""
LARGEST = 2**31 - 1
"""Largest number that is kept."""

_SNAPSHOT, _PATTERN, _ARRIVALS, _REFRESH, _PHASE = range(5)
_KEYS = 5
_CYCLES, _NEXT, _PHASE_LATER, _REFRESH_LATER, _OUTCOME, _ANSWERS, _LAST, _FINISH = range(5, 13)
_LEFT, _HITS, _MISSES, _REFRESHES, _BURSTS, _QUIET_SO_FAR = range(13, 19)
_EDGE = 19
"""Columns of `SeenStates.edge`: what decides a block; how long it took, what follows, what it added."""
_QUIET = -1
"""Refresh and phase of a block that no refresh was due or pending in."""
_NUMBERS, _SNAPSHOTS, _EDGES, _OUTCOMES = range(4)
REQUESTS, BLOCKS, SNAPSHOTS = range(3)


@dataclass(frozen=True)
class Collapse:
    """Requests and blocks whose outcome was known from before, and states that were kept."""

    requests: int
    blocks: int
    snapshots: int


class SeenStates(NamedTuple):
    """What was seen; `used` says how much of each array is."""

    used: Any
    numbers: Any
    """Snapshots and arrivals one after the other; `first` and `length` say where each lies."""
    first: Any
    length: Any
    snapshot_slots: Any
    edge: Any
    edge_slots: Any
    outcome: Any
    """Per edge: when each request entered; then of each one answered how far it lies from the first, and when."""


@kernel()
def collapsed(machine: Any, state: Any, trace: Any, counts: Any) -> Any:
    """Run a whole trace, and no stretch twice; as `advance`. ``counts`` gets the numbers of a `Collapse`."""
    clock = state.clock
    pattern, next_known = _patterns(machine, trace)
    blocks = len(pattern)
    known = 0
    for k in range(blocks):
        known += pattern[k] >= 0
    if not known:
        return advance(machine, state, trace, NEVER)
    memory = _empty(known)
    scratch = np.empty(LONGEST, np.int64)
    latest = np.zeros(2, np.int64)
    refreshing = machine.policy.refresh != NO_REFRESH
    here, phase, live = -1, -1, True  # the state is snapshot `here`; `live`: the arrays of `state` are in it
    credit, pause, resume = CREDIT, CREDIT, 0
    moving = True
    while clock[LEFT] > 0 and moving:
        n = clock[OFFERED]
        k = n // BLOCK
        target = next_known[max(k, resume)] if max(k, resume) < blocks else blocks
        if k >= blocks or target != k:
            if not live:
                _awaken(machine, state, trace, memory, here, phase)
                live = True
            _note_latest(clock, latest)
            moving = advance(machine, state, trace, target * BLOCK if target < blocks else NEVER)
            here = -1
            continue
        if here < 0:
            here = _intern(memory, scratch, take_snapshot(machine, state, trace, scratch))
            phase = _intern(memory, scratch, take_phase(state, scratch))
        arrivals = _arrivals(memory, trace, scratch, n, clock[NOW])
        distance = clock[NEXT_REFRESH] - clock[NOW] if refreshing else NEVER
        searched = here >= 0 and phase >= 0 and arrivals >= 0
        if searched:
            edge = _find(memory, here, pattern[k], arrivals, _QUIET, _QUIET)
            if edge < 0 or memory.edge[edge, _CYCLES] > distance:
                edge = _find(memory, here, pattern[k], arrivals, distance, phase)
            if edge >= 0:
                _repeat(memory, state, trace, edge, latest)
                here, live = memory.edge[edge, _NEXT], False
                if memory.edge[edge, _REFRESH] != _QUIET:
                    phase = memory.edge[edge, _PHASE_LATER]
                counts[REQUESTS] += BLOCK
                counts[BLOCKS] += 1
                credit = min(credit + WORTH, CREDIT)
                if credit == CREDIT:
                    pause = CREDIT
                continue
        if not live:
            _awaken(machine, state, trace, memory, here, phase)
            live = True
        credit -= 1
        if credit == 0:
            credit, resume, pause = AGAIN, k + 1 + pause, 2 * pause
        new = memory.edge[memory.used[_EDGES]]
        new[_SNAPSHOT], new[_PATTERN], new[_ARRIVALS] = here, pattern[k], arrivals
        _begin(state, new, distance, phase, latest)
        moving = advance(machine, state, trace, n + BLOCK)
        if moving:
            here = _intern(memory, scratch, take_snapshot(machine, state, trace, scratch))
            phase = _intern(memory, scratch, take_phase(state, scratch))
            if searched and here >= 0 and phase >= 0:
                new[_NEXT], new[_PHASE_LATER] = here, phase
                _keep(memory, state, trace, new, n)
    _note_latest(clock, latest)
    clock[LAST], clock[FINISH] = latest[0], latest[1]
    counts[SNAPSHOTS] = memory.used[_SNAPSHOTS]
    return moving


@kernel()
def _note_latest(clock: Any, latest: Any) -> None:
    """Put the last answer and end of a burst aside, so that those of the next stretch are seen alone."""
    latest[0], latest[1] = max(latest[0], clock[LAST]), max(latest[1], clock[FINISH])
    clock[LAST], clock[FINISH], clock[ANSWERED] = 0, 0, 0


@kernel()
def _begin(state: Any, edge: Any, distance: Any, phase: Any, latest: Any) -> None:
    """Before a block is run: write down where everything stands."""
    clock = state.clock
    _note_latest(clock, latest)
    quiet = True
    for pending in state.due.flat:
        quiet = quiet and pending == 0
    edge[_QUIET_SO_FAR], edge[_REFRESH], edge[_PHASE], edge[_CYCLES] = quiet, distance, phase, clock[NOW]
    edge[_LEFT], edge[_HITS], edge[_MISSES] = clock[LEFT], clock[HITS], clock[MISSES]
    edge[_REFRESHES], edge[_BURSTS], edge[_REFRESH_LATER] = clock[REFRESHES], clock[BURSTS], clock[NEXT_REFRESH]


@kernel()
def _keep(memory: Any, state: Any, trace: Any, edge: Any, n: Any) -> None:
    """After a block was run: keep what came of it."""
    clock, outcome = state.clock, memory.outcome
    first, answers, began = memory.used[_OUTCOMES], clock[ANSWERED], edge[_CYCLES]
    if first + BLOCK + 2 * answers > len(outcome) or clock[NOW] - began > LARGEST:
        return
    if edge[_QUIET_SO_FAR] and clock[NEXT_REFRESH] == edge[_REFRESH_LATER]:
        edge[_REFRESH], edge[_PHASE] = _QUIET, _QUIET
    edge[_REFRESH_LATER] = clock[NEXT_REFRESH] - clock[NOW]
    edge[_CYCLES] = clock[NOW] - began
    edge[_LAST] = clock[LAST] - began if clock[LAST] else -NEVER
    edge[_FINISH] = clock[FINISH] - began if clock[FINISH] else -NEVER
    edge[_LEFT], edge[_HITS] = clock[LEFT] - edge[_LEFT], clock[HITS] - edge[_HITS]
    edge[_MISSES], edge[_BURSTS] = clock[MISSES] - edge[_MISSES], clock[BURSTS] - edge[_BURSTS]
    edge[_REFRESHES] = clock[REFRESHES] - edge[_REFRESHES]
    edge[_OUTCOME], edge[_ANSWERS] = first, answers
    for i in range(BLOCK):
        outcome[first + i] = trace.entered[n + i] - began
    first += BLOCK
    for i in range(answers):
        request = trace.answered[i]
        outcome[first + 2 * i], outcome[first + 2 * i + 1] = request - n, trace.done[request] - began
    memory.used[_OUTCOMES] = first + 2 * answers
    memory.used[_EDGES] += 1
    slot, mask = _slot(memory, edge), len(memory.edge_slots) - 1
    while memory.edge_slots[slot] >= 0:
        slot = slot + 1 & mask
    memory.edge_slots[slot] = memory.used[_EDGES] - 1


@kernel()
def _repeat(memory: Any, state: Any, trace: Any, number: Any, latest: Any) -> None:
    """Let a block happen as it did before, but for the arrays of queues and banks."""
    edge, outcome, clock = memory.edge[number], memory.outcome, state.clock
    n, now, first = clock[OFFERED], clock[NOW], edge[_OUTCOME]
    for i in range(BLOCK):
        trace.entered[n + i] = now + outcome[first + i]
    first += BLOCK
    for i in range(edge[_ANSWERS]):
        trace.done[n + outcome[first + 2 * i]] = now + outcome[first + 2 * i + 1]
    clock[NOW] = now + edge[_CYCLES]
    clock[OFFERED] = n + BLOCK
    if edge[_REFRESH] != _QUIET:
        clock[NEXT_REFRESH] = clock[NOW] + edge[_REFRESH_LATER]
    clock[LEFT] += edge[_LEFT]
    clock[HITS] += edge[_HITS]
    clock[MISSES] += edge[_MISSES]
    clock[REFRESHES] += edge[_REFRESHES]
    clock[BURSTS] += edge[_BURSTS]
    latest[0], latest[1] = max(latest[0], now + edge[_LAST]), max(latest[1], now + edge[_FINISH])


@kernel()
def _awaken(machine: Any, state: Any, trace: Any, memory: Any, snapshot: Any, phase: Any) -> None:
    """Bring the arrays of the state to a snapshot that was reached without them."""
    first = memory.first[snapshot]
    restore(machine, state, trace, memory.numbers[first : first + memory.length[snapshot]])
    restore_phase(state, memory.numbers[memory.first[phase] :])


@kernel()
def _patterns(machine: Any, trace: Any) -> Any:
    """Per block the first one with the same pattern, -1 when there is no other; and the next that has others."""
    blocks = max((len(trace.cycle) - 1) // BLOCK, 0)
    pattern, repeats = np.empty(blocks, np.int64), np.zeros(blocks, np.int64)
    slots = np.full(_table(blocks), -1, np.int64)
    mask = len(slots) - 1
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
        while slots[slot] >= 0 and not _same_pattern(machine, trace, slots[slot] * BLOCK, n):
            slot = slot + 1 & mask
        if slots[slot] < 0:
            slots[slot] = k
        pattern[k] = slots[slot]
        repeats[slots[slot]] += 1
    next_known, following = np.empty(blocks, np.int64), blocks
    for k in range(blocks - 1, -1, -1):
        if repeats[pattern[k]] == 1:
            pattern[k] = -1
        else:
            following = k
        next_known[k] = following
    return pattern, next_known


@kernel()
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


@kernel()
def _table(entries: Any) -> Any:
    """A power of two with room to spare."""
    size = 16
    while size < 2 * entries + 2:
        size *= 2
    return size


@kernel()
def _empty(known: Any) -> Any:
    snapshots = 4 * known + 4  # at both ends of a block; phase; arrivals
    return SeenStates(
        np.zeros(4, np.int64),
        np.empty(POOL, np.int32),
        np.empty(snapshots, np.int64),
        np.empty(snapshots, np.int64),
        np.full(_table(snapshots), -1, np.int64),
        np.empty((known + 1, _EDGE), np.int64),
        np.full(_table(known), -1, np.int64),
        np.empty(POOL, np.int32),
    )


@kernel()
def _intern(memory: Any, numbers: Any, length: Any) -> Any:
    """The number of this snapshot, new or not; -1 when there is none or no room."""
    if length < 0:
        return -1
    hash, largest = length, 0
    for i in range(length):
        hash = mixed(hash, numbers[i])
        largest = max(largest, numbers[i])
    if largest > LARGEST:
        return -1
    mask = len(memory.snapshot_slots) - 1
    slot = slot_of(hash, memory.snapshot_slots)
    while memory.snapshot_slots[slot] >= 0:
        found = memory.snapshot_slots[slot]
        if memory.length[found] == length and same_rows(memory.numbers[memory.first[found] :], numbers, length):
            return found
        slot = slot + 1 & mask
    new, first = memory.used[_SNAPSHOTS], memory.used[_NUMBERS]
    if new >= len(memory.first) or first + length > len(memory.numbers):
        return -1
    copy_row(numbers, memory.numbers[first:], length)
    memory.first[new], memory.length[new] = first, length
    memory.used[_SNAPSHOTS], memory.used[_NUMBERS] = new + 1, first + length
    memory.snapshot_slots[slot] = new
    return new


@kernel()
def _arrivals(memory: Any, trace: Any, scratch: Any, n: Any, now: Any) -> Any:
    """Which arrivals a block has relative to now: 0 when all its requests are there, -1 when there is no room."""
    if trace.cycle[n + BLOCK - 1] <= now:
        return 0
    for i in range(BLOCK):
        scratch[i] = max(trace.cycle[n + i] - now, 0)
        if scratch[i] > LARGEST:
            return -1
    found = _intern(memory, scratch, BLOCK)
    return found + 1 if found >= 0 else -1


@kernel()
def _slot(memory: Any, edge: Any) -> Any:
    hash = 0
    for i in range(_KEYS):
        hash = mixed(hash, edge[i] & 0xFFFFFFFFFF)
    return slot_of(hash, memory.edge_slots)


@kernel()
def _find(memory: Any, snapshot: Any, pattern: Any, arrivals: Any, refresh: Any, phase: Any) -> Any:
    """The edge with this key, or -1; the edge that would be next serves to look for it."""
    key = memory.edge[memory.used[_EDGES]]
    key[_SNAPSHOT], key[_PATTERN], key[_ARRIVALS], key[_REFRESH], key[_PHASE] = (
        snapshot,
        pattern,
        arrivals,
        refresh,
        phase,
    )
    slot, mask = _slot(memory, key), len(memory.edge_slots) - 1
    while memory.edge_slots[slot] >= 0:
        found = memory.edge_slots[slot]
        if same_rows(memory.edge[found], key, _KEYS):
            return found
        slot = slot + 1 & mask
    return -1
