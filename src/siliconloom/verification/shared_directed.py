"""Programs for arrays in whole numbers between elements in fp32: blocks that share an exponent, at both ends of these.

Requantised by one and nothing, a product's sums are results with all their bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import Chip
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import packed, padded, panel_rows, row_values
from siliconloom.arch.shared import CODE_FORMATS, CodeFormat, WholeNumbers, in_memory, is_coded
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.float_directed import FloatRows

Numbers = NDArray[np.float32]
Draw = Callable[[np.random.Generator, tuple[int, int], CodeFormat], Numbers]


def many_sizes(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Numbers of any fraction whose sizes differ by as much as a code holds, and by more; some are zeros."""
    sign = chance.choice([-1.0, 1.0, 1.0, 0.0, -0.0], shape)
    sizes = 2.0 ** chance.integers(-form.places - 3, 1, shape)
    return np.asarray(sign * chance.uniform(1, 2, shape) * sizes, np.float32)


def ties(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Halves of the last place of a code, or close to them, beside one number of size one."""
    halves = (2 * chance.integers(-form.most - 1, form.most + 1, shape) + 1) / 2.0 ** (form.places + 1)
    found = halves * chance.choice([1.0, 1.0, 1 - 2.0**-20, 1 + 2.0**-20], shape)
    found[np.arange(shape[0]), chance.integers(0, shape[1], shape[0])] = 1.0
    return np.asarray(found, np.float32)


def rows_far_apart(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Rows each of a size of its own, a few of them of zeros, or of what is flushed."""
    sizes = chance.choice([2.0**-9, 2.0**-4, 1.0, 2.0**3, 2.0**-130, 0.0], (shape[0], 1))
    return np.asarray(chance.uniform(0.5, 2, shape) * chance.choice([-1.0, 1.0], shape) * sizes, np.float32)


def columns_far_apart(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Columns each of a size of its own, some so large that nothing else would count beside them."""
    sizes = 2.0 ** chance.choice([-100.0, -90.0, 0.0, 120.0], (1, shape[1]))
    return np.asarray(chance.uniform(1, 2, shape) * chance.choice([-1.0, 1.0], shape) * sizes, np.float32)


def ends(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Numbers whose products with those of `one_end` are near both ends of fp32, a row of one size each."""
    sizes = 2.0 ** chance.choice([-65.0, -64.0, -63.0, -62.0, 62.0, 63.0, 64.0, 65.0], (shape[0], 1))
    return np.asarray(chance.uniform(1, 2, shape) * chance.choice([-1.0, 1.0], shape) * sizes, np.float32)


def one_end(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Numbers of the square root of the largest size, or of the smallest, and a few smaller ones and zeros."""
    size = 2.0 ** chance.choice([-63.0, 63.0])
    parts = chance.choice([-1.0, 1.0, -0.5, 0.5, 2.0**-3, 0.0], shape)
    return np.asarray(chance.uniform(1, 2, shape) * parts * size, np.float32)


def one_and_a_last_place(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Two numbers of a row: one, and what is a single last place beside it; of any signs, the same for both."""
    found = np.zeros(shape, np.float32)
    found[:, 0] = 1.0
    found[:, 1:2] = 2.0**-form.places
    return np.asarray(found * chance.choice([-1.0, 1.0], (shape[0], 1)), np.float32)


def largest_codes(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """A row of the largest code, then rows of one, or of a last place less.

    With `one_and_a_last_place` they add up to a power of two less one, or a little more: what is rounded up to it.
    """
    places = 2.0**-form.places
    found = chance.choice([1.0, 1 - places], shape)
    found[:, 0], found[0] = 1.0, form.most * places
    return np.asarray(found, np.float32)


def few_odd(chance: np.random.Generator, shape: tuple[int, int], form: CodeFormat) -> Numbers:
    """Numbers among which one is infinite, or none."""
    found = chance.standard_normal(shape).astype(np.float32)
    found[chance.integers(shape[0]), chance.integers(shape[1])] = chance.choice([np.inf, -np.inf, np.nan])
    return found


KINDS: dict[str, tuple[Draw, Draw]] = {
    "many sizes": (many_sizes, many_sizes),
    "ties": (ties, ties),
    "rows far apart": (many_sizes, rows_far_apart),
    "rows of zeros": (columns_far_apart, rows_far_apart),
    "ends": (ends, one_end),
    "next to powers of two": (one_and_a_last_place, largest_codes),
    "no numbers that move": (few_odd, many_sizes),
    "no numbers that stay": (many_sizes, few_odd),
}
"""What moves, and what stays, of the programs' products."""


def shared_programs(chip: Chip) -> list[tuple[str, LoadedProgram]]:
    """A program of products for every kind of numbers, where the array's operands share exponents."""
    if not isinstance(chip.tile, NpuTile) or not chip.tile.shares:
        return []
    numbers = KINDS.items()
    made = [(f"shared exponents: {name}", shared_program(chip, *kinds)) for name, kinds in numbers]
    return made + [(f"one shared exponent: {name}", one_fold(chip, *kinds)) for name, kinds in numbers]


def shared_program(chip: Chip, moves: Draw, stays: Draw) -> LoadedProgram:
    """Products of several folds and panels, the last of each cut short, by elements and by codes."""
    rows = FloatRows(chip, np.random.default_rng(47))
    array, form = rows.tile.array, _form(rows)
    shapes = (
        (3, array.cols, array.rows),
        (5, array.cols + 1, 2 * array.rows + max(array.rows // 2, 1)),
        (2, max(array.cols // 2, 1), array.rows + 1),
        (4, 2 * array.cols, max(array.rows - 1, 1)),
    )
    for m, n, k in shapes:
        _product(rows, moves(rows.numbers, (m, k), form), stays(rows.numbers, (k, n), form))
    m, n, k = shapes[1]
    codes = rows.numbers.integers(-form.most - 1, form.most + 1, (k, n)).astype(form.stored)
    _product(rows, moves(rows.numbers, (m, k), form), codes)
    _product(rows, moves(rows.numbers, (m, array.rows), form), stays(rows.numbers, (array.rows, n), form))
    return rows.program()


def one_fold(chip: Chip, moves: Draw, stays: Draw) -> LoadedProgram:
    """Products of one fold, of a single row or of all, so that few numbers add up."""
    rows = FloatRows(chip, np.random.default_rng(53))
    array, form = rows.tile.array, _form(rows)
    for k in (1, 1, 1, array.rows):
        _product(rows, moves(rows.numbers, (8, k), form), stays(rows.numbers, (k, array.cols), form))
    last = stays(rows.numbers, (array.rows, array.cols), form)
    last[-1] = np.inf  # what a fold without this row must not remember
    _product(rows, moves(rows.numbers, (2, array.rows), form), last)
    _product(rows, moves(rows.numbers, (2, 1), form), stays(rows.numbers, (1, array.cols), form))
    return rows.program()


def _form(rows: FloatRows) -> CodeFormat:
    """The format of the codes of a tile."""
    return CODE_FORMATS[_operand(rows)]


def _operand(rows: FloatRows) -> DataType:
    """The format of the operands of a tile."""
    assert rows.tile.array.circuit_format is not None
    return rows.tile.array.circuit_format


def _product(rows: FloatRows, moves: Numbers, stays: Numbers | WholeNumbers) -> None:
    """A product, and what is stored of it; what fills lines and beats up is no number."""
    (m, k), n, tile = moves.shape, stays.shape[1], rows.tile
    left = np.full((m, row_values(tile, k)), np.nan, np.float32)
    left[:, :k] = moves
    packing = Packing(_operand(rows), 0) if is_coded(stays) else None
    right = np.full((panel_rows(tile.array, k), padded(n, tile.array.cols)), np.nan, np.float32)
    if is_coded(stays):
        right = np.full_like(right, min(_form(rows).most, 77), stays.dtype)
    right[:k, :n] = stays
    lines = packed(tile.array, right)
    rows.put(in_memory(lines, packing.dtype) if packing else lines.view(np.uint8).reshape(-1), rows.weights)
    rows.put(left.view(np.uint8).reshape(-1), rows.moving)
    ends_of = Address(base=rows.moving), Address(base=rows.weights)
    rows.chain.add(Opcode.MATMUL, m=m, n=n, k=k, a=ends_of[0], b=ends_of[1], c=Address(), packing=packing)
    ones = np.full(n, 1, np.float32).view(np.uint32)
    rows.columns(np.full(n, 1 << 31, np.uint32), ones)  # -0, which leaves every sum as it is
    rows.compute(VectorFunction.REQUANTIZE, m, n, a=Address())


__all__ = ["KINDS", "shared_program", "shared_programs"]
