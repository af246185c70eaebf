"""The command sequencer of a PIM channel, command after command; `sim.pim.channel` has its rules.

Plain Python that Numba compiles. Every agent says when its next command could go out, the earliest goes, and moves its
agent on. Agents are numbered: bank machines from 0 on, then computation, then the refresh of each domain.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import UNCOUNTED, kernel, part
from siliconloom.arch.pim import RESULT_BYTES, Command, MacroKind
from siliconloom.sim.pim.state import (
    ACCEPTED,
    ACTIVATE,
    AFTER,
    ARRIVAL,
    BANK,
    BEFORE,
    BUFFER,
    BUFFER_READY,
    BUS,
    BUSY,
    CHUNK,
    CHUNKS,
    CLOSE,
    COLUMN,
    COLUMNS,
    DELAY,
    DONE,
    DOT_READY,
    DOTS,
    DRAIN,
    DRAINED,
    DRIVER,
    FILLED,
    FIRST,
    FREE,
    IDLE,
    KIND,
    LAST,
    LAST_WIDTH,
    LOGGED,
    MOVED,
    MULTIPLY,
    NEVER,
    OFFERED,
    OPEN,
    OWN,
    PENDING,
    PHASE,
    PIM_IDLE,
    PIM_OPEN,
    PIM_READY,
    PIM_REOPEN,
    PLACE,
    PRECHARGE,
    READ_READY,
    READY,
    REOPEN,
    RESULT_READY,
    ROUND,
    ROUNDS,
    ROW,
    SEGMENTS,
    SINGLE,
    STEP,
    SWITCHED,
    TAKEN,
    WIDTH,
    WRITE_READY,
    ChannelOutcome,
    ChannelState,
    ChannelWork,
    PimTimes,
)

_ACT, _RD, _WR, _PRE, _REF = (int(Command[name]) for name in ("ACT", "RD", "WR", "PRE", "REF"))
_PIM_ACT, _PIM_DOT, _PIM_PRE = int(Command.PIM_ACT), int(Command.PIM_DOT), int(Command.PIM_PRE)
_PIM_READ, _PIM_WRITE = int(Command.PIM_READ), int(Command.PIM_WRITE)
_GEMV, _READ = int(MacroKind.GEMV), int(MacroKind.READ)
_RESULT = RESULT_BYTES


@kernel(**UNCOUNTED)
def run(timing: PimTimes, work: ChannelWork, state: ChannelState, outcome: ChannelOutcome) -> Any:
    """Run all macros; how many commands that took, or -1 when none can go out although some are wanted."""
    clock = state.clock
    while True:
        _take_transfers(timing, work, state, outcome)
        _take_computation(timing, work, state, outcome)
        working, waiting, oldest = _look_around(timing, work, state)
        if not working:
            return clock[LOGGED]
        best, now = _earliest(timing, work, state, waiting, oldest)
        if now == NEVER:
            return -1
        clock[BUS] = now + 1
        owner = -1
        if best > timing.machines:
            code, where, row, column = _refresh(timing, state, best - timing.machines - 1, now)
        elif best == timing.machines:
            owner = clock[BUSY]
            code, where, row, column = _compute(timing, work, state, outcome, now)
        else:
            owner = state.machine[OWN, best]
            code, where, row, column = _transfer(timing, work, state, outcome, best, now)
        outcome.counts[code] += 1
        if clock[LOGGED] < len(outcome.commands):
            entry = outcome.commands[clock[LOGGED]]
            entry[0], entry[1], entry[2], entry[3], entry[4], entry[5] = now, code, where, row, column, owner
        clock[LOGGED] += 1


@part()
def _offered(work: ChannelWork, outcome: ChannelOutcome, i: Any) -> Any:
    """First cycle in which a macro is offered."""
    arrival, after = work.macros[i, ARRIVAL], work.macros[i, AFTER]
    if after < 0:
        return arrival
    return max(arrival, outcome.times[DONE, after] + work.macros[i, DELAY])


@part()
def _take_transfers(timing: PimTimes, work: ChannelWork, state: ChannelState, outcome: ChannelOutcome) -> None:
    """Hand transfers, in order, to bank machines that are idle."""
    clock, machine = state.clock, state.machine
    while clock[OFFERED] < len(work.transfer) and (timing.dual or clock[BUSY] < 0):
        i = work.transfer[clock[OFFERED]]
        m = work.macros[i, BANK] % timing.machines
        if machine[PHASE, m] != IDLE:
            break
        t = max(_offered(work, outcome, i), clock[BEFORE] + 1, machine[FREE, m])
        if not timing.dual:
            t = max(t, clock[PIM_IDLE])
            accepted = clock[ACCEPTED]
            if accepted < len(work.compute) and t >= _offered(work, outcome, work.compute[accepted]):
                break
        outcome.times[TAKEN, i], clock[BEFORE] = t, t
        machine[PHASE, m], machine[OWN, m], machine[READY, m], machine[MOVED, m] = OPEN, i, t + 1, 0
        clock[OFFERED] += 1


@part()
def _take_computation(timing: PimTimes, work: ChannelWork, state: ChannelState, outcome: ChannelOutcome) -> None:
    """Begin the next macro of computation, if none is under way and, with one row buffer, no transfer either."""
    clock = state.clock
    if clock[BUSY] >= 0 or clock[ACCEPTED] == len(work.compute):
        return
    i = work.compute[clock[ACCEPTED]]
    t = max(_offered(work, outcome, i), clock[PIM_IDLE])
    if not timing.dual:
        for m in range(timing.machines):
            if state.machine[PHASE, m] != IDLE:
                return
            t = max(t, state.machine[FREE, m])
    outcome.times[TAKEN, i] = t
    clock[BUSY], clock[PIM_READY] = i, t + 1
    clock[ACCEPTED] += 1
    clock[STEP] = ACTIVATE if work.macros[i, KIND] == _GEMV else BUFFER
    clock[PLACE], clock[ROUND], clock[CHUNK], clock[PENDING], clock[DOTS], clock[SINGLE] = 0, 0, 0, 0, 0, 0


@part()
def _look_around(timing: PimTimes, work: ChannelWork, state: ChannelState) -> Any:
    """Whether anything is under way, and which bank machine has to open its row, and to move its data, first, or -1.

    Says in `ChannelState.in_use`, too, where rows are open.
    """
    machine, reached = state.machine, timing.banks // timing.domains
    for domain in range(timing.domains):
        state.in_use[domain] = state.clock[PIM_OPEN]
    working, waiting, oldest = state.clock[BUSY] >= 0, -1, -1
    for m in range(timing.machines):
        phase = machine[PHASE, m]
        if phase in (COLUMNS, CLOSE):
            state.in_use[work.macros[machine[OWN, m], BANK] // reached] = 1
        if phase == OPEN and (waiting < 0 or machine[OWN, m] < machine[OWN, waiting]):
            waiting = m
        if phase in (OPEN, COLUMNS) and (oldest < 0 or machine[OWN, m] < machine[OWN, oldest]):
            oldest = m
        working = working or phase != IDLE
    return working, waiting, oldest


@part()
def _earliest(timing: PimTimes, work: ChannelWork, state: ChannelState, waiting: Any, oldest: Any) -> Any:
    """The agent whose command goes out next, and when: refresh before computation before transfers."""
    clock, machine = state.clock, state.machine
    best, when = -1, NEVER
    for domain in range(timing.domains):
        due = state.next_refresh[domain]
        t = max(due, state.closed[domain], state.refreshed[domain], clock[BUS])
        if state.in_use[domain] == 0 and due < NEVER and t < when:
            best, when = timing.machines + 1 + domain, t
    if clock[BUSY] >= 0:
        t = _computation_at(timing, state)
        if t < when:
            best, when = timing.machines, t
    swapped = timing.machines == 2 and machine[PHASE, 0] != IDLE and machine[PHASE, 1] != IDLE
    swapped = swapped and machine[OWN, 1] < machine[OWN, 0]
    for turn in range(timing.machines):
        m = 1 - turn if swapped else turn  # the transfer that was taken earlier first
        if machine[PHASE, m] == IDLE:
            continue
        t = _transfer_at(timing, work, state, m, waiting, oldest)
        if t < when:
            best, when = m, t
    return best, when


@part()
def _computation_at(timing: PimTimes, state: ChannelState) -> Any:
    """Earliest cycle of computation's next command."""
    clock, step = state.clock, state.clock[STEP]
    t = max(clock[PIM_READY], clock[BUS])
    if step in (BUFFER, DRAIN) and clock[DRIVER] != timing.ranks:
        t = max(t, clock[SWITCHED])
    if step == BUFFER:
        return max(t, clock[WRITE_READY], clock[BUFFER_READY])
    if step == DRAIN:
        return max(t, clock[RESULT_READY], clock[READ_READY])
    if step == MULTIPLY:
        return max(t, clock[DOT_READY], clock[FILLED])
    if step == ACTIVATE:
        rank = clock[PLACE] % timing.ranks + timing.own_windows * timing.ranks
        t = max(t, state.opened[rank], state.activated[rank, 4 - timing.group] + timing.tFAW)
        if clock[PLACE] == 0:
            t = max(t, clock[PIM_REOPEN])
            if not timing.dual:
                for m in range(timing.machines):
                    t = max(t, state.machine[REOPEN, m])
            due = NEVER
            for domain in range(timing.domains):
                t, due = max(t, state.refreshed[domain]), min(due, state.next_refresh[domain])
            if t >= due:
                return NEVER
    return t


