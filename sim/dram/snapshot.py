"""A snapshot of a DRAM in mid-trace, relative to now and to the request that comes next, and back.

Two states with equal snapshots do the same from here on with requests that are equal relative to theirs
(`sim.timing.recurrence` has the contract). A cycle of `sim.dram.kernel` only compares times with the present one, so a
time that has passed counts as now; it only compares rows and lines for equality, so they are taken relative to the next
request's, around the end of the memory; it only asks which of two requests is older, so requests are taken by how far
they lie behind the next. That a refresh is
pending is part of a snapshot; how far the next one is and whose turn it will be (the *phase*) is left to the caller.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import part
from siliconloom.sim.dram.state import DUE_RANK, NEVER, NOW, OFFERED, TIMEOUT

UNSEEN = -1
"""In a snapshot: a closed row, the end of a chain, a bank that nothing can wake but another event."""


@part(inside=False)
def take_snapshot(machine: Any, state: Any, trace: Any, out: Any) -> Any:
    """Write the snapshot to ``out``; its length, or -1 when it does not fit or no request follows."""
    now, base = state.clock[NOW], state.clock[OFFERED]
    if base >= len(trace.cycle):
        return -1
    reads, writes, queue, count, row = state.reads, state.writes, state.queue, state.count, state.row
    read_count, write_count, turn, draining = state.read_count, state.write_count, state.turn, state.draining
    hits_of, used, wakes, bank_at = state.hits_of, state.used, state.wake, state.bank
    group_at, rank_at, four, four_at, due = state.group, state.rank, state.four, state.four_at, state.due
    asked = (trace.write, trace.bank, trace.row, trace.column, state.sharing)
    channels, total, _ = queue.shape
    ranks, groups = rank_at.shape[1], group_at.shape[1]
    rows, columns = machine.shape.rows - 1, machine.shape.columns - 1
    timeout, tFAW, most_hits = machine.policy.timeout, machine.timing.tFAW, machine.policy.row_hits
    timed, row_base = machine.policy.page == TIMEOUT, trace.row[base]
    room = len(out) - 8 - total * 7 - 3 * groups - 9 * ranks
    n = 0
    for ch in range(channels):
        if n + 3 > room:
            return -1
        out[n], out[n + 1], out[n + 2], out[n + 3] = read_count[ch], write_count[ch], turn[ch], draining[ch]
        n += 4
        for i in range(read_count[ch]):
            n = _take_request(asked, base, reads[ch, i], rows, columns, out, n, room)
        for i in range(write_count[ch]):
            n = _take_request(asked, base, writes[ch, i], rows, columns, out, n, room)
        if n > room:
            return -1
        for b in range(total):
            waiting = count[ch, b]
            out[n] = waiting
            n += 1
            for i in range(waiting):
                n = _take_request(asked, base, queue[ch, b, i], rows, columns, out, n, room)
            if n > room + total * 7:
                return -1
            if row[ch, b] < 0:
                out[n] = UNSEEN
                n += 1
            else:
                out[n] = (row[ch, b] - row_base) & rows
                out[n + 1] = min(hits_of[ch, b], most_hits)
                out[n + 2] = max(used[ch, b] - now, -timeout) if timed else 0
                n += 3
            if waiting:
                wake = wakes[ch, b]
                out[n] = UNSEEN if wake >= NEVER else max(wake - now, 0)
                n += 1
            for k in range(3):
                out[n + k] = max(bank_at[ch, b, k] - now, 0)
            n += 3
        for g in range(groups):
            for k in range(3):
                out[n + k] = max(group_at[ch, g, k] - now, 0)
            n += 3
        for rank in range(ranks):
            for k in range(3):
                out[n + k] = max(rank_at[ch, rank, k] - now, 0)
            out[n + 3] = due[ch, rank]
            n += 4
            for k in range(4):
                out[n + k] = max(four[ch, rank, (four_at[ch, rank] + k) % 4] + tFAW - now, 0)
            n += 4
    return n if n <= room else -1


@part(inside=False)
def _take_request(asked: Any, base: Any, request: Any, rows: Any, columns: Any, out: Any, n: Any, room: Any) -> Any:
    """One waiting request and, behind it, the reads that wait for the same answer; writes nothing beyond ``room``."""
    write, bank, row, column, sharing = asked
    if n + 6 > room:
        return len(out)
    follower = -1 if write[request] else sharing[request] - 1
    out[n] = base - request
    out[n + 1] = bank[request] * 4 + (write[request] != 0) * 2 + (follower >= 0)
    out[n + 2] = (row[request] - row[base]) & rows
    out[n + 3] = (column[request] - column[base]) & columns
    n += 4
    if follower >= 0:
        while follower >= 0:
            if n + 2 > room:
                return len(out)
            out[n] = base - follower
            n += 1
            follower = sharing[follower] - 1
        out[n] = UNSEEN
        n += 1
    return n


@part(inside=False)
def take_phase(state: Any, out: Any) -> Any:
    """Write to ``out`` which rank and banks are refreshed next; its length."""
    channels, ranks = state.due.shape
    out[0] = state.clock[DUE_RANK]
    n = 1
    for ch in range(channels):
        for rank in range(ranks):
            if n == len(out):
                return -1
            out[n] = state.due_bank[ch, rank]
            n += 1
    return n


@part(inside=False)
def restore_phase(state: Any, phase: Any) -> None:
    """Bring the turns of refresh to a phase that was taken."""
    channels, ranks = state.due.shape
    state.clock[DUE_RANK] = phase[0]
    for ch in range(channels):
        for rank in range(ranks):
            state.due_bank[ch, rank] = phase[1 + ch * ranks + rank]


@part(inside=False)
def restore(machine: Any, state: Any, trace: Any, snapshot: Any) -> None:
    """Bring queues, banks and times of ``state`` to the snapshot; its clock must say now and the next request."""
    now, base = state.clock[NOW], state.clock[OFFERED]
    reads, writes, queue, count, row = state.reads, state.writes, state.queue, state.count, state.row
    read_count, write_count, turn, draining = state.read_count, state.write_count, state.turn, state.draining
    hits_of, used, wakes, bank_at = state.hits_of, state.used, state.wake, state.bank
    group_at, rank_at, four, four_at, due = state.group, state.rank, state.four, state.four_at, state.due
    sharing, queued, held = state.sharing, state.queued, state.held
    channels, total, _ = queue.shape
    ranks, groups = rank_at.shape[1], group_at.shape[1]
    rows, tFAW, row_base = machine.shape.rows - 1, machine.timing.tFAW, trace.row[base]
    n = 0
    for ch in range(channels):
        read_count[ch], write_count[ch], turn[ch] = snapshot[n], snapshot[n + 1], snapshot[n + 2]
        draining[ch] = snapshot[n + 3]
        n += 4
        for i in range(read_count[ch]):
            reads[ch, i] = base - snapshot[n]
            n = _restore_request(sharing, base, snapshot, n)
        for i in range(write_count[ch]):
            writes[ch, i] = base - snapshot[n]
            n = _restore_request(sharing, base, snapshot, n)
        queued[ch], held[ch, 0], held[ch, 1] = 0, 0, 0
        for b in range(total):
            waiting = snapshot[n]
            count[ch, b] = waiting
            queued[ch] += waiting
            n += 1
            for i in range(waiting):
                queue[ch, b, i] = base - snapshot[n]
                held[ch, 1 if trace.write[queue[ch, b, i]] else 0] += 1
                n = _restore_request(sharing, base, snapshot, n)
            if snapshot[n] == UNSEEN:
                row[ch, b], hits_of[ch, b] = -1, 0
                n += 1
            else:
                row[ch, b] = (snapshot[n] + row_base) & rows
                hits_of[ch, b], used[ch, b] = snapshot[n + 1], snapshot[n + 2] + now
                n += 3
            wakes[ch, b] = 0
            if waiting:
                wakes[ch, b] = NEVER if snapshot[n] == UNSEEN else snapshot[n] + now
                n += 1
            for k in range(3):
                bank_at[ch, b, k] = snapshot[n + k] + now
            n += 3
        for g in range(groups):
            for k in range(3):
                group_at[ch, g, k] = snapshot[n + k] + now
            n += 3
        for rank in range(ranks):
            for k in range(3):
                rank_at[ch, rank, k] = snapshot[n + k] + now
            due[ch, rank] = snapshot[n + 3]
            n += 4
            four_at[ch, rank] = 0
            for k in range(4):
                four[ch, rank, k] = snapshot[n + k] + now - tFAW
            n += 4


@part(inside=False)
def _restore_request(sharing: Any, base: Any, snapshot: Any, n: Any) -> Any:
    request = base - snapshot[n]
    shared = snapshot[n + 1] & 1
    n += 4
    sharing[request] = 0
    while shared:
        if snapshot[n] == UNSEEN:
            n += 1
            break
        follower = base - snapshot[n]
        sharing[request], sharing[follower] = follower + 1, 0
        request = follower
        n += 1
    return n
