"""Products on the array; the layouts of operands are those of `arch.layout`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import Patterns, Words, rounded, widened
from siliconloom.arch.isa import Instruction
from siliconloom.arch.layout import (
    filled_values,
    line_values,
    off_lines,
    panel_rows,
    panels_of_sums,
    row_values,
    stationary_values,
    summing_order,
    unpacked,
    whole_panels,
)
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.packing import may_be_narrow, weight_bytes
from siliconloom.arch.scaled import is_scaled
from siliconloom.arch.shared import CODE_FORMATS, from_memory, is_coded, shared_product
from siliconloom.arch.tile import NpuTile
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.float_functions import lowered
from siliconloom.sim.golden.floating import elements
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.packed import weights_of
from siliconloom.sim.golden.products import Folds, folded_product, folds_of, panels_product
from siliconloom.sim.golden.vector import Bytes, Integers, window

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
    """Operands of the array, in fp32 patterns, of elements: those that are wider are rounded as they enter it.

    Whole numbers that share an exponent are made where they are multiplied.
    """
    own, words = tile.array.circuit_format, widened(values, tile.circuit_format)
    return words if own is None or not tile.rounds or tile.shares else rounded(words, own)


class KeptSizes(Struct, frozen=True):
    """What is the same in every execution of a product whose operand stays.

    ``count`` elements hold the operand that moves, whose rows are ``step`` bytes apart; ``stays`` are bytes of the
    other. Where that is multiplied as it lies, panels of bf16 have ``deep`` rows, and the last ``last`` columns.
    """

    outer: int
    beats: int
    count: int
    step: int
    stays: int
    folds: Folds
    deep: int
    last: int


def _sizes(tile: NpuTile, i: Instruction) -> KeptSizes:
    """What every execution of an instruction has in common."""
    array, packing = tile.array, i.packing
    outer, beats = (i.m, i.n) if array.dataflow == "input_stationary" else (i.n, i.m)
    row = row_values(tile, i.k, i.narrow)
    pitch = (i.d.base or tile.element_bytes * row) // tile.element_bytes
    own, plain = tile.circuit_format if packing is None else packing.dtype, packing is None or not packing.group
    short = array.circuit_format is DataType.BF16 and own is DataType.BF16 and plain and not tile.shares
    if packing is None:
        stays = stationary_values(array, outer, i.k, i.narrow) * tile.element_bytes
    else:
        stays = weight_bytes(array, packing, outer, i.k, i.narrow)
    narrow = int(i.narrow and may_be_narrow(array, packing))
    return KeptSizes(
        outer,
        beats,
        (beats - 1) * pitch + row,
        tile.element_bytes * pitch,
        stays,
        folds_of(i.k, i.k, tuple(summing_order(array))),
        panel_rows(array, i.k) if short and not i.split and not is_scaled(array, packing) else 0,
        line_values(outer % array.cols, array.cols, narrow),
    )


def _floating(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """A product in floating point: each fold from +0, in the order of the array's rows, then added to what is there."""
    tile, array, local, dtype = machine.tile, machine.array, machine.scratchpad, machine.dtype
    if array.dataflow == "output_stationary":
        _from_blocks(machine, i, indices)
        return
    sizes = machine.known(i, _sizes)
    a, b, c = i.a.at(indices), i.b.at(indices), i.c.at(indices)
    stays, moves = (a, b) if array.dataflow == "input_stationary" else (b, a)
    held = elements(local, moves, sizes.count, dtype)
    strides = (sizes.step, tile.element_bytes)
    moving = entering(tile, np.ndarray((sizes.beats, i.k), held.dtype, held, 0, strides))
    taken, add, rise = window(local, stays, sizes.stays), i.adds(indices), _rise(machine, i, indices)
    if sizes.deep:
        sums = whole_panels(array, machine.sums, c, sizes.outer, sizes.beats)
        if rise is not None:
            before = sums.astype(np.uint32)
            sums[...] = lowered(before, rise[:, None]).view(np.int32)
        parts = sizes.deep, sizes.outer, sizes.last
        panels_product(moving, taken.copy().view(np.uint16), parts, sizes.folds, sums, add)
        return
    both = moving, _staying(tile, i, taken, sizes.outer)
    _in_lines(machine, i, both, (sizes.outer, sizes.beats, sizes.folds), c, add, rise)


