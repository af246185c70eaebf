"""Tables in: a Program and a Chip become arrays of integers that the event kernel runs over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip, NpuTile, PimTile, SystolicTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import LEVELS, SEMAPHORES, Instruction, Opcode, Program, Unit
from siliconloom.arch.timing import (
    ACCUMULATOR_WRITE,
    INPUT_SLICE,
    LOAD_WRITE,
    LOADER_GAP,
    OPERAND_LATENCY,
    QUEUE_POP,
    QUEUE_REFILL,
    STORE_WRITE,
)
from siliconloom.arch.vector import vector_cost
from siliconloom.sim.chip.levels import instruction_levels
from siliconloom.sim.timing.systolic import gemm_run
from siliconloom.sim.timing.units import access_cycles, fetch_cycles, moved_bytes, vector_cycles

Int = NDArray[np.int64]


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
PLAIN = attrgetter(*PLAIN_COLUMNS)
UNTIMED = frozenset((Opcode.END, Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER))
"""Instructions that no unit works on."""


class Counter(IntEnum):
    """Quantities counted per execution of an instruction."""

    MACS = 0
    READ_BYTES = 1
    WRITE_BYTES = 2
    USEFUL_READ_BYTES = 3
    USEFUL_WRITE_BYTES = 4
    SCRATCHPAD_READ = 5
    SCRATCHPAD_WRITE = 6
    ACCUMULATOR_READ = 7
    ACCUMULATOR_WRITE = 8
    VECTOR_SLOTS = 9


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
        As `constants_of` lists them.
    """

    instructions: Int
    counters: Int
    semaphores: Int
    causes: Int
    constants: Int


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
        _time(instruction, sharing[working], tile, levels[number], rows[number])
        if counted:
            _count(instruction, sharing[working], tile, levels[number], counters[number])
            counters[number] *= working
    semaphores = np.zeros(SEMAPHORES, np.int64)
    causes = np.full(SEMAPHORES, int(Stall.OPERANDS), np.int64)
    for number, semaphore in enumerate(program.semaphores):
        semaphores[number] = semaphore.initial
        causes[number] = int(CAUSES[semaphore.cause])
    constants = constants_of(chip, tile)
    return Tables(rows, counters, semaphores, causes, constants)


CONSTANTS = (
    "issue_cycles",
    "loop_cycles",
    "queue_depth",
    "array_rows",
    "output_latency",
    "operand_latency",
    "output_stationary",
    "pop",
    "refill",
    "loader_gap",
    "outstanding",
    "fetch_first",
    "fetch_interval",
)
"""Timing constants of a tile, in the order in which the kernel takes them."""


def constants_of(chip: Chip, tile: SystolicTile | NpuTile) -> Int:
    """The tile's `CONSTANTS`; a bare array has no sequencer and operands that are always there."""
    array = tile.array
    latency = array.output_latency
    stationary = int(array.dataflow == "output_stationary")
    if isinstance(tile, SystolicTile):
        return np.array([0, 0, 1024, array.rows, latency, INPUT_SLICE, stationary, 0, 0, -(2**40), 1, 0, 0], np.int64)
    sequencer = tile.sequencer
    return np.array(
        [
            sequencer.issue_cycles,
            sequencer.loop_cycles,
            sequencer.queue_depth,
            array.rows,
            latency,
            OPERAND_LATENCY,
            stationary,
            QUEUE_POP,
            QUEUE_REFILL,
            0 if stationary else LOADER_GAP,
            tile.dma.outstanding,
            *fetch_cycles(chip),
        ],
        np.int64,
    )


def _time(i: Instruction, chip: Chip, tile: SystolicTile | NpuTile, level: int, row: Int) -> None:
    times: tuple[int, ...]
    if i.opcode == Opcode.MATMUL:
        run = gemm_run(tile.array, i.m, i.n, i.k)
        completion = 0 if isinstance(tile, SystolicTile) else ACCUMULATOR_WRITE
        times = (
            0,
            completion,
            run.first_load,
            run.stream_beats,
            run.folds,
            run.advance,
            run.output_beats,
            run.stationary_beats,
        )
    elif isinstance(tile, SystolicTile):
        raise NotSupported(f"{i.opcode.name.lower()} instructions on a bare systolic tile; use a chip with an npu tile")
    elif i.opcode in (Opcode.LOAD, Opcode.STORE):
        memory = list(chip.memory.values())[level]
        pipeline = LOAD_WRITE if i.opcode == Opcode.LOAD else STORE_WRITE
        times = (access_cycles(chip, memory, i.m, i.n), chip.cycles(memory.latency) + pipeline)
    elif i.opcode == Opcode.VECTOR:
        times = (vector_cycles(tile.vector, i.function, i.m, i.n),)
    else:
        raise NotSupported(f"{i.opcode.name.lower()} instructions in the simulator")
    if max(times) >= 2**62:
        raise LoomError(f"{i.opcode.name.lower()} {i.m} x {i.n} x {i.k}: its time does not fit 62 bits of cycles")
    row[len(PLAIN_COLUMNS) : len(PLAIN_COLUMNS) + len(times)] = times


def _count(i: Instruction, chip: Chip, tile: SystolicTile | NpuTile, level: int, count: Int) -> None:
    if i.opcode == Opcode.MATMUL:
        count[Counter.MACS] = i.m * i.n * i.k
        if isinstance(tile, NpuTile):
            _count_matmul(i, tile, count)
    elif i.opcode == Opcode.LOAD:
        moved = moved_bytes(list(chip.memory.values())[level], i.m, i.n)
        count[[Counter.READ_BYTES, Counter.USEFUL_READ_BYTES, Counter.SCRATCHPAD_WRITE]] = moved, i.m * i.n, i.m * i.n
    elif i.opcode == Opcode.STORE:
        moved = moved_bytes(list(chip.memory.values())[level], i.m, i.n)
        count[[Counter.WRITE_BYTES, Counter.USEFUL_WRITE_BYTES, Counter.SCRATCHPAD_READ]] = moved, i.m * i.n, i.m * i.n
    else:
        elements = i.m * i.n
        count[Counter.VECTOR_SLOTS] = vector_cost(i.function).passes * elements
        count[Counter.SCRATCHPAD_READ] = i.k * i.dtype.size(elements)
        count[Counter.SCRATCHPAD_WRITE] = i.dtype.size(elements)


def _count_matmul(i: Instruction, tile: NpuTile, count: Int) -> None:
    array = tile.array
    panels_n, panels_m, folds_k = -(-i.n // array.cols), -(-i.m // array.cols), -(-i.k // array.rows)
    if array.dataflow == "weight_stationary":
        values = i.k * i.n + panels_n * i.m * i.k
    elif array.dataflow == "input_stationary":
        values = i.m * i.k + panels_m * i.n * i.k
    else:
        values, folds_k = panels_n * i.m * i.k + -(-i.m // array.rows) * i.n * i.k, 1
    count[Counter.SCRATCHPAD_READ] = i.dtype.size(values)
    result = i.dtype.accumulator.size(i.m * i.n)
    count[Counter.ACCUMULATOR_WRITE] = folds_k * result
    count[Counter.ACCUMULATOR_READ] = (folds_k - 1 + i.accumulate) * result


__all__ = ["COLUMNS", "Counter", "LEVELS", "Stall", "Tables", "Unit", "build_tables"]
