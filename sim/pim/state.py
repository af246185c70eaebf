"""A PIM channel in the middle of its macros, as arrays of 64-bit integers and named tuples that its kernel reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
NEVER = 2**62
"""A time that does not come."""

KIND, BANK, ROW, ROUNDS, CHUNKS, SEGMENTS, WIDTH, LAST_WIDTH, COLUMN, APART, ARRIVAL, AFTER, DELAY = range(13)
"""Columns of `ChannelWork.macros`, in the order of `sim.pim.channel.MACRO_FIELDS`."""

TAKEN, FIRST, LAST, DONE = range(4)
"""Rows of `ChannelOutcome.times`: when a macro was taken, its first and its last command went out, it is done."""

BUS, READ_READY, WRITE_READY, DRIVER, SWITCHED, OFFERED, BEFORE, LOGGED = range(8)
STEP, BUSY, PIM_IDLE, ACCEPTED, PIM_READY, PIM_REOPEN, DOT_READY, RESULT_READY, BUFFER_READY, FILLED = range(8, 18)
ROUND, CHUNK, PLACE, DOTS, SINGLE, PENDING, DRAINED, PIM_OPEN = range(18, 26)
"""Entries of `ChannelState.clock`. Of the channel: first free cycle of the command bus; of the data bus for reads and
for writes; who used that last, a rank or the PIM, and from when on another may; transfers taken, and when the last one
was; commands so far. Of computation: its phase and macro; when it takes the next; macros taken; earliest next command
by its own timing, activation by tRP and tRC, dot product, read of results, write to the global buffer; when what was
written there can be used. Of its macro: round, chunk, place in the phase, dot products, bank of a dot product,
results to be read and those that were; whether rows are open."""

PHASE, OWN, READY, REOPEN, MOVED, FREE = range(6)
"""Rows of `ChannelState.machine`: phase and macro of each bank machine; its earliest next command by its own timing,
and its earliest activation by tRP and tRC; bursts moved; when it can take the next macro."""

IDLE, OPEN, COLUMNS, CLOSE = range(4)
"""Phases of a bank machine."""
BUFFER, ACTIVATE, DRAIN, MULTIPLY, PRECHARGE = range(5)
"""Phases of computation: fill the global buffer, open rows, read results, multiply, close rows."""


class PimTimes(NamedTuple):
    """What the kernel knows of a tile; times are cycles of the DRAM's clock."""

    ranks: int
    banks: int
    group: int
    """Banks that one command of computation activates."""
    groups: int
    dual: int
    """1 with dual row buffers, otherwise 0."""
    machines: int
    """Bank machines."""
    singles: int
    """Commands of one dot product: one for all banks, or one for each."""
    tRCD: int
    tRP: int
    tRAS: int
    tRC: int
    tRRD: int
    tFAW: int
    tRTP: int
    write_recovery: int
    """From a write to the precharge of its row."""
    gap: int
    """Between two bursts of one kind."""
    read_to_write: int
    write_to_read: int
    dot_interval: int
    dot_latency: int
    write_done: int
    refresh: int
    """Between two refreshes of one rank, or `NEVER`."""
    tRFC: int
    read_done: int
    burst_bytes: int
    switch: int
    """Between bursts of two ranks, or of a rank and the PIM."""
    own_windows: int
    """1 where activations of computation count for themselves, otherwise 0."""
    domains: int
    """Ranks that are refreshed in turn, or 1."""


class ChannelWork(NamedTuple):
    """The macros of a channel, and the numbers of those of either stream in order."""

    macros: Any
    compute: Any
    transfer: Any


class ChannelOutcome(NamedTuple):
    """What became of the macros: times of each, commands by their kind, and every command as far as there are rows."""

    times: Any
    counts: Any
    commands: Any


class ChannelState(NamedTuple):
    """What changes; arrays are changed in place."""

    clock: Any
    machine: Any
    activated: Any
    """Per rank, and once more for computation when it has windows of its own: last activations, newest first."""
    opened: Any
    """The same: earliest activation by tRRD."""
    refreshed: Any
    """Per rank, or once for all: earliest activation after a refresh."""
    next_refresh: Any
    closed: Any
    """The same: earliest refresh after the last precharge."""
    in_use: Any
    """The same: 1 where a row is open."""


def fresh_state(timing: PimTimes) -> ChannelState:
    """A channel that has done nothing, with every row closed."""

    def zeros(*shape: int) -> Int:
        return np.zeros(shape, np.int64)

    domains, refresh = timing.domains, timing.refresh
    due = [NEVER if refresh >= NEVER else (domain + 1) * refresh // domains for domain in range(domains)]
    state = ChannelState(
        clock=zeros(26),
        machine=zeros(6, timing.machines),
        activated=zeros(2 * timing.ranks, 4) - NEVER,
        opened=zeros(2 * timing.ranks),
        refreshed=zeros(domains),
        next_refresh=np.array(due, np.int64),
        closed=zeros(domains),
        in_use=zeros(domains),
    )
    state.clock[[DRIVER, BEFORE, BUSY]] = -1
    state.machine[OWN] = -1
    return state
