"""The event kernel: runs the tables of one program in integer time, event by event, and jumps what repeats.

Plain Python that Numba compiles; with ``NUMBA_DISABLE_JIT=1`` the same code runs uncompiled and gives the same
numbers. Units take their queues in order and semaphores connect one unit to one unit, so what can start is decided by
times already fixed; the only shared resource is the memory port, which serves transfers in the order in which they
can start (ties: the one that asked first, then the unit with the lower code, so loads before stores). Committing always
the earliest possible start keeps that order.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.kernels import UNCOUNTED, kernel, part
from siliconloom.arch.timing import BARRIER, TRANSFER_START
from siliconloom.sim.chip.recurrence import Snapshots, back_edge, enter, leave
from siliconloom.sim.chip.state import (
    ACCOUNTED,
    ANSWER,
    ASKED,
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
    KNOWN,
    LACKING,
    LACKS,
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
    REQUEST,
    RING,
    SEQ,
    SKIPPED,
    START,
    STARTS,
    STARTS_ALONE,
    STARTS_AT_PORT,
    STREAM_FREE,
    STUCK,
    TIME_LIMIT,
    TOKENS,
    TRACED,
    TRANSFERS,
    UNITS,
    UNKNOWN,
    WAITING,
    State,
    TileMachine,
    Wishes,
)
from siliconloom.sim.chip.state import DONE as DONE_AT
from siliconloom.sim.chip.tables import COLUMNS, Stall

_LOOP, _NEXT, _END, _BARRIER = int(Opcode.LOOP), int(Opcode.NEXT), int(Opcode.END), int(Opcode.BARRIER)
_MATMUL, _PIM = int(Unit.MATMUL), int(Unit.PIM)
_OPCODE, _UNIT, _M = COLUMNS["opcode"], COLUMNS["unit"], COLUMNS["m"]
_WAIT, _RELEASE, _POST = COLUMNS["wait"], COLUMNS["release"], COLUMNS["post"]
_FIRST_WAIT, _LAST_POST, _FIRST, _LAST = COLUMNS["first_wait"], COLUMNS["last_post"], COLUMNS["first"], COLUMNS["last"]
_OPERATOR, _DURATION, _COMPLETION = COLUMNS["operator"], COLUMNS["duration"], COLUMNS["completion"]
_FIRST_LOAD, _STREAM, _WORK = COLUMNS["first_load"], COLUMNS["stream"], COLUMNS["work"]
_ADVANCE, _OUTPUT = COLUMNS["advance"], COLUMNS["output"]
_S_INSTRUCTION, _S_MEMORY, _S_LOAD = int(Stall.INSTRUCTION), int(Stall.MEMORY_PORT), int(Stall.STATIONARY_LOAD)
_S_DRAIN, _S_QUEUE = int(Stall.DRAIN), int(Stall.QUEUE_FULL)

RUNNING, DONE, DEADLOCK, OVERFLOW_SEMAPHORE, OVERFLOW_TIME, ASKING = range(6)
"""Why the kernel stops. `ASKING`: how long the next instruction of the unit pim takes depends on what its channel did
before, and on when it starts; the caller is asked (`sim.chip.channel`)."""


@kernel(**UNCOUNTED)
def run(machine: TileMachine, wishes: Wishes, snapshots: Snapshots, state: State, budget: Any) -> Any:
    """Go on with a program: to its end, or until about ``budget`` more events were run.

    Parameters
    ----------
    machine, wishes
        What does not change during a run.
    snapshots
        See `sim.chip.recurrence`.
    state
        Where the last call stopped; changed in place.
    budget
        Events after which the caller wants to be asked again.

    Returns
    -------
    int
        `RUNNING` or why it stopped. At `DONE` every cycle of every unit is booked.
    """
    clock = state.clock
    stop = clock[EVENTS] - clock[SKIPPED] + budget
    status = RUNNING
    while status == RUNNING and clock[EVENTS] - clock[SKIPPED] < stop:
        met = _dispatch(machine, state)
        if met == _LOOP:
            if not (wishes.jumps and enter(machine, wishes, snapshots, state)):
                _open_loop(machine, state)
        elif met == _NEXT:
            again = _end_iteration(machine, state)
            if wishes.jumps and again and not back_edge(machine, wishes, snapshots, state):
                status = OVERFLOW_TIME
            elif wishes.jumps and not again:
                leave(machine, snapshots, state)
        else:
            unit, start = _earliest(machine, state)
            if unit < 0:
                status = _nothing_starts(machine, state)
            elif unit == _PIM and _asks(machine, state, start):
                status = ASKING
            else:
                status = _execute(machine, wishes, state, unit, start)
    if status == DONE:
        clock[CYCLES] = max(clock[CYCLES], clock[SEQ])
    return status


@part()
def _dispatch(machine: TileMachine, state: State) -> Any:
    """Let the sequencer dispatch as far as the queues allow: up to what is given, a loop's beginning or end, or -1."""
    clock, table, constants = state.clock, machine.table, machine.constants
    total = table.shape[0]
    while clock[PC] < total:
        pc = clock[PC]
        opcode = table[pc, _OPCODE]
        fetched = constants.fetch_first + constants.fetch_interval * (pc + 1)
        if constants.fetch_interval and fetched > clock[SEQ]:
            state.stalls[0, _S_INSTRUCTION] += fetched - clock[SEQ]
            clock[SEQ] = fetched
        if opcode in (_LOOP, _NEXT):
            return opcode
        if opcode == _END:
            clock[PC] = total
        elif not _queue(machine, state):
            break
    return -1


