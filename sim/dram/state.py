"""A DRAM and its controller in the middle of a trace, as arrays of 64-bit integers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.dram import Dram

Int = NDArray[np.int64]

ACT, PRE, READ, WRITE, REFRESH, READ_CLOSE, WRITE_CLOSE = range(7)
"""Commands, as numbers of a log."""

NEVER = 2**62
"""A time that does not come."""

NOW, OFFERED, LEFT, NEXT_REFRESH, DUE_RANK = range(5)
HITS, MISSES, REFRESHES, BURSTS = range(5, 9)
LAST, FINISH, LOGGED, ANSWERED = range(9, 13)
"""Entries of `DramState.clock`: cycle; requests that were taken, and those not done; next refresh and its rank; column
commands on an open row, activations, refreshes, column commands; last answer, end of the last burst; rows of the log
and of `Trace.answered`."""

TO_ACT, TO_READ, TO_WRITE = range(3)
"""Columns of `DramState.group` and `DramState.rank`: the first cycle in which any of its banks may have the command."""

COLUMN_AT, ACT_AT, PRE_AT = range(3)
"""Columns of `DramState.bank`: the first cycle for a column command, ACT and PRE, as far as the bank itself decides."""

TIMINGS = (
    "CL",
    "CWL",
    "tRCD",
    "tRP",
    "tRAS",
    "tRC",
    "tRRD_S",
    "tRRD_L",
    "tFAW",
    "tCCD_S",
    "tCCD_L",
    "tWR",
    "tWTR_S",
    "tWTR_L",
    "tRTP",
    "tRTRS",
    "tRFC",
    "tREFI",
    "burst",
)
POLICIES = (
    "in_order",
    "page",
    "timeout",
    "read_queue",
    "write_queue",
    "write_low",
    "bank_queue",
    "row_hits",
    "refresh",
    "two_commands",
    "shared",
)
TIMEOUT, ROW_HITS, PAGE, REFRESHING = 2, 7, 1, 8
"""Places in `POLICIES`."""
FAW, REFI = 8, 17
"""Places in `TIMINGS`."""


class DramMachine(NamedTuple):
    """What does not change: `shape` is channels, ranks, bank groups, banks of a group, rows, bursts of a row."""

    shape: Any
    policy: Any
    timing: Any


class Trace(NamedTuple):
    """Per request what is asked, and what becomes of it."""

    cycle: Any
    write: Any
    line: Any
    channel: Any
    bank: Any
    """Within the channel, ranks and groups included."""
    row: Any
    column: Any
    """Burst within the row."""
    done: Any
    entered: Any
    answered: Any
    """Requests in the order in which their `done` became known, since `clock[ANSWERED]` was last set to 0."""
    commands: Any


class DramState(NamedTuple):
    """What changes; the first axis is the channel. Queues hold request numbers, the oldest first."""

    clock: Any
    reads: Any
    writes: Any
    queue: Any
    """In front of each bank."""
    read_count: Any
    write_count: Any
    count: Any
    queued: Any
    """Requests in all bank queues."""
    turn: Any
    draining: Any
    row: Any
    """Open in each bank, or -1."""
    hits_of: Any
    used: Any
    """When each bank had its last column command."""
    wake: Any
    """Until when no request in front of a bank can do anything."""
    bank: Any
    group: Any
    rank: Any
    four: Any
    """The last four activations of a rank; `four_at` is the place of the oldest."""
    four_at: Any
    due: Any
    due_bank: Any
    held: Any
    """Reads and writes in all bank queues."""
    took: Any
    """When each channel took its last request."""
    sharing: Any
    """Per request: one more than the next read that waits for the same answer, or 0."""


def machine_of(dram: Dram) -> DramMachine:
    """A memory as tables."""
    o, c, t = dram.organization, dram.controller, dram.timing
    values = {**t.model_dump(), "tRC": t.row_cycle, "burst": dram.burst_cycles}
    if c.refresh == "bank":
        values["tRFC"] = t.tRFCpb or t.tRFC
    policy = c.model_dump() | {
        "in_order": c.scheduler == "fcfs",
        "page": ("open", "closed", "timeout", "auto_precharge").index(c.page),
        "shared": c.queues == "shared",
        "bank_queue": bank_queue(dram),
        "refresh": ("none", "rank", "bank").index(c.refresh),
    }
    return DramMachine(
        np.array([o.channels, o.ranks, o.bank_groups, o.banks, o.rows, o.columns // o.burst_length], np.int64),
        np.array([policy[name] for name in POLICIES], np.int64),
        np.array([values[name] for name in TIMINGS], np.int64),
    )


def bank_queue(dram: Dram) -> int:
    """Requests that may wait in front of a bank; of shared queues all."""
    c = dram.controller
    return c.read_queue + c.write_queue if c.queues == "shared" else c.bank_queue


def refresh_interval(dram: Dram) -> int:
    """Cycles between two refresh commands of a channel: ranks, and banks where each is refreshed alone, take turns."""
    o = dram.organization
    turns = o.ranks * (o.bank_groups * o.banks if dram.controller.refresh == "bank" else 1)
    return max(dram.timing.tREFI // turns, 1)


def fresh_state(dram: Dram, requests: int) -> DramState:
    """A memory that has done nothing, with every row closed."""
    o, c = dram.organization, dram.controller
    channels, groups = o.channels, o.ranks * o.bank_groups
    banks = groups * o.banks

    def zeros(*shape: int) -> Int:
        return np.zeros((channels, *shape), np.int64)

    clock = np.zeros(13, np.int64)
    clock[LEFT], clock[NEXT_REFRESH] = requests, refresh_interval(dram)
    return DramState(
        clock,
        zeros(c.read_queue),
        zeros(c.write_queue),
        zeros(banks, bank_queue(dram)),
        zeros(),
        zeros(),
        zeros(banks),
        zeros(),
        zeros(),
        zeros(),
        zeros(banks) - 1,
        zeros(banks),
        zeros(banks),
        zeros(banks),
        zeros(banks, 3),
        zeros(groups, 3),
        zeros(o.ranks, 3),
        zeros(o.ranks, 4) - NEVER,
        zeros(o.ranks),
        zeros(o.ranks),
        zeros(o.ranks),
        zeros(2),
        zeros() - 1,
        np.zeros(requests, np.int64),
    )
