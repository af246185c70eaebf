"""Stretches of a trace that a DRAM has been through before, in the same state, are not run again.

A trace is cut into blocks of `BLOCK` requests. A block's *pattern* is what its requests are relative to its first:
reads and writes, banks, rows, columns, and the first row and column after it. At the start of a block whose pattern
occurs more than once the machine's picture (`sim.dram_picture`) is taken. Picture, pattern, arrivals relative to now
and, where a refresh became due meanwhile, the cycles until that, decide everything up to the start of the next
block; what it was is kept under them: cycles, counts, when each request entered and was answered, the next picture. Where
all of them are met again, that is what happens again. They are compared number by number, hashes only find them. A block
during which no refresh became due also happens like that when the next one is not due before its end.

The last block is always run: only there does the controller see that nothing else will come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from siliconloom.sim.dram_kernel import advance
from siliconloom.sim.dram_picture import restore, take_picture
from siliconloom.sim.dram_state import (
    ANSWERED,
    BURSTS,
    FINISH,
    HITS,
    LAST,
    LEFT,
    MISSES,
    NEVER,
    NEXT_REFRESH,
    NOW,
    OFFERED,
    REFRESHES,
    REFRESHING,
)

BLOCK = 32
"""Requests between two looks at the machine's state."""
POOL = 1 << 22
"""Most numbers kept of pictures, and of outcomes."""
LONGEST = 1 << 15
"""Numbers in the longest picture that is looked up."""
TRIES = 512
"""Blocks in a row that were not known before the search pauses for as many, then for twice as many, and so on."""

_PICTURE, _PATTERN, _ARRIVALS, _REFRESH, _CYCLES, _NEXT, _REFRESH_LATER, _OUTCOME, _ANSWERS = range(9)
_LAST, _FINISH, _COUNTS = 9, 10, 11
_COUNTED = (LEFT, HITS, MISSES, REFRESHES, BURSTS)
_EDGE = _COUNTS + len(_COUNTED)
_QUIET = -1
_NUMBERS, _PICTURES, _EDGES, _OUTCOMES = range(4)
REQUESTS, BLOCKS, PICTURES = range(3)


@dataclass(frozen=True)
class Collapse:
    """Requests and blocks whose outcome was known from before, and states that were kept."""

    requests: int
    blocks: int
    pictures: int


class Memory(NamedTuple):
    """What was seen; `used` says how much of each array is."""

    used: Any
    numbers: Any
    """Pictures and arrivals one after the other; `first` and `length` say where each lies."""
    first: Any
    length: Any
    picture_slots: Any
    edge: Any
    edge_slots: Any
    outcome: Any
    """Per edge: when each request entered; then of each one answered how far it lies from the first, and when."""


@njit(cache=True)
def locate(address: Any, fields: Any, line_shift: Any) -> Any:
    """Per address: line, channel, bank within the channel, row, burst within the row.

    ``fields`` has first bit and width of channel, rank, bank group, bank, row and column.
    """
    count = len(address)
    line, channel, bank = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    row, column = np.empty(count, np.int64), np.empty(count, np.int64)
    masks = (1 << fields[:, 1]) - 1
    for i in range(count):
        a = address[i]
        line[i] = a >> line_shift
        channel[i] = a >> fields[0, 0] & masks[0]
        rank, group = a >> fields[1, 0] & masks[1], a >> fields[2, 0] & masks[2]
        bank[i] = (rank << fields[2, 1] | group) << fields[3, 1] | a >> fields[3, 0] & masks[3]
        row[i], column[i] = a >> fields[4, 0] & masks[4], a >> fields[5, 0] & masks[5]
    return line, channel, bank, row, column