@part()
def _transfer_at(timing: PimTimes, work: ChannelWork, state: ChannelState, m: Any, waiting: Any, oldest: Any) -> Any:
    """Earliest cycle of a bank machine's next command; `NEVER` while another has to go first, or a refresh is due."""
    clock, machine = state.clock, state.machine
    i = machine[OWN, m]
    bank = work.macros[i, BANK]
    rank, t = bank // (timing.banks // timing.ranks), max(machine[READY, m], clock[BUS])
    if machine[PHASE, m] == OPEN:
        domain = bank // (timing.banks // timing.domains)
        t = max(t, machine[REOPEN, m], state.opened[rank], state.activated[rank, 3] + timing.tFAW)
        t = max(t, state.refreshed[domain])
        if not timing.dual:
            t = max(t, clock[PIM_REOPEN])
        return NEVER if m != waiting or t >= state.next_refresh[domain] else t
    if machine[PHASE, m] == COLUMNS:
        if m != oldest:
            return NEVER
        t = max(t, clock[READ_READY] if work.macros[i, KIND] == _READ else clock[WRITE_READY])
        if rank != clock[DRIVER]:
            t = max(t, clock[SWITCHED])
    return t


@part()
def _refresh(timing: PimTimes, state: ChannelState, domain: Any, now: Any) -> Any:
    """A refresh goes out; this and what follows give command, place, row and column."""
    state.refreshed[domain] = now + timing.tRFC
    state.next_refresh[domain] += timing.refresh
    return _REF, domain, -1, 0