@part()
def _open_loop(machine: TileMachine, state: State) -> None:
    """Begin a loop's first iteration."""
    clock, loop = state.clock, state.loop
    pc, level = clock[PC], clock[LEVEL]
    loop[BODY, level], loop[INDEX, level], loop[COUNT, level] = pc + 1, 0, machine.table[pc, _M]
    clock[LEVEL] = level + 1
    clock[SEQ] += machine.constants.loop_cycles
    state.executions[pc] += 1
    clock[PC] = pc + 1


@part()
def _end_iteration(machine: TileMachine, state: State) -> Any:
    """Go back to a loop's first instruction, which is true, or on behind its last one."""
    clock, loop = state.clock, state.loop
    pc, inner = clock[PC], clock[LEVEL] - 1
    clock[SEQ] += machine.constants.loop_cycles
    state.executions[pc] += 1
    loop[INDEX, inner] += 1
    if loop[INDEX, inner] < loop[COUNT, inner]:
        clock[PC] = loop[BODY, inner]
        return True
    clock[LEVEL], clock[PC] = inner, pc + 1
    return False


@part()
def _queue(machine: TileMachine, state: State) -> Any:
    """Put the next instruction into its unit's queue; false when that is full."""
    clock, table, constants = state.clock, machine.table, machine.constants
    length, dispatched, loop = state.unit[LENGTH], state.unit[DISPATCHED], state.loop
    depth, pc = constants.queue_depth, clock[PC]
    unit = table[pc, _UNIT]
    if length[unit] == depth:
        return False
    time = clock[SEQ] + constants.issue_cycles
    if dispatched[unit] >= depth:
        freed = state.started[unit, _modulo(dispatched[unit], depth)] + constants.refill
        if freed > time:
            state.stalls[0, _S_QUEUE] += freed - time
            time = freed
    clock[SEQ] = time
    first, last = 1, 1
    first_mask, last_mask = table[pc, _FIRST], table[pc, _LAST]
    for level in range(clock[LEVEL]):
        if first_mask >> level & 1 and loop[INDEX, level] != 0:
            first = 0
        if last_mask >> level & 1 and loop[INDEX, level] != loop[COUNT, level] - 1:
            last = 0
    entry = state.queue[unit, _wrapped(state.unit[HEAD, unit] + length[unit], depth)]
    entry[0], entry[1], entry[2], entry[3] = pc, time, first, last
    length[unit] += 1
    dispatched[unit] += 1
    state.executions[pc] += 1
    clock[EVENTS] += 1
    clock[PC] = pc + 1
    return True


@part()
def _wrapped(place: Any, size: Any) -> Any:
    """A place of a ring that is less than once around too far: a division takes longer than all else of an event."""
    return place - size if place >= size else place


@part()
def _modulo(number: Any, size: Any) -> Any:
    """A number that is not negative, modulo a size, which is a power of two as a rule."""
    return number & size - 1 if size & size - 1 == 0 else number % size


