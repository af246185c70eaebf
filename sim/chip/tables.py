"""Tables in: a Program and a Chip become arrays of integers that the event kernel runs over."""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import Draft, Instruction, Opcode, Program, Stretch, Unit
from siliconloom.arch.opcodes import memory_units
from siliconloom.arch.pim import PimTile
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.arch.timing import INPUT_SLICE, LOADER_GAP, QUEUE_POP, QUEUE_REFILL
from siliconloom.arch.word import LEVELS, SEMAPHORES
from siliconloom.sim.chip.levels import instruction_levels
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Int, Timing, Work
from siliconloom.sim.timing.units import fetch_cycles, launch_cycles


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
TIMED_COLUMNS = ("duration", "completion", "first_load", "stream", "work", "advance", "output", "stationary")
"""Columns computed by the unit timing: port or unit cycles, extra cycles to completion, and the array's fold run."""
_TIMED = frozenset(TIMED_COLUMNS)
COLUMNS = {name: number for number, name in enumerate(PLAIN_COLUMNS + TIMED_COLUMNS)}
PLAIN = attrgetter(*PLAIN_COLUMNS)
ASKED = attrgetter("opcode", "function", "dtype", "m", "n", "k", "packing", "compression")
"""What `Timing.times` may ask of an instruction."""
NO_TIME = (0,) * len(TIMED_COLUMNS)
UNTIMED = frozenset((Opcode.END, Opcode.LOOP, Opcode.NEXT, Opcode.BARRIER))
"""Instructions that no unit works on."""


def launches(instruction: Instruction) -> bool:
    """Whether an instruction launches an operator's programs, ``m`` of them: a barrier of what loads its operands."""
    return instruction.opcode is Opcode.BARRIER and instruction.unit is Unit.LOAD and instruction.m > 0


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
    shared_port: int
    """1 or 0: both operands enter the array at one port."""
    pop: int
    refill: int
    loader_gap: int
    products_apart: int
    """Cycles by which a product's sums follow those of the product before later than at once."""
    outstanding: int
    fetch_first: int
    fetch_interval: int
    engines: int
    """A bit per unit: it shares the memory port."""
    ahead: int
    """A bit per unit: it reads main memory, so what it does is counted with the work that it is for."""


class Tables(Struct, frozen=True):
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


class _Columns(NamedTuple):
    """Of the rows of a draft, those of `PLAIN_COLUMNS`, and which of some instructions has the times of each."""

    plain: Int
    timed: list[tuple[Instruction, int, Hashable]]
    """Instructions, tiles that execute them, and all that their times are asked by; nothing of those without a time."""
    which: Int


MOST_ROWS = 200_000
"""Rows that a `Timer` keeps; then it begins again, so that a long search does not fill the memory."""


class Timer:
    """The rows of `Tables.instructions` on one chip, kept from program to program.

    What an instruction takes is kept by all that `Timing.times` may ask of it, and its row by the instruction itself,
    as programs that differ in a task have the other tasks' instructions in common.
    """

    def __init__(self, chip: Chip) -> None:
        if isinstance(chip.tile, PimTile):
            raise NotSupported("simulating a pim tile")
        self.chip, self.tile = chip, chip.tile
        self.constants = constants_of(chip, chip.tile)
        self._sharing = {chip.tile_count: chip}
        self._times: dict[Hashable, tuple[int, ...]] = {}
        self._rows: dict[tuple[int, int, int], tuple[Instruction, tuple[int, ...]]] = {}

    @cached_property
    def key(self) -> Hashable:
        """`timing_key` of the chip."""
        return timing_key(self.chip)

    def rows(self, program: Program) -> Int:
        """One row for each instruction of ``program``."""
        tiles = self.chip.tile_count
        if isinstance(program, Draft) and len(self.chip.memory) == 1:
            if program.stretches:
                return np.concatenate([self._kept_rows(each) for each in program.stretches])
            working = program.tiles or (None,) * len(program.instructions)
            return self._stretch_rows(Stretch(program.instructions, working, program.kept))
        levels = instruction_levels(program, self.chip)
        workings = program.tiles or (tiles,) * len(levels)
        return np.array(list(map(self._row, program.instructions, workings, levels)), np.int64)

    def _kept_rows(self, stretch: Stretch) -> Int:
        """Rows of a stretch that other programs have, too; those of the chip that was asked for last are kept."""
        key, rows = stretch.kept.get("rows", (None, None))
        if key != self.key:
            rows = self._stretch_rows(stretch)
            stretch.kept["rows"] = self.key, rows
        return np.asarray(rows)

    def _stretch_rows(self, stretch: Stretch) -> Int:
        tiles = self.chip.tile_count
        known = stretch.kept.get(("columns", tiles))
        if known is None:
            known = stretch.kept["columns", tiles] = self._columns(stretch)
        times = np.array([NO_TIME if each[2] is None else self._asked(*each) for each in known.timed], np.int64)
        return np.concatenate((known.plain, times[known.which]), axis=1)

    def _columns(self, stretch: Stretch) -> _Columns:
        """What of the rows of a stretch is the same on every chip with one memory level."""
        plain, numbers, which = list[tuple[int, ...]](), dict[Hashable, int](), list[int]()
        timed = list[tuple[Instruction, int, Hashable]]()
        for instruction, tiles in zip(stretch.instructions, stretch.working, strict=True):
            working = self.chip.tile_count if tiles is None else tiles
            plain.append(PLAIN(instruction))
            key = None if instruction.opcode in UNTIMED else (*ASKED(instruction), working, 0)
            if launches(instruction):
                key = ASKED(instruction)
            number = numbers.setdefault(key, len(timed))
            if number == len(timed):
                timed.append((instruction, working, key))
            which.append(number)
        return _Columns(np.array(plain, np.int64), timed, np.array(which, np.int64))

    def counters(self, program: Program) -> Int:
        """What each instruction of ``program`` counts, on all tiles that execute it."""
        found = np.zeros((len(program.instructions), len(Counter)), np.int64)
        levels = instruction_levels(program, self.chip)
        for number, instruction in enumerate(program.instructions):
            if instruction.opcode not in UNTIMED:
                working = program.tiles_of(number, self.chip.tile_count)
                _count(self._work(instruction, working, levels[number]), found[number])
                found[number] *= working
        return found

    def _row(self, instruction: Instruction, working: int, level: int) -> tuple[int, ...]:
        key = id(instruction), working, level
        known = self._rows.get(key)
        if known is None and len(self._rows) >= MOST_ROWS:
            self._rows.clear()
            self._times.clear()
        if known is None:  # the instruction is kept, too, so that no other one has its place in memory
            known = self._rows[key] = instruction, PLAIN(instruction) + self._timed(instruction, working, level)
        return known[1]

    def _timed(self, instruction: Instruction, working: int, level: int) -> tuple[int, ...]:
        if launches(instruction) and isinstance(self.tile, NpuTile):
            held = launch_cycles(self.chip, instruction.m)
            return tuple(held if name == "duration" else 0 for name in TIMED_COLUMNS)
        if instruction.opcode in UNTIMED:
            return NO_TIME
        return self._asked(instruction, working, (*ASKED(instruction), working, level), level)

    def _asked(self, instruction: Instruction, working: int, key: Hashable, level: int = 0) -> tuple[int, ...]:
        """Times of an instruction, by all that they are asked by."""
        times = self._times.get(key)
        if times is None and launches(instruction):
            times = self._times[key] = self._timed(instruction, working, level)
        elif times is None:
            times = self._times[key] = _time(self._work(instruction, working, level))
        return times

    def _work(self, instruction: Instruction, working: int, level: int) -> Work:
        if working not in self._sharing:
            self._sharing[working] = self.chip.model_copy(update={"tile_count": working})
        return Work(instruction, self._sharing[working], self.tile, level)


