"""Tables in: a Program and a Chip become arrays of integers that the event kernel runs over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip, NpuTile, PimTile, SystolicTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import LEVELS, SEMAPHORES, Instruction, Opcode, Program, Unit
from siliconloom.arch.vector import vector_cost
from siliconloom.sim.timing.systolic import INPUT_SLICE, gemm_run
from siliconloom.sim.timing.units import (
    ACCUMULATOR_WRITE,
    QUEUE_POP,
    SCRATCHPAD_READ,
    moved_bytes,
    transfer_cycles,
    vector_cycles,
)  # fmt: skip

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
TIMED_COLUMNS = ("duration", "completion", "first_load", "stream", "folds", "advance", "output")
"""Columns computed by the unit timing: port or unit cycles, extra cycles to completion, and the array's fold run."""
COLUMNS = {name: number for number, name in enumerate(PLAIN_COLUMNS + TIMED_COLUMNS)}


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
        One row per instruction, one column per `Counter`, each for one execution.
    semaphores
        Initial counts.
    causes
        `Stall` of waiting for each semaphore.
    constants
        issue cycles, loop cycles, queue depth, array rows, output latency, operand latency, output stationary (0/1),
        cycles from an instruction leaving a queue to the next one being seen.
    """

    instructions: Int
    counters: Int
    semaphores: Int
    causes: Int
    constants: Int


def build_tables(program: Program, chip: Chip) -> Tables:
    """Time every instruction of ``program`` on one tile of ``chip``."""
    tile = chip.tile
    if isinstance(tile, PimTile):
        raise NotSupported("simulating a pim tile")
    rows = np.zeros((len(program.instructions), len(COLUMNS)), np.int64)
    counters = np.zeros((len(program.instructions), len(Counter)), np.int64)
    for number, instruction in enumerate(program.instructions):
        for name in PLAIN_COLUMNS:
            rows[number, COLUMNS[name]] = int(getattr(instruction, name))
        _time(instruction, chip, tile, rows[number], counters[number])
    semaphores = np.zeros(SEMAPHORES, np.int64)
    causes = np.full(SEMAPHORES, int(Stall.OPERANDS), np.int64)
    for number, semaphore in enumerate(program.semaphores):
        semaphores[number] = semaphore.initial
        causes[number] = int(CAUSES[semaphore.cause])
    array = tile.array
    bare = isinstance(tile, SystolicTile)
    constants = np.array(
        [
            0 if isinstance(tile, SystolicTile) else tile.sequencer.issue_cycles,
            0 if isinstance(tile, SystolicTile) else tile.sequencer.loop_cycles,
            1024 if isinstance(tile, SystolicTile) else tile.sequencer.queue_depth,
            array.rows,
            array.rows + array.cols - 1 + array.multiply_stages,
            INPUT_SLICE + (0 if bare else SCRATCHPAD_READ),
            int(array.dataflow == "output_stationary"),
            0 if bare else QUEUE_POP,
        ],
        np.int64,
    )
    return Tables(rows, counters, semaphores, causes, constants)


def _time(i: Instruction, chip: Chip, tile: SystolicTile | NpuTile, row: Int, count: Int) -> None:
    def put(**values: int) -> None:
        for name, value in values.items():
            if value >= 2**62:
                raise LoomError(
                    f"{i.opcode.name.lower()} {i.m} x {i.n} x {i.k}: its time does not fit 62 bits of cycles"
                )
            row[COLUMNS[name]] = value

    if i.opcode in (Opcode.END, Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER):
        return
    if i.opcode == Opcode.MATMUL:
        run = gemm_run(tile.array, i.m, i.n, i.k)
        put(first_load=run.first_load, stream=run.stream_beats, folds=run.folds, advance=run.advance,
            output=run.output_beats, completion=0 if isinstance(tile, SystolicTile) else ACCUMULATOR_WRITE)  # fmt: skip
        count[Counter.MACS] = i.m * i.n * i.k
        if isinstance(tile, NpuTile):
            _count_matmul(i, tile, count)
        return
    if isinstance(tile, SystolicTile):
        raise NotSupported(f"{i.opcode.name.lower()} instructions on a bare systolic tile; use a chip with an npu tile")
    if i.opcode in (Opcode.LOAD, Opcode.STORE):
        memory = next(iter(chip.memory.values()))
        moved = moved_bytes(memory, i.m, i.n, i.pitch)
        put(duration=transfer_cycles(tile, memory, chip.clock, moved, chip.tile_count),
            completion=chip.cycles(memory.latency))  # fmt: skip
        if i.opcode == Opcode.LOAD:
            count[[Counter.READ_BYTES, Counter.USEFUL_READ_BYTES, Counter.SCRATCHPAD_WRITE]] = (
                moved,
                i.m * i.n,
                i.m * i.n,
            )
        else:
            count[[Counter.WRITE_BYTES, Counter.USEFUL_WRITE_BYTES, Counter.SCRATCHPAD_READ]] = (
                moved,
                i.m * i.n,
                i.m * i.n,
            )
    elif i.opcode == Opcode.VECTOR:
        put(duration=vector_cycles(tile.vector, i.function, i.m, i.n))
        elements = i.m * i.n
        count[Counter.VECTOR_SLOTS] = vector_cost(i.function).passes * elements
        count[Counter.SCRATCHPAD_READ] = i.k * i.dtype.size(elements)
        count[Counter.SCRATCHPAD_WRITE] = i.dtype.size(elements)
    else:
        raise NotSupported(f"{i.opcode.name.lower()} instructions in the simulator")


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
