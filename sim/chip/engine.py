"""Runs a Program on a Chip: tables in, tables out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

import numpy as np
from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Draft, Opcode, Program, Unit
from siliconloom.arch.listing import disassemble
from siliconloom.arch.machine_code import FixedArgument
from siliconloom.arch.opcodes import memory_units
from siliconloom.arch.pim import Command
from siliconloom.sim.chip.channel import ChannelDriver, drives_channel
from siliconloom.sim.chip.levels import level_traffic
from siliconloom.sim.chip.state import (
    CYCLES,
    EVENTS,
    FOLDED,
    LOOKUPS,
    OP_END,
    OP_EXCLUSIVE,
    OP_START,
    PERIODS,
    SKIPPED,
    STUCK,
    TOKENS,
    TRACED,
    UNITS,
    WAITING,
    State,
    TileMachine,
    Wishes,
    begin_again,
    empty_state,
    initial_state,
)
from siliconloom.sim.chip.tables import COLUMNS, Counter, Int, Stall, Tables, Timer, build_tables

Progress = Callable[[float], None]


EVERYTHING = (0, 2**62)
"""Record the whole run, jumps folded."""
NOTHING = (0, 0)
SLICE = 4_000_000
"""Events between two looks at the clock and the keyboard."""
WORTH = 128
"""Instructions that a jump must save where cycles alone are asked for: so many, and no fewer, take longer than it does
to write down a few states, most of which are none that the tile was in before."""
FOLD_LIMIT = 5_000
"""Most jumps to list in a trace."""


class Run(Struct, frozen=True):
    """Outcome of one run of one tile, in cycles of its clock.

    Parameters
    ----------
    events, events_skipped
        Dispatches, starts and ends that were run, and those that were jumped: ``periods`` periods of loops, and
        ``lookups`` whole loops that began in a state they had begun in before.
    busy, stalls
        Per `Unit`, and per `Unit` and `Stall`; each row of both adds up to ``cycles``.
    start, end, exclusive
        Per operator: first start, last end, and its share of the total (the shares add up to ``cycles``): what runs
        beside a neighbour counts for one of the two.
    own
        Per operator: its share, or the cycles for which it held one resource (memory port, array, the array's load
        port, vector unit) where that is longer. What ``own`` exceeds the share by, it ran beside its neighbours.
    operator_busy
        Per operator and `Unit`.
    counters
        Per operator and `Counter`, over the whole run and all tiles.
    traffic
        Per operator, memory level and column of `sim.chip.levels.level_traffic`, likewise.
    trace
        Rows of (instruction, first work, operands read, end, leaves the queue; from when its unit has waited for it,
        until it was there, until its last semaphore was posted, which `Stall` that was; enters its queue) in order of
        start, at most as many as were asked for; ``trace_rows`` is how many there would have been without that limit.
    folds
        The first `FOLD_LIMIT` jumps, when there is a trace: (last instruction of the loop, from cycle, to cycle, cycles
        of a period, periods, iterations of a period, or zero for a whole loop that was looked up; by how many cycles
        what it repeats is later each time, the rows of the trace and the jumps that it repeats, first and
        last-but-one of each, rows of the trace before it); ``jumps`` is how many there were. Of the whole run, trace
        and jumps together are every execution.
    commands
        Per operator and `arch.pim.Command`: those of the channel that the program drives.
    waiting
        Per `Unit`: cycles in which an instruction stood at the head of its queue and could not start.
    """

    cycles: int
    events: int
    events_skipped: int
    periods: int
    lookups: int
    busy: Int
    stalls: Int
    start: Int
    end: Int
    exclusive: Int
    own: Int
    operator_busy: Int
    counters: Int
    traffic: Int
    trace: Int
    trace_rows: int
    folds: Int
    jumps: int
    executions: Int
    commands: Int
    waiting: Int
    wall_s: float


def run(
    program: Program,
    chip: Chip,
    *,
    exact: bool = False,
    trace_limit: int = 0,
    window: tuple[int, int] | None = None,
    progress: Progress | None = None,
    commands: list[tuple[int, ...]] | None = None,
) -> Run:
    """Simulate ``program`` on one tile of ``chip``.

    Parameters
    ----------
    program, chip
        What to run, and on what.
    exact
        Run every event; otherwise what repeats is jumped, with the same outcome (``docs/engine.md``).
    trace_limit
        Most executions to record.
    window
        Record what happens from the first of these cycles until the second, without a jump in between; the whole run,
        jumps folded, when not given.
    progress
        Called with the share of the program's events that lies behind, every `SLICE` events that were run.
    commands
        Is given every command of the tile's channel that computes: cycle, command, place, row, column.

    Raises
    ------
    LoomError
        On a deadlock (with the waiting units, instructions and semaphores), a semaphore that overflows, or a time
        beyond the counter.
    """
    from siliconloom.sim.chip import kernel
    from siliconloom.sim.chip import recurrence as fast

    tables = build_tables(program, chip)
    state = initial_state(tables, len(program.operators), trace_limit, FOLD_LIMIT if trace_limit else 0)
    machine = TileMachine(tables.instructions, tables.causes, tables.constants, fast.find_loops(tables))
    wishes = Wishes(not exact, window or NOTHING, (window or EVERYTHING) if trace_limit else NOTHING)
    expected = program_events(tables) if progress else 0

    channel = ChannelDriver(program, chip, log=commands is not None) if drives_channel(program) else None
    if channel is not None:
        wishes = wishes._replace(jumps=False)
    with _rooms().snapshots() as snapshots:

        def go_on(budget: int) -> int:
            return int(kernel.run(machine, wishes, snapshots, state, budget))  # type: ignore[arg-type]

        go_on(0)  # loads the machine code, or compiles it; that is not the simulation's time
        began = time.perf_counter()
        while True:
            status = go_on(SLICE)
            if status == kernel.ASKING:
                assert channel is not None
                channel.answer(state)
                continue
            if status != kernel.RUNNING:
                break
            if progress:
                progress(int(state.clock[EVENTS]) / expected)
        wall = time.perf_counter() - began
    if status != kernel.DONE:
        raise _failure(program, tables, int(status), state)
    if commands is not None and channel is not None:
        commands += channel.channel.commands
    return _outcome(program, chip, tables, state, wall, channel)


class _Rooms:
    """Room for states of a tile, and for those that recur, whose pages take longer to get than most programs to run."""

    def __init__(self) -> None:
        self._snapshots: FixedArgument | None = None
        self._states: dict[tuple[int, ...], FixedArgument] = {}

    @contextmanager
    def snapshots(self) -> Iterator[FixedArgument]:
        """Room for states that recur, empty, which nobody else has meanwhile: no simulation within this one."""
        from siliconloom.sim.chip import recurrence

        taken, self._snapshots = self._snapshots or FixedArgument(recurrence.empty_snapshots()), None
        recurrence.empty(taken.value)
        try:
            yield taken
        finally:
            self._snapshots = taken

    def state(self, tables: Tables, operators: int) -> FixedArgument:
        """That of a tile in a program with so many operators."""
        sizes = 1 << len(tables.instructions).bit_length(), 1 << operators.bit_length()
        key = *sizes, tables.constants.queue_depth, tables.constants.outstanding
        found = self._states.get(key)
        if found is None:
            if len(self._states) >= MOST_STATES:
                self._states.clear()
            found = self._states[key] = FixedArgument(empty_state(tables.constants, *sizes))
        return found


MOST_STATES = 64
"""Sizes of states that are kept, of about a MiB each."""
_OWN = threading.local()


def _rooms() -> _Rooms:
    """Those of this thread."""
    found: _Rooms | None = getattr(_OWN, "rooms", None)
    if found is None:
        found = _OWN.rooms = _Rooms()
    return found


class Stopwatch:
    """Cycles of `run`, and nothing else, of one program after the other: for the many of which one will be chosen.

    What is the same from program to program is kept: rows of instructions, and the room for states (`_Rooms`).
    """

    def __init__(self, chip: Chip) -> None:
        self.chip, self._timer = chip, Timer(chip)
        self._wishes = FixedArgument(Wishes(True, NOTHING, NOTHING, WORTH))
        self._in_full = FixedArgument(Wishes(False, NOTHING, NOTHING))

    def __call__(self, program: Program) -> int:
        """Cycles of ``program``; raises `LoomError` as `run` does."""
        if not isinstance(program, Draft):
            return self._run(program)
        cycles: int | None = program.kept.get(self._timer.key)
        if cycles is None:
            cycles = program.kept[self._timer.key] = self._run(program)
        return cycles

    def _run(self, program: Program) -> int:
        from siliconloom.sim.chip import kernel
        from siliconloom.sim.chip import recurrence as fast

        tables = build_tables(program, self.chip, timer=self._timer)
        tile = _rooms().state(tables, len(program.operators))
        state: State = tile.value
        begin_again(state, tables)
        if isinstance(program, Draft) and "loops" not in program.kept:
            program.kept["loops"] = fast.find_loops(tables)
        loops = program.kept["loops"] if isinstance(program, Draft) else fast.find_loops(tables)
        machine = TileMachine(tables.instructions, tables.causes, tables.constants, loops)
        status = kernel.RUNNING
        channel = ChannelDriver(program, self.chip) if drives_channel(program) else None
        wishes = self._wishes if channel is None else self._in_full
        with _rooms().snapshots() as snapshots:
            while status in (kernel.RUNNING, kernel.ASKING):
                if status == kernel.ASKING:
                    assert channel is not None
                    channel.answer(state)
                status = int(kernel.run(machine, wishes, snapshots, tile, SLICE))  # type: ignore[arg-type]
        if status != kernel.DONE:
            raise _failure(program, tables, status, state)
        return int(state.clock[CYCLES])


def duration(program: Program, chip: Chip) -> int:
    """Cycles of `run`, and nothing else; raises `LoomError` as it does."""
    return Stopwatch(chip)(program)


def program_events(tables: Tables) -> int:
    """How many events a whole run of a program has: three for every instruction that a unit executes."""
    rows, times, total = tables.instructions, [1], 0
    for opcode, m in rows[:, [COLUMNS["opcode"], COLUMNS["m"]]].tolist():
        if opcode == Opcode.LOOP:
            times.append(times[-1] * m)
        elif opcode == Opcode.NEXT:
            times.pop()
        elif opcode != Opcode.END:
            total += 3 * times[-1]
    return total


def _sums_read(program: Program, chip: Chip, executions: Int) -> Int:
    """Bytes of sums that products read because they add to them in all but the first iterations of a loop."""
    found, counts = np.zeros(len(program.instructions), np.int64), list[int]()
    for number, i in enumerate(program.instructions):
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        elif i.opcode == Opcode.MATMUL and i.overwrite and not i.accumulate:
            every = prod(count for level, count in enumerate(counts) if i.overwrite >> level & 1)
            adding = int(executions[number]) - int(executions[number]) // every
            tiles = program.tiles_of(number, chip.tile_count)
            found[number] = adding * i.dtype.accumulator.size(i.m * i.n) * tiles
    return found


def _outcome(
    program: Program, chip: Chip, tables: Tables, state: State, wall: float, channel: ChannelDriver | None = None
) -> Run:
    rows, clock, executions = tables.instructions, state.clock, state.executions
    cycles, operators = int(clock[CYCLES]), len(program.operators)
    opcode, unit, operator = (rows[:, COLUMNS[name]] for name in ("opcode", "unit", "operator"))
    product, barrier = opcode == Opcode.MATMUL, opcode == Opcode.BARRIER  # launching a program is no unit's work
    work = executions * np.where(product, rows[:, COLUMNS["work"]], rows[:, COLUMNS["duration"]] * ~barrier)
    operator_busy = np.zeros((operators, UNITS), np.int64)
    np.add.at(operator_busy, (operator, unit), work)
    if channel is not None:
        operator_busy[:, Unit.PIM] += channel.busy
    busy = operator_busy.sum(axis=0)
    looping = (opcode == Opcode.LOOP) | (opcode == Opcode.NEXT)
    constants = tables.constants
    busy[Unit.SEQUENCER] = (
        constants.loop_cycles * executions[looping].sum() + constants.issue_cycles * executions[~looping].sum()
    )
    stalls = state.stalls
    stalls[:, Stall.FINISHED] = cycles - busy - stalls.sum(axis=1)
    if np.any(busy < 0) or np.any(stalls < 0):
        raise AssertionError("a unit's cycles do not add up to the total; this is a bug in the kernel")
    exclusive = state.operator[OP_EXCLUSIVE]
    exclusive[int(np.argmax(state.operator[OP_END]))] += cycles - exclusive.sum()
    most = np.abs(tables.counters).astype(float) * executions[:, None]
    if most.sum() >= 2.0**62:
        raise LoomError("what the program counts (operations, bytes) does not fit 62 bits")
    held = _held(tables, executions, operators, bool(constants.output_stationary))
    counters = np.zeros((operators, len(Counter)), np.int64)
    counted = tables.counters * executions[:, None]
    counted[:, Counter.ACCUMULATOR_READ] += _sums_read(program, chip, executions)
    np.add.at(counters, operator, counted)
    traced, folded = int(clock[TRACED]), int(clock[FOLDED])
    return Run(
        cycles=cycles,
        events=int(clock[EVENTS] - clock[SKIPPED]),
        events_skipped=int(clock[SKIPPED]),
        periods=int(clock[PERIODS]),
        lookups=int(clock[LOOKUPS]),
        busy=busy,
        stalls=stalls,
        start=np.minimum(state.operator[OP_START], state.operator[OP_END]),
        end=state.operator[OP_END],
        exclusive=exclusive,
        own=np.maximum(np.maximum(exclusive, held), 0 if channel is None else channel.busy),
        operator_busy=operator_busy,
        counters=counters,
        traffic=level_traffic(program, chip, executions),
        trace=state.trace[:traced],
        trace_rows=traced,
        folds=state.folds[:folded],
        jumps=folded,
        executions=executions,
        waiting=state.unit[WAITING],
        wall_s=wall,
        commands=np.zeros((operators, len(Command)), np.int64) if channel is None else channel.commands,
    )


def _held(tables: Tables, executions: Int, operators: int, output_stationary: bool) -> Int:
    """Per operator: cycles for which it held the resource that it held the longest; no two hold one at once.

    The array is held from a fold's tile becoming active, or from its drain (output stationary), until the next one's.
    """
    rows = tables.instructions
    column = {name: rows[:, number] for name, number in COLUMNS.items()}
    product, unit = column["opcode"] == Opcode.MATMUL, column["unit"]
    # these hold something else than themselves: nothing, array and loader, the memory port
    overlapped = (Unit.SEQUENCER, Unit.MATMUL, *memory_units())
    last = column["stream"]
    if output_stationary:
        last = np.maximum(last, tables.constants.array_rows)
    cycles = (
        np.where(tables.constants.engines >> unit & (column["opcode"] != Opcode.BARRIER), column["duration"], 0),
        *(np.where(unit == each, column["duration"], 0) for each in Unit if each not in overlapped),
        np.where(product, column["advance"] + last, 0),
        np.where(product, column["stationary"], 0),
    )
    held = np.zeros((len(cycles), operators), np.int64)
    for number, each in enumerate(cycles):
        np.add.at(held[number], column["operator"], each * executions)
    return np.asarray(held.max(axis=0))


def _failure(program: Program, tables: Tables, status: int, state: State) -> LoomError:
    from siliconloom.sim.chip import kernel

    heads, counts = state.unit[STUCK], state.semaphore[TOKENS]
    if status == kernel.OVERFLOW_TIME:
        return LoomError("the simulated time, or its number of events, does not fit 62 bits")
    lines = disassemble(program).splitlines()
    if status == kernel.OVERFLOW_SEMAPHORE:
        number = int(heads.max())
        text = f"semaphore overflow: a semaphore overflows at instruction {lines[number].strip()}"
        return IllegalProgram(Cause.SEMAPHORE_OVERFLOW, None, text)
    waiting = []
    for unit in Unit:
        number = int(heads[unit])
        if number < 0:
            continue
        i = program.instructions[number]
        empty = [
            s.name for bit, s in enumerate(program.semaphores) if (i.wait | i.first_wait) >> bit & 1 and not counts[bit]
        ]
        waiting.append(f"{unit.name.lower()} at instruction {number} waits for {', '.join(empty)}")
    return IllegalProgram(Cause.DEADLOCK, None, "deadlock: " + ("; ".join(waiting) or "nothing can start"))


__all__ = ["Counter", "Run", "Stall", "Stopwatch", "duration", "run"]
