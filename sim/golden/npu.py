"""The values of a program: a NumPy model of one NPU tile that runs instructions one after the other.

Bit exact with the RTL (``rtl.npu``). Every instruction takes effect in program order; a legal program's semaphores
admit only that outcome. What each opcode does is registered in `sim.golden.opcodes`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.array import TILE_FORMATS
from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.floats import narrowed
from siliconloom.arch.isa import Instruction, Opcode, Program, Unit
from siliconloom.arch.layout import padded, sums_lines
from siliconloom.arch.opcodes import Format
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import SCALAR_BYTES
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.opcodes import EXECUTIONS
from siliconloom.sim.golden.pim import GoldenPim
from siliconloom.sim.golden.vector import Operands, RowMemory

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Integers = NDArray[np.int64]
Known = TypeVar("Known")


class LoadedProgram(Struct):
    """A legal program, the memory it starts from, the address it is loaded at, and what a channel of its tile holds."""

    program: Program
    memory: Bytes
    base: int
    channel: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))

    def loaded(self) -> Bytes:
        """A copy of the memory with the program at its address."""
        memory = self.memory.copy()
        code = np.frombuffer(self.program.encode(), np.uint8)
        memory[self.base : self.base + len(code)] = code
        return memory


class GoldenMachine:
    """Memories of one tile, and what instructions do to them.

    Parameters
    ----------
    chip
        A chip with an NPU tile whose circuits compute in int8 or bf16.
    memory
        Main memory from address 0 on; changed in place.
    channel
        Of a tile that drives a channel of memory that computes: what stands in it from its address 0 on.
    """

    def __init__(self, chip: Chip, memory: Bytes, channel: Bytes | None = None) -> None:
        tile = chip.tile
        if not isinstance(tile, NpuTile) or not tile.built:
            raise NotSupported(f"values of a program on anything but an npu tile in {' or '.join(TILE_FORMATS)}")
        self.tile, self.array, self.lanes = tile, tile.array, tile.vector.lanes
        self.memory, self.dtype = memory, tile.circuit_format
        self.scratchpad = np.zeros(tile.scratchpad.capacity, np.uint8)
        # integers, or patterns of fp32 in two's complement
        self.sums = np.zeros((sums_lines(tile), tile.array.cols), np.int64)
        self.rows = RowMemory()
        self._known: dict[int, tuple[Instruction, Any]] = {}
        self.channel = None if tile.pim is None else GoldenPim(tile.pim, {})
        if self.channel is not None and channel is not None:
            self.channel.fill(channel)

    def run(self, program: Program, finished: Callable[[int], None] | None = None) -> None:
        """Run a program from its first instruction to its end.

        ``finished`` is told the number of an operator when all its instructions have been carried out: when those of
        another one begin, and at the end. Loads begin none, as they may come before what an earlier one computes.
        """
        operator = -1
        self._known.clear()
        for _, i, indices, _ in program.executions():
            if finished is not None and i.operator != operator and i.unit != Unit.LOAD:
                if operator >= 0:
                    finished(operator)
                operator = i.operator
            self.execute(i, indices)
        if finished is not None and operator >= 0:
            finished(operator)

    def execute(self, i: Instruction, indices: list[int]) -> None:
        """Carry out one instruction at the given loop indices, outermost first."""
        own = self.dtype
        if i.opcode.spec.format is Format.COMPUTE and i.dtype is not own:
            raise NotSupported(
                f"values of a {i.opcode.name.lower()} instruction in {i.dtype.value}; the tile has {own.value}"
            )
        if i.opcode == Opcode.BARRIER:
            return
        if i.opcode not in EXECUTIONS:
            raise NotSupported(f"values of {i.opcode.name.lower()} instructions")
        EXECUTIONS[i.opcode](self, i, indices)

    def known(self, i: Instruction, find: Callable[[NpuTile, Instruction], Known]) -> Known:
        """What is the same in every execution of an instruction of the program that runs; it has one such ``find``."""
        held = self._known.get(id(i))
        if held is None:
            held = self._known[id(i)] = i, find(self.tile, i)
        found: Known = held[1]
        return found

    def operands(self, i: Instruction, indices: list[int]) -> Operands:
        """What a vector instruction finds at the given loop indices."""
        addresses = {"a": i.a.at(indices), "b": i.b.at(indices), "d": i.d.at(indices)}
        place = (i.adds(indices), i.c.slot_at(indices), i.b.slot_at(indices))
        return Operands(i, addresses, self.tile, self.scratchpad, self.sums, self._softmax, self.rows, *place)

    def _softmax(self, sums: Integers, multiplier: int, shift: int, valid: Integers) -> Integers:
        return functions.softmax(sums, multiplier, shift, valid, self.lanes)


def scalar_bytes(first: int, second: int, shift: int) -> Bytes:
    """Scalars of a vector function as they lie at ``d``."""
    return np.frombuffer(struct.pack("<hhB3x", first, second, shift), np.uint8)


def float_scalar_bytes(first: float, second: float, size: int) -> Bytes:
    """Scalars of a vector function in floating point, of elements of ``size`` bytes, as they lie at ``d``."""
    return np.frombuffer(struct.pack(f"<ff{(size - 1) * SCALAR_BYTES}x", first, second), np.uint8)


def float_parameter_planes(bias: Words, multiplier: Words, lanes: int, size: int) -> Bytes:
    """Lines of parameters for whole blocks of columns, in floating point, of elements of ``size`` bytes.

    Of each fp32 pattern the parts of a line each, the low one first.
    """
    parts = [np.ascontiguousarray(each).view(f"<u{size}").reshape(-1, 4 // size).T for each in (bias, multiplier)]
    planes = np.concatenate(parts).reshape(8 // size, -1, lanes).transpose(1, 0, 2)
    return np.ascontiguousarray(planes).view(np.uint8).reshape(-1)


def turn_planes(turns: Integers, lanes: int) -> Bytes:
    """Cosines and sines (rows x columns, in 1/2^15) as rope reads them: per block low bytes, then high ones."""
    rows, cols = turns.shape
    wide = np.zeros((rows, padded(cols, lanes)), "<i2")
    wide[:, :cols] = turns
    planes = wide.view(np.uint8).reshape(rows, -1, lanes, 2).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(planes).reshape(-1)


def float_turn_planes(turns: NDArray[np.floating], lanes: int, size: int) -> Bytes:
    """Cosines and sines (rows x columns) as rope reads them in floating point, of elements of ``size`` bytes.

    Numbers of two elements, the leading bits of fp32: per block a line of low parts, then one of high parts. Where an
    element is an fp32 number itself, the second line is zero.
    """
    rows, cols = turns.shape
    wide = np.zeros((rows, padded(cols, lanes)), np.uint32)
    wide[:, :cols] = np.ascontiguousarray(turns, np.float32).view(np.uint32)
    if size == 1:
        wide = narrowed(wide, DataType.BF16)
    if size == 4:
        wide = wide.astype("<u8")
    planes = np.ascontiguousarray(wide).view(f"<u{size}").reshape(rows, -1, lanes, 2).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(planes).view(np.uint8).reshape(-1)


def parameter_planes(bias: Integers, multiplier: Integers, shift: Integers, lanes: int) -> Bytes:
    """The opposite of `parameters_of`: lines of parameters for whole blocks of columns."""
    planes = np.stack(
        [bias >> 8 * i & 255 for i in range(4)] + [multiplier & 255, multiplier >> 8 & 255, shift, 0 * shift]
    )
    return planes.reshape(8, -1, lanes).transpose(1, 0, 2).astype(np.uint8)


__all__ = [
    "GoldenMachine",
    "LoadedProgram",
    "float_parameter_planes",
    "float_scalar_bytes",
    "float_turn_planes",
    "parameter_planes",
    "scalar_bytes",
    "turn_planes",
]
