"""The values of a program: a NumPy model of one NPU tile that runs instructions one after the other.

Bit exact with the RTL (``rtl.npu``). Every instruction takes effect in program order; a legal program's semaphores
admit only that outcome. Layouts of operands in local memory are those of ``rtl.npu.matmul`` and ``rtl.npu.vector``.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import COMPUTES, Instruction, Opcode, Program
from siliconloom.arch.layout import padded, stationary_values, unpacked
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.vector import GOLDEN, Operands, window

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]


class Machine:
    """Memories of one tile, and what instructions do to them.

    Parameters
    ----------
    chip
        A chip with an int8 NPU tile.
    memory
        Main memory from address 0 on; changed in place.
    """

    def __init__(self, chip: Chip, memory: Bytes) -> None:
        tile = chip.tile
        if not isinstance(tile, NpuTile) or DataType.INT8 not in tile.array.operands:
            raise NotSupported("values of a program on anything but an int8 npu tile")
        self.array, self.lanes = tile.array, tile.vector.lanes
        self.memory = memory
        self.scratchpad = np.zeros(tile.scratchpad.capacity, np.uint8)
        lines = tile.accumulator.capacity // (4 * tile.array.cols)
        self.sums = np.zeros((lines, tile.array.cols), np.int64)

    def run(self, program: Program) -> None:
        """Run a program from its first instruction to its end."""
        stack: list[list[int]] = []
        place, code = 0, program.instructions
        while code[place].opcode != Opcode.END:
            i = code[place]
            if i.opcode == Opcode.LOOP:
                stack.append([place, 0, i.m])
            elif i.opcode == Opcode.NEXT:
                stack[-1][1] += 1
                if stack[-1][1] < stack[-1][2]:
                    place = stack[-1][0]
                else:
                    stack.pop()
            else:
                self.execute(i, [each[1] for each in stack])
            place += 1

    def execute(self, i: Instruction, indices: list[int]) -> None:
        """Carry out one instruction at the given loop indices, outermost first."""
        if i.opcode in COMPUTES and i.dtype != DataType.INT8:
            raise NotSupported(f"values of a {i.opcode.name.lower()} instruction in {i.dtype.value}; the tile has int8")
        if i.opcode in (Opcode.LOAD, Opcode.STORE):
            for row in range(i.m):
                memory = i.memory.at(indices) + row * i.pitch
                local = i.a.at(indices) + row * i.local_pitch
                if i.opcode == Opcode.LOAD:
                    window(self.scratchpad, local, i.n)[:] = window(self.memory, memory, i.n)
                else:
                    window(self.memory, memory, i.n)[:] = window(self.scratchpad, local, i.n)
        elif i.opcode == Opcode.MATMUL:
            first = all(indices[level] == 0 for level in range(len(indices)) if i.overwrite >> level & 1)
            self._matmul(i, indices, bool(i.accumulate) or not first)
        elif i.opcode == Opcode.VECTOR:
            self._vector(i, indices)
        elif i.opcode != Opcode.BARRIER:
            raise NotSupported(f"values of {i.opcode.name.lower()} instructions")

    def _lines(self, first: int, count: int, width: int) -> Integers:
        """``count`` lines of ``width`` int8 values in the scratchpad."""
        return window(self.scratchpad, first, count * width).view(np.int8).reshape(count, width).astype(np.int64)

    def _matmul(self, i: Instruction, indices: list[int], add: bool) -> None:
        rows, cols = self.array.rows, self.array.cols
        a, b, c = (address.at(indices) for address in (i.a, i.b, i.c))
        if self.array.dataflow == "output_stationary":
            blocks, panels = -(-i.m // rows), -(-i.n // cols)
            moving = self._lines(a, blocks * i.k, rows).reshape(blocks, i.k, rows).transpose(0, 2, 1)
            result = moving.reshape(blocks * rows, i.k)[: i.m] @ (
                self._lines(b, panels * i.k, cols).reshape(panels, i.k, cols).transpose(1, 0, 2).reshape(i.k, -1)
            )
            beats = i.m
        else:
            outer, beats, stays, moves = (
                (i.m, i.n, a, b) if self.array.dataflow == "input_stationary" else (i.n, i.m, b, a)
            )
            panels = -(-outer // cols)
            moving = self._lines(moves, beats, padded(i.k, rows))[:, : i.k]
            stationary = self._lines(stays, stationary_values(self.array, outer, i.k), 1)
            result = moving @ unpacked(self.array, stationary, i.k)
        line = c // (4 * cols)
        for panel in range(panels):
            target = self.sums[line + panel * beats : line + (panel + 1) * beats]
            total = result[:, panel * cols : (panel + 1) * cols] + (target if add else 0)
            target[:] = (total + 2**31) % 2**32 - 2**31

    def _vector(self, i: Instruction, indices: list[int]) -> None:
        function, spec = i.function, i.function.spec
        if function not in GOLDEN:
            raise NotSupported(f"values of the vector function {function.value}")
        if spec.cost.by_row and (i.m > ROW_LIMIT or i.n > COLUMN_LIMIT):
            raise LoomError(f"{function.value} of {i.m} rows and {i.n} columns, at most {ROW_LIMIT} and {COLUMN_LIMIT}")
        addresses = {"a": i.a.at(indices), "b": i.b.at(indices), "d": i.d.at(indices)}
        target = i.c.at(indices)
        operands = Operands(i, addresses, self.lanes, self.scratchpad, self.sums, self._softmax)
        found = GOLDEN[function](operands)[:, : i.n]
        if spec.transposes:
            self._transpose(found, target)
            return
        result = np.zeros((i.m, operands.width), np.int8)
        result[:, : i.n] = np.clip(found, -128, 127)
        window(self.scratchpad, target, result.size)[:] = result.view(np.uint8).reshape(-1)

    def _softmax(self, sums: Integers, multiplier: int, shift: int, valid: Integers) -> Integers:
        return functions.softmax(sums, multiplier, shift, valid, self.lanes)

    def _transpose(self, x: Integers, target: int) -> None:
        """Element (r, c) goes to row c, column r; the rest of the last line of a row stays as it is."""
        rows, cols = x.shape
        pitch = padded(rows, self.lanes)
        for column in range(cols):
            window(self.scratchpad, target + column * pitch, rows)[:] = x[:, column].astype(np.int8).view(np.uint8)


def scalar_bytes(first: int, second: int, shift: int) -> Bytes:
    """Scalars of a vector function as they lie at ``d``."""
    return np.frombuffer(struct.pack("<hhB3x", first, second, shift), np.uint8)


def turn_planes(turns: Integers, lanes: int) -> Bytes:
    """Cosines and sines (rows x columns, in 1/2^15) as rope reads them: per block low bytes, then high ones."""
    rows, cols = turns.shape
    wide = np.zeros((rows, padded(cols, lanes)), "<i2")
    wide[:, :cols] = turns
    planes = wide.view(np.uint8).reshape(rows, -1, lanes, 2).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(planes).reshape(-1)


def parameter_planes(bias: Integers, multiplier: Integers, shift: Integers, lanes: int) -> Bytes:
    """The opposite of `parameters_of`: lines of parameters for whole blocks of columns."""
    planes = np.stack(
        [bias >> 8 * i & 255 for i in range(4)] + [multiplier & 255, multiplier >> 8 & 255, shift, 0 * shift]
    )
    return planes.reshape(8, -1, lanes).transpose(1, 0, 2).astype(np.uint8)


__all__ = ["Machine", "parameter_planes", "scalar_bytes", "turn_planes"]
