"""Programs for arrays in int8 between elements in fp32: blocks that share an exponent, at both ends of what they hold.

Requantised by one and nothing, a product's sums are results with all their bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import Chip
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import packed, padded, panel_rows, row_values
from siliconloom.arch.shared import MOST, PLACES
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.float_directed import FloatRows

Numbers = NDArray[np.float32]
Draw = Callable[[np.random.Generator, tuple[int, int]], Numbers]


def many_sizes(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Numbers of any fraction whose sizes differ by as much as a code holds, and by more; some are zeros."""
    sign = chance.choice([-1.0, 1.0, 1.0, 0.0, -0.0], shape)
    return np.asarray(sign * chance.uniform(1, 2, shape) * 2.0 ** chance.integers(-PLACES - 3, 1, shape), np.float32)


def ties(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Halves of the last place of a code, or close to them, beside one number of size one."""
    halves = (2 * chance.integers(-MOST - 1, MOST + 1, shape) + 1) / 2.0 ** (PLACES + 1)
    found = halves * chance.choice([1.0, 1.0, 1 - 2.0**-20, 1 + 2.0**-20], shape)
    found[np.arange(shape[0]), chance.integers(0, shape[1], shape[0])] = 1.0
    return np.asarray(found, np.float32)


def rows_far_apart(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Rows each of a size of its own, a few of them of zeros, or of what is flushed."""
    sizes = chance.choice([2.0**-9, 2.0**-4, 1.0, 2.0**3, 2.0**-130, 0.0], (shape[0], 1))
    return np.asarray(chance.uniform(0.5, 2, shape) * chance.choice([-1.0, 1.0], shape) * sizes, np.float32)


def columns_far_apart(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Columns each of a size of its own, some so large that nothing else would count beside them."""
    sizes = 2.0 ** chance.choice([-100.0, -90.0, 0.0, 120.0], (1, shape[1]))
    return np.asarray(chance.uniform(1, 2, shape) * chance.choice([-1.0, 1.0], shape) * sizes, np.float32)


def ends(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Numbers whose products with those of `one_end` are near both ends of fp32, a row of one size each."""
    sizes = 2.0 ** chance.choice([-65.0, -64.0, -63.0, -62.0, 62.0, 63.0, 64.0, 65.0], (shape[0], 1))
    return np.asarray(chance.uniform(1, 2, shape) * chance.choice([-1.0, 1.0], shape) * sizes, np.float32)


def one_end(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Numbers of the square root of the largest size, or of the smallest, and a few smaller ones and zeros."""
    size = 2.0 ** chance.choice([-63.0, 63.0])
    parts = chance.choice([-1.0, 1.0, -0.5, 0.5, 2.0**-3, 0.0], shape)
    return np.asarray(chance.uniform(1, 2, shape) * parts * size, np.float32)


def few_odd(chance: np.random.Generator, shape: tuple[int, int]) -> Numbers:
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
    array = rows.tile.array
    shapes = (
        (3, array.cols, array.rows),
        (5, array.cols + 1, 2 * array.rows + max(array.rows // 2, 1)),
        (2, max(array.cols // 2, 1), array.rows + 1),
        (4, 2 * array.cols, max(array.rows - 1, 1)),
    )
    for m, n, k in shapes:
        _product(rows, moves(rows.numbers, (m, k)), stays(rows.numbers, (k, n)))
    m, n, k = shapes[1]
    codes = rows.numbers.integers(-MOST - 1, MOST + 1, (k, n)).astype(np.int8)
    _product(rows, moves(rows.numbers, (m, k)), codes)
    _product(rows, moves(rows.numbers, (m, array.rows)), stays(rows.numbers, (array.rows, n)))
    return rows.program()


def one_fold(chip: Chip, moves: Draw, stays: Draw) -> LoadedProgram:
    """Products of one fold, of a single row or of all, so that few numbers add up."""
    rows = FloatRows(chip, np.random.default_rng(53))
    array = rows.tile.array
    for k in (1, 1, 1, array.rows):
        _product(rows, moves(rows.numbers, (8, k)), stays(rows.numbers, (k, array.cols)))
    last = stays(rows.numbers, (array.rows, array.cols))
    last[-1] = np.inf  # what a fold without this row must not remember
    _product(rows, moves(rows.numbers, (2, array.rows)), last)
    _product(rows, moves(rows.numbers, (2, 1)), stays(rows.numbers, (1, array.cols)))
    return rows.program()


def _product(rows: FloatRows, moves: Numbers, stays: Numbers | NDArray[np.int8]) -> None:
    """A product, and what is stored of it; what fills lines and beats up is no number."""
    (m, k), n, tile = moves.shape, stays.shape[1], rows.tile
    left = np.full((m, row_values(tile, k)), np.nan, np.float32)
    left[:, :k] = moves
    packing = Packing(DataType.INT8, 0) if stays.dtype == np.int8 else None
    height = panel_rows(tile.array, k)
    wide = padded(n, tile.array.cols)
    right = np.full((height, wide), np.nan, np.float32) if packing is None else np.full((height, wide), 77, np.int8)
    right[:k, :n] = stays
    rows.put(packed(tile.array, right).view(np.uint8).reshape(-1), rows.weights)
    rows.put(left.view(np.uint8).reshape(-1), rows.moving)
    ends_of = Address(base=rows.moving), Address(base=rows.weights)
    rows.chain.add(Opcode.MATMUL, m=m, n=n, k=k, a=ends_of[0], b=ends_of[1], c=Address(), packing=packing)
    ones = np.full(n, 1, np.float32).view(np.uint32)
    rows.columns(np.full(n, 1 << 31, np.uint32), ones)  # -0, which leaves every sum as it is
    rows.compute(VectorFunction.REQUANTIZE, m, n, a=Address())


__all__ = ["KINDS", "shared_program", "shared_programs"]
