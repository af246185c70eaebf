"""Products on the array; the layouts of operands are those of `arch.layout`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from siliconloom.arch.floats import Patterns, Words, narrowed, widened
from siliconloom.arch.isa import Instruction
from siliconloom.arch.layout import (
    filled_values,
    off_lines,
    panels_of_sums,
    row_values,
    stationary_values,
    summing_order,
    unpacked,
)
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.packing import may_be_narrow, weight_bytes
from siliconloom.arch.shared import CODE_FORMATS, from_memory, is_coded, shared_product
from siliconloom.arch.tile import NpuTile
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.float_functions import lowered
from siliconloom.sim.golden.floating import elements
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.packed import weights_of
from siliconloom.sim.golden.products import folded_product, folds_of
from siliconloom.sim.golden.vector import Integers, window

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine


Values = NDArray[np.int8]


def _product(a: Values, b: Values) -> Integers:
    """The product of two matrices; sums of products of int8 values are integers that float64 holds exactly."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


@executes(Opcode.MATMUL)
def matmul(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A product, in place of the sums or added to them; sums of integers wrap."""
    if not machine.dtype.is_integer:
        _floating(machine, i, indices)
        return
    tile, array, local = machine.tile, machine.array, machine.scratchpad
    rows, cols = array.rows, array.cols
    add, rise = i.adds(indices), _rise(machine, i, indices)
    a, b, c = (address.at(indices) for address in (i.a, i.b, i.c))
    if array.dataflow == "output_stationary":
        outer, beats = i.n, i.m
        if i.d.base:
            held = window(local, a, (i.k - 1) * i.d.base + filled_values(i.m, rows, i.narrow))
            moving = as_strided(held, (i.m, i.k), (1, i.d.base), writeable=False).view(np.int8)
        else:
            taken = window(local, a, i.k * filled_values(i.m, rows, i.narrow)).view(np.int8)
            moving = off_lines(taken, i.m, rows, i.narrow).T[: i.m]
        taken = window(local, b, i.k * filled_values(i.n, cols, i.narrow)).view(np.int8)
        result = _product(moving, off_lines(taken, i.n, cols, i.narrow))
    else:
        outer, beats, stays, moves = (i.m, i.n, a, b) if array.dataflow == "input_stationary" else (i.n, i.m, b, a)
        row = row_values(tile, i.k, i.narrow)
        pitch = i.d.base or row
        held = window(local, moves, (beats - 1) * pitch + row)
        moving = as_strided(held, (beats, i.k), (pitch, 1), writeable=False).view(np.int8)
        stationary = window(local, stays, stationary_values(array, outer, i.k, i.narrow)).view(np.int8)
        result = _product(moving, unpacked(array, stationary, i.k, outer, i.narrow))
    for panel, target in enumerate(panels_of_sums(array, machine.sums, c, outer, beats, i.split)):
        before = target if rise is None else functions.rescaled(target, rise)
        total = result[:, panel * cols : panel * cols + target.shape[1]] + (before if add else 0)
        target[:] = total.astype(np.int32)  # which wraps


def _rise(machine: GoldenMachine, i: Instruction, indices: list[int]) -> Integers | None:
    """By how much the peaks of the rows of older sums have risen, where these are rescaled."""
    if not (i.rescale and i.adds(indices)):
        return None
    lines, powers = (i.n, i.b) if machine.array.dataflow == "input_stationary" else (i.m, i.a)
    return machine.rows.rise(lines, powers.slot_at(indices))


def entering(tile: NpuTile, values: Patterns) -> Words:
    """Operands of the array, in fp32 patterns, of elements: those that are wider are rounded as they enter it."""
    own, dtype = tile.array.circuit_format, tile.circuit_format
    words = widened(values, dtype)
    return words if own is None or not tile.rounds else widened(narrowed(words, own), own)


def _floating(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A product in floating point: each fold from +0, in the order of the array's rows, then added to what is there."""
    tile, array, local, dtype = machine.tile, machine.array, machine.scratchpad, machine.dtype
    rows, cols, size, add = array.rows, array.cols, machine.tile.element_bytes, i.adds(indices)
    a, b, c = (address.at(indices) for address in (i.a, i.b, i.c))
    stored = array.circuit_format
    assert stored is not None
    stationary: NDArray[Any]
    if array.dataflow == "output_stationary":
        right = elements(local, b, i.k * filled_values(i.n, cols, i.narrow), dtype)
        if i.d.base:
            held = elements(local, a, (i.k - 1) * (i.d.base // size) + filled_values(i.m, rows, i.narrow), dtype)
            moving = as_strided(held, (i.m, i.k), (size, i.d.base), writeable=False)
        else:
            left = elements(local, a, i.k * filled_values(i.m, rows, i.narrow), dtype)
            moving = off_lines(left, i.m, rows, i.narrow).T[: i.m]
        stationary, outer, beats = entering(tile, off_lines(right, i.n, cols, i.narrow)), i.n, i.m
        folds = folds_of(i.k, i.k, tuple(range(i.k)))
    else:
        outer, beats, stays, moves = (i.m, i.n, a, b) if array.dataflow == "input_stationary" else (i.n, i.m, b, a)
        row = row_values(tile, i.k, i.narrow)
        pitch = (i.d.base or size * row) // size
        held = elements(local, moves, (beats - 1) * pitch + row, dtype)
        moving = as_strided(held, (beats, i.k), (size * pitch, size), writeable=False)
        if i.packing is not None:
            held = window(local, stays, weight_bytes(array, i.packing, outer, i.k, i.narrow))
            if tile.shares and not i.packing.group:
                lines = int(i.narrow and may_be_narrow(array, i.packing))
                stationary = unpacked(array, from_memory(held, stored), i.k, outer, lines)
            else:
                stationary = weights_of(array, i.packing, held, outer, i.k, i.narrow)
        else:
            taken = elements(local, stays, stationary_values(array, outer, i.k, i.narrow), dtype)
            stationary = unpacked(array, taken, i.k, outer, i.narrow)
            if not tile.shares:
                stationary = entering(tile, stationary)
        if tile.shares and not is_coded(stationary):
            stationary[:, outer:] = 0  # columns that a panel has not count for no exponent
        folds = folds_of(i.k, i.k, tuple(summing_order(array)))
    targets, rise = panels_of_sums(array, machine.sums, c, outer, beats, i.split), _rise(machine, i, indices)
    before = np.concatenate(targets, axis=1).astype(np.uint32) if add else None
    if before is not None and rise is not None:
        before = lowered(before, rise[:, None])
    width = sum(target.shape[1] for target in targets)
    if tile.shares:  # columns whose sums are not kept share exponents, too
        older = None if before is None else np.pad(before, ((0, 0), (0, stationary.shape[1] - width)))
        form = CODE_FORMATS[stored]
        found = shared_product(widened(moving, dtype), stationary, rows, cols, i.k, older, form).view(np.int32)
    else:
        found = folded_product(entering(tile, moving), stationary[:, :width], folds, before).view(np.int32)
    for panel, target in enumerate(targets):
        target[:] = found[:, panel * cols : panel * cols + target.shape[1]]
