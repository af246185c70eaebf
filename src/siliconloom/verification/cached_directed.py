"""Programs for tiles that keep keys and values in formats of fewer bits than elements: what is kept, and what reads it.

Results are written over elements that are there already, and all of that is stored: who writes a byte too many, or one
too few, shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import CACHE_CODES, CACHE_SCALED, DataType, Packing
from siliconloom.arch.floats import patterns_of, values_of
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import line_values, product_values, row_unit, row_values
from siliconloom.arch.packing import weight_bytes
from siliconloom.arch.scaled import NO_NUMBER, group_rows, result_bytes
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.chain import Image
from siliconloom.verification.float_directed import FloatRows, packed_product
from siliconloom.verification.images import RESULTS, random_image

ROUND = (0.0, 2.0**-130, 2.0**-20, 1.0, 0.984375, 240.0, 448.0, 464.0, 480.0, 57344.0, 61440.0, 65504.0, 3e38, np.inf)
"""Sizes at which formats end, or their halves lie, and numbers that are none of theirs."""
WAITED = 8
"""Rows that move past values."""


def cache_programs(chip: Chip) -> list[tuple[str, LoadedProgram]]:
    """Programs for every format that a tile keeps keys and values in; none where it keeps elements alone."""
    formats = chip.tile.array.cache if isinstance(chip.tile, NpuTile) else ()
    made = [(f"kept in {dtype.value}", kept_results(chip, dtype)) for dtype in formats]
    plain = tuple(dtype for dtype in formats if dtype not in CACHE_SCALED)
    made += [("keys and values", kept_operands(chip, plain))] if plain else []
    return made + [
        (f"keys and values in {dtype.value}", kept_operands(chip, (dtype,))) for dtype in formats if dtype not in plain
    ]


def drawn_elements(rows: FloatRows, count: int) -> Image:
    """Elements of every kind: any pattern, numbers where formats end, halves between numbers of a format."""
    sizes = np.array([*ROUND, *(-each for each in ROUND), np.nan])
    any_ = rows.numbers.integers(0, 1 << rows.dtype.bits, count).astype(f"<u{rows.size}")
    ends = patterns_of(rows.numbers.choice(sizes, count), rows.dtype).astype(any_.dtype)
    even = patterns_of(rows.numbers.integers(-512, 513, count) / 2.0 ** rows.numbers.integers(0, 20, count), rows.dtype)
    kind = rows.numbers.integers(0, 3, count)
    return np.choose(kind, [any_, ends, even.astype(any_.dtype)]).astype(any_.dtype).view(np.uint8)


def hard_lines(rows: FloatRows, drawn: Image) -> Image:
    """The same, beginning with lines that share a scale: of zeros, of the smallest, and of halves of a code and a bit.

    The last ones are behind a one: the smallest number beyond half of a code of int8, and of int4, by a bit in fp32.
    """
    cols, size = rows.tile.array.cols, rows.size
    bit = 2.0**-23
    begin = np.zeros((3, cols))
    begin[0, 1::2] = -0.0
    begin[1] = 2.0**-140
    begin[2] = np.resize([2.0**-7 * (1 + bit), 2.0**-3 * (1 + bit), 3 * 2.0**-7, -(2.0**-7) * (1 + 2 * bit)], cols)
    begin[2, 0] = 1.0
    patterns = patterns_of(begin.ravel(), rows.dtype).astype(f"<u{size}").view(np.uint8)
    return np.concatenate([patterns, drawn[len(patterns) :]])[: len(drawn)]


def kept_results(chip: Chip, dtype: DataType) -> LoadedProgram:
    """Rows and columns of whole lines and of parts of them, in narrow lines and in others, at every place of a line."""
    rows = FloatRows(chip, np.random.default_rng(47))
    tile, lanes, unit, scaled = rows.tile, rows.lanes, row_unit(rows.tile), dtype in CACHE_SCALED
    region = 4 * unit
    """Rows of elements that are there before."""
    limit = min(rows.places.bank, region * rows.size * unit)
    shapes = [(2, 3 * lanes)] if scaled else []
    shapes += [(1, 1), (2, lanes), (unit, lanes + 1), (3, max(lanes // 4, 1)), (max(unit // 4, 1), unit), (unit + 1, 2)]
    for number, (m, n) in enumerate(shapes):
        for function in (VectorFunction.KV_APPEND, VectorFunction.TRANSPOSE):
            narrow, transposes = number % 2, function.spec.transposes
            packing = Packing(dtype, 0, by_rows=scaled and not transposes)
            n = n + n % 2 if dtype is DataType.INT4 else n
            if scaled and transposes:
                m = min(m, lanes)
            size = result_bytes(packing) if scaled else dtype.bits // 8
            outer, inner = (n, m) if transposes else (m, n)
            pitch, line = row_values(tile, inner, narrow), line_values(inner, lanes, narrow)
            if rows.size * m * row_values(tile, n, narrow) > limit or size * (outer * pitch + line) > limit:
                continue
            drawn = drawn_elements(rows, limit // rows.size)
            rows.put(hard_lines(rows, drawn) if scaled and not number else drawn, rows.first)
            rows.compute(VectorFunction.COPY, limit // (rows.size * unit), unit, keep=False)
            place = size * line * (1 if size * line * 2 <= limit else 0)
            c = Address(base=rows.out + place)
            rows.compute(function, m, n, keep=False, c=c, packing=packing, narrow=narrow)
            _store(rows, limit)
    return rows.program()


def _store(rows: FloatRows, count: int) -> None:
    """Store what has been written from the beginning of the results' bank on."""
    memory, local = Address(base=rows.target), Address(base=rows.out)
    rows.chain.add(Opcode.STORE, m=1, n=count, pitch=count, local_pitch=count, memory=memory, a=local)
    rows.target += rows.places.aligned(count)


