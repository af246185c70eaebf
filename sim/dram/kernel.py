"""One cycle of a DRAM and its controller after the other, as far as anything can happen in it.

Plain Python that Numba compiles. Everything is decided by comparing times with the present cycle, rows and lines with
each other, and by the order of requests in queues.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import UNCOUNTED, kernel, part
from siliconloom.sim.dram.state import (
    ACT,
    ACT_AT,
    ANSWERED,
    AUTO_PRECHARGE,
    BURSTS,
    CLOSED,
    COLUMN_AT,
    DUE_RANK,
    FINISH,
    HITS,
    LAST,
    LEFT,
    LOGGED,
    MISSES,
    NEVER,
    NEXT_REFRESH,
    NOW,
    OF_BANKS,
    OF_RANKS,
    OFFERED,
    PRE,
    PRE_AT,
    READ,
    READ_CLOSE,
    REFRESH,
    REFRESHES,
    TIMEOUT,
    TO_ACT,
    TO_READ,
    TO_WRITE,
    WRITE,
    WRITE_CLOSE,
    CommandTrace,
    DramMachine,
    DramShape,
    DramState,
    DramTimes,
)

FORWARDED = 1
"""Cycles until a read of an address that waits to be written is answered, and until a write is acknowledged."""


@kernel(**UNCOUNTED)
def advance(machine: DramMachine, state: DramState, trace: CommandTrace, goal: Any) -> Any:
    """Run until ``goal`` requests have been taken, or all are done; tells whether that came, or nothing moves any more.

    Stops before the first cycle that was not run, `state.clock` says which.
    """
    clock, refreshing, requests = state.clock, machine.policy.refresh, len(trace.cycle)
    offered_then, left_then, since = clock[OFFERED], clock[LEFT], clock[NOW]
    while clock[LEFT] > 0 and clock[OFFERED] < goal:
        acted = _admit(machine, state, trace, goal)
        if refreshing and clock[NOW] >= clock[NEXT_REFRESH]:
            _fall_due(machine, state)
        for ch in range(machine.shape.channels):
            acted = _command(machine, state, trace, ch) or acted
            acted = _move_to_bank(machine, state, trace, ch) or acted
        now = clock[NOW]
        if acted:
            clock[NOW] = now + 1
            continue
        # nothing can happen now: go to the first cycle in which something can
        arriving = clock[OFFERED] < requests and trace.cycle[clock[OFFERED]] > now
        soonest = trace.cycle[clock[OFFERED]] if arriving else NEVER
        soonest = _soonest(machine, state, soonest)
        if clock[LEFT] != left_then or clock[OFFERED] != offered_then:
            left_then, offered_then, since = clock[LEFT], clock[OFFERED], now
        elif now - since > machine.timing.patience and not arriving:
            return False
        clock[NOW] = max(now + 1, soonest if soonest < NEVER else now + 1)
    return True


@part()
def _admit(machine: DramMachine, state: DramState, trace: CommandTrace, goal: Any) -> Any:
    """Take the requests that have come and find room; whether any was."""
    clock, policy, now = state.clock, machine.policy, state.clock[NOW]
    last = min(len(trace.cycle), goal)
    acted = False
    while clock[OFFERED] < last and trace.cycle[clock[OFFERED]] <= now:
        r = clock[OFFERED]
        ch, writing = trace.channel[r], trace.write[r] != 0
        if state.took[ch] == now:
            break  # a channel takes one request a cycle
        waiting = state.write_count[ch] if writing else state.read_count[ch]
        if policy.shared:
            waiting += state.held[ch, 1 if writing else 0]
        if waiting >= (policy.write_queue if writing else policy.read_queue):
            break
        _enter(state, trace, ch, r, writing)
        state.took[ch] = now
        clock[OFFERED] += 1
        acted = True
    return acted


@part()
def _enter(state: DramState, trace: CommandTrace, ch: Any, r: Any, writing: Any) -> None:
    """A request enters its queue, or is answered by one of the same address that waits."""
    clock, now = state.clock, state.clock[NOW]
    pending_write, pending_read = _same_line(state, trace, ch, trace.bank[r], trace.line[r])
    trace.entered[r] = now
    if writing or pending_write:
        trace.done[r] = now + FORWARDED
        trace.answered[clock[ANSWERED]] = r
        clock[ANSWERED] += 1
        clock[LAST] = max(clock[LAST], now + FORWARDED)
    if pending_write:
        clock[LEFT] -= 1
    elif writing:
        state.writes[ch, state.write_count[ch]] = r
        state.write_count[ch] += 1
    elif pending_read >= 0:
        state.sharing[r] = state.sharing[pending_read]
        state.sharing[pending_read] = r + 1
    else:
        state.reads[ch, state.read_count[ch]] = r
        state.read_count[ch] += 1


@part()
def _same_line(state: DramState, trace: CommandTrace, ch: Any, b: Any, line: Any) -> Any:
    """Whether a write of a line waits, and which read of it does, or -1."""
    pending_write, pending_read = False, -1
    for i in range(state.write_count[ch]):
        if trace.line[state.writes[ch, i]] == line:
            pending_write = True
    for i in range(state.count[ch, b]):
        other = state.queue[ch, b, i]
        if trace.line[other] == line:
            if trace.write[other]:
                pending_write = True
            else:
                pending_read = other
    for i in range(state.read_count[ch]):
        if trace.line[state.reads[ch, i]] == line:
            pending_read = state.reads[ch, i]
    return pending_write, pending_read


@part()
def _fall_due(machine: DramMachine, state: DramState) -> None:
    """The next rank is to be refreshed, in all channels."""
    clock, rank = state.clock, state.clock[DUE_RANK]
    for ch in range(machine.shape.channels):
        state.due[ch, rank] = 1
    clock[DUE_RANK] = (rank + 1) % machine.shape.ranks
    clock[NEXT_REFRESH] += machine.timing.interval


@part()
def _command(machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any) -> Any:
    """Issue a channel's command of this cycle, or one for rows and one for columns; whether there was any."""
    policy = machine.policy
    issued_row, issued_column = False, False
    for attempt in range(2 if policy.two_commands else 1):
        command, b, place = -1, -1, 0
        if attempt == 0 and policy.refresh:
            command, b = _refresh_command(machine, state, ch)
        if command < 0 and state.queued[ch] > 0:
            command, b, place = _scheduled(machine, state, trace, ch, attempt, issued_column)
        if command < 0 and policy.page == TIMEOUT and not issued_row:
            command, b = _stale(machine, state, ch)
        if command < 0:
            break
        issued_column = command in (READ, WRITE)
        issued_row = not issued_column
        _issue(machine, state, trace, ch, command, b, place)
    return issued_row or issued_column


