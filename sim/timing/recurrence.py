"""What recurs: states that a component was in before, kept to be found again, and what followed from them.

A tile (`sim.chip.recurrence`) and a DRAM (`sim.dram.repeat`) go on from states that they know by the same functions. A
component that does so keeps a contract of five points; ``docs/engine.md`` says why a jump is then exact.

State
    It writes down as a row of integers all that decides what it does next. Times are relative to *now*, a time of the
    component's own choice that never falls; those that decide nothing any more are written as now. Two equal rows with
    equal work do the same from here on, later by the difference of their nows.
Work
    It names what it will do as an integer: the block of a trace, the loop of a program. Where more than the row
    decides, further columns of the key say it.
Guard
    Of a transition that was found it says whether anything that is not in the key stands against it, such as marks
    (times that statistics are measured from), refreshes, cycles in which every event is wanted.
Sums
    What no step reads and every step may only increase stands in one array, so that `add_times` can repeat it.
Restoring
    From a row, a now, marks and sums it makes a state that writes down the same row.

States are interned by `intern`: one number each. A *transition* is a row of integers: what followed (`NEXT`, `TIME`,
`OUTCOME`), the key under which it is found (`STATE`, `WORK` and more where `KnownStates.keys` says so), and columns of
the component. The row that would come next, `coming`, is where a key is written to be looked for and a transition is
made before it is kept. Where a transition leads back to the state that it began in, it may be repeated as often as is
asked for.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, NamedTuple

import numpy as np

from siliconloom.arch.kernels import part
from siliconloom.sim.timing.rows import copy_row, hashed, mixed, same_rows, slot_of

LIMIT = 2**62
"""First value that no time, and no sum, may take."""

NEXT, TIME, OUTCOME, STATE, WORK = range(5)
"""Columns of `KnownStates.transition`: the state that followed, how long it took, where its outcome begins; the state
and the work that it is found by. The rest of the key comes behind, then what the component keeps."""
MORE = 5
"""First column of `KnownStates.transition` that is the component's."""

NUMBERS, STATES, TRANSITIONS, OUTCOMES = range(4)
"""Entries of `KnownStates.used`."""

CREDIT, PAUSE, RESUME = range(3)
"""Entries of a credit: what is left of it; how long the next pause is; number of the first look-up behind one."""
MOST, WORTH, AGAIN = 2048, 4, 128
"""Most look-ups in vain that are paid in advance; those that one with success pays for; those after a pause. A pause
lasts `MOST` look-ups, and each one twice as long as that before, until all credit is earned back."""


class KnownStates(NamedTuple):
    """States and transitions that are known; slots hold one more than a number, 0 where nothing is."""

    used: Any
    """How much of the other arrays holds something."""
    numbers: Any
    """Rows of states one after the other; `first` and `length` say where each lies."""
    first: Any
    length: Any
    state_slots: Any
    transition: Any
    transition_slots: Any
    outcome: Any
    """What is kept of transitions beside their rows."""
    keys: int
    """Columns of a transition's key."""
    largest: int
    """Largest number of a state that is kept."""


def empty_seen(
    states: int, transitions: int, columns: int, *, pool: int, kind: Any = np.int64, keys: int = 2, levels: int = 0
) -> KnownStates:
    """Room for what is seen; pages that are never written cost nothing.

    Parameters
    ----------
    states, transitions
        Most of each.
    columns
        Of a transition.
    pool
        Most numbers of all states, and of all outcomes.
    kind
        Type of these numbers.
    keys
        Columns of a transition's key.
    levels
        Rooms like this one that are wanted, see `room`; 0 for one that is used as it is.
    """
    lead = (levels,) if levels else ()

    def zeros(*shape: int) -> Any:
        return np.zeros((*lead, *shape), np.int64)

    return KnownStates(
        zeros(4),
        _unused((*lead, pool), kind),
        zeros(states),
        zeros(states),
        zeros(slots_for(states)),
        zeros(transitions + 1, columns),
        zeros(slots_for(transitions)),
        _unused((*lead, pool), kind),
        keys,
        min(int(np.iinfo(kind).max), LIMIT),
    )


