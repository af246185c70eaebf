"""The values of a program: a NumPy model of one NPU tile that runs instructions one after the other.

Bit exact with the RTL (``rtl.npu``). Every instruction takes effect in program order; a legal program's semaphores
admit only that outcome. Layouts of operands in local memory are those of ``rtl.npu.matmul`` and ``rtl.npu.vector``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.arch.vector import VectorFunction

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
        if i.opcode in (Opcode.LOAD, Opcode.STORE):
            for row in range(i.m):
                memory = i.memory.at(indices) + row * i.pitch
                local = i.a.at(indices) + row * i.local_pitch
                if i.opcode == Opcode.LOAD:
                    self._window(self.scratchpad, local, i.n)[:] = self._window(self.memory, memory, i.n)
                else:
                    self._window(self.memory, memory, i.n)[:] = self._window(self.scratchpad, local, i.n)
        elif i.opcode == Opcode.MATMUL:
            first = all(indices[level] == 0 for level in range(len(indices)) if i.overwrite >> level & 1)
            self._matmul(i, indices, bool(i.accumulate) or not first)
        elif i.opcode == Opcode.VECTOR:
            self._vector(i, indices)
        elif i.opcode != Opcode.BARRIER:
            raise NotSupported(f"values of {i.opcode.name.lower()} instructions")

    def _window(self, space: Bytes, first: int, count: int) -> Bytes:
        if not 0 <= first <= first + count <= len(space):
            raise LoomError(f"address {first:#x} + {count} lies outside a memory of {len(space)} bytes")
        return space[first : first + count]

    def _lines(self, first: int, count: int, width: int) -> Integers:
        """``count`` lines of ``width`` int8 values in the scratchpad."""
        return self._window(self.scratchpad, first, count * width).view(np.int8).reshape(count, width).astype(np.int64)

    def _matmul(self, i: Instruction, indices: list[int], add: bool) -> None:
        rows, cols, group = self.array.rows, self.array.cols, self.array.load_rows
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
            panels, folds = -(-outer // cols), -(-i.k // rows)
            moving = self._lines(moves, beats * folds, rows).reshape(beats, folds * rows)[:, : i.k]
            parts = []
            for _ in range(panels):
                taken = []
                for fold in range(folds):
                    used = min(rows, i.k - fold * rows)
                    count = -(-used // group)
                    taken.append(self._lines(stays, count * group, cols)[:used])
                    stays += count * group * cols
                parts.append(np.concatenate(taken))
            result = moving @ np.concatenate(parts, axis=1)
        line = c // (4 * cols)
        for panel in range(panels):
            target = self.sums[line + panel * beats : line + (panel + 1) * beats]
            total = result[:, panel * cols : (panel + 1) * cols] + (target if add else 0)
            target[:] = (total + 2**31) % 2**32 - 2**31

    def _vector(self, i: Instruction, indices: list[int]) -> None:
        lanes = self.lanes
        a, b, c, d = (address.at(indices) for address in (i.a, i.b, i.c, i.d))
        blocks = -(-i.n // lanes)
        width = blocks * lanes

        def rows(address: int) -> Integers:
            return self._lines(address, i.m * blocks, lanes).reshape(i.m, width)

        if i.function == VectorFunction.COPY:
            result = rows(a)
        elif i.function == VectorFunction.RELU:
            result = np.maximum(rows(a), 0)
        elif i.function == VectorFunction.ADD:
            result = rows(a) + rows(b)
        elif i.function == VectorFunction.REQUANTIZE:
            line = a // (4 * lanes)
            sums = self.sums[line : line + blocks * i.m].reshape(blocks, i.m, lanes).transpose(1, 0, 2)
            planes = self._window(self.scratchpad, d, blocks * 8 * lanes).reshape(blocks, 8, lanes)
            result = requantized(sums.reshape(i.m, width), *parameters_of(planes))
        else:
            raise NotSupported(f"values of the vector function {i.function.value}")
        result = np.clip(result, -128, 127)
        result[:, i.n :] = 0
        self._window(self.scratchpad, c, i.m * width)[:] = result.astype(np.int8).view(np.uint8).reshape(-1)


def parameters_of(planes: Bytes) -> tuple[Integers, Integers, Integers]:
    """Biases, multipliers and shifts of columns from their lines, shape (blocks, 8, lanes)."""
    wide = planes.astype(np.int64)
    bias = wide[:, 0] | wide[:, 1] << 8 | wide[:, 2] << 16 | wide[:, 3] << 24
    multiplier = wide[:, 4] | wide[:, 5] << 8
    bias, multiplier = (bias ^ 1 << 31) - (1 << 31), (multiplier ^ 1 << 15) - (1 << 15)
    return bias.reshape(-1), multiplier.reshape(-1), (wide[:, 6] & 63).reshape(-1)


def parameter_planes(bias: Integers, multiplier: Integers, shift: Integers, lanes: int) -> Bytes:
    """The opposite of `parameters_of`: lines of parameters for whole blocks of columns."""
    planes = np.stack(
        [bias >> 8 * i & 255 for i in range(4)] + [multiplier & 255, multiplier >> 8 & 255, shift, 0 * shift]
    )
    return planes.reshape(8, -1, lanes).transpose(1, 0, 2).astype(np.uint8)


def requantized(sums: Integers, bias: Integers, multiplier: Integers, shift: Integers) -> Integers:
    """(sums + bias) * multiplier / 2^shift per column, rounded to the nearest integer, halves to even."""
    product = (sums + bias) * multiplier
    shift = np.minimum(shift, 50)  # |product| <= 2^48: any larger shift gives zero as well
    floor = product >> shift
    rest = product - (floor << shift)
    half = (np.int64(1) << shift) >> 1
    up = (shift > 0) & ((rest > half) | ((rest == half) & (floor & 1 == 1)))
    return np.asarray(floor + up)