@part()
def _act_at(state: DramState, ch: Any, rank: Any, group: Any, b: Any) -> Any:
    """When a bank may be activated, or refreshed, as far as the last four activations are not asked."""
    return max(state.bank[ch, b, ACT_AT], max(state.group[ch, group, TO_ACT], state.rank[ch, rank, TO_ACT]))


@part()
def _refresh_command(machine: DramMachine, state: DramState, ch: Any) -> Any:
    """What a refresh that is due wants now, and of which bank: a precharge, itself, or nothing (-1)."""
    shape, now = machine.shape, state.clock[NOW]
    for rank in range(shape.ranks):
        if not state.due[ch, rank]:
            continue
        first = rank * shape.per_rank + (state.due_bank[ch, rank] if machine.policy.refresh == OF_BANKS else 0)
        idle = 0
        for b in range(first, first + shape.span):
            if state.row[ch, b] >= 0:
                if state.bank[ch, b, PRE_AT] <= now:
                    return PRE, b
            elif _act_at(state, ch, rank, b // shape.banks, b) <= now:
                idle += 1
        if idle == shape.span:
            return REFRESH, first
        break
    return -1, -1


@part()
def _scheduled(
    machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any, attempt: Any, issued_column: Any
) -> Any:
    """The command that a request can have now: banks in turn, in each the oldest first; -1, or what, where, whose."""
    shape, now, count, wake = machine.shape, state.clock[NOW], state.count[ch], state.wake[ch]
    every_bank = machine.policy.refresh == OF_RANKS
    b = state.turn[ch]
    for _ in range(shape.total):
        b = b + 1 if b + 1 < shape.total else 0
        if count[b] == 0 or wake[b] > now:
            continue
        rank = b // shape.per_rank
        if state.due[ch, rank] and (every_bank or b - rank * shape.per_rank == state.due_bank[ch, rank]):
            continue
        command, place, soonest = _of_bank(machine, state, trace, ch, rank, b, attempt, issued_column)
        if command >= 0:
            state.turn[ch] = b
            return command, b, place
        wake[b] = soonest
    return -1, -1, 0


@part()
def _of_bank(
    machine: DramMachine,
    state: DramState,
    trace: CommandTrace,
    ch: Any,
    rank: Any,
    b: Any,
    attempt: Any,
    issued_column: Any,
) -> Any:
    """The command that the oldest possible request in front of a bank can have now, and its place; or -1, and when."""
    now, in_order, group = state.clock[NOW], machine.policy.in_order, b // machine.shape.banks
    soonest = NEVER
    for i in range(state.count[ch, b]):
        r = state.queue[ch, b, i]
        if in_order and (i > 0 or not _oldest(machine.shape, state, ch, r)):
            return -1, 0, now + 1
        kind, when = _wanted(machine, state, trace, ch, rank, group, b, i, r)
        if attempt == 1 and (kind >= READ) == issued_column:
            soonest = min(soonest, now + 1)
            if kind != ACT:
                continue
            break
        if when <= now:
            return kind, i, soonest
        soonest = min(soonest, when)
        if kind == ACT:
            break
    return -1, 0, soonest


@part()
def _oldest(shape: DramShape, state: DramState, ch: Any, request: Any) -> Any:
    """Whether no request in front of another bank is older."""
    found = True
    for b in range(shape.total):
        found = found and (state.count[ch, b] == 0 or state.queue[ch, b, 0] >= request)
    return found


@part()
def _wanted(
    machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any, rank: Any, group: Any, b: Any, i: Any, r: Any
) -> Any:
    """The next command of request ``r``, at place ``i`` in front of a bank, and the first cycle for it."""
    open_row = state.row[ch, b]
    if open_row < 0:
        fifth = state.four[ch, rank, state.four_at[ch, rank]] + machine.timing.tFAW
        return ACT, max(_act_at(state, ch, rank, group, b), fifth)
    if open_row == trace.row[r]:
        kind, to = (WRITE, TO_WRITE) if trace.write[r] else (READ, TO_READ)
        when = max(state.bank[ch, b, COLUMN_AT], max(state.group[ch, group, to], state.rank[ch, rank, to]))
        if kind == WRITE:
            for j in range(i):
                if trace.line[state.queue[ch, b, j]] == trace.line[r]:
                    when = NEVER
        return kind, when
    when = state.bank[ch, b, PRE_AT]
    if i > 0:
        when = NEVER
    elif not machine.policy.in_order and state.hits_of[ch, b] < machine.policy.row_hits:
        for j in range(state.count[ch, b]):
            if trace.row[state.queue[ch, b, j]] == open_row:
                when = NEVER
    return PRE, when


@part()
def _stale(machine: DramMachine, state: DramState, ch: Any) -> Any:
    """A precharge of a row that nothing has used for the timeout, and its bank, or -1."""
    now = state.clock[NOW]
    for b in range(machine.shape.total):
        unused = state.row[ch, b] >= 0 and state.count[ch, b] == 0 and state.used[ch, b] + machine.policy.timeout <= now
        if unused and state.bank[ch, b, PRE_AT] <= now:
            return PRE, b
    return -1, -1


@part()
def _issue(
    machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any, command: Any, b: Any, place: Any
) -> None:
    """A command goes out to a bank; ``place`` is that of its request."""
    r = state.queue[ch, b, place] if command != REFRESH and state.count[ch, b] > 0 else -1
    if state.clock[LOGGED] < trace.commands.shape[0]:
        _log(machine.shape, state, trace, ch, command, b, r)
    state.wake[ch, b] = 0
    if command == ACT:
        _activate(machine, state, ch, b, trace.row[r])
    elif command == PRE:
        state.row[ch, b] = -1
        state.bank[ch, b, ACT_AT] = max(state.bank[ch, b, ACT_AT], state.clock[NOW] + machine.timing.tRP)
    elif command == REFRESH:
        _refresh(machine, state, ch, b)
    else:
        _take_buses(machine, state, ch, b, command == READ)
        _answer(machine.timing, state, trace, r, command == READ)
        _leave_bank(state, ch, b, place, command == READ)
        if machine.policy.page in (CLOSED, AUTO_PRECHARGE):
            _close_itself(machine, state, trace, ch, b, command == READ)


@part()
def _log(shape: DramShape, state: DramState, trace: CommandTrace, ch: Any, command: Any, b: Any, r: Any) -> None:
    """Write a command down."""
    clock = state.clock
    entry = trace.commands[clock[LOGGED]]
    entry[0], entry[1], entry[2], entry[3] = clock[NOW], ch, command, b // shape.per_rank
    entry[4], entry[5] = b // shape.banks % shape.groups, b % shape.banks
    entry[6] = state.row[ch, b] if command != ACT else trace.row[r]
    entry[7] = trace.column[r] if command in (READ, WRITE) else -1
    clock[LOGGED] += 1


@part()
def _activate(machine: DramMachine, state: DramState, ch: Any, b: Any, row: Any) -> None:
    """Open a row."""
    timing, now, bank = machine.timing, state.clock[NOW], state.bank
    rank, group = b // machine.shape.per_rank, b // machine.shape.banks
    state.row[ch, b], state.hits_of[ch, b] = row, 0
    state.clock[MISSES] += 1
    state.four[ch, rank, state.four_at[ch, rank]] = now
    state.four_at[ch, rank] = (state.four_at[ch, rank] + 1) % 4
    bank[ch, b, COLUMN_AT] = max(bank[ch, b, COLUMN_AT], now + timing.tRCD)
    bank[ch, b, PRE_AT] = max(bank[ch, b, PRE_AT], now + timing.tRAS)
    bank[ch, b, ACT_AT] = max(bank[ch, b, ACT_AT], now + timing.tRC)
    state.group[ch, group, TO_ACT] = max(state.group[ch, group, TO_ACT], now + timing.tRRD_L)
    state.rank[ch, rank, TO_ACT] = max(state.rank[ch, rank, TO_ACT], now + timing.tRRD_S)


@part()
def _refresh(machine: DramMachine, state: DramState, ch: Any, b: Any) -> None:
    """Refresh the banks from ``b`` on that one command reaches."""
    shape, rank = machine.shape, b // machine.shape.per_rank
    state.clock[REFRESHES] += 1
    for other in range(b, b + shape.span):
        state.bank[ch, other, ACT_AT] = max(state.bank[ch, other, ACT_AT], state.clock[NOW] + machine.timing.tRFC)
        state.wake[ch, other] = 0
    state.due[ch, rank] = 0
    if machine.policy.refresh == OF_BANKS:
        state.due_bank[ch, rank] = (state.due_bank[ch, rank] + 1) % shape.per_rank


@part()
def _take_buses(machine: DramMachine, state: DramState, ch: Any, b: Any, reading: Any) -> None:
    """What a burst lets other bursts of its bank group, rank and channel wait for, and its bank's precharge."""
    shape, timing, now = machine.shape, machine.timing, state.clock[NOW]
    of_group, of_rank = state.group, state.rank
    rank, group = b // shape.per_rank, b // shape.banks
    if state.hits_of[ch, b] > 0:
        state.clock[HITS] += 1
    state.hits_of[ch, b] += 1
    state.used[ch, b] = now
    if reading:
        same, change, near, far = TO_READ, TO_WRITE, timing.read_to_write, timing.read_to_write
        other_change, recovery = timing.read_to_write, timing.read_to_precharge
    else:
        same, change, near, far = TO_WRITE, TO_READ, timing.write_to_read_l, timing.write_to_read_s
        other_change, recovery = timing.write_to_read_other, timing.write_to_precharge
    of_group[ch, group, same] = max(of_group[ch, group, same], now + timing.same_l)
    of_group[ch, group, change] = max(of_group[ch, group, change], now + near)
    for other in range(shape.ranks):
        apart, turn = (timing.same_s, far) if other == rank else (timing.same_other, other_change)
        of_rank[ch, other, same] = max(of_rank[ch, other, same], now + apart)
        of_rank[ch, other, change] = max(of_rank[ch, other, change], now + turn)
    state.bank[ch, b, PRE_AT] = max(state.bank[ch, b, PRE_AT], now + recovery)


@part()
def _answer(timing: DramTimes, state: DramState, trace: CommandTrace, r: Any, reading: Any) -> None:
    """Count a burst, and answer the reads that wait for it."""
    clock, now = state.clock, state.clock[NOW]
    clock[LEFT] -= 1
    clock[BURSTS] += 1
    clock[FINISH] = max(clock[FINISH], now + (timing.CL if reading else timing.CWL) + timing.burst)
    if not reading:
        return
    back = now + timing.CL + timing.burst
    clock[LAST] = max(clock[LAST], back)
    follower = r
    while follower >= 0:
        trace.done[follower] = back
        trace.answered[clock[ANSWERED]] = follower
        clock[ANSWERED] += 1
        if follower != r:
            clock[LEFT] -= 1
        follower = state.sharing[follower] - 1


@part()
def _leave_bank(state: DramState, ch: Any, b: Any, place: Any, reading: Any) -> None:
    """Take a request out of the queue in front of its bank."""
    for i in range(place, state.count[ch, b] - 1):
        state.queue[ch, b, i] = state.queue[ch, b, i + 1]
    state.count[ch, b] -= 1
    state.queued[ch] -= 1
    state.held[ch, 0 if reading else 1] -= 1


@part()
def _close_itself(machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any, b: Any, reading: Any) -> None:
    """A burst closes its row, unless the page policy keeps it open for a request that waits for it."""
    if machine.policy.page == CLOSED:
        for i in range(state.count[ch, b]):
            if trace.row[state.queue[ch, b, i]] == state.row[ch, b]:
                return
    logged = state.clock[LOGGED]
    if 0 < logged <= trace.commands.shape[0]:
        trace.commands[logged - 1, 2] = READ_CLOSE if reading else WRITE_CLOSE
    state.row[ch, b] = -1
    closed = state.bank[ch, b, PRE_AT] + machine.timing.tRP
    state.bank[ch, b, ACT_AT] = max(state.bank[ch, b, ACT_AT], closed)


@part()
def _move_to_bank(machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any) -> Any:
    """Move a channel's oldest request that finds room in front of its bank there; whether there was one."""
    if state.draining[ch] == 0 and state.write_count[ch] > 0:
        _begin_draining(machine, state, trace, ch)
    draining = state.draining[ch] > 0
    waiting, length = (state.writes[ch], state.write_count) if draining else (state.reads[ch], state.read_count)
    count, deep = state.count[ch], machine.policy.bank_queue
    for i in range(length[ch]):
        r = waiting[i]
        b = trace.bank[r]
        if count[b] == deep:
            continue
        for j in range(i, length[ch] - 1):
            waiting[j] = waiting[j + 1]
        length[ch] -= 1
        if draining:
            state.draining[ch] -= 1
        state.queue[ch, b, count[b]] = r
        count[b] += 1
        state.queued[ch] += 1
        state.held[ch, 1 if trace.write[r] else 0] += 1
        state.wake[ch, b] = 0
        return True
    return False


@part()
def _begin_draining(machine: DramMachine, state: DramState, trace: CommandTrace, ch: Any) -> None:
    """Let the writes go to their banks when they are many, when nothing else waits, or when nothing else will come."""
    writes, policy, idle = state.write_count[ch], machine.policy, state.queued[ch] == 0
    full = writes + (state.held[ch, 1] if policy.shared else 0) >= policy.write_queue
    over = state.clock[OFFERED] == len(trace.cycle) and state.read_count[ch] == 0
    if full or (idle and (writes > policy.write_low or over)):
        state.draining[ch] = writes


@part()
def _soonest(machine: DramMachine, state: DramState, soonest: Any) -> Any:
    """The first cycle from now on in which a bank, a refresh or a timeout can do anything; or ``soonest``."""
    shape, policy, now = machine.shape, machine.policy, state.clock[NOW]
    if policy.refresh:
        soonest = min(soonest, state.clock[NEXT_REFRESH])
    for ch in range(shape.channels):
        count, wake = state.count[ch], state.wake[ch]
        for b in range(shape.total):
            if count[b] > 0 and wake[b] > now:
                soonest = min(soonest, wake[b])
            if policy.refresh and state.due[ch, b // shape.per_rank]:
                when = _act_at(state, ch, b // shape.per_rank, b // shape.banks, b)
                if when > now:
                    soonest = min(soonest, when)
                if state.bank[ch, b, PRE_AT] > now:
                    soonest = min(soonest, state.bank[ch, b, PRE_AT])
            if policy.page == TIMEOUT and state.row[ch, b] >= 0 and count[b] == 0:
                closes = max(state.used[ch, b] + policy.timeout, state.bank[ch, b, PRE_AT])
                soonest = min(soonest, max(closes, now + 1))
    return soonest