def _unused(shape: tuple[int, ...], kind: Any) -> Any:
    """An array whose small pages cost time when they are written; NumPy would ask for huge ones for a large array."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    if size < HUGE:
        return np.empty(shape, kind)
    return np.frombuffer(mmap.mmap(-1, size), kind).reshape(shape)


HUGE = 1 << 22
"""Bytes from which NumPy asks for huge pages, each of which takes as long to clear as a short run."""


def slots_for(entries: int) -> int:
    """Length of a table of slots: a power of two with room to spare."""
    return 1 << (2 * entries + 1).bit_length()


@part()
def room(seen: KnownStates, number: Any) -> Any:
    """One of several rooms that were made together."""
    return KnownStates(
        seen.used[number],
        seen.numbers[number],
        seen.first[number],
        seen.length[number],
        seen.state_slots[number],
        seen.transition[number],
        seen.transition_slots[number],
        seen.outcome[number],
        seen.keys,
        seen.largest,
    )


@part(inside=False)
def forget(seen: KnownStates) -> None:
    """Make room: nothing is known any more."""
    if seen.used[STATES] == 0:
        return
    for at in range(len(seen.used)):
        seen.used[at] = 0
    for at in range(len(seen.state_slots)):
        seen.state_slots[at] = 0
    for at in range(len(seen.transition_slots)):
        seen.transition_slots[at] = 0


@part(inside=False)
def intern(seen: KnownStates, row: Any, length: Any, adding: Any) -> Any:
    """The number of a state; -1 when it has no length, is not known and not to be added, or there is no room for it."""
    if length < 0:
        return -1
    slots = seen.state_slots
    slot = slot_of(hashed(row, length), slots)
    while slots[slot] > 0:
        known = slots[slot] - 1
        if seen.length[known] == length and same_rows(seen.numbers[seen.first[known] :], row, length):
            return known
        slot = slot + 1 & len(slots) - 1
    new, first, largest = seen.used[STATES], seen.used[NUMBERS], 0
    for at in range(length):
        largest = max(largest, row[at])
    if not adding or largest > seen.largest or new >= len(seen.first) or first + length > len(seen.numbers):
        return -1
    copy_row(row, seen.numbers[first:], length)
    seen.first[new], seen.length[new] = first, length
    seen.used[STATES], seen.used[NUMBERS] = new + 1, first + length
    slots[slot] = new + 1
    return new


@part()
def coming(seen: KnownStates) -> Any:
    """The number of the transition that would be kept next, whose row is free to be written."""
    return seen.used[TRANSITIONS]


@part(inside=False)
def _slot_of_key(seen: KnownStates) -> Any:
    """The slot of the transition with the key of `coming`, or the free one where it would stand."""
    slots, row = seen.transition_slots, seen.transition[coming(seen), STATE:]
    hash = 0
    for at in range(seen.keys):
        hash = mixed(hash, row[at])
    slot = slot_of(hash, slots)
    while slots[slot] > 0 and not same_rows(seen.transition[slots[slot] - 1, STATE:], row, seen.keys):
        slot = slot + 1 & len(slots) - 1
    return slot


@part()
def find(seen: KnownStates) -> Any:
    """The transition with the key that was written to `coming`, or -1."""
    return seen.transition_slots[_slot_of_key(seen)] - 1


@part()
def place_of_outcome(seen: KnownStates, length: Any) -> Any:
    """Where an outcome of this length may be written, or -1 when nothing more can be kept."""
    first = seen.used[OUTCOMES]
    full = coming(seen) + 1 >= len(seen.transition) or first + length > len(seen.outcome)
    return -1 if full else first


@part()
def take_outcome(seen: KnownStates, length: Any) -> None:
    """Keep as many numbers of outcomes more."""
    seen.used[OUTCOMES] += length


@part()
def keep(seen: KnownStates) -> None:
    """Let the transition that was written to `coming` be found, and no older one with the same key."""
    slot = _slot_of_key(seen)
    seen.used[TRANSITIONS] += 1
    seen.transition_slots[slot] = seen.used[TRANSITIONS]


@part()
def add_times(sums: Any, begun: Any, ended: Any, length: Any, times: Any) -> Any:
    """Add ``times`` times what led from ``begun`` to ``ended``; false, with nothing added, when one would not fit."""
    for at in range(length):
        rise = ended[at] - begun[at]
        if rise > 0 and times >= (LIMIT - sums[at]) // rise:
            return False
    for at in range(length):
        sums[at] += times * (ended[at] - begun[at])
    return True


def full_credit() -> Any:
    """All credit, before the first look-up."""
    return np.array([MOST, MOST, 0], np.int64)


@part()
def earn(credit: Any) -> None:
    """Book a look-up that found something."""
    credit[CREDIT] = min(credit[CREDIT] + WORTH, MOST)
    if credit[CREDIT] == MOST:
        credit[PAUSE] = MOST


@part()
def spend(credit: Any, number: Any) -> None:
    """Book look-up ``number``, which was in vain; the next is then worth while from `RESUME` on."""
    credit[CREDIT] -= 1
    if credit[CREDIT] == 0:
        credit[CREDIT], credit[RESUME] = AGAIN, number + 1 + credit[PAUSE]
        credit[PAUSE] *= 2