@part()
def _earliest(machine: TileMachine, state: State) -> Any:
    """The unit whose next instruction can start first, and when; -1 when none can: a semaphore's count is missing."""
    outlook, port = state.outlook, state.clock[PORT]
    best, best_start, best_request = -1, TIME_LIMIT, TIME_LIMIT
    for unit in range(1, UNITS):
        if state.unit[LENGTH, unit] == 0:
            continue
        known = outlook[KNOWN, unit]
        if known == UNKNOWN or (known == LACKS and state.semaphore[TOKENS, outlook[LACKING, unit]] > 0):
            known = outlook[KNOWN, unit] = _look_ahead(machine, state, unit)
        if known == LACKS:
            continue
        request, start = outlook[REQUEST, unit], outlook[START, unit]
        if known == STARTS_AT_PORT:
            start = max(start, port)
        if start < best_start or (start == best_start and request < best_request):
            best, best_start, best_request = unit, start, request
    return best, best_start


@part(inside=False)
def _look_ahead(machine: TileMachine, state: State, unit: Any) -> Any:
    """Note when a unit's next instruction can start, which nobody but the unit itself changes, and what is known then.

    Others put counts into semaphores that have none, and have the memory port.
    """
    clock, table, constants, outlook = state.clock, machine.table, machine.constants, state.outlook
    entry = state.queue[unit, state.unit[HEAD, unit]]
    i = entry[0]
    mask = table[i, _WAIT]
    if entry[2]:
        mask |= table[i, _FIRST_WAIT]
    ready = max(entry[1], state.unit[READY, unit])
    s = 0
    while mask:
        if mask & 15 == 0:
            mask >>= 4
            s += 4
            continue
        if mask & 1:
            if state.semaphore[TOKENS, s] == 0:
                outlook[LACKING, unit] = s
                return LACKS
            ready = max(ready, state.token[s, state.semaphore[FIRST_TOKEN, s]])
        mask >>= 1
        s += 1
    request, known = max(ready, state.unit[FREE, unit]), STARTS_ALONE
    engine = constants.engines >> unit & 1
    if engine:
        slot = _modulo(state.unit[TRANSFERS, unit], constants.outstanding)
        request = max(request, state.in_flight[unit, slot])
    start = request
    if table[i, _OPCODE] != _BARRIER:
        if engine:
            known = STARTS_AT_PORT
        elif unit == _MATMUL:
            held = clock[STREAM_FREE] if constants.output_stationary else clock[LOAD_FREE]
            start = max(ready, held + constants.loader_gap)
    outlook[REQUEST, unit], outlook[START, unit] = request, start
    return known


@part()
def _asks(machine: TileMachine, state: State, start: Any) -> Any:
    """Whether the channel's next instruction is one whose duration is not known yet; it is put down then."""
    i = state.queue[_PIM, state.unit[HEAD, _PIM], 0]
    if machine.table[i, _OPCODE] == _BARRIER or state.clock[ANSWER] > 0:
        return False
    state.clock[ASKED] = start
    return True


@part()
def _nothing_starts(machine: TileMachine, state: State) -> Any:
    """`DONE`, or `DEADLOCK` with the instructions that wait."""
    unfinished = state.clock[PC] < machine.table.shape[0]
    for unit in range(1, UNITS):
        if state.unit[LENGTH, unit]:
            unfinished = True
            state.unit[STUCK, unit] = state.queue[unit, state.unit[HEAD, unit], 0]
    return DEADLOCK if unfinished else DONE


