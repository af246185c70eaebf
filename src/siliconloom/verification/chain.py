"""Programs of instructions one after the other, and where they may put what in a tile's scratchpad."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import Instruction, Opcode, Program, Semaphore
from siliconloom.arch.layout import next_power, row_unit
from siliconloom.arch.opcodes import Format, Unit
from siliconloom.arch.tile import NpuTile
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.images import PROGRAM_BASE, PROGRAM_WORDS

Image = np.ndarray[Any, np.dtype[np.uint8]]
Fields = dict[str, Any]
"""Fields of an instruction by name."""


class Chain(Struct):
    """Instructions one after the other: where the unit changes, the next one waits until the one before is complete.

    ``weak`` says that an instruction is executed in loops of its own, so that it waits in the first round and posts in
    the last. ``dtype`` is the format of those that compute.
    """

    instructions: list[Instruction] = field(default_factory=list)
    semaphores: dict[tuple[Unit, Unit], int] = field(default_factory=dict)
    last: int = -1
    dtype: DataType = DataType.INT8

    def add(self, opcode: Opcode, *, nest: tuple[int, ...] = (), **fields: Any) -> None:
        """Append an instruction, inside loops of these counts."""
        if opcode.spec.format is Format.COMPUTE:
            fields = {"dtype": self.dtype, **fields}
        made = Instruction(opcode=opcode, **fields)
        mask = (1 << len(nest)) - 1
        if self.last >= 0 and self.instructions[self.last].unit != made.unit:
            before = self.instructions[self.last]
            pair = (before.unit, made.unit)
            bit = 1 << self.semaphores.setdefault(pair, len(self.semaphores))
            self.instructions[self.last] = (
                replace(before, last_post=before.last_post | bit) if before.last else replace(before, post=bit)
            )
            made = replace(made, first_wait=bit, first=mask) if nest else replace(made, wait=bit)
        made = replace(made, last=mask) if nest else made
        self.instructions += [Instruction(opcode=Opcode.LOOP, m=count) for count in nest]
        self.last = len(self.instructions)
        self.instructions.append(made)
        self.instructions += [Instruction(opcode=Opcode.NEXT)] * len(nest)

    def program(self, memory: Image) -> LoadedProgram:
        """The program, ended; raises `ValueError` for one that the memory of benches has no room for."""
        if len(self.instructions) >= PROGRAM_WORDS:
            raise ValueError(f"a program of {len(self.instructions) + 1} instructions, room for {PROGRAM_WORDS}")
        names = [Semaphore(f"{a.name.lower()}_to_{b.name.lower()}") for a, b in self.semaphores]
        end = Instruction(opcode=Opcode.END)
        return LoadedProgram(Program((*self.instructions, end), tuple(names)), memory, PROGRAM_BASE)


BANKS = 8
"""Banks in which programs of benches have their operands, results and parameters: a side of a bank has one user."""


def npu_tile(chip: Chip) -> NpuTile:
    """The tile of a chip that has RTL and runs programs."""
    assert isinstance(chip.tile, NpuTile)
    return chip.tile


def why_no_programs(tile: NpuTile) -> str:
    """Why no program of a bench fits a tile; nothing where they do."""
    if tile.scratchpad.banks >= BANKS:
        return ""
    return f"tile.scratchpad.banks is {tile.scratchpad.banks}, and programs of benches use {BANKS}"


class Places(Struct, frozen=True):
    """Where the banks of a tile's scratchpad begin, which units use them, and what its transfers are made of."""

    tile: NpuTile

    @property
    def bank(self) -> int:
        """Bytes of a bank."""
        return self.tile.scratchpad.capacity // self.tile.scratchpad.banks

    @property
    def unit(self) -> int:
        """Bytes that are whole lines and whole beats of the bus."""
        values = max(next_power(self.tile.array.rows), self.tile.vector.lanes)
        return max(self.tile.dma.bytes_per_cycle, self.tile.element_bytes * values)

    @property
    def row(self) -> int:
        """Bytes that a row of operands is filled up to."""
        return self.tile.element_bytes * row_unit(self.tile)

    def chain(self) -> Chain:
        """No instructions, of those that compute in the tile's format."""
        return Chain(dtype=self.tile.circuit_format)

    def copied(self, count: int) -> dict[str, Any]:
        """Sizes and format of a copy of so many bytes, whole rows."""
        return {"m": count // self.row, "n": row_unit(self.tile), "k": 1, "dtype": self.tile.circuit_format}

    def aligned(self, count: int) -> int:
        """``count`` rounded up to whole units."""
        return -(-count // self.unit) * self.unit
