"""Replay of memory requests on a DRAM, command by command.

Each channel has a read and a write queue, a queue in front of every bank, and a command bus (two with
``two_commands``: one for rows, one for columns). Per cycle: the next request enters if its queue has room; refresh is
due or not; the first bank queue in turn with a command that is ready issues it; one request moves from the read or
write queue to its bank. Cycles in which none of this can happen are skipped. Reads of an address that already waits
share its answer; a read of an address that waits to be written is answered at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from siliconloom.arch.dram import Dram
from siliconloom.arch.errors import LoomError

Int = NDArray[np.int64]

ACT, PRE, READ, WRITE, REFRESH, READ_CLOSE, WRITE_CLOSE = range(7)
COMMANDS = ("ACT", "PRE", "RD", "WR", "REF", "RDA", "WRA")
NEVER = 2**62
TIMINGS = (
    "CL", "CWL", "tRCD", "tRP", "tRAS", "tRC", "tRRD_S", "tRRD_L", "tFAW", "tCCD_S", "tCCD_L", "tWR", "tWTR_S",
    "tWTR_L", "tRTP", "tRTRS", "tRFC", "tREFI", "burst",
)  # fmt: skip
FORWARDED = 1
"""Cycles until a read of an address that waits to be written is answered, and until a write is acknowledged."""


@dataclass(frozen=True)
class Replay:
    """What became of every request, in cycles of the command clock.

    Parameters
    ----------
    done
        Per request: when a read's data are back, or a write was taken.
    entered
        Per request: when its queue took it.
    cycles
        When the last read is back and the last write is taken.
    row_hits, row_misses
        Column commands on a row that was open, and activations.
    bursts, finish
        Column commands, and the cycle in which the last one's data have crossed the bus.
    commands
        Rows of (cycle, channel, command, rank, bank group, bank, row, column) in order, when asked for.
    """

    done: Int
    entered: Int
    cycles: int
    row_hits: int
    row_misses: int
    refreshes: int
    bursts: int
    finish: int
    commands: Int


def decode_addresses(dram: Dram, addresses: Int) -> Int:
    """Per address: channel, rank, bank group, bank, row, column.

    Raises
    ------
    LoomError
        When an address lies outside the memory; names the first.
    """
    outside = np.flatnonzero((addresses < 0) | (addresses >= dram.organization.capacity))
    if len(outside):
        first = int(outside[0])
        raise LoomError(
            f"request {first}: address {int(addresses[first]):#x} is outside {dram.name}, whose last byte is "
            f"{dram.organization.capacity - 1:#x}"
        )
    shifts = dram.shifts()
    return np.stack([addresses >> shifts[f][0] & (1 << shifts[f][1]) - 1 for f in ("ch", "ra", "bg", "ba", "ro", "co")])


def timing_row(dram: Dram) -> Int:
    """The `TIMINGS` of a memory."""
    t = dram.timing
    values = {**t.model_dump(), "tRC": t.row_cycle, "burst": dram.burst_cycles}
    if dram.controller.refresh == "bank":
        values["tRFC"] = t.tRFCpb or t.tRFC
    return np.array([values[name] for name in TIMINGS], np.int64)


def replay(dram: Dram, cycle: Int, write: Int, address: Int, *, log: bool = False) -> Replay:
    """Offer requests in order, each not before its ``cycle``, one per cycle, as soon as its queue takes it.

    Parameters
    ----------
    dram
        The memory.
    cycle, write, address
        Per request: earliest cycle, whether it is a write, byte address.
    log
        Keep every command, for `check_commands`.

    Raises
    ------
    LoomError
        When times run backwards or an address lies outside the memory.
    """
    backwards = np.flatnonzero(np.diff(cycle) < 0)
    if len(backwards):
        first = int(backwards[0]) + 1
        raise LoomError(
            f"request {first}: cycle {int(cycle[first])} lies before {int(cycle[first - 1])}, the one before"
        )
    parts = decode_addresses(dram, address)
    o, c = dram.organization, dram.controller
    shape = np.array([o.channels, o.ranks, o.bank_groups, o.banks], np.int64)
    policy = np.array(
        [
            c.scheduler == "fcfs", ("open", "closed", "timeout").index(c.page), c.timeout, c.read_queue, c.write_queue,
            c.write_low, c.bank_queue, c.row_hits, ("none", "rank", "bank").index(c.refresh), c.two_commands,
        ],
        np.int64,
    )  # fmt: skip
    done, entered = np.full(len(cycle), -1, np.int64), np.full(len(cycle), -1, np.int64)
    commands = np.zeros((8 * len(cycle) + 1_000_000 if log else 0, 8), np.int64)
    lines = address // o.request_bytes
    hits, misses, refreshes, logged, last, bursts, finish, left = _replay(
        cycle, write, lines, parts, shape, policy, timing_row(dram), done, entered, commands
    )
    if left:
        raise AssertionError(f"{left} requests were never served; this is a bug in the replay")
    return Replay(
        done, entered, int(last), int(hits), int(misses), int(refreshes), int(bursts), int(finish), commands[:logged]
    )


@njit(cache=True)
def _replay(
    cycle: Any, write: Any, line: Any, parts: Any, shape: Any, policy: Any, timing: Any, done: Any, entered: Any,
    commands: Any,
) -> Any:  # fmt: skip
    channels, ranks, groups, banks = shape[0], shape[1], shape[2], shape[3]
    in_order, page, timeout = policy[0], policy[1], policy[2]
    most_reads, most_writes, write_low, deep, most_hits = policy[3], policy[4], policy[5], policy[6], policy[7]
    refreshing, two = policy[8], policy[9]
    CL, CWL, tRCD, tRP, tRAS, tRC = timing[0], timing[1], timing[2], timing[3], timing[4], timing[5]
    tRRD_S, tRRD_L, tFAW, tCCD_S, tCCD_L, tWR = timing[6], timing[7], timing[8], timing[9], timing[10], timing[11]
    tWTR_S, tWTR_L, tRTP, tRTRS, tRFC, tREFI = timing[12], timing[13], timing[14], timing[15], timing[16], timing[17]
    burst = timing[18]
    per_rank = groups * banks
    total = ranks * per_rank
    read_to_write = CL + burst - CWL + tRTRS
    write_to_read_s, write_to_read_l = CWL + burst + tWTR_S, CWL + burst + tWTR_L
    other_read = burst + tRTRS
    read_to_write_other = CL + burst - CWL + tRTRS
    write_to_read_other = max(CWL + burst + tRTRS - CL, 0)
    interval = max(tREFI // (ranks * (per_rank if refreshing == 2 else 1)), 1)
    requests = len(cycle)
    # queues of request numbers, oldest first
    reads = np.zeros((channels, most_reads), np.int64)
    writes = np.zeros((channels, most_writes), np.int64)
    read_count, write_count = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    queue = np.zeros((channels, total, deep), np.int64)
    count = np.zeros((channels, total), np.int64)
    queued = np.zeros(channels, np.int64)
    turn = np.zeros(channels, np.int64)
    draining = np.zeros(channels, np.int64)
    row = np.full((channels, total), -1, np.int64)
    hits_of = np.zeros((channels, total), np.int64)
    used = np.zeros((channels, total), np.int64)
    ready = np.zeros((channels, total, 4), np.int64)
    four = np.full((channels, ranks, 4), -NEVER, np.int64)
    four_at = np.zeros((channels, ranks), np.int64)
    due = np.zeros((channels, ranks), np.int64)
    due_rank = np.zeros(channels, np.int64)
    due_bank = np.zeros((channels, ranks), np.int64)
    wake = np.zeros((channels, total), np.int64)
    sharing = np.full(requests, -1, np.int64)  # the next read that waits for the same answer
    next_refresh = np.full(channels, interval, np.int64)
    hits, misses, refreshes, logged, last, bursts, finish = 0, 0, 0, 0, 0, 0, 0
    offered, left, now = 0, requests, 0
    offered_then, left_then, since, patience = 0, requests, 0, 16 * (tREFI + tRFC + timeout + tRC)
    while left > 0:
        acted = False
        if offered < requests and cycle[offered] <= now:
            r = offered
            ch = parts[0, r]
            bank = (parts[1, r] * groups + parts[2, r]) * banks + parts[3, r]
            pending_write, pending_read = -1, -1
            for i in range(write_count[ch]):
                if line[writes[ch, i]] == line[r]:
                    pending_write = writes[ch, i]
            for i in range(count[ch, bank]):
                other = queue[ch, bank, i]
                if line[other] == line[r]:
                    if write[other]:
                        pending_write = other
                    else:
                        pending_read = other
            for i in range(read_count[ch]):
                if line[reads[ch, i]] == line[r]:
                    pending_read = reads[ch, i]
            if write[r]:
                if write_count[ch] < most_writes:
                    if pending_write < 0:
                        writes[ch, write_count[ch]] = r
                        write_count[ch] += 1
                    else:
                        left -= 1
                    done[r], entered[r] = now + FORWARDED, now
                    last = max(last, done[r])
                    offered += 1
                    acted = True
            elif read_count[ch] < most_reads:
                entered[r] = now
                if pending_write >= 0:
                    done[r] = now + FORWARDED
                    last = max(last, done[r])
                    left -= 1
                elif pending_read >= 0:
                    sharing[r] = sharing[pending_read]
                    sharing[pending_read] = r
                else:
                    reads[ch, read_count[ch]] = r
                    read_count[ch] += 1
                offered += 1
                acted = True
        for ch in range(channels):
            if refreshing and now >= next_refresh[ch]:
                due[ch, due_rank[ch]] = 1
                due_rank[ch] = (due_rank[ch] + 1) % ranks
                next_refresh[ch] += interval
            # commands: one, or one for rows and one for columns
            issued_row, issued_column, tries = False, False, 2 if two else 1
            refresh_done = False
            for attempt in range(tries):
                command, chosen, place = -1, -1, 0
                if not refresh_done and attempt == 0:
                    for rank in range(ranks):
                        if not due[ch, rank]:
                            continue
                        first = rank * per_rank + (due_bank[ch, rank] if refreshing == 2 else 0)
                        span = 1 if refreshing == 2 else per_rank
                        idle = 0
                        for b in range(first, first + span):
                            if row[ch, b] >= 0:
                                if ready[ch, b, PRE] <= now:
                                    command, chosen = PRE, b
                                    break
                            elif ready[ch, b, ACT] <= now:
                                idle += 1
                        if command < 0 and idle == span:
                            command, chosen = REFRESH, first
                        break
                if command < 0:
                    start = turn[ch]
                    for step in range(1, total + 1):
                        b = (start + step) % total
                        if count[ch, b] == 0 or wake[ch, b] > now:
                            continue
                        rank = b // per_rank
                        if due[ch, rank] and (refreshing == 1 or b % per_rank == due_bank[ch, rank]):
                            continue
                        soonest = NEVER
                        for i in range(count[ch, b]):
                            r = queue[ch, b, i]
                            if in_order and (i > 0 or not _oldest(queue, count, ch, total, r)):
                                soonest = now + 1
                                break
                            if row[ch, b] < 0:
                                kind, when = ACT, max(ready[ch, b, ACT], four[ch, rank, four_at[ch, rank]] + tFAW)
                            elif row[ch, b] == parts[4, r]:
                                kind = WRITE if write[r] else READ
                                when = ready[ch, b, kind]
                                if kind == WRITE:
                                    for j in range(i):
                                        if line[queue[ch, b, j]] == line[r]:
                                            when = NEVER
                            else:
                                kind, when = PRE, ready[ch, b, PRE]
                                if i > 0:
                                    when = NEVER
                                elif not in_order and hits_of[ch, b] < most_hits:
                                    for j in range(count[ch, b]):
                                        if parts[4, queue[ch, b, j]] == row[ch, b]:
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
                        if stale and ready[ch, b, PRE] <= now:
                            command, chosen = PRE, b
                            break
                if command < 0:
                    break
                acted = True
                b, rank, group = chosen, chosen // per_rank, chosen // banks
                issued_column = command in (READ, WRITE)
                issued_row = not issued_column
                refresh_done = refresh_done or command == REFRESH
                r = queue[ch, b, place] if command != REFRESH and count[ch, b] > 0 else -1
                if logged < commands.shape[0]:
                    entry = commands[logged]
                    entry[0], entry[1], entry[2], entry[3] = now, ch, command, rank
                    entry[4], entry[5] = group % groups, b % banks
                    entry[6] = row[ch, b] if command != ACT else parts[4, r]
                    entry[7] = parts[5, r] if issued_column else -1
                    logged += 1
                if command == ACT:
                    row[ch, b], hits_of[ch, b] = parts[4, r], 0
                    misses += 1
                    four[ch, rank, four_at[ch, rank]] = now
                    four_at[ch, rank] = (four_at[ch, rank] + 1) % 4
                    ready[ch, b, READ] = max(ready[ch, b, READ], now + tRCD)
                    ready[ch, b, WRITE] = max(ready[ch, b, WRITE], now + tRCD)
                    ready[ch, b, PRE] = max(ready[ch, b, PRE], now + tRAS)
                    for other in range(rank * per_rank, (rank + 1) * per_rank):
                        gap = tRC if other == b else tRRD_L if other // banks == group else tRRD_S
                        ready[ch, other, ACT] = max(ready[ch, other, ACT], now + gap)
                    wake[ch, b] = 0
                elif command == PRE:
                    row[ch, b] = -1
                    ready[ch, b, ACT] = max(ready[ch, b, ACT], now + tRP)
                    wake[ch, b] = 0
                elif command == REFRESH:
                    refreshes += 1
                    span = 1 if refreshing == 2 else per_rank
                    for other in range(b, b + span):
                        ready[ch, other, ACT] = max(ready[ch, other, ACT], now + tRFC)
                        wake[ch, other] = 0
                    due[ch, rank] = 0
                    due_bank[ch, rank] = (due_bank[ch, rank] + 1) % per_rank
                else:
                    if hits_of[ch, b] > 0:
                        hits += 1
                    hits_of[ch, b] += 1
                    used[ch, b] = now
                    for other in range(total):
                        near = other // banks == group
                        if other // per_rank == rank:
                            if command == READ:
                                to_read, to_write = tCCD_L if near else tCCD_S, read_to_write
                                to_read = max(to_read, burst)
                            else:
                                to_read = write_to_read_l if near else write_to_read_s
                                to_write = max(tCCD_L if near else tCCD_S, burst)
                        elif command == READ:
                            to_read, to_write = other_read, read_to_write_other
                        else:
                            to_read, to_write = write_to_read_other, other_read
                        ready[ch, other, READ] = max(ready[ch, other, READ], now + to_read)
                        ready[ch, other, WRITE] = max(ready[ch, other, WRITE], now + to_write)
                    to_precharge = tRTP if command == READ else CWL + burst + tWR
                    ready[ch, b, PRE] = max(ready[ch, b, PRE], now + to_precharge)
                    left -= 1
                    bursts += 1
                    finish = max(finish, now + (CL if command == READ else CWL) + burst)
                    if command == READ:
                        follower = r
                        while follower >= 0:
                            done[follower] = now + CL + burst
                            last = max(last, done[follower])
                            if follower != r:
                                left -= 1
                            follower = sharing[follower]
                    wanted = False
                    for i in range(place, count[ch, b] - 1):
                        queue[ch, b, i] = queue[ch, b, i + 1]
                    count[ch, b] -= 1
                    queued[ch] -= 1
                    wake[ch, b] = 0
                    if page == 1:  # the burst closes its row itself, unless a request for it waits
                        for i in range(count[ch, b]):
                            wanted = wanted or parts[4, queue[ch, b, i]] == row[ch, b]
                        if not wanted:
                            if logged > 0 and logged <= commands.shape[0]:
                                commands[logged - 1, 2] = READ_CLOSE if command == READ else WRITE_CLOSE
                            row[ch, b] = -1
                            ready[ch, b, ACT] = max(ready[ch, b, ACT], ready[ch, b, PRE] + tRP)
            # one request moves to its bank
            if draining[ch] == 0 and write_count[ch] > 0:
                full = write_count[ch] >= most_writes
                if full or (write_count[ch] > write_low and queued[ch] == 0):
                    draining[ch] = write_count[ch]
                elif offered == requests and read_count[ch] == 0 and queued[ch] == 0:
                    draining[ch] = write_count[ch]  # nothing else will come
            waiting = write_count[ch] if draining[ch] > 0 else read_count[ch]
            for i in range(waiting):
                r = writes[ch, i] if draining[ch] > 0 else reads[ch, i]
                b = (parts[1, r] * groups + parts[2, r]) * banks + parts[3, r]
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
        for ch in range(channels):
            if refreshing:
                soonest = min(soonest, next_refresh[ch])
            for b in range(total):
                if count[ch, b] > 0 and wake[ch, b] > now:
                    soonest = min(soonest, wake[ch, b])
                rank = b // per_rank
                if due[ch, rank]:
                    for kind in (ACT, PRE):
                        if ready[ch, b, kind] > now:
                            soonest = min(soonest, ready[ch, b, kind])
                if page == 2 and row[ch, b] >= 0 and count[ch, b] == 0:
                    soonest = min(soonest, max(used[ch, b] + timeout, ready[ch, b, PRE], now + 1))
        if left != left_then or offered != offered_then:
            left_then, offered_then, since = left, offered, now
        elif now - since > patience and not (offered < requests and cycle[offered] > now):
            break  # the queues are stuck
        now = max(now + 1, soonest if soonest < NEVER else now + 1)
    return hits, misses, refreshes, logged, last, bursts, finish, left


@njit(cache=True)
def _oldest(queue: Any, count: Any, ch: Any, total: Any, request: Any) -> Any:
    found = True
    for b in range(total):
        found = found and (count[ch, b] == 0 or queue[ch, b, 0] >= request)
    return found
