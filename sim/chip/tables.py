"""Tables in: a Program and a Chip become arrays of integers that the event kernel runs over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from siliconloom.arch.description import Chip, NpuTile, PimTile, SystolicTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import LEVELS, SEMAPHORES, Opcode, Program, Unit
from siliconloom.arch.opcodes import memory_units
from siliconloom.arch.timing import INPUT_SLICE, LOADER_GAP, OPERAND_LATENCY, QUEUE_POP, QUEUE_REFILL
from siliconloom.sim.chip.levels import instruction_levels
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Int, Timing, Work
from siliconloom.sim.timing.units import fetch_cycles


class Stall(IntEnum):
    """Why a unit did no work in a cycle."""

    INSTRUCTION = 0
    OPERANDS = 1
    BUFFER = 2
    DEPENDENCY = 3
    MEMORY_PORT = 4
    STATIONARY_LOAD = 5
    DRAIN = 6
    QUEUE_FULL = 7
    FINISHED = 8


CAUSES = {"operands": Stall.OPERANDS, "buffer": Stall.BUFFER, "dependency": Stall.DEPENDENCY}

PLAIN_COLUMNS = (
    "opcode",
    "unit",
    "m",
    "wait",
    "release",
    "post",
    "first_wait",
    "last_post",
    "first",
    "last",
    "operator",
)
"""Columns copied from the instruction."""
TIMED_COLUMNS = ("duration", "completion", "first_load", "stream", "folds", "advance", "output", "stationary")
"""Columns computed by the unit timing: port or unit cycles, extra cycles to completion, and the array's fold run."""
COLUMNS = {name: number for number, name in enumerate(PLAIN_COLUMNS + TIMED_COLUMNS)}
TIMED = {name: COLUMNS[name] for name in TIMED_COLUMNS}
PLAIN = attrgetter(*PLAIN_COLUMNS)
UNTIMED = frozenset((Opcode.END, Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER))
"""Instructions that no unit works on."""


class UnitConstants(NamedTuple):
    """Timing constants of a tile, which the kernel reads by name."""

    issue_cycles: int
    loop_cycles: int
    queue_depth: int
    array_rows: int
    output_latency: int
    operand_latency: int
    output_stationary: int
    """1 or 0."""
    pop: int
    refill: int
    loader_gap: int
    outstanding: int
    fetch_first: int
    fetch_interval: int
    engines: int
    """A bit per unit: it shares the memory port."""
    ahead: int
    """A bit per unit: it reads main memory, so what it does is counted with the work that it is for."""


@dataclass(frozen=True)
class Tables:
    """What the kernel reads.

    Parameters
    ----------
    instructions
        One row per instruction, one column per entry of `COLUMNS`.
    counters
        One row per instruction, one column per `Counter`, each for one execution on all tiles that take part.
    semaphores
        Initial counts.
    causes
        `Stall` of waiting for each semaphore.
    constants
        Of the tile.
    """

    instructions: Int
    counters: Int
    semaphores: Int
    causes: Int
    constants: UnitConstants


def build_tables(program: Program, chip: Chip, *, counted: bool = True) -> Tables:
    """Time every instruction of ``program`` on one tile of ``chip``; the tiles at work share the memory.

    Without ``counted`` nothing but the time is of interest, and the counters are empty.
    """
    tile = chip.tile
    if isinstance(tile, PimTile):
        raise NotSupported("simulating a pim tile")
    rest = (0,) * len(TIMED_COLUMNS)
    rows = np.array([PLAIN(instruction) + rest for instruction in program.instructions], np.int64)
    counters = np.zeros((len(program.instructions) if counted else 0, len(Counter)), np.int64)
    levels, sharing = instruction_levels(program, chip), {chip.tile_count: chip}
    for number, instruction in enumerate(program.instructions):
        if instruction.opcode in UNTIMED:
            continue
        working = program.tiles_of(number, chip.tile_count)
        if working not in sharing:
            sharing[working] = chip.model_copy(update={"tile_count": working})
        work = Work(instruction, sharing[working], tile, levels[number])
        _time(work, rows[number])
        if counted:
            _count(work, counters[number])
            counters[number] *= working
    semaphores = np.zeros(SEMAPHORES, np.int64)
    causes = np.full(SEMAPHORES, int(Stall.OPERANDS), np.int64)
    for number, semaphore in enumerate(program.semaphores):
        semaphores[number] = semaphore.initial
        causes[number] = int(CAUSES[semaphore.cause])
    constants = constants_of(chip, tile)
    return Tables(rows, counters, semaphores, causes, constants)


def constants_of(chip: Chip, tile: SystolicTile | NpuTile) -> UnitConstants:
    """The tile's `UnitConstants`; a bare array has no sequencer and operands that are always there."""
    array = tile.array
    stationary = int(array.dataflow == "output_stationary")
    sharing = {
        "engines": sum(1 << unit for unit in memory_units()),
        "ahead": sum(1 << unit for unit in memory_units("read")),
    }
    if isinstance(tile, SystolicTile):
        return UnitConstants(
            issue_cycles=0,
            loop_cycles=0,
            queue_depth=1024,
            array_rows=array.rows,
            output_latency=array.output_latency,
            operand_latency=INPUT_SLICE,
            output_stationary=stationary,
            pop=0,
            refill=0,
            loader_gap=-(2**40),
            outstanding=1,
            fetch_first=0,
            fetch_interval=0,
            **sharing,
        )
    sequencer, (fetch_first, fetch_interval) = tile.sequencer, fetch_cycles(chip)
    return UnitConstants(
        issue_cycles=sequencer.issue_cycles,
        loop_cycles=sequencer.loop_cycles,
        queue_depth=sequencer.queue_depth,
        array_rows=array.rows,
        output_latency=array.output_latency,
        operand_latency=OPERAND_LATENCY,
        output_stationary=stationary,
        pop=QUEUE_POP,
        refill=QUEUE_REFILL,
        loader_gap=0 if stationary else LOADER_GAP,
        outstanding=tile.dma.outstanding,
        fetch_first=fetch_first,
        fetch_interval=fetch_interval,
        **sharing,
    )


def _timing(work: Work) -> Timing:
    i = work.instruction
    found, name = TIMINGS.get(i.opcode), i.opcode.name.lower()
    if isinstance(work.tile, SystolicTile) and not (found is not None and found.bare):
        raise NotSupported(f"{name} instructions on a bare systolic tile; use a chip with an npu tile")
    if found is None:
        raise NotSupported(f"{name} instructions in the simulator")
    return found


def _time(work: Work, row: Int) -> None:
    i, times = work.instruction, _timing(work).times(work)
    if max(times.values()) >= 2**62:
        raise LoomError(f"{i.opcode.name.lower()} {i.m} x {i.n} x {i.k}: its time does not fit 62 bits of cycles")
    for name, cycles in times.items():
        row[TIMED[name]] = cycles


def _count(work: Work, count: Int) -> None:
    for counter, quantity in _timing(work).counts(work).items():
        count[counter] = quantity


__all__ = ["COLUMNS", "Counter", "Int", "LEVELS", "Stall", "Tables", "Unit", "build_tables"]