def timing_key(chip: Chip) -> Hashable:
    """All of a chip that the cycles of a draft depend on: not its name, its energies, nor the size of its memories."""
    if not isinstance(chip.tile, NpuTile) or len(chip.memory) != 1:
        return "whole", chip.digest
    tile, memory = chip.tile, chip.nearest
    parts = ",".join(p.model_dump_json() for p in (tile.array, tile.vector, tile.dma, tile.sequencer, tile.pim) if p)
    moved = (memory.bandwidth, memory.latency, memory.access_bytes, memory.ports, memory.devices, memory.interleave)
    stated = memory.dram and memory.dram.model_dump_json()
    return f"{parts} {chip.clock} {chip.tile_count} {memory.kind} {moved} {stated}"


def build_tables(program: Program, chip: Chip, *, timer: Timer | None = None) -> Tables:
    """Time every instruction of ``program`` on one tile of ``chip``; the tiles at work share the memory.

    With a ``timer`` of the chip nothing but the time is of interest, and the counters are empty.
    """
    counted, timer = timer is None, timer or Timer(chip)
    rows = timer.rows(program)
    counters = timer.counters(program) if counted else np.zeros((0, len(Counter)), np.int64)
    semaphores = np.zeros(SEMAPHORES, np.int64)
    causes = np.full(SEMAPHORES, int(Stall.OPERANDS), np.int64)
    for number, semaphore in enumerate(program.semaphores):
        semaphores[number] = semaphore.initial
        causes[number] = int(CAUSES[semaphore.cause])
    return Tables(rows, counters, semaphores, causes, timer.constants)


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
            shared_port=int(array.load_port == "shared"),
            pop=0,
            refill=0,
            loader_gap=-(2**40),
            products_apart=0,
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
        operand_latency=array.operand_latency,
        output_stationary=stationary,
        shared_port=int(array.load_port == "shared"),
        pop=QUEUE_POP,
        refill=QUEUE_REFILL,
        loader_gap=0 if stationary else LOADER_GAP,
        products_apart=array.products_apart,
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


def _time(work: Work) -> tuple[int, ...]:
    """Entries of `TIMED_COLUMNS`."""
    i, times = work.instruction, _timing(work).times(work)
    if max(times.values()) >= 2**62:
        raise LoomError(f"{i.opcode.name.lower()} {i.m} x {i.n} x {i.k}: its time does not fit 62 bits of cycles")
    if not times.keys() <= _TIMED:
        raise AssertionError(f"{i.opcode.name.lower()}: {', '.join(times)} are not all columns of a table")
    return tuple([int(times.get(name, 0)) for name in TIMED_COLUMNS])


def _count(work: Work, count: Int) -> None:
    for counter, quantity in _timing(work).counts(work).items():
        count[counter] = quantity


__all__ = ["COLUMNS", "Counter", "Int", "LEVELS", "Stall", "Tables", "Timer", "Unit", "build_tables", "timing_key"]