@njit(cache=True)
def collapsed(machine: Any, state: Any, trace: Any, counts: Any) -> Any:
    """Run a whole trace, and no stretch twice; as `advance`. ``counts`` gets the numbers of a `Collapse`."""
    requests, clock = len(trace.cycle), state.clock
    pattern, next_known = _patterns(machine, trace)
    blocks = len(pattern)
    known = 0
    for k in range(blocks):
        known += pattern[k] >= 0
    if not known:
        return advance(machine, state, trace, NEVER)
    memory = _empty(known)
    scratch = np.empty(LONGEST, np.int64)
    refreshing = machine.policy[REFRESHING] != 0
    last, finish = 0, 0
    here, live, failures, pause = -1, True, 0, TRIES
    wake_up = 0  # block before which nothing is looked up
    moving = True
    while clock[LEFT] > 0 and moving:
        n = clock[OFFERED]
        k = n // BLOCK
        target = next_known[max(k, wake_up)] if max(k, wake_up) < blocks else blocks
        if k >= blocks or target != k:
            if not live:
                _awaken(machine, state, trace, memory, here)
                live = True
            clock[ANSWERED] = 0
            moving = advance(machine, state, trace, target * BLOCK if target < blocks else NEVER)
            here = -1
            continue
        now = clock[NOW]
        distance = clock[NEXT_REFRESH] - now if refreshing else NEVER
        if here < 0:
            here = _intern(memory, scratch, take_picture(machine, state, trace, scratch))
        arrivals = _arrivals(memory, trace, scratch, n, now)
        edge = -1
        if here >= 0 and arrivals >= 0:
            edge = _find(memory, here, pattern[k], arrivals, _QUIET)
            if edge >= 0 and memory.edge[edge, _CYCLES] > distance:
                edge = _find(memory, here, pattern[k], arrivals, distance)
            elif edge < 0 and refreshing:
                edge = _find(memory, here, pattern[k], arrivals, distance)
        if edge >= 0:
            last, finish = _repeat(memory, state, trace, edge, n, now, distance, last, finish)
            here, live = memory.edge[edge, _NEXT], False
            counts[REQUESTS] += BLOCK
            counts[BLOCKS] += 1
            failures, pause = 0, TRIES
            continue
        if not live:
            _awaken(machine, state, trace, memory, here)
            live = True
        failures += 1
        if failures == TRIES:
            failures, wake_up, pause = 0, k + 1 + pause, 2 * pause
        last, finish = max(last, clock[LAST]), max(finish, clock[FINISH])
        clock[LAST], clock[FINISH], clock[ANSWERED] = 0, 0, 0
        left, hits, misses, refreshes = clock[LEFT], clock[HITS], clock[MISSES], clock[REFRESHES]
        bursts = clock[BURSTS]
        moving = advance(machine, state, trace, n + BLOCK)
        if not moving:
            break
        there = _intern(memory, scratch, take_picture(machine, state, trace, scratch))
        slot = memory.used[_EDGES]
        answers = clock[ANSWERED]
        first = memory.used[_OUTCOMES]
        if here >= 0 and there >= 0 and arrivals >= 0 and slot < len(memory.edge):
            if first + BLOCK + 2 * answers <= len(memory.outcome):
                edge_row = memory.edge[slot]
                edge_row[_PICTURE], edge_row[_PATTERN], edge_row[_ARRIVALS] = here, pattern[k], arrivals
                later = clock[NEXT_REFRESH] - clock[NOW] if refreshing else NEVER
                quiet = not refreshing or distance - later == clock[NOW] - now
                edge_row[_REFRESH] = _QUIET if quiet else distance
                edge_row[_CYCLES], edge_row[_NEXT], edge_row[_REFRESH_LATER] = clock[NOW] - now, there, later
                edge_row[_OUTCOME], edge_row[_ANSWERS] = first, answers
                edge_row[_LAST] = clock[LAST] - now if clock[LAST] else -NEVER
                edge_row[_FINISH] = clock[FINISH] - now if clock[FINISH] else -NEVER
                edge_row[_COUNTS], edge_row[_COUNTS + 1] = clock[LEFT] - left, clock[HITS] - hits
                edge_row[_COUNTS + 2], edge_row[_COUNTS + 3] = clock[MISSES] - misses, clock[REFRESHES] - refreshes
                edge_row[_COUNTS + 4] = clock[BURSTS] - bursts
                outcome = memory.outcome
                for i in range(BLOCK):
                    outcome[first + i] = trace.entered[n + i] - now
                for i in range(answers):
                    request = trace.answered[i]
                    outcome[first + BLOCK + 2 * i] = request - n
                    outcome[first + BLOCK + 2 * i + 1] = trace.done[request] - now
                memory.used[_OUTCOMES] = first + BLOCK + 2 * answers
                memory.used[_EDGES] = slot + 1
                _enter(memory, slot)
        here = there
    clock[LAST], clock[FINISH] = max(last, clock[LAST]), max(finish, clock[FINISH])
    counts[PICTURES] = memory.used[_PICTURES]
    return moving


@njit(cache=True)
def _repeat(
    memory: Any, state: Any, trace: Any, edge: Any, n: Any, now: Any, distance: Any, last: Any, finish: Any
) -> Any:
    """Let a block happen as it did before; the latest answer and end of a burst."""
    what, outcome, clock = memory.edge[edge], memory.outcome, state.clock
    first = what[_OUTCOME]
    for i in range(BLOCK):
        trace.entered[n + i] = now + outcome[first + i]
    first += BLOCK
    for i in range(what[_ANSWERS]):
        trace.done[n + outcome[first + 2 * i]] = now + outcome[first + 2 * i + 1]
    clock[NOW] = now + what[_CYCLES]
    clock[OFFERED] = n + BLOCK
    if what[_REFRESH] != _QUIET:
        clock[NEXT_REFRESH] = clock[NOW] + what[_REFRESH_LATER]
    clock[LEFT] += what[_COUNTS]
    clock[HITS] += what[_COUNTS + 1]
    clock[MISSES] += what[_COUNTS + 2]
    clock[REFRESHES] += what[_COUNTS + 3]
    clock[BURSTS] += what[_COUNTS + 4]
    return max(last, now + what[_LAST]), max(finish, now + what[_FINISH])


@njit(cache=True)
def _awaken(machine: Any, state: Any, trace: Any, memory: Any, picture: Any) -> None:
    first = memory.first[picture]
    restore(machine, state, trace, memory.numbers[first : first + memory.length[picture]])


