"""The event kernel's memory: everything that a stopped simulation needs to go on, as arrays of 64-bit integers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from siliconloom.arch.isa import SEMAPHORE_LIMIT
from siliconloom.arch.opcodes import UNIT_BITS
from siliconloom.arch.word import LEVELS, SEMAPHORES
from siliconloom.sim.chip.tables import Stall, Tables, UnitConstants

UNITS = 1 << UNIT_BITS
"""Rows for units: every code that a word may have, whether a unit is registered or not."""
STALLS = len(Stall)
RING = SEMAPHORE_LIMIT + 1
TIME_LIMIT = 2**62
"""First value that no time, and no number of events, may take."""

PC, LEVEL, SEQ, PORT, LOAD_FREE, STREAM_FREE, LAST_BEAT, FRONTIER, CYCLES, EVENTS = range(10)
SKIPPED, PERIODS, LOOKUPS, TRACED, FOLDED, ENTERED, ASKED, ANSWER = range(10, 18)
"""Entries of `State.clock`: next instruction, open loops; time of the sequencer, and until when the memory port, the
array's loader and its operand stream are taken; last beat of an output-stationary stream; end of the work whose time
has been given to an operator; end of the run; events, and how many of them, periods and look-ups were jumps; rows of
trace and folds; loops that were looked up; when the instruction starts whose duration the caller is asked for, and the
answer, 0 where there is none."""

FREE, READY, DONE, CONSUMED, ACCOUNTED, STARTS, WAITING, HEAD, LENGTH, DISPATCHED, TRANSFERS, STUCK = range(12)
"""Rows of `State.unit`: when the unit can take work, can see its next instruction, has finished, has read its
operands; up to when its cycles are booked as busy or as a stall; instructions started, and cycles they waited; place
of the oldest instruction in its queue and how many there are; instructions dispatched, transfers made; at a deadlock
the instruction in front, or -1."""

FIRST_TOKEN, TOKENS = range(2)
"""Rows of `State.semaphore`: place of the oldest token, and the count."""

KNOWN, LACKING, REQUEST, START = range(4)
"""Rows of `State.outlook`: what is known (`UNKNOWN` and so on); the semaphore whose count is missing; from when the
instruction asks for what it needs, and when it can start but for the memory port."""
UNKNOWN, LACKS, STARTS_ALONE, STARTS_AT_PORT = range(4)
"""Nothing is known of a unit's next instruction; a semaphore's count is missing; when it can start, without the memory
port or with it."""

BODY, INDEX, COUNT = range(3)
"""Rows of `State.loop`, per level: first instruction inside, iteration, iterations."""

OP_START, OP_END, OP_EXCLUSIVE = range(3)
"""Rows of `State.operator`: first start, last end, and the time that nothing before it had been given."""


class TileMachine(NamedTuple):
    """What a program and the tile that it runs on are to the kernel."""

    table: Any
    """`Tables.instructions`."""
    causes: Any
    """`Tables.causes`."""
    constants: UnitConstants
    loops: Any
    """See `sim.chip.recurrence.find_loops`."""


class Wishes(NamedTuple):
    """What is to be run in full, and what to be written down."""

    jumps: bool
    """Whether what repeats is jumped; otherwise every event is run."""
    protect: tuple[int, int]
    """First cycle, and first cycle after those, in which nothing may be jumped."""
    record: tuple[int, int]
    """The same for the executions that go into the trace."""
    worth: int = 0
    """Instructions that a jump must save, or it is not looked for: what is looked for takes time of its own."""


class State(NamedTuple):
    """One tile in the middle of a program; arrays are changed in place."""

    clock: Any
    unit: Any
    queue: Any
    """Per unit and place: instruction, dispatch time, whether its ``first`` and its ``last`` predicate hold."""
    started: Any
    """When instruction number n of a unit left its queue, at n modulo the queue's depth."""
    in_flight: Any
    """When transfer number n of a unit is complete, at n modulo the most that are outstanding."""
    semaphore: Any
    token: Any
    """Per semaphore and place: when the count arrived."""
    outlook: Any
    """When the next instruction of each unit can start, as far as that is known: rows from `KNOWN` on."""
    loop: Any
    stalls: Any
    executions: Any
    """How often each instruction was dispatched."""
    operator: Any
    trace: Any
    """Instruction, first work, operands read, end, leaves the queue; from when its unit has waited for it, until it was
    there, until its last semaphore was posted, the `Stall` that this was; enters its queue."""
    folds: Any
    """Jumps: last instruction of the loop, from and to cycle, cycles of a period, periods, iterations of a period; by
    how much what is repeated is later each time, first and last-but-one row of the trace that it is, first and
    last-but-one jump, and how many rows the trace has before it."""


FOLD_COLUMNS = 12
TRACE_COLUMNS = 10


def initial_state(tables: Tables, operators: int, trace_limit: int, fold_limit: int) -> State:
    """A tile before its first cycle."""
    state = empty_state(tables.constants, len(tables.instructions), operators, trace_limit, fold_limit)
    begin(state, tables)
    return state


def empty_state(
    constants: UnitConstants, instructions: int, operators: int, trace_limit: int = 0, fold_limit: int = 0
) -> State:
    """Room for the states of a tile in programs of so many instructions at most, and of so many operators."""
    depth, outstanding = constants.queue_depth, constants.outstanding

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.int64)

    return State(
        clock=zeros(18),
        unit=zeros(12, UNITS),
        queue=zeros(UNITS, depth, 4),
        started=zeros(UNITS, depth),
        in_flight=zeros(UNITS, outstanding),
        semaphore=zeros(2, SEMAPHORES),
        token=zeros(SEMAPHORES, RING),
        outlook=zeros(4, UNITS),
        loop=zeros(3, LEVELS),
        stalls=zeros(UNITS, STALLS),
        executions=zeros(instructions),
        operator=zeros(3, operators),
        trace=zeros(trace_limit, TRACE_COLUMNS),
        folds=zeros(fold_limit, FOLD_COLUMNS),
    )


def begin(state: State, tables: Tables) -> None:
    """Put a tile, of which every number is 0, before its first cycle."""
    state.clock[LAST_BEAT] = -(2**61)
    state.unit[STUCK] = -1
    state.semaphore[TOKENS] = tables.semaphores
    state.operator[OP_START] = TIME_LIMIT


def begin_again(state: State, tables: Tables) -> None:
    """Put a tile before its first cycle, whatever it did before."""
    for numbers in state:
        if numbers is not state.token:
            numbers.fill(0)
    state.token[:, : tables.semaphores.max()] = 0  # nobody looks at places that nothing was put into
    begin(state, tables)
