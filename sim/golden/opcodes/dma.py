"""Transfers between main memory and the scratchpad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Instruction
from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.word import TRANSFER
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.vector import Bytes, window

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine


MEMORY = 1 << next(part.width for part in TRANSFER if part.name == "memory.base")
"""The first address beyond main memory, whatever its size."""


def _pieces(machine: GoldenMachine, i: Instruction, indices: list[int]) -> Iterator[tuple[Bytes, Bytes]]:
    """Rows in main memory and in the scratchpad: all at once, or one by one where they overlap."""
    memory, local = i.memory.at(indices), i.a.at(indices)
    if min(i.pitch, i.local_pitch) >= i.n:
        yield (
            _matrix(machine.memory, memory, i.m, i.n, i.pitch),
            _matrix(machine.scratchpad, local, i.m, i.n, i.local_pitch),
        )
        return
    for row in range(i.m):
        yield (
            window(machine.memory, memory + row * i.pitch, i.n),
            window(machine.scratchpad, local + row * i.local_pitch, i.n),
        )


def _matrix(space: Bytes, first: int, rows: int, width: int, pitch: int) -> Bytes:
    """Rows of a memory that lie apart, as a matrix."""
    held = window(space, first, (rows - 1) * pitch + width)
    return np.ndarray((rows, width), np.uint8, held, 0, (pitch, 1))


@executes(Opcode.LOAD)
def load(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """Rows from main memory to the scratchpad."""
    for memory, local in _pieces(machine, i, indices):
        local[:] = memory


@executes(Opcode.GATHER)
def gather(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """Rows of a table, by their indices; raises `LoomError` for one that is not in the table.

    Addresses of memory have so many bits as a word has for them: a sum beyond that begins again at 0.
    """
    table, local = i.memory.at(indices), i.a.at(indices)
    rows = window(machine.scratchpad, i.b.at(indices), INDEX_BYTES * i.m).copy().view(np.dtype("<u4")).tolist()
    for row, index in enumerate(rows):
        if index >= i.k:
            raise LoomError(f"gather: the index of row {row} is {index:,}, and the table has {i.k:,} rows")
        source = window(machine.memory, (table + index * i.pitch) % MEMORY, i.n)
        window(machine.scratchpad, local + row * i.local_pitch, i.n)[:] = source


@executes(Opcode.STORE)
def store(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """Rows from the scratchpad to main memory."""
    for memory, local in _pieces(machine, i, indices):
        memory[:] = local