@part()
def _execute(machine: TileMachine, wishes: Wishes, state: State, unit: Any, start: Any) -> Any:
    """Start a unit's next instruction, and book all that comes of it; `RUNNING`, or which number overflows."""
    clock, table, constants = state.clock, machine.table, machine.constants
    entry = state.queue[unit, state.unit[HEAD, unit]]
    i, dispatch, first, last = entry[0], entry[1], entry[2], entry[3]
    state.outlook[KNOWN, unit] = UNKNOWN
    barrier, transfer = table[i, _OPCODE] == _BARRIER, constants.engines >> unit & 1
    before = state.unit[ACCOUNTED, unit]
    latest, cause = _take_tokens(machine, state, table[i, _WAIT] | (table[i, _FIRST_WAIT] if first else 0))
    if barrier:
        begin = start
        launched = start + table[i, _DURATION]
        done = max(start + BARRIER, launched, state.unit[DONE_AT, unit] + 1)
        consumed = max(start + BARRIER, launched, state.unit[CONSUMED, unit] + 1)
        state.unit[ACCOUNTED, unit] = max(before, launched)
    elif unit == _MATMUL:
        begin, consumed, done = _multiply(machine, state, i, start)
    else:
        begin = start
        consumed = start + table[i, _DURATION]
        if unit == _PIM:
            consumed, clock[ANSWER] = start + clock[ANSWER], 0
        state.unit[FREE, unit], state.unit[ACCOUNTED, unit] = consumed, consumed
        if transfer:
            clock[PORT] = consumed
            consumed += TRANSFER_START
        done = consumed + table[i, _COMPLETION]
    state.unit[WAITING, unit] += start - max(dispatch, state.unit[READY, unit])
    if begin > before:
        _book_wait(state, unit, before, begin, max(dispatch, before), latest, cause)
    if constants.pop:  # a tile with queues completes in order, one instruction a cycle
        done = max(done, state.unit[DONE_AT, unit] + 1)
        consumed = max(consumed, state.unit[CONSUMED, unit] + 1)
    if transfer:
        state.in_flight[unit, _modulo(state.unit[TRANSFERS, unit], constants.outstanding)] = done
        state.unit[TRANSFERS, unit] += 1
    state.unit[DONE_AT, unit] = max(state.unit[DONE_AT, unit], done)
    state.unit[CONSUMED, unit] = max(state.unit[CONSUMED, unit], consumed)
    state.unit[READY, unit] = start + constants.pop
    if barrier and table[i, _DURATION]:  # the next load waits until the operator's program has been launched
        launched = start + table[i, _DURATION]
        state.unit[FREE, unit] = launched
        state.stalls[unit, _S_INSTRUCTION] += launched - start
        _credit(state, table[i, _OPERATOR], start, launched, 0)
    fits = _give_tokens(state, table[i, _RELEASE], consumed)
    fits = _give_tokens(state, table[i, _POST] | (table[i, _LAST_POST] if last else 0), done) and fits
    _leave_queue(constants.queue_depth, state, unit, start)
    if not barrier:
        # an operand tile that loads behind the previous operator's last beats does not start the operator
        _credit(
            state,
            table[i, _OPERATOR],
            max(start, before) if unit == _MATMUL else start,
            done,
            constants.ahead >> unit & 1,
        )
        if start < wishes.record[1] and done > wishes.record[0]:
            row = _record(state, i, begin + TRANSFER_START if transfer else begin, consumed, done, start, dispatch)
            if row >= 0:
                _record_wait(state, row, before, begin, max(dispatch, before), latest, cause)
    clock[CYCLES] = max(clock[CYCLES], done)
    if clock[CYCLES] >= TIME_LIMIT:
        return OVERFLOW_TIME
    if not fits:
        state.unit[STUCK, unit] = i
        return OVERFLOW_SEMAPHORE
    return RUNNING


@part()
def _take_tokens(machine: TileMachine, state: State, mask: Any) -> Any:
    """Count semaphores down; when the latest of these counts arrived, -1 without any, and what waiting for it is."""
    latest, cause = -1, 0
    s = 0
    while mask:
        if mask & 15 == 0:
            mask >>= 4
            s += 4
            continue
        if mask & 1:
            when = state.token[s, state.semaphore[FIRST_TOKEN, s]]
            state.semaphore[FIRST_TOKEN, s] = (state.semaphore[FIRST_TOKEN, s] + 1) % RING
            state.semaphore[TOKENS, s] -= 1
            if when > latest:
                latest, cause = when, machine.causes[s]
        mask >>= 1
        s += 1
    return latest, cause


@part()
def _give_tokens(state: State, mask: Any, when: Any) -> Any:
    """Count semaphores up; false when one has no room."""
    fits = True
    s = 0
    while mask:
        if mask & 15 == 0:
            mask >>= 4
            s += 4
            continue
        if mask & 1:
            count = state.semaphore[TOKENS, s]
            fits = fits and count < RING - 1
            state.token[s, (state.semaphore[FIRST_TOKEN, s] + count) % RING] = when
            state.semaphore[TOKENS, s] = count + 1
        mask >>= 1
        s += 1
    return fits


