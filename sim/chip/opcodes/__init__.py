"""How long each opcode keeps its unit, and what an execution counts: a row each, registered by this folder's modules.

The kernel treats an instruction of any unit but the array alike: it holds its unit for ``duration`` cycles from its
start, has then read its operands, and is complete ``completion`` cycles later. One of a unit that reads or writes main
memory (`UnitSpec.memory`) holds the memory port for its ``duration``, too, and has its operands `TRANSFER_START` later.
What is registered elsewhere is found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Instruction
from siliconloom.arch.memory import Memory
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.registry import Registry, discover
from siliconloom.arch.tile import NpuTile, SystolicTile

Int = NDArray[np.int64]


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


class Work(Struct, frozen=True):
    """One instruction on one tile.

    Parameters
    ----------
    instruction
        What is executed.
    chip
        With as many tiles as take part in it.
    tile
        Of the chip; bare arrays have no units but the array.
    level
        Of the memory that it moves bytes to or from; meaningless for others.
    """

    instruction: Instruction
    chip: Chip
    tile: SystolicTile | NpuTile
    level: int

    @property
    def npu(self) -> NpuTile:
        """The tile, where there are units beside the array."""
        assert isinstance(self.tile, NpuTile)
        return self.tile

    @property
    def memory(self) -> Memory:
        """The memory that it moves bytes to or from."""
        if self.level == 0:
            return self.chip.nearest
        return list(self.chip.memory.values())[self.level]


class Timing(Struct, frozen=True):
    """An opcode's row.

    Parameters
    ----------
    times
        Columns of `sim.chip.tables` by name, in cycles, at least ``duration`` and ``completion`` where they are not 0.
        Of the instruction they depend on nothing but its opcode, function, format, m, n and k.
    counts
        Quantities of one execution.
    bare
        A bare array executes it, too.
    """

    times: Callable[[Work], dict[str, int]]
    counts: Callable[[Work], dict[Counter, int]]
    bare: bool = False


TIMINGS: Registry[Opcode, Timing] = Registry("the duration of opcode")

discover("siliconloom.sim.chip.opcodes")

__all__ = ["TIMINGS", "Counter", "Int", "Timing", "Work"]