def kept_operands(chip: Chip, formats: Sequence[DataType]) -> LoadedProgram:
    """Products by keys and values in these formats, of any size or all of them small.

    Folds end anywhere, in one panel or in several.
    """
    rows = FloatRows(chip, np.random.default_rng(53))
    array = rows.tile.array
    for dtype in formats:
        sizes = [(1, 1), (array.cols + 1, array.rows + 1), (array.cols, 2 * array.rows)]
        if dtype in array.cache_scaled:  # a group and a bit more, and half of one
            sizes[-1:] = [(array.cols, group_rows(array) + 1), (2 * array.cols, max(group_rows(array) // 2, 1))]
        for number, (cols, k) in enumerate(sizes):
            for packing in cache_packings(array, dtype):
                count = int(weight_bytes(array, packing, cols, k))
                held = drawn_codes(rows, dtype, count, small=number == 1)
                if dtype in array.cache_scaled and not number:
                    held[0] = NO_NUMBER
                if count <= min(rows.places.bank, RESULTS // 12):
                    # where a group is several folds, more rows than a fold's load takes make one wait within it
                    room = rows.size * product_values(rows.tile, WAITED, cols, k).a
                    waits = packing.by_rows and room <= rows.places.bank
                    packed_product(rows, packing, cols, k, held, m=WAITED if waits else 2)
    return rows.program()


def cache_packings(array: SystolicArray, dtype: DataType) -> list[Packing]:
    """How keys, and values where that is another way, lie in a format."""
    return [Packing(dtype, 0)] + ([Packing(dtype, 0, by_rows=True)] if dtype in array.cache_scaled else [])


def drawn_codes(rows: FloatRows, dtype: DataType, count: int, *, small: bool) -> Image:
    """Numbers as they are kept: in eight bits any finite ones, or ``small`` ones, subnormal numbers among them."""
    if dtype in CACHE_SCALED:  # any codes; scales among them are any numbers, or those whose products are not lost
        held = rows.numbers.integers(0, 256, count).astype(np.uint8)
        return held if not small else np.where(held < 8, held, held % 24 + 116).astype(np.uint8)
    if dtype not in CACHE_CODES:
        return random_image(rows.numbers, dtype, count, odd=0)
    fraction = dtype.layout.fraction_bits
    codes = rows.numbers.integers(0, 256, count)
    if small:
        codes &= 0x80 | (4 << fraction) - 1
    finite = np.isfinite(values_of(codes.astype(np.uint8), dtype))
    return np.where(finite, codes, 1).astype(np.uint8)


__all__ = ["cache_programs", "drawn_codes", "kept_operands", "kept_results"]