@part()
def _multiply(machine: TileMachine, state: State, i: Any, start: Any) -> Any:
    """Take the array for a product's folds: its first beat, when its operands are read, and when it is done."""
    clock, table, constants = state.clock, machine.table, machine.constants
    stream, work = table[i, _STREAM], table[i, _WORK]
    if constants.output_stationary:
        begin = max(start + constants.operand_latency, clock[STREAM_FREE])
        first_last = max(begin + stream - 1, clock[LAST_BEAT] + constants.array_rows)
        last_beat = first_last + table[i, _ADVANCE]
        clock[LAST_BEAT] = last_beat + constants.products_apart
        consumed = last_beat + 1
        done = last_beat + constants.output_latency + table[i, _OUTPUT] + table[i, _COMPLETION]
        state.stalls[_MATMUL, _S_DRAIN] += consumed - begin - work
        state.unit[FREE, _MATMUL] = consumed
    else:
        loaded = max(start + constants.operand_latency, clock[LOAD_FREE]) + table[i, _FIRST_LOAD]
        swap = max(loaded, clock[STREAM_FREE] - 1)
        begin = swap + 1
        load_free = swap + table[i, _ADVANCE]
        consumed = load_free + stream + 1
        if constants.shared_port:
            load_free = consumed
        clock[LOAD_FREE] = load_free
        done = consumed + constants.output_latency + table[i, _COMPLETION]
        state.stalls[_MATMUL, _S_LOAD] += consumed - begin - work
        state.unit[FREE, _MATMUL] = load_free + constants.loader_gap
    clock[STREAM_FREE] = consumed if constants.output_stationary else consumed + constants.products_apart
    state.unit[ACCOUNTED, _MATMUL] = consumed
    return begin, consumed, done


@part()
def _book_wait(state: State, unit: Any, cursor: Any, begin: Any, arrived: Any, latest: Any, cause: Any) -> None:
    """Book a unit's cycles from ``cursor`` to ``begin``: to the instruction, the latest semaphore, then a resource."""
    stalls = state.stalls
    step = min(arrived, begin)
    stalls[unit, _S_INSTRUCTION] += step - cursor
    cursor = step
    if latest > cursor:
        step = min(latest, begin)
        stalls[unit, cause] += step - cursor
        cursor = step
    stalls[unit, _S_LOAD if unit == _MATMUL else _S_MEMORY] += begin - cursor


@part()
def _leave_queue(depth: Any, state: State, unit: Any, start: Any) -> None:
    """Remember when a unit's oldest instruction left its queue."""
    length, head, dispatched = state.unit[LENGTH], state.unit[HEAD], state.unit[DISPATCHED]
    state.started[unit, _modulo(dispatched[unit] - length[unit], depth)] = start
    head[unit] = _wrapped(head[unit] + 1, depth)
    length[unit] -= 1
    state.unit[STARTS, unit] += 1
    state.clock[EVENTS] += 2


@part()
def _credit(state: State, operator: Any, visible: Any, done: Any, ahead: Any) -> None:
    """Count an execution as its operator's, and as its own the time that no work before it has reached."""
    clock = state.clock
    state.operator[OP_START, operator] = min(state.operator[OP_START, operator], visible)
    state.operator[OP_END, operator] = max(state.operator[OP_END, operator], done)
    if not ahead and done > clock[FRONTIER]:
        state.operator[OP_EXCLUSIVE, operator] += done - clock[FRONTIER]
        clock[FRONTIER] = done


@part()
def _record(state: State, i: Any, begin: Any, consumed: Any, done: Any, start: Any, queued: Any) -> Any:
    """Write an execution into the trace, as long as that has rows; which row, or -1."""
    clock, trace = state.clock, state.trace
    traced, written = clock[TRACED], -1
    if traced < trace.shape[0]:
        trace[traced, 0], trace[traced, 1], trace[traced, 2], trace[traced, 3] = i, begin, consumed, done
        trace[traced, 4], trace[traced, 9] = start, queued
        written = traced
    clock[TRACED] = traced + 1
    return written


@part()
def _record_wait(state: State, row: Any, before: Any, begin: Any, arrived: Any, latest: Any, cause: Any) -> None:
    """Write what `_book_wait` booked beside an execution in the trace."""
    trace, came = state.trace, min(arrived, begin)
    trace[row, 5], trace[row, 6], trace[row, 7] = min(before, begin), came, came
    if latest > came:
        trace[row, 7], trace[row, 8] = min(latest, begin), cause
