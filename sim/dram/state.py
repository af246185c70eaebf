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

NOW, OFFERED = range(2)
LEFT, HITS, MISSES, REFRESHES, BURSTS = range(2, 7)
NEXT_REFRESH, DUE_RANK = range(7, 9)
LAST, FINISH, LOGGED, ANSWERED = range(9, 13)
"""Entries of `DramState.clock`: cycle; requests that were taken; the sums: requests not done, column commands on an
open row, activations, refreshes, column commands; next refresh and its rank; last answer, end of the last burst; rows
of the log and of `CommandTrace.answered`."""
SUMS = 5
"""Sums in the clock, from `LEFT` on."""

TO_ACT, TO_READ, TO_WRITE = range(3)
"""Columns of `DramState.group` and `DramState.rank`: the first cycle in which any of its banks may have the command."""

COLUMN_AT, ACT_AT, PRE_AT = range(3)
"""Columns of `DramState.bank`: the first cycle for a column command, ACT and PRE, as far as the bank itself decides."""

OPEN, CLOSED, TIMEOUT, AUTO_PRECHARGE = range(4)
"""`SchedulingRules.page`."""
NO_REFRESH, OF_RANKS, OF_BANKS = range(3)
"""`SchedulingRules.refresh`."""


class DramShape(NamedTuple):
    """How many there are of each; banks, rows and bursts are counted within what holds them."""

    channels: int
    ranks: int
    groups: int
    banks: int
    rows: int
    columns: int
    """Bursts of a row."""
    per_rank: int
    """Banks of a rank."""
    total: int
    """Banks of a channel."""
    span: int
    """Banks that one refresh command reaches."""


class SchedulingRules(NamedTuple):
    """What the controller does; truths are 1 or 0."""

    in_order: int
    page: int
    timeout: int
    read_queue: int
    write_queue: int
    write_low: int
    bank_queue: int
    row_hits: int
    refresh: int
    two_commands: int
    shared: int


class DramTimes(NamedTuple):
    """Cycles of the command clock."""

    CL: int
    CWL: int
    tRCD: int
    tRP: int
    tRAS: int
    tRC: int
    tRRD_S: int
    tRRD_L: int
    tFAW: int
    tRFC: int
    burst: int
    same_s: int
    """Between two bursts of one kind in a rank, and in a bank group."""
    same_l: int
    same_other: int
    """Between bursts of one kind of two ranks."""
    read_to_write: int
    write_to_read_s: int
    write_to_read_l: int
    write_to_read_other: int
    read_to_precharge: int
    write_to_precharge: int
    interval: int
    """Between two refresh commands of a channel."""
    patience: int
    """Without a request taken or done for so long, something waits for ever."""


class DramMachine(NamedTuple):
    """What does not change."""

    shape: DramShape
    policy: SchedulingRules
    timing: DramTimes


class CommandTrace(NamedTuple):
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
    """A memory as the kernel reads it."""
    o, c, t, burst = dram.organization, dram.controller, dram.timing, dram.burst_cycles
    of_banks, per_rank = c.refresh == "bank", o.bank_groups * o.banks
    tRFC = (t.tRFCpb or t.tRFC) if of_banks else t.tRFC
    write_to_read = t.CWL + burst
    shape = DramShape(
        channels=o.channels,
        ranks=o.ranks,
        groups=o.bank_groups,
        banks=o.banks,
        rows=o.rows,
        columns=o.columns // o.burst_length,
        per_rank=per_rank,
        total=o.ranks * per_rank,
        span=1 if of_banks else per_rank,
    )
    policy = SchedulingRules(
        in_order=int(c.scheduler == "fcfs"),
        page=("open", "closed", "timeout", "auto_precharge").index(c.page),
        timeout=c.timeout,
        read_queue=c.read_queue,
        write_queue=c.write_queue,
        write_low=c.write_low,
        bank_queue=bank_queue(dram),
        row_hits=c.row_hits,
        refresh=("none", "rank", "bank").index(c.refresh),
        two_commands=int(c.two_commands),
        shared=int(c.queues == "shared"),
    )
    timing = DramTimes(
        CL=t.CL,
        CWL=t.CWL,
        tRCD=t.tRCD,
        tRP=t.tRP,
        tRAS=t.tRAS,
        tRC=t.row_cycle,
        tRRD_S=t.tRRD_S,
        tRRD_L=t.tRRD_L,
        tFAW=t.tFAW,
        tRFC=tRFC,
        burst=burst,
        same_s=max(t.tCCD_S, burst),
        same_l=max(t.tCCD_L, burst),
        same_other=burst + t.tRTRS,
        read_to_write=t.CL + burst - t.CWL + t.tRTRS,
        write_to_read_s=write_to_read + t.tWTR_S,
        write_to_read_l=write_to_read + t.tWTR_L,
        write_to_read_other=max(write_to_read + t.tRTRS - t.CL, 0),
        read_to_precharge=t.tRTP,
        write_to_precharge=write_to_read + t.tWR,
        interval=refresh_interval(dram),
        patience=16 * (t.tREFI + tRFC + c.timeout + t.row_cycle),
    )
    return DramMachine(shape, policy, timing)


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