@njit(cache=True)
def _patterns(machine: Any, trace: Any) -> Any:
    """Per block the first one with the same pattern, -1 when there is no other; and the next that has others."""
    blocks = max((len(trace.cycle) - 1) // BLOCK, 0)
    pattern, repeats = np.empty(blocks, np.int64), np.zeros(blocks, np.int64)
    slots = np.full(_table(blocks), -1, np.int64)
    mask = len(slots) - 1
    for k in range(blocks):
        n = k * BLOCK
        mixed = 0
        for i in range(n, n + BLOCK):
            word = trace.bank[i] * 8 + trace.channel[i] * 2 + trace.write[i]
            word += (trace.row[i + 1] - trace.row[n]) * 8191 + (trace.column[i + 1] - trace.column[n]) * 131
            mixed = ((mixed ^ word) * 1000003 + 12345) & 0xFFFFFFFFFF
        slot = (mixed ^ mixed >> 20) & mask
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


@njit(cache=True)
def _same_pattern(machine: Any, trace: Any, a: Any, b: Any) -> Any:
    rows, columns = machine.shape[4] - 1, machine.shape[5] - 1
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


@njit(cache=True)
def _table(entries: Any) -> Any:
    """A power of two with room to spare."""
    size = 16
    while size < 2 * entries + 2:
        size *= 2
    return size


@njit(cache=True)
def _empty(known: Any) -> Any:
    pictures = 3 * known + 3  # at both ends of a block, and its arrivals
    return Memory(
        np.zeros(4, np.int64), np.empty(POOL, np.int64), np.empty(pictures, np.int64), np.empty(pictures, np.int64),
        np.full(_table(pictures), -1, np.int64), np.empty((known, _EDGE), np.int64),
        np.full(_table(known), -1, np.int64), np.empty(POOL, np.int64),
    )  # fmt: skip


@njit(cache=True)
def _intern(memory: Any, numbers: Any, length: Any) -> Any:
    """The number of this picture, new or not; -1 when there is none or no room."""
    if length < 0:
        return -1
    mixed = length
    for i in range(length):
        mixed = ((mixed ^ numbers[i]) * 1000003 + 12345) & 0xFFFFFFFFFF
    mask = len(memory.picture_slots) - 1
    slot = (mixed ^ mixed >> 20) & mask
    while memory.picture_slots[slot] >= 0:
        found = memory.picture_slots[slot]
        if memory.length[found] == length:
            first, same = memory.first[found], True
            for i in range(length):
                if memory.numbers[first + i] != numbers[i]:
                    same = False
                    break
            if same:
                return found
        slot = slot + 1 & mask
    new, first = memory.used[_PICTURES], memory.used[_NUMBERS]
    if new >= len(memory.first) or first + length > len(memory.numbers):
        return -1
    memory.numbers[first : first + length] = numbers[:length]
    memory.first[new], memory.length[new] = first, length
    memory.used[_PICTURES], memory.used[_NUMBERS] = new + 1, first + length
    memory.picture_slots[slot] = new
    return new


@njit(cache=True)
def _arrivals(memory: Any, trace: Any, scratch: Any, n: Any, now: Any) -> Any:
    """Which arrivals a block has relative to now: 0 when all its requests are there, -1 when there is no room."""
    if trace.cycle[n + BLOCK - 1] <= now:
        return 0
    for i in range(BLOCK):
        scratch[i] = max(trace.cycle[n + i] - now, 0)
    found = _intern(memory, scratch, BLOCK)
    return found + 1 if found >= 0 else -1


@njit(cache=True)
def _slot(memory: Any, picture: Any, pattern: Any, arrivals: Any, refresh: Any) -> Any:
    mixed = (picture * 1000003 ^ pattern * 8191 ^ arrivals * 131) & 0xFFFFFFFF
    mixed = (mixed ^ refresh & 0xFFFFFFF) * 1000003
    return (mixed ^ mixed >> 20) & (len(memory.edge_slots) - 1)


@njit(cache=True)
def _find(memory: Any, picture: Any, pattern: Any, arrivals: Any, refresh: Any) -> Any:
    slot, mask = _slot(memory, picture, pattern, arrivals, refresh), len(memory.edge_slots) - 1
    while memory.edge_slots[slot] >= 0:
        found = memory.edge_slots[slot]
        edge = memory.edge[found]
        if edge[_PICTURE] == picture and edge[_PATTERN] == pattern:
            if edge[_ARRIVALS] == arrivals and edge[_REFRESH] == refresh:
                return found
        slot = slot + 1 & mask
    return -1


@njit(cache=True)
def _enter(memory: Any, number: Any) -> None:
    edge = memory.edge[number]
    slot = _slot(memory, edge[_PICTURE], edge[_PATTERN], edge[_ARRIVALS], edge[_REFRESH])
    while memory.edge_slots[slot] >= 0:
        slot = slot + 1 & (len(memory.edge_slots) - 1)
    memory.edge_slots[slot] = number
