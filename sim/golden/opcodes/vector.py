"""The vector unit: what its functions compute stands in `sim.golden.vector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.floats import narrowed
from siliconloom.arch.isa import Instruction
from siliconloom.arch.layout import padded, row_values
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.units.vector import result_bytes
from siliconloom.arch.vector import ROW_LIMIT
from siliconloom.sim.golden.floating import FLOAT_GOLDEN, MOVES, FloatOperands
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.vector import GOLDEN, Integers, window

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine


@executes(Opcode.VECTOR)
def vector(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A function; results are clipped or rounded to the tile's format, and zero beyond its columns."""
    if not machine.dtype.is_integer:
        _floating(machine, i, indices)
        return
    function, spec = i.function, i.function.spec
    if function not in GOLDEN:
        raise NotSupported(f"values of the vector function {function.value}")
    _check_rows(i)
    target, operands = i.c.at(indices), machine.operands(i, indices)
    cols = spec.result_cols(i.n)
    found = GOLDEN[function](operands)[:, :cols]
    if spec.cost.by_row and not spec.carries:
        machine.rows.carried[operands.slot] = None  # what it finds of each row takes their place
    if spec.transposes:
        _transpose(machine, found, target, i.narrow)
        return
    pitch = row_values(machine.tile, cols, i.narrow)
    width = min(padded(cols, operands.lanes), pitch)
    result = np.zeros((i.m, width), np.int8)
    result[:, :cols] = np.clip(found, -128, 127)
    rows = window(machine.scratchpad, target, i.m * pitch).reshape(i.m, pitch)
    rows[:, :width] = result.view(np.uint8)


def _floating(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A function in floating point."""
    tile, dtype, spec = machine.tile, machine.dtype, i.function.spec
    if i.function not in MOVES and i.function not in FLOAT_GOLDEN:
        raise NotSupported(f"values of the vector function {i.function.value} in {dtype.value}")
    _check_rows(i)
    target, size, operands = i.c.at(indices), tile.element_bytes, machine.operands(i, indices)
    cols = spec.result_cols(i.n, dtype)
    if i.packing is not None:
        dtype, size = i.packing.dtype, result_bytes(i, tile)
        found = narrowed(FloatOperands(operands).first, dtype)[:, :cols]
    elif i.function in MOVES:
        found = FloatOperands(operands).patterns[:, :cols]
    else:
        words = FLOAT_GOLDEN[i.function](FloatOperands(operands))[:, :cols]
        # parts of an index are written as they are
        found = words.astype(f"<u{size}") if spec.indexes else narrowed(words, dtype)
    if spec.cost.by_row and not spec.carries:
        machine.rows.carried[operands.slot] = None
    if spec.transposes:
        pitch = row_values(tile, i.m, i.narrow)
        for column in range(i.n):
            place = window(machine.scratchpad, target + size * column * pitch, size * i.m)
            place[:] = np.ascontiguousarray(found[:, column]).view(np.uint8)
        return
    pitch = row_values(tile, cols, i.narrow)
    width = min(padded(cols, machine.lanes), pitch)
    result = np.zeros((i.m, width), found.dtype)
    result[:, :cols] = found
    rows = window(machine.scratchpad, target, size * i.m * pitch).reshape(i.m, size * pitch)
    rows[:, : size * width] = result.view(np.uint8)


def _check_rows(i: Instruction) -> None:
    """Refuse more rows and columns than a row function has room for."""
    spec = i.function.spec
    if spec.uses_rows and (i.m > ROW_LIMIT or i.n > spec.column_limit):
        raise LoomError(
            f"{i.function.value} of {i.m} rows and {i.n} columns, at most {ROW_LIMIT} and {spec.column_limit}"
        )


def _transpose(machine: GoldenMachine, x: Integers, target: int, narrow: int) -> None:
    """Element (r, c) goes to row c, column r; the rest of the last line of a row stays as it is."""
    rows, cols = x.shape
    pitch = row_values(machine.tile, rows, narrow)
    for column in range(cols):
        place = window(machine.scratchpad, target + column * pitch, rows)
        place[:] = x[:, column].astype(np.int8).view(np.uint8)
