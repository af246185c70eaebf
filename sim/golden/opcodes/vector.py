"""The vector unit: what its functions compute stands in `sim.golden.vector`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.floats import Words, flushed, narrowed
from siliconloom.arch.isa import Instruction
from siliconloom.arch.layout import line_values, padded, row_values
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.scaled import keeps_scales, scaled_codes
from siliconloom.arch.tile import NpuTile
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
    if keeps_scales(i.packing):
        _with_scales(machine, i, FloatOperands(operands).first, target)
        return
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


def _with_scales(machine: GoldenMachine, i: Instruction, words: Words, target: int) -> None:
    """Results as whole numbers with their scales behind them, line by line (`arch.scaled`)."""
    assert i.packing is not None
    dtype, cols, four = i.packing.dtype, machine.array.cols, i.packing.dtype is DataType.INT4
    codes, scales = scaled_codes(flushed(words[:, : i.n]), dtype, cols)
    each = np.repeat(scales, cols, axis=1)
    held: NDArray[Any]
    wide: NDArray[Any]
    if i.function.spec.transposes:
        pitch, line = (values(machine.tile, i.m, i.narrow) for values in (row_values, _line))
        held, each = codes.view(np.uint8), each[:, : i.n]
        if four:
            held, each = (held[:, 0::2] & 15) | held[:, 1::2] << 4, each[:, 0::2]
        for column in range(held.shape[1]):  # the rows are those of one line
            place = window(machine.scratchpad, target + 2 * column * pitch, 2 * line)
            place[: i.m], place[line : line + i.m] = held[:, column], each[:, column]
        return
    pitch, line = (values(machine.tile, i.n, i.narrow) for values in (row_values, _line))
    width = min(padded(i.n, machine.lanes), pitch)
    wide, own = np.zeros((i.m, width), np.uint8), np.zeros((i.m, width), np.uint8)
    wide[:, : i.n], own[:, : each.shape[1]] = codes.view(np.uint8), each[:, :width]
    if four:
        wide, own, pitch, line = (wide[:, 0::2] & 15) | wide[:, 1::2] << 4, own[:, 0::2], pitch // 2, line // 2
    rows = window(machine.scratchpad, target, i.m * 2 * pitch).reshape(i.m, 2 * pitch)
    both = np.stack([part.reshape(i.m, -1, line) for part in (wide, own)], axis=2)
    rows[:, : 2 * wide.shape[1]] = both.reshape(i.m, -1)


def _line(tile: NpuTile, values: int, narrow: int) -> int:
    return line_values(values, tile.vector.lanes, narrow)


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