@part()
def _move(timing: PimTimes, clock: Any, driver: Any, reading: Any, now: Any) -> Any:
    """A burst takes the data bus; when it has crossed it."""
    clock[DRIVER], clock[SWITCHED] = driver, now + timing.switch
    if reading:
        clock[READ_READY] = max(clock[READ_READY], now + timing.gap)
        clock[WRITE_READY] = max(clock[WRITE_READY], now + timing.read_to_write)
        return now + timing.read_done
    clock[WRITE_READY] = max(clock[WRITE_READY], now + timing.gap)
    clock[READ_READY] = max(clock[READ_READY], now + timing.write_to_read)
    return now + timing.write_done


@part()
def _transfer(
    timing: PimTimes, work: ChannelWork, state: ChannelState, outcome: ChannelOutcome, m: Any, now: Any
) -> Any:
    """A bank machine's command goes out."""
    machine, times, i = state.machine, outcome.times, state.machine[OWN, m]
    bank, phase = work.macros[i, BANK], machine[PHASE, m]
    rank = bank // (timing.banks // timing.ranks)
    if phase == OPEN:
        state.opened[rank] = now + timing.tRRD
        for n in range(3, 0, -1):
            state.activated[rank, n] = state.activated[rank, n - 1]
        state.activated[rank, 0] = now
        times[FIRST, i] = now
        machine[READY, m], machine[REOPEN, m], machine[PHASE, m] = now + timing.tRCD, now + timing.tRC, COLUMNS
        return _ACT, bank, work.macros[i, ROW], 0
    if phase == COLUMNS:
        reading = work.macros[i, KIND] == _READ
        times[DONE, i] = _move(timing, state.clock, rank, reading, now)
        column = work.macros[i, COLUMN] + machine[MOVED, m]
        machine[MOVED, m] += 1
        if machine[MOVED, m] == work.macros[i, WIDTH]:
            recovery = timing.tRTP if reading else timing.write_recovery
            machine[READY, m], machine[PHASE, m] = max(now + recovery, times[FIRST, i] + timing.tRAS), CLOSE
        return _RD if reading else _WR, bank, -1, column
    machine[REOPEN, m] = max(machine[REOPEN, m], now + timing.tRP)
    state.closed[bank // (timing.banks // timing.domains)] = now + timing.tRP
    times[LAST, i], machine[FREE, m] = now, now + 1
    machine[PHASE, m], machine[OWN, m] = IDLE, -1
    return _PRE, bank, -1, 0


@part()
def _compute(timing: PimTimes, work: ChannelWork, state: ChannelState, outcome: ChannelOutcome, now: Any) -> Any:
    """Computation's command goes out."""
    clock, times, i, step = state.clock, outcome.times, state.clock[BUSY], state.clock[STEP]
    clock[PIM_READY] = now + 1
    if times[FIRST, i] < 0:
        times[FIRST, i] = now
    code, where, row, column, finished = _PIM_PRE, 0, -1, 0, False
    if step == BUFFER:
        code, column = _PIM_WRITE, work.macros[i, COLUMN] + clock[PLACE]
        clock[FILLED] = _move(timing, clock, timing.ranks, False, now)
        times[DONE, i] = clock[FILLED]
        clock[PLACE] += 1
        finished = clock[PLACE] == work.macros[i, WIDTH]
    elif step == ACTIVATE:
        code, where = _PIM_ACT, clock[PLACE]
        row = work.macros[i, ROW] + clock[ROUND] * work.macros[i, CHUNKS] + clock[CHUNK]
        _open_group(timing, state, now)
    elif step == DRAIN:
        code, column = _PIM_READ, clock[DRAINED]
        times[DONE, i] = _move(timing, clock, timing.ranks, True, now)
        finished = _drained(timing, clock)
    elif step == MULTIPLY:
        code, where, column = _PIM_DOT, clock[SINGLE], clock[DOTS]
        row = work.macros[i, ROW] + clock[ROUND] * work.macros[i, CHUNKS] + clock[CHUNK]
        _multiply(timing, work, clock, i, now)
    else:
        _close_rows(timing, work, state, i, now)
    if finished:
        times[LAST, i], clock[PIM_IDLE], clock[BUSY] = now, now + 1, -1
    return code, where, row, column


@part()
def _open_group(timing: PimTimes, state: ChannelState, now: Any) -> None:
    """Open a row in a group of banks; after the first group the results of the round before are read."""
    clock, group, activated = state.clock, timing.group, state.activated
    rank = clock[PLACE] % timing.ranks + timing.own_windows * timing.ranks
    state.opened[rank] = now + timing.tRRD
    for n in range(3, -1, -1):
        activated[rank, n] = activated[rank, n - group] if n >= group else now
    clock[DOT_READY] = max(clock[DOT_READY], now + timing.tRCD)
    clock[PIM_REOPEN], clock[PIM_OPEN] = now + timing.tRC, 1
    clock[PLACE] += 1
    if clock[PLACE] == 1 and clock[PENDING] > 0:
        clock[STEP], clock[DRAINED] = DRAIN, 0
    elif clock[PLACE] == timing.groups:
        clock[STEP], clock[DOTS], clock[SINGLE] = MULTIPLY, 0, 0


@part()
def _drained(timing: PimTimes, clock: Any) -> Any:
    """After a burst of results was read: whether that was the macro's last command."""
    clock[DRAINED] += 1
    if clock[DRAINED] < clock[PENDING]:
        return False
    clock[PENDING] = 0
    if not clock[PIM_OPEN]:
        return True
    clock[STEP] = ACTIVATE
    if clock[PLACE] == timing.groups:
        clock[STEP], clock[DOTS], clock[SINGLE] = MULTIPLY, 0, 0
    return False


@part()
def _multiply(timing: PimTimes, work: ChannelWork, clock: Any, i: Any, now: Any) -> None:
    """A dot product in all banks, or in one after the other."""
    macros = work.macros
    width = macros[i, WIDTH]
    if clock[CHUNK] == macros[i, CHUNKS] - 1 and macros[i, LAST_WIDTH] > 0:
        width = macros[i, LAST_WIDTH]
    clock[RESULT_READY], clock[BUFFER_READY] = now + timing.dot_latency, now + timing.dot_latency
    clock[SINGLE] += 1
    if clock[SINGLE] < timing.singles:
        clock[DOT_READY] = now + 1
        return
    clock[SINGLE] = 0
    clock[DOTS] += 1
    # a bank is served again after its interval: the first of them was served `singles` - 1 cycles ago
    clock[DOT_READY] = now + max(timing.dot_interval - (timing.singles - 1), 1)
    if clock[DOTS] == macros[i, SEGMENTS] * width:
        clock[STEP] = PRECHARGE
        clock[PIM_READY] = max(now + timing.tRTP, clock[PIM_REOPEN] - timing.tRC + timing.tRAS)


@part()
def _close_rows(timing: PimTimes, work: ChannelWork, state: ChannelState, i: Any, now: Any) -> None:
    """Close the rows of all banks, and go on to the next chunk, the next round, or the last results."""
    clock, macros = state.clock, work.macros
    clock[PIM_REOPEN], clock[PIM_OPEN] = max(clock[PIM_REOPEN], now + timing.tRP), 0
    for domain in range(timing.domains):
        state.closed[domain] = now + timing.tRP
    clock[PLACE], clock[STEP] = 0, ACTIVATE
    if clock[CHUNK] < macros[i, CHUNKS] - 1:
        clock[CHUNK] += 1
        return
    clock[PENDING] = -(-macros[i, SEGMENTS] * timing.banks * _RESULT // timing.burst_bytes)
    clock[CHUNK] = 0
    clock[ROUND] += 1
    if clock[ROUND] == macros[i, ROUNDS]:
        clock[STEP], clock[DRAINED] = DRAIN, 0
