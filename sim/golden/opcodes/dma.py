"""Transfers between main memory and the scratchpad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from siliconloom.arch.isa import Instruction
from siliconloom.arch.opcodes import Opcode
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.vector import Bytes, window

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine


def _rows(machine: GoldenMachine, i: Instruction, indices: list[int]) -> Iterator[tuple[Bytes, Bytes]]:
    """Each row in main memory and in the scratchpad."""
    memory, local = i.memory.at(indices), i.a.at(indices)
    for row in range(i.m):
        yield (
            window(machine.memory, memory + row * i.pitch, i.n),
            window(machine.scratchpad, local + row * i.local_pitch, i.n),
        )


@executes(Opcode.LOAD)
def load(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """Rows from main memory to the scratchpad."""
    for memory, local in _rows(machine, i, indices):
        local[:] = memory


@executes(Opcode.STORE)
def store(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """Rows from the scratchpad to main memory."""
    for memory, local in _rows(machine, i, indices):
        memory[:] = local
