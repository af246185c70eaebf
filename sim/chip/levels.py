"""Which memory level every transfer of a Program meets, and how often every instruction runs."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Opcode, Program
from siliconloom.arch.opcodes import Format
from siliconloom.sim.timing.units import compressed_bytes, moved_bytes, stored_bytes

NO_LEVEL = -1
"""Level of an instruction that moves nothing."""


class Reach(Struct, frozen=True):
    """First and last byte that an instruction's transfer touches in all its executions."""

    first: int
    last: int


def reaches(program: Program) -> list[Reach | None]:
    """Reach of every transfer of ``program``; ``None`` for other instructions."""
    found: list[Reach | None] = []
    counts: list[int] = []
    for i in program.instructions:
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        if not i.opcode.unit.spec.memory:
            found.append(None)
            continue
        steps = [stride * (count - 1) for stride, count in zip(i.memory.strides, counts, strict=False)]
        steps.append(i.pitch * ((i.k if i.opcode.spec.format is Format.GATHER else i.m) - 1))
        low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
        taken = i.n if i.compression is None else compressed_bytes(i.n, i.compression)
        found.append(Reach(i.memory.base + low, i.memory.base + high + taken - 1))
    return found


def instruction_levels(program: Program, chip: Chip) -> list[int]:
    """Memory level of every transfer of ``program``, 0 for the nearest; `NO_LEVEL` for other instructions.

    Raises
    ------
    LoomError
        When the addresses of a transfer begin in one level and end in another, or beyond the last.
    """
    if len(chip.memory) < 2:
        return [0 if i.opcode.unit.spec.memory else NO_LEVEL for i in program.instructions]
    names, bases = list(chip.memory), chip.level_bases
    levels = []
    for number, (i, reach) in enumerate(zip(program.instructions, reaches(program), strict=True)):
        if reach is None:
            levels.append(NO_LEVEL)
            continue
        level = chip.level_of(reach.first)
        levels.append(level)
        end = bases[level] + chip.memory[names[level]].total_capacity
        if reach.last >= end:
            raise LoomError(
                f"instruction {number} ({i.opcode.name.lower()}) reaches from address {reach.first:#x} to "
                f"{reach.last:#x}, beyond the end of {chip.name}'s memory.{names[level]} at {end:#x}; a transfer and "
                "the loops around it must stay in one memory level"
            )
    return levels


READ, WRITE, USEFUL_READ, USEFUL_WRITE = range(4)
"""Columns of `level_traffic`."""


def level_traffic(program: Program, chip: Chip, executions: np.ndarray) -> np.ndarray:
    """Bytes that all tiles moved, per operator, memory level and column (`READ` and so on).

    ``executions`` counts how often each instruction ran.
    """
    traffic = np.zeros((len(program.operators), max(len(chip.memory), 1), 4), np.int64)
    memories = list(chip.memory.values())
    for number, level in enumerate(instruction_levels(program, chip)):
        if level == NO_LEVEL:
            continue
        i = program.instructions[number]
        times = int(executions[number]) * program.tiles_of(number, chip.tile_count)
        store = i.opcode.unit.spec.memory == "write"
        row = traffic[i.operator, level]
        rows, row_bytes = stored_bytes(memories[level], i.m, i.n, i.compression)
        row[WRITE if store else READ] += times * moved_bytes(memories[level], rows, row_bytes)
        row[USEFUL_WRITE if store else USEFUL_READ] += times * rows * row_bytes
    return traffic


__all__ = [
    "NO_LEVEL",
    "READ",
    "Reach",
    "USEFUL_READ",
    "USEFUL_WRITE",
    "WRITE",
    "instruction_levels",
    "level_traffic",
    "reaches",
]