def _from_blocks(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    """`_floating` on an output stationary array, to which both operands move."""
    tile, array, local, dtype = machine.tile, machine.array, machine.scratchpad, machine.dtype
    rows, cols, size = array.rows, array.cols, tile.element_bytes
    a, b, c = (address.at(indices) for address in (i.a, i.b, i.c))
    right = elements(local, b, i.k * filled_values(i.n, cols, i.narrow), dtype)
    if i.d.base:
        held = elements(local, a, (i.k - 1) * (i.d.base // size) + filled_values(i.m, rows, i.narrow), dtype)
        moving = np.ndarray((i.m, i.k), held.dtype, held, 0, (size, i.d.base))
    else:
        left = elements(local, a, i.k * filled_values(i.m, rows, i.narrow), dtype)
        moving = off_lines(left, i.m, rows, i.narrow).T[: i.m]
    both = entering(tile, moving), entering(tile, off_lines(right, i.n, cols, i.narrow))
    sizes = i.n, i.m, folds_of(i.k, i.k, tuple(range(i.k)))
    _in_lines(machine, i, both, sizes, c, i.adds(indices), _rise(machine, i, indices))


def _staying(tile: NpuTile, i: Instruction, taken: Bytes, outer: int) -> NDArray[Any]:
    """The operand that stays: fp32 patterns, or codes that share exponents, k rows of whole panels."""
    array = tile.array
    stored = array.circuit_format
    assert stored is not None
    stationary: NDArray[Any]
    if i.packing is None:
        values = taken.copy().view(f"<u{tile.element_bytes}")
        stationary = unpacked(array, values, i.k, outer, i.narrow)
        if not tile.shares:
            return entering(tile, stationary)
    elif tile.shares and not i.packing.group:
        lines = int(i.narrow and may_be_narrow(array, i.packing))
        stationary = unpacked(array, from_memory(taken, stored), i.k, outer, lines)
    else:
        stationary = weights_of(array, i.packing, taken, outer, i.k, i.narrow)
    if tile.shares and not is_coded(stationary):
        stationary[:, outer:] = 0  # columns that a panel has not count for no exponent
    return stationary


def _in_lines(
    machine: GoldenMachine,
    i: Instruction,
    operands: tuple[Words, NDArray[Any]],
    sizes: tuple[int, int, Folds],
    place: int,
    add: bool,
    rise: Integers | None,
) -> None:
    """The product of two matrices, in place of sums or added to them; ``sizes`` are outer columns, beats, and folds."""
    tile, array, (moving, stationary), (outer, beats, folds) = machine.tile, machine.array, operands, sizes
    targets = panels_of_sums(array, machine.sums, place, outer, beats, i.split)
    before = np.concatenate(targets, axis=1).astype(np.uint32) if add else None
    if before is not None and rise is not None:
        before = lowered(before, rise[:, None])
    width = sum(target.shape[1] for target in targets)
    if tile.shares:  # columns whose sums are not kept share exponents, too
        assert array.circuit_format is not None
        older = None if before is None else np.pad(before, ((0, 0), (0, stationary.shape[1] - width)))
        form = CODE_FORMATS[array.circuit_format]
        found = shared_product(moving, stationary, array.rows, array.cols, i.k, older, form).view(np.int32)
    else:
        found = folded_product(moving, stationary[:, :width], folds, before).view(np.int32)
    for panel, target in enumerate(targets):
        target[:] = found[:, panel * array.cols : panel * array.cols + target.shape[1]]
