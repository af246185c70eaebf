"""The event kernel: runs the tables of one program in integer time, event by event, and jumps what repeats.

Plain Python that Numba compiles; with ``NUMBA_DISABLE_JIT=1`` the same code runs uncompiled and gives the same
numbers. Units take their queues in order and semaphores connect one unit to one unit, so what can start is decided by
times already fixed; the only shared resource is the memory port, which serves transfers in the order in which they
can start (ties: the one that asked first, then loads before stores). Committing always the earliest possible
start keeps that order.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.kernels import kernel
from siliconloom.arch.timing import BARRIER, TRANSFER_START
from siliconloom.sim.chip.recurrence import back_edge, enter, leave
from siliconloom.sim.chip.state import (
    ACCOUNTED,
    BODY,
    CONSUMED,
    COUNT,
    CYCLES,
    DISPATCHED,
    EVENTS,
    FIRST_TOKEN,
    FREE,
    FRONTIER,
    HEAD,
    INDEX,
    LAST_BEAT,
    LENGTH,
    LEVEL,
    LOAD_FREE,
    OP_END,
    OP_EXCLUSIVE,
    OP_START,
    PC,
    PORT,
    READY,
    RING,
    SEQ,
    SKIPPED,
    STARTS,
    STREAM_FREE,
    STUCK,
    TIME_LIMIT,
    TOKENS,
    TRACED,
    TRANSFERS,
    UNITS,
    WAITING,
    State,
)
from siliconloom.sim.chip.state import DONE as DONE_AT
from siliconloom.sim.chip.tables import COLUMNS, Stall

_LOOP, _NEXT, _END, _BARRIER = int(Opcode.LOOP), int(Opcode.NEXT), int(Opcode.END), int(Opcode.BARRIER)
_LOAD, _STORE, _MATMUL = int(Unit.LOAD), int(Unit.STORE), int(Unit.MATMUL)
_OPCODE, _UNIT, _M = COLUMNS["opcode"], COLUMNS["unit"], COLUMNS["m"]
_WAIT, _RELEASE, _POST = COLUMNS["wait"], COLUMNS["release"], COLUMNS["post"]
_FIRST_WAIT, _LAST_POST, _FIRST, _LAST = COLUMNS["first_wait"], COLUMNS["last_post"], COLUMNS["first"], COLUMNS["last"]
_OPERATOR, _DURATION, _COMPLETION = COLUMNS["operator"], COLUMNS["duration"], COLUMNS["completion"]
_FIRST_LOAD, _STREAM, _FOLDS = COLUMNS["first_load"], COLUMNS["stream"], COLUMNS["folds"]
_ADVANCE, _OUTPUT = COLUMNS["advance"], COLUMNS["output"]
_S_INSTRUCTION, _S_MEMORY, _S_LOAD = int(Stall.INSTRUCTION), int(Stall.MEMORY_PORT), int(Stall.STATIONARY_LOAD)
_S_DRAIN, _S_QUEUE = int(Stall.DRAIN), int(Stall.QUEUE_FULL)

RUNNING, DONE, DEADLOCK, OVERFLOW_SEMAPHORE, OVERFLOW_TIME = range(5)


@kernel()
def run(
    table: Any,
    causes: Any,
    constants: Any,
    loops: Any,
    snapshots: Any,
    state: State,
    jumps: Any,
    protect: Any,
    record: Any,
    budget: Any,
) -> Any:
    """Go on with a program: to its end, or until about ``budget`` more events were run.

    Parameters
    ----------
    table, causes, constants
        See `sim.chip.tables.Tables`.
    loops, snapshots
        See `sim.chip.recurrence`.
    state
        Where the last call stopped; changed in place.
    jumps
        Whether what repeats is jumped; otherwise every event is run.
    protect
        First cycle, and first cycle after those, in which nothing may be jumped.
    record
        The same for the executions that go into the trace.
    budget
        Events after which the caller wants to be asked again.

    Returns
    -------
    int
        `RUNNING` or why it stopped. At `DONE` every cycle of every unit is booked.
    """
    issue, loop_cycles, depth = constants[0], constants[1], constants[2]
    array_rows, output_latency, operand_latency = constants[3], constants[4], constants[5]
    output_stationary, pop, refill, loader_gap = constants[6], constants[7], constants[8], constants[9]
    outstanding, fetch_first, fetch_interval = constants[10], constants[11], constants[12]
    total = table.shape[0]
    clock, queue, started, in_flight, stalls = state.clock, state.queue, state.started, state.in_flight, state.stalls
    unit_free, unit_ready = state.unit[FREE], state.unit[READY]
    unit_done, unit_consumed = state.unit[DONE_AT], state.unit[CONSUMED]
    accounted, starts, waiting, heads = (
        state.unit[ACCOUNTED],
        state.unit[STARTS],
        state.unit[WAITING],
        state.unit[STUCK],
    )
    head, length, dispatched = state.unit[HEAD], state.unit[LENGTH], state.unit[DISPATCHED]
    transfers, executions, trace = state.unit[TRANSFERS], state.executions, state.trace
    sem_time, sem_head, sem_count = state.token, state.semaphore[FIRST_TOKEN], state.semaphore[TOKENS]
    loop_start, loop_index, loop_count = state.loop[BODY], state.loop[INDEX], state.loop[COUNT]
    op_start, op_end, op_exclusive = state.operator[OP_START], state.operator[OP_END], state.operator[OP_EXCLUSIVE]
    pc, level, seq, port_free = clock[PC], clock[LEVEL], clock[SEQ], clock[PORT]
    load_free, stream_free, last_beat = clock[LOAD_FREE], clock[STREAM_FREE], clock[LAST_BEAT]
    frontier, cycles, events, traced = clock[FRONTIER], clock[CYCLES], clock[EVENTS], clock[TRACED]
    stop = events - clock[SKIPPED] + budget
    status = RUNNING
    while events - clock[SKIPPED] < stop:
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
                if jumps:
                    clock[PC], clock[LEVEL], clock[SEQ], clock[PORT] = pc, level, seq, port_free
                    clock[LOAD_FREE], clock[STREAM_FREE], clock[LAST_BEAT] = load_free, stream_free, last_beat
                    clock[FRONTIER], clock[CYCLES], clock[EVENTS] = frontier, cycles, events
                    if enter(state, table, constants, loops, snapshots, protect):
                        pc, seq, port_free = clock[PC], clock[SEQ], clock[PORT]
                        load_free, stream_free, last_beat = clock[LOAD_FREE], clock[STREAM_FREE], clock[LAST_BEAT]
                        frontier, cycles, events = clock[FRONTIER], clock[CYCLES], clock[EVENTS]
                        continue
                loop_start[level], loop_index[level], loop_count[level] = pc + 1, 0, table[pc, _M]
                level += 1
                seq += loop_cycles
                executions[pc] += 1
                pc += 1
                continue
            if opcode == _NEXT:
                seq += loop_cycles
                executions[pc] += 1
                loop_index[level - 1] += 1
                again = loop_index[level - 1] < loop_count[level - 1]
                if jumps:
                    clock[LEVEL], clock[SEQ], clock[PORT] = level if again else level - 1, seq, port_free
                    clock[LOAD_FREE], clock[STREAM_FREE], clock[LAST_BEAT] = load_free, stream_free, last_beat
                    clock[FRONTIER], clock[CYCLES], clock[EVENTS] = frontier, cycles, events
                    if again:
                        if not back_edge(state, table, constants, loops, snapshots, protect):
                            status = OVERFLOW_TIME
                            break
                        seq, port_free = clock[SEQ], clock[PORT]
                        load_free, stream_free, last_beat = clock[LOAD_FREE], clock[STREAM_FREE], clock[LAST_BEAT]
                        frontier, cycles, events = clock[FRONTIER], clock[CYCLES], clock[EVENTS]
                    else:
                        leave(state, table, constants, snapshots)
                if again:
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
            executions[pc] += 1
            events += 1
            pc += 1
        if status != RUNNING:
            break
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
            status = DEADLOCK if unfinished else DONE
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
            accounted[unit] = consumed
        else:
            begin = start
            consumed = start + table[i, _DURATION]
            unit_free[unit] = consumed
            if unit in (_LOAD, _STORE):
                port_free = consumed
                consumed += TRANSFER_START
            done = consumed + table[i, _COMPLETION]
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
        starts[unit] += 1
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
            if start < record[1] and done > record[0]:
                if traced < trace.shape[0]:
                    trace[traced, 0], trace[traced, 1], trace[traced, 2], trace[traced, 3] = i, begin, consumed, done
                    trace[traced, 4] = start
                    if unit in (_LOAD, _STORE):
                        trace[traced, 1] = begin + TRANSFER_START
                traced += 1
        cycles = max(cycles, done)
        if cycles >= TIME_LIMIT:
            status = OVERFLOW_TIME
        if status != RUNNING:
            break
    if status == DONE:
        cycles = max(cycles, seq)
    clock[PC], clock[LEVEL], clock[SEQ], clock[PORT] = pc, level, seq, port_free
    clock[LOAD_FREE], clock[STREAM_FREE], clock[LAST_BEAT] = load_free, stream_free, last_beat
    clock[FRONTIER], clock[CYCLES], clock[EVENTS], clock[TRACED] = frontier, cycles, events, traced
    return status
