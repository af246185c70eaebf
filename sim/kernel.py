"""The event kernel: runs the tables of one program, every event, in integer time.

Plain Python that Numba compiles; with ``NUMBA_DISABLE_JIT=1`` the same code runs uncompiled and gives the same
numbers. Units take their queues in order and semaphores connect one unit to one unit, so what can start is decided by
times already fixed; the only shared resource is the memory port, which serves transfers in the order in which they
can start (ties: the one that asked first, then loads before stores). Committing always the earliest possible
start keeps that order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from siliconloom.arch.isa import LEVELS, SEMAPHORE_LIMIT, SEMAPHORES, Opcode, Unit
from siliconloom.sim.tables import COLUMNS, Stall
from siliconloom.sim.timing.units import BARRIER, TRANSFER_START

UNITS = len(Unit)
STALLS = len(Stall)
RING = SEMAPHORE_LIMIT + 1

_LOOP, _NEXT, _END, _BARRIER = int(Opcode.LOOP), int(Opcode.NEXT), int(Opcode.END), int(Opcode.BARRIER)
_LOAD, _STORE, _MATMUL = int(Unit.LOAD), int(Unit.STORE), int(Unit.MATMUL)
_OPCODE, _UNIT, _M = COLUMNS["opcode"], COLUMNS["unit"], COLUMNS["m"]
_WAIT, _RELEASE, _POST = COLUMNS["wait"], COLUMNS["release"], COLUMNS["post"]
_FIRST_WAIT, _LAST_POST, _FIRST, _LAST = COLUMNS["first_wait"], COLUMNS["last_post"], COLUMNS["first"], COLUMNS["last"]
_OPERATOR, _DURATION, _COMPLETION = COLUMNS["operator"], COLUMNS["duration"], COLUMNS["completion"]
_FIRST_LOAD, _STREAM, _FOLDS = COLUMNS["first_load"], COLUMNS["stream"], COLUMNS["folds"]
_ADVANCE, _OUTPUT = COLUMNS["advance"], COLUMNS["output"]
_S_INSTRUCTION, _S_MEMORY, _S_LOAD = int(Stall.INSTRUCTION), int(Stall.MEMORY_PORT), int(Stall.STATIONARY_LOAD)
_S_DRAIN, _S_QUEUE, _S_FINISHED = int(Stall.DRAIN), int(Stall.QUEUE_FULL), int(Stall.FINISHED)

DONE, DEADLOCK, OVERFLOW_SEMAPHORE, OVERFLOW_TIME = 0, 1, 2, 3
TIME_LIMIT = 2**62


@njit(cache=True)
def run(table: Any, initial: Any, causes: Any, constants: Any, operators: int, trace_limit: int) -> Any:
    """Run a program to its end.

    Parameters
    ----------
    table, initial, causes, constants
        See `sim.tables.Tables`.
    operators
        Number of operators that instructions may name.
    trace_limit
        Most executions to record.

    Returns
    -------
    tuple
        status, cycles, events, executions per instruction, busy and stalls per unit, first start / last end /
        exclusive cycles per operator, busy per operator and unit, cycles in which a unit's queue held an instruction
        that had not started, trace rows (instruction, first work, operands read, end, leaves the queue),
        queue heads (instruction in front of each unit, or -1) and semaphore counts at the stop.
    """
    issue, loop_cycles, depth = constants[0], constants[1], constants[2]
    array_rows, output_latency, operand_latency = constants[3], constants[4], constants[5]
    output_stationary, pop, refill, loader_gap = constants[6], constants[7], constants[8], constants[9]
    outstanding, fetch_first, fetch_interval = constants[10], constants[11], constants[12]
    total = table.shape[0]
    executions = np.zeros(total, np.int64)
    busy = np.zeros(UNITS, np.int64)
    stalls = np.zeros((UNITS, STALLS), np.int64)
    op_start = np.full(operators, TIME_LIMIT, np.int64)
    op_end = np.zeros(operators, np.int64)
    op_exclusive = np.zeros(operators, np.int64)
    op_busy = np.zeros((operators, UNITS), np.int64)
    waiting = np.zeros(UNITS, np.int64)
    trace = np.zeros((trace_limit, 5), np.int64)
    traced = 0
    # queues: instruction, dispatch time, whether its first/last predicate holds
    queue = np.zeros((UNITS, depth, 4), np.int64)
    head = np.zeros(UNITS, np.int64)
    length = np.zeros(UNITS, np.int64)
    started = np.zeros((UNITS, depth), np.int64)
    dispatched = np.zeros(UNITS, np.int64)
    sem_time = np.zeros((SEMAPHORES, RING), np.int64)
    sem_head = np.zeros(SEMAPHORES, np.int64)
    sem_count = np.zeros(SEMAPHORES, np.int64)
    for s in range(SEMAPHORES):
        sem_count[s] = initial[s]
    unit_free = np.zeros(UNITS, np.int64)
    unit_ready = np.zeros(UNITS, np.int64)
    unit_done = np.zeros(UNITS, np.int64)
    unit_consumed = np.zeros(UNITS, np.int64)
    accounted = np.zeros(UNITS, np.int64)
    port_free = 0
    in_flight = np.zeros((UNITS, outstanding), np.int64)
    transfers = np.zeros(UNITS, np.int64)
    load_free, stream_free, last_beat = 0, 0, -(2**61)
    loop_start = np.zeros(LEVELS, np.int64)
    loop_index = np.zeros(LEVELS, np.int64)
    loop_count = np.zeros(LEVELS, np.int64)
    level, pc, seq, frontier, cycles, events = 0, 0, 0, 0, 0, 0
    status = DONE
    heads = np.full(UNITS, -1, np.int64)
    while True:
        # The sequencer dispatches as far as the queues allow.
        while pc < total:
            opcode = table[pc, _OPCODE]
            fetched = fetch_first + fetch_interval * (pc + 1)
            if fetch_interval and fetched > seq:
                stalls[0, _S_INSTRUCTION] += fetched - seq
                seq = fetched
            if opcode == _END:
                pc = total
                break
            if opcode == _LOOP:
                loop_start[level], loop_index[level], loop_count[level] = pc + 1, 0, table[pc, _M]
                level += 1
                seq += loop_cycles
                busy[0] += loop_cycles
                executions[pc] += 1
                pc += 1
                continue
            if opcode == _NEXT:
                seq += loop_cycles
                busy[0] += loop_cycles
                executions[pc] += 1
                loop_index[level - 1] += 1
                if loop_index[level - 1] < loop_count[level - 1]:
                    pc = loop_start[level - 1]
                else:
                    level -= 1
                    pc += 1
                continue
            unit = table[pc, _UNIT]
            if length[unit] == depth:
                break
            time = seq + issue
            if dispatched[unit] >= depth:
                freed = started[unit, dispatched[unit] % depth] + refill
                if freed > time:
                    stalls[0, _S_QUEUE] += freed - time
                    time = freed
            busy[0] += issue
            seq = time
            first, last = 1, 1
            first_mask, last_mask = table[pc, _FIRST], table[pc, _LAST]
            for depth_level in range(level):
                if first_mask >> depth_level & 1 and loop_index[depth_level] != 0:
                    first = 0
                if last_mask >> depth_level & 1 and loop_index[depth_level] != loop_count[depth_level] - 1:
                    last = 0
            place = (head[unit] + length[unit]) % depth
            queue[unit, place, 0] = pc
            queue[unit, place, 1] = time
            queue[unit, place, 2] = first
            queue[unit, place, 3] = last
            length[unit] += 1
            dispatched[unit] += 1
            events += 1
            pc += 1
        # The earliest start among the heads whose semaphores are all known.
        best, best_start, best_request, best_ready = -1, TIME_LIMIT, TIME_LIMIT, 0
        for unit in range(1, UNITS):
            if length[unit] == 0:
                continue
            entry = queue[unit, head[unit]]
            i = entry[0]
            mask = table[i, _WAIT]
            if entry[2]:
                mask |= table[i, _FIRST_WAIT]
            ready = max(entry[1], unit_ready[unit])
            possible = True
            s = 0
            while mask:
                if mask & 1:
                    if sem_count[s] == 0:
                        possible = False
                        break
                    ready = max(ready, sem_time[s, sem_head[s]])
                mask >>= 1
                s += 1
            if not possible:
                continue
            request = max(ready, unit_free[unit])
            if unit in (_LOAD, _STORE):
                request = max(request, in_flight[unit, transfers[unit] % outstanding])
            start = request
            if table[i, _OPCODE] != _BARRIER:
                if unit in (_LOAD, _STORE):
                    start = max(request, port_free)
                elif unit == _MATMUL:
                    start = max(ready, (stream_free if output_stationary else load_free) + loader_gap)
            if start < best_start or (start == best_start and request < best_request):
                best, best_start, best_request, best_ready = unit, start, request, ready
        if best < 0:
            unfinished = pc < total
            for unit in range(1, UNITS):
                if length[unit]:
                    unfinished = True
                    heads[unit] = queue[unit, head[unit], 0]
            if unfinished:
                status = DEADLOCK
            break
        unit, start, ready = best, best_start, best_ready
        i, dispatch = queue[unit, head[unit], 0], queue[unit, head[unit], 1]
        first, last = queue[unit, head[unit], 2], queue[unit, head[unit], 3]
        barrier = table[i, _OPCODE] == _BARRIER
        # Where the wait before this instruction goes: the instruction itself, the latest semaphore, the port.
        cursor = accounted[unit]
        before = cursor
        arrived = max(dispatch, cursor)
        mask = table[i, _WAIT]
        if first:
            mask |= table[i, _FIRST_WAIT]
        latest, latest_cause = -1, 0
        s = 0
        while mask:
            if mask & 1:
                when = sem_time[s, sem_head[s]]
                sem_head[s] = (sem_head[s] + 1) % RING
                sem_count[s] -= 1
                if when > latest:
                    latest, latest_cause = when, causes[s]
            mask >>= 1
            s += 1
        if barrier:
            begin = start
            done = max(start + BARRIER, unit_done[unit] + 1)
            consumed = max(start + BARRIER, unit_consumed[unit] + 1)
            accounted[unit] = max(cursor, start)
        elif unit == _MATMUL:
            stream, folds = table[i, _STREAM], table[i, _FOLDS]
            if output_stationary:
                begin = max(start + operand_latency, stream_free)
                first_last = max(begin + stream - 1, last_beat + array_rows)
                last_beat = first_last + table[i, _ADVANCE]
                consumed = last_beat + 1
                done = last_beat + output_latency + table[i, _OUTPUT] + table[i, _COMPLETION]
                stalls[unit, _S_DRAIN] += consumed - begin - folds * stream
                unit_free[unit] = consumed
            else:
                swap = max(max(start + operand_latency, load_free) + table[i, _FIRST_LOAD], stream_free - 1)
                begin = swap + 1
                load_free = swap + table[i, _ADVANCE]
                consumed = load_free + stream + 1
                done = consumed + output_latency + table[i, _COMPLETION]
                stalls[unit, _S_LOAD] += consumed - begin - folds * stream
                unit_free[unit] = load_free + loader_gap
            stream_free = consumed
            busy[unit] += folds * stream
            op_busy[table[i, _OPERATOR], unit] += folds * stream
            accounted[unit] = consumed
        else:
            begin = start
            consumed = start + table[i, _DURATION]
            unit_free[unit] = consumed
            if unit in (_LOAD, _STORE):
                port_free = consumed
                consumed += TRANSFER_START
            done = consumed + table[i, _COMPLETION]
            busy[unit] += table[i, _DURATION]
            op_busy[table[i, _OPERATOR], unit] += table[i, _DURATION]
            accounted[unit] = unit_free[unit]
        waiting[unit] += start - max(dispatch, unit_ready[unit])
        if begin > cursor:
            step = min(arrived, begin)
            stalls[unit, _S_INSTRUCTION] += step - cursor
            cursor = step
            if latest > cursor:
                step = min(latest, begin)
                stalls[unit, latest_cause] += step - cursor
                cursor = step
            if unit == _MATMUL:
                stalls[unit, _S_LOAD] += begin - cursor
            else:
                stalls[unit, _S_MEMORY] += begin - cursor
        if pop:  # a tile with queues completes in order, one instruction a cycle
            done = max(done, unit_done[unit] + 1)
            consumed = max(consumed, unit_consumed[unit] + 1)
        if unit in (_LOAD, _STORE):
            in_flight[unit, transfers[unit] % outstanding] = done
            transfers[unit] += 1
        unit_done[unit] = max(unit_done[unit], done)
        unit_consumed[unit] = max(unit_consumed[unit], consumed)
        unit_ready[unit] = start + pop
        mask = table[i, _RELEASE]
        for phase in range(2):
            when = consumed if phase == 0 else done
            if phase == 1:
                mask = table[i, _POST]
                if last:
                    mask |= table[i, _LAST_POST]
            s = 0
            while mask:
                if mask & 1:
                    if sem_count[s] == RING - 1:
                        status = OVERFLOW_SEMAPHORE
                        heads[unit] = i
                    sem_time[s, (sem_head[s] + sem_count[s]) % RING] = when
                    sem_count[s] += 1
                mask >>= 1
                s += 1
        started[unit, (dispatched[unit] - length[unit]) % depth] = start
        head[unit] = (head[unit] + 1) % depth
        length[unit] -= 1
        executions[i] += 1
        events += 2
        operator = table[i, _OPERATOR]
        if not barrier:
            # an operand tile that loads behind the previous operator's last beats does not start the operator
            visible = max(start, before) if unit == _MATMUL else start
            op_start[operator] = min(op_start[operator], visible)
            op_end[operator] = max(op_end[operator], done)
            if unit != _LOAD and done > frontier:
                op_exclusive[operator] += done - frontier
                frontier = done
            if traced < trace_limit:
                trace[traced, 0], trace[traced, 1], trace[traced, 2], trace[traced, 3] = i, begin, consumed, done
                trace[traced, 4] = start
                if unit in (_LOAD, _STORE):
                    trace[traced, 1] = begin + TRANSFER_START
                traced += 1
        cycles = max(cycles, done)
        if cycles >= TIME_LIMIT:
            status = OVERFLOW_TIME
        if status != DONE:
            break
    cycles = max(cycles, seq)
    for unit in range(UNITS):
        used = busy[unit]
        for cause in range(STALLS):
            used += stalls[unit, cause]
        stalls[unit, _S_FINISHED] += cycles - used
    return (
        status, cycles, events, executions, busy, stalls, op_start, op_end, op_exclusive, op_busy, waiting,
        trace[:traced], heads, sem_count,
    )  # fmt: skip
