"""The vector unit: what its functions compute stands in `sim.golden.vector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.floats import narrowed
from siliconloom.arch.isa import Instruction
from siliconloom.arch.layout import padded, row_values
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.vector import ROW_LIMIT
from siliconloom.sim.golden.floating import FLOAT_GOLDEN, MOVES, FloatOperands
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.vector import GOLDEN, Integers, window

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine


@executes(Opcode.VECTOR)
def vector(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A function; results are clipped or rounded to the tile's format, and zero beyond its columns."""
    if not machine.tile.circuit_format.is_integer:
        _floating(machine, i, indices)
        return
    function, spec = i.function, i.function.spec
    if function not in GOLDEN:
        raise NotSupported(f"values of the vector function {function.value}")
    if spec.uses_rows and (i.m > ROW_LIMIT or i.n > spec.column_limit):
        raise LoomError(
            f"{function.value} of {i.m} rows and {i.n} columns, at most {ROW_LIMIT} and {spec.column_limit}"
        )
    target, operands = i.c.at(indices), machine.operands(i, indices)
    cols = spec.result_cols(i.n)
    found = GOLDEN[function](operands)[:, :cols]
    if spec.cost.by_row and not spec.carries:
        machine.rows.carried[operands.slot] = None  # what it finds of each row takes their place
    if spec.transposes:
        _transpose(machine, found, target)
        return
    width, pitch = padded(cols, operands.lanes), row_values(machine.tile, cols)
    result = np.zeros((i.m, width), np.int8)
    result[:, :cols] = np.clip(found, -128, 127)
    rows = window(machine.scratchpad, target, i.m * pitch).reshape(i.m, pitch)
    rows[:, :width] = result.view(np.uint8)


def _floating(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A function in floating point."""
    tile, dtype = machine.tile, machine.tile.circuit_format
    if i.function not in MOVES and i.function not in FLOAT_GOLDEN:
        raise NotSupported(f"values of the vector function {i.function.value} in {dtype.value}")
    target, size = i.c.at(indices), tile.element_bytes
    operands = FloatOperands(machine.operands(i, indices))
    if i.function in MOVES:
        found = operands.patterns[:, : i.n]
    else:
        found = narrowed(FLOAT_GOLDEN[i.function](operands)[:, : i.n], dtype)
    if i.function.spec.transposes:
        pitch = row_values(tile, i.m)
        for column in range(i.n):
            place = window(machine.scratchpad, target + size * column * pitch, size * i.m)
            place[:] = np.ascontiguousarray(found[:, column]).view(np.uint8)
        return
    width, pitch = padded(i.n, machine.lanes), row_values(tile, i.n)
    result = np.zeros((i.m, width), found.dtype)
    result[:, : i.n] = found
    rows = window(machine.scratchpad, target, size * i.m * pitch).reshape(i.m, size * pitch)
    rows[:, : size * width] = result.view(np.uint8)


def _transpose(machine: GoldenMachine, x: Integers, target: int) -> None:
    """Element (r, c) goes to row c, column r; the rest of the last line of a row stays as it is."""
    rows, cols = x.shape
    pitch = row_values(machine.tile, rows)
    for column in range(cols):
        place = window(machine.scratchpad, target + column * pitch, rows)
        place[:] = x[:, column].astype(np.int8).view(np.uint8)
