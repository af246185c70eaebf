"""One cycle of a DRAM and its controller after the other, as far as anything can happen in it.

Plain Python that Numba compiles. Everything is decided by comparing times with the present cycle, rows and lines with
each other, and by the order of requests in queues.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import kernel
from siliconloom.sim.dram.state import (
    ACT,
    ACT_AT,
    ANSWERED,
    BURSTS,
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
    OFFERED,
    PRE,
    PRE_AT,
    READ,
    READ_CLOSE,
    REFRESH,
    REFRESHES,
    TO_ACT,
    TO_READ,
    TO_WRITE,
    WRITE,
    WRITE_CLOSE,
)

FORWARDED = 1
"""Cycles until a read of an address that waits to be written is answered, and until a write is acknowledged."""


@kernel()
def _act_at(bank_at: Any, group_at: Any, rank_at: Any, ch: Any, b: Any, banks: Any, per_rank: Any) -> Any:
    return max(bank_at[ch, b, ACT_AT], max(group_at[ch, b // banks, TO_ACT], rank_at[ch, b // per_rank, TO_ACT]))


@kernel()
def _oldest(queue: Any, count: Any, ch: Any, total: Any, request: Any) -> Any:
    found = True
    for b in range(total):
        found = found and (count[ch, b] == 0 or queue[ch, b, 0] >= request)
    return found


@kernel()
def advance(machine: Any, state: Any, trace: Any, goal: Any) -> Any:
    """Run until ``goal`` requests have been taken, or all are done; tells whether that came, or nothing moves any more.

    Stops before the first cycle that was not run, `state.clock` says which.
    """
    shape, policy, timing = machine.shape, machine.policy, machine.timing
    channels, ranks, groups, banks = shape[0], shape[1], shape[2], shape[3]
    in_order, page, timeout = policy[0], policy[1], policy[2]
    most_reads, most_writes, write_low, deep, most_hits = policy[3], policy[4], policy[5], policy[6], policy[7]
    refreshing, two, shared = policy[8], policy[9], policy[10]
    CL, CWL, tRCD, tRP, tRAS, tRC = timing[0], timing[1], timing[2], timing[3], timing[4], timing[5]
    tRRD_S, tRRD_L, tFAW, tCCD_S, tCCD_L, tWR = timing[6], timing[7], timing[8], timing[9], timing[10], timing[11]
    tWTR_S, tWTR_L, tRTP, tRTRS, tRFC, tREFI = timing[12], timing[13], timing[14], timing[15], timing[16], timing[17]
    burst = timing[18]
    per_rank = groups * banks
    total = ranks * per_rank
    same_s, same_l = max(tCCD_S, burst), max(tCCD_L, burst)
    read_to_write = CL + burst - CWL + tRTRS
    write_to_read_s, write_to_read_l = CWL + burst + tWTR_S, CWL + burst + tWTR_L
    other_same = burst + tRTRS
    write_to_read_other = max(CWL + burst + tRTRS - CL, 0)
    interval = max(tREFI // (ranks * (per_rank if refreshing == 2 else 1)), 1)
    span = 1 if refreshing == 2 else per_rank

    cycle, write, line, channel, place_of = trace.cycle, trace.write, trace.line, trace.channel, trace.bank
    row_of, column_of, done, entered = trace.row, trace.column, trace.done, trace.entered
    answered, commands = trace.answered, trace.commands
    clock, reads, writes, queue = state.clock, state.reads, state.writes, state.queue
    read_count, write_count, count, queued = state.read_count, state.write_count, state.count, state.queued
    turn, draining, row, hits_of, used = state.turn, state.draining, state.row, state.hits_of, state.used
    wake, bank_at, group_at, rank_at = state.wake, state.bank, state.group, state.rank
    four, four_at, due, due_bank, sharing = state.four, state.four_at, state.due, state.due_bank, state.sharing
    held, took = state.held, state.took

    requests = len(cycle)
    now, offered, left = clock[NOW], clock[OFFERED], clock[LEFT]
    next_refresh, due_rank = clock[NEXT_REFRESH], clock[DUE_RANK]
    hits, misses, refreshes, bursts = clock[HITS], clock[MISSES], clock[REFRESHES], clock[BURSTS]
    last, finish, logged, answers = clock[LAST], clock[FINISH], clock[LOGGED], clock[ANSWERED]
    offered_then, left_then, since, patience = offered, left, now, 16 * (tREFI + tRFC + timeout + tRC)
    stuck = False
    while left > 0 and offered < goal:
        acted = False
        while offered < requests and offered < goal and cycle[offered] <= now:
            r = offered
            ch, b = channel[r], place_of[r]
            if took[ch] == now:
                break  # a channel takes one request a cycle
            writing = write[r] != 0
            waiting = write_count[ch] if writing else read_count[ch]
            if shared:
                waiting += held[ch, 1 if writing else 0]
            if waiting >= (most_writes if writing else most_reads):
                break
            wanted_line = line[r]
            pending_write, pending_read = False, -1
            for i in range(write_count[ch]):
                if line[writes[ch, i]] == wanted_line:
                    pending_write = True
            for i in range(count[ch, b]):
                other = queue[ch, b, i]
                if line[other] == wanted_line:
                    if write[other]:
                        pending_write = True
                    else:
                        pending_read = other
            for i in range(read_count[ch]):
                if line[reads[ch, i]] == wanted_line:
                    pending_read = reads[ch, i]
            entered[r] = now
            if writing:
                if pending_write:
                    left -= 1
                else:
                    writes[ch, write_count[ch]] = r
                    write_count[ch] += 1
            elif pending_write:
                left -= 1
            elif pending_read >= 0:
                sharing[r] = sharing[pending_read]
                sharing[pending_read] = r + 1
            else:
                reads[ch, read_count[ch]] = r
                read_count[ch] += 1
            if writing or pending_write:
                done[r] = now + FORWARDED
                answered[answers] = r
                answers += 1
                last = max(last, now + FORWARDED)
            took[ch] = now
            offered += 1
            acted = True
        if refreshing and now >= next_refresh:
            for ch in range(channels):
                due[ch, due_rank] = 1
            due_rank = (due_rank + 1) % ranks
            next_refresh += interval
        for ch in range(channels):
            # commands: one, or one for rows and one for columns
            issued_row, issued_column, tries = False, False, 2 if two else 1
            for attempt in range(tries):
                command, chosen, place = -1, -1, 0
                if attempt == 0 and refreshing:
                    for rank in range(ranks):
                        if not due[ch, rank]:
                            continue
                        first = rank * per_rank + (due_bank[ch, rank] if refreshing == 2 else 0)
                        idle = 0
                        for b in range(first, first + span):
                            if row[ch, b] >= 0:
                                if bank_at[ch, b, PRE_AT] <= now:
                                    command, chosen = PRE, b
                                    break
                            elif _act_at(bank_at, group_at, rank_at, ch, b, banks, per_rank) <= now:
                                idle += 1
                        if command < 0 and idle == span:
                            command, chosen = REFRESH, first
                        break
                if command < 0 and queued[ch] > 0:
                    b = turn[ch]
                    for _ in range(total):
                        b = b + 1 if b + 1 < total else 0
                        if count[ch, b] == 0 or wake[ch, b] > now:
                            continue
                        rank, group = b // per_rank, b // banks
                        if due[ch, rank] and (refreshing == 1 or b - rank * per_rank == due_bank[ch, rank]):
                            continue
                        soonest = NEVER
                        for i in range(count[ch, b]):
                            r = queue[ch, b, i]
                            if in_order and (i > 0 or not _oldest(queue, count, ch, total, r)):
                                soonest = now + 1
                                break
                            if row[ch, b] < 0:
                                kind = ACT
                                when = max(
                                    max(bank_at[ch, b, ACT_AT], four[ch, rank, four_at[ch, rank]] + tFAW),
                                    max(group_at[ch, group, TO_ACT], rank_at[ch, rank, TO_ACT]),
                                )
                            elif row[ch, b] == row_of[r]:
                                kind = WRITE if write[r] else READ
                                to = TO_WRITE if write[r] else TO_READ
                                when = max(
                                    bank_at[ch, b, COLUMN_AT], max(group_at[ch, group, to], rank_at[ch, rank, to])
                                )
                                if kind == WRITE:
                                    for j in range(i):
                                        if line[queue[ch, b, j]] == line[r]:
                                            when = NEVER
                            else:
                                kind, when = PRE, bank_at[ch, b, PRE_AT]
                                if i > 0:
                                    when = NEVER
                                elif not in_order and hits_of[ch, b] < most_hits:
                                    for j in range(count[ch, b]):
                                        if row_of[queue[ch, b, j]] == row[ch, b]:
                                            when = NEVER
                            if attempt == 1 and (kind >= READ) == issued_column:
                                soonest = min(soonest, now + 1)
                                if kind != ACT:
                                    continue
                                break
                            if when <= now:
                                command, chosen, place = kind, b, i
                                break
                            soonest = min(soonest, when)
                            if kind == ACT:
                                break
                        if command >= 0:
                            turn[ch] = b
                            break
                        wake[ch, b] = soonest
                if command < 0 and page == 2 and not issued_row:
                    for b in range(total):
                        stale = row[ch, b] >= 0 and count[ch, b] == 0 and used[ch, b] + timeout <= now
                        if stale and bank_at[ch, b, PRE_AT] <= now:
                            command, chosen = PRE, b
                            break
                if command < 0:
                    break
                acted = True
                b, rank, group = chosen, chosen // per_rank, chosen // banks
                issued_column = command in (READ, WRITE)
                issued_row = not issued_column
                r = queue[ch, b, place] if command != REFRESH and count[ch, b] > 0 else -1
                if logged < commands.shape[0]:
                    entry = commands[logged]
                    entry[0], entry[1], entry[2], entry[3] = now, ch, command, rank
                    entry[4], entry[5] = group % groups, b % banks
                    entry[6] = row[ch, b] if command != ACT else row_of[r]
                    entry[7] = column_of[r] if issued_column else -1
                    logged += 1
                wake[ch, b] = 0
                if command == ACT:
                    row[ch, b], hits_of[ch, b] = row_of[r], 0
                    misses += 1
                    four[ch, rank, four_at[ch, rank]] = now
                    four_at[ch, rank] = (four_at[ch, rank] + 1) % 4
                    bank_at[ch, b, COLUMN_AT] = max(bank_at[ch, b, COLUMN_AT], now + tRCD)
                    bank_at[ch, b, PRE_AT] = max(bank_at[ch, b, PRE_AT], now + tRAS)
                    bank_at[ch, b, ACT_AT] = max(bank_at[ch, b, ACT_AT], now + tRC)
                    group_at[ch, group, TO_ACT] = max(group_at[ch, group, TO_ACT], now + tRRD_L)
                    rank_at[ch, rank, TO_ACT] = max(rank_at[ch, rank, TO_ACT], now + tRRD_S)
                elif command == PRE:
                    row[ch, b] = -1
                    bank_at[ch, b, ACT_AT] = max(bank_at[ch, b, ACT_AT], now + tRP)
                elif command == REFRESH:
                    refreshes += 1
                    for other in range(b, b + span):
                        bank_at[ch, other, ACT_AT] = max(bank_at[ch, other, ACT_AT], now + tRFC)
                        wake[ch, other] = 0
                    due[ch, rank] = 0
                    if refreshing == 2:
                        due_bank[ch, rank] = (due_bank[ch, rank] + 1) % per_rank
                else:
                    if hits_of[ch, b] > 0:
                        hits += 1
                    hits_of[ch, b] += 1
                    used[ch, b] = now
                    if command == READ:
                        same, change, near, far = TO_READ, TO_WRITE, read_to_write, read_to_write
                        other_change = read_to_write
                    else:
                        same, change, near, far = TO_WRITE, TO_READ, write_to_read_l, write_to_read_s
                        other_change = write_to_read_other
                    group_at[ch, group, same] = max(group_at[ch, group, same], now + same_l)
                    group_at[ch, group, change] = max(group_at[ch, group, change], now + near)
                    for other in range(ranks):
                        if other == rank:
                            rank_at[ch, other, same] = max(rank_at[ch, other, same], now + same_s)
                            rank_at[ch, other, change] = max(rank_at[ch, other, change], now + far)
                        else:
                            rank_at[ch, other, same] = max(rank_at[ch, other, same], now + other_same)
                            rank_at[ch, other, change] = max(rank_at[ch, other, change], now + other_change)
                    to_precharge = tRTP if command == READ else CWL + burst + tWR
                    bank_at[ch, b, PRE_AT] = max(bank_at[ch, b, PRE_AT], now + to_precharge)
                    left -= 1
                    bursts += 1
                    finish = max(finish, now + (CL if command == READ else CWL) + burst)
                    if command == READ:
                        last = max(last, now + CL + burst)
                        follower = r
                        while follower >= 0:
                            done[follower] = now + CL + burst
                            answered[answers] = follower
                            answers += 1
                            if follower != r:
                                left -= 1
                            follower = sharing[follower] - 1
                    for i in range(place, count[ch, b] - 1):
                        queue[ch, b, i] = queue[ch, b, i + 1]
                    count[ch, b] -= 1
                    queued[ch] -= 1
                    held[ch, 1 if command == WRITE else 0] -= 1
                    if page == 1 or page == 3:  # the burst closes its row itself
                        wanted = False
                        for i in range(count[ch, b] if page == 1 else 0):  # unless a request for it waits
                            wanted = wanted or row_of[queue[ch, b, i]] == row[ch, b]
                        if not wanted:
                            if logged > 0 and logged <= commands.shape[0]:
                                commands[logged - 1, 2] = READ_CLOSE if command == READ else WRITE_CLOSE
                            row[ch, b] = -1
                            bank_at[ch, b, ACT_AT] = max(bank_at[ch, b, ACT_AT], bank_at[ch, b, PRE_AT] + tRP)
            # one request moves to its bank
            if draining[ch] == 0 and write_count[ch] > 0:
                full = write_count[ch] + (held[ch, 1] if shared else 0) >= most_writes
                if full or (write_count[ch] > write_low and queued[ch] == 0):
                    draining[ch] = write_count[ch]
                elif offered == requests and read_count[ch] == 0 and queued[ch] == 0:
                    draining[ch] = write_count[ch]  # nothing else will come
            waiting = write_count[ch] if draining[ch] > 0 else read_count[ch]
            for i in range(waiting):
                r = writes[ch, i] if draining[ch] > 0 else reads[ch, i]
                b = place_of[r]
                if count[ch, b] == deep:
                    continue
                if draining[ch] > 0:
                    for j in range(i, write_count[ch] - 1):
                        writes[ch, j] = writes[ch, j + 1]
                    write_count[ch] -= 1
                    draining[ch] -= 1
                else:
                    for j in range(i, read_count[ch] - 1):
                        reads[ch, j] = reads[ch, j + 1]
                    read_count[ch] -= 1
                queue[ch, b, count[ch, b]] = r
                count[ch, b] += 1
                queued[ch] += 1
                held[ch, 1 if write[r] else 0] += 1
                wake[ch, b] = 0
                acted = True
                break
        if acted:
            now += 1
            continue
        # nothing can happen now: go to the first cycle in which something can
        soonest = NEVER
        if offered < requests and cycle[offered] > now:
            soonest = cycle[offered]
        if refreshing:
            soonest = min(soonest, next_refresh)
        for ch in range(channels):
            for b in range(total):
                if count[ch, b] > 0 and wake[ch, b] > now:
                    soonest = min(soonest, wake[ch, b])
                if refreshing and due[ch, b // per_rank]:
                    when = _act_at(bank_at, group_at, rank_at, ch, b, banks, per_rank)
                    if when > now:
                        soonest = min(soonest, when)
                    if bank_at[ch, b, PRE_AT] > now:
                        soonest = min(soonest, bank_at[ch, b, PRE_AT])
                if page == 2 and row[ch, b] >= 0 and count[ch, b] == 0:
                    soonest = min(soonest, max(used[ch, b] + timeout, bank_at[ch, b, PRE_AT], now + 1))
        if left != left_then or offered != offered_then:
            left_then, offered_then, since = left, offered, now
        elif now - since > patience and not (offered < requests and cycle[offered] > now):
            stuck = True
            break
        now = max(now + 1, soonest if soonest < NEVER else now + 1)
    clock[NOW], clock[OFFERED], clock[LEFT] = now, offered, left
    clock[NEXT_REFRESH], clock[DUE_RANK] = next_refresh, due_rank
    clock[HITS], clock[MISSES], clock[REFRESHES], clock[BURSTS] = hits, misses, refreshes, bursts
    clock[LAST], clock[FINISH], clock[LOGGED], clock[ANSWERED] = last, finish, logged, answers
    return not stuck
