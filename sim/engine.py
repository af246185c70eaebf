"""Runs a Program on a Chip: tables in, tables out."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Program, Unit, disassemble
from siliconloom.sim.tables import Counter, Int, Stall, Tables, build_tables


@dataclass(frozen=True)
class Run:
    """Outcome of one run of one tile, in cycles of its clock.

    Parameters
    ----------
    busy, stalls
        Per `Unit`, and per `Unit` and `Stall`; each row of both adds up to ``cycles``.
    start, end, exclusive
        Per operator: first start, last end, and its share of the total (the shares add up to ``cycles``).
    operator_busy
        Per operator and `Unit`.
    counters
        Per operator and `Counter`, over the whole run.
    trace
        Rows of (instruction, first work, operands read, end, leaves the queue) in order of start, at most as many as
        were asked for.
    waiting
        Per `Unit`: cycles in which an instruction stood at the head of its queue and could not start.
    """

    cycles: int
    events: int
    busy: Int
    stalls: Int
    start: Int
    end: Int
    exclusive: Int
    operator_busy: Int
    counters: Int
    trace: Int
    executions: Int
    waiting: Int
    wall_s: float


def run(program: Program, chip: Chip, *, trace_limit: int = 0) -> Run:
    """Simulate every event of ``program`` on one tile of ``chip``.

    Raises
    ------
    LoomError
        On a deadlock (with the waiting units, instructions and semaphores), a semaphore that overflows, or a time
        beyond the counter.
    """
    from siliconloom.sim import kernel  # imports Numba, which costs most of a second

    tables = build_tables(program, chip)
    began = time.perf_counter()
    (
        status,
        cycles,
        events,
        executions,
        busy,
        stalls,
        start,
        end,
        exclusive,
        operator_busy,
        waiting,
        trace,
        heads,
        counts,
    ) = kernel.run(
        tables.instructions, tables.semaphores, tables.causes, tables.constants, len(program.operators), trace_limit
    )
    wall = time.perf_counter() - began
    if status != kernel.DONE:
        raise _failure(program, tables, int(status), heads, counts)
    if np.any(busy + stalls.sum(axis=1) != cycles):
        raise AssertionError("a unit's cycles do not add up to the total; this is a bug in the kernel")
    exclusive[int(np.argmax(end))] += cycles - exclusive.sum()
    operator = np.array([i.operator for i in program.instructions])
    counters = np.zeros((len(program.operators), len(Counter)), np.int64)
    np.add.at(counters, operator, tables.counters * executions[:, None])
    start = np.minimum(start, end)
    return Run(
        int(cycles),
        int(events),
        busy,
        stalls,
        start,
        end,
        exclusive,
        operator_busy,
        counters,
        trace,
        executions,
        waiting,
        wall,
    )


def _failure(program: Program, tables: Tables, status: int, heads: Int, counts: Int) -> LoomError:
    from siliconloom.sim import kernel

    if status == kernel.OVERFLOW_TIME:
        return LoomError("the simulated time does not fit 62 bits of cycles")
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


__all__ = ["Counter", "Run", "Stall", "run"]
