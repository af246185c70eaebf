"""Directed programs in int8 for what random ones seldom reach: narrow lines within whole ones, and every table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import (
    INDEX_BYTES,
    is_power,
    line_values,
    padded,
    parameter_bytes,
    product_values,
    row_values,
    sums_pitch,
    window_of,
)
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import SCALAR_BYTES, VectorFunction
from siliconloom.sim.golden.npu import LoadedProgram, parameter_planes, scalar_bytes
from siliconloom.verification.chain import Fields, Places
from siliconloom.verification.images import RESULTS, random_image

ROWS = 3
"""Rows of the operands."""
WIDEST = 8
"""Values of the widest of narrow lines."""
PART = 512
"""Bytes of main memory that an operand or a result has."""


class NarrowRows:
    """A program whose operands and results each begin one narrow line behind the beginning of a whole one."""

    def __init__(self, chip: Chip) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.tile, self.places = chip.tile, Places(chip.tile)
        self.lanes, self.chain = self.tile.vector.lanes, self.places.chain()
        banks = (number * self.places.bank for number in (0, 1, 2, 5, 3, 4))
        self.stays, self.moves, self.first, self.second, self.parameters, self.out = banks
        self.memory = random_image(np.random.default_rng(51))
        self.source, self.target = 0, RESULTS

    def load(self, size: int, at: int, line: int) -> Address:
        """Bytes from the next part of memory, as many as that and a line; where they begin in local memory."""
        count = self.places.aligned(line + size)
        self.chain.add(Opcode.LOAD, m=1, n=count, memory=Address(base=self.source), a=Address(base=at))
        self.source += padded(count, PART)
        return Address(base=at + line)

    def put(self, held: Sequence[int] | np.ndarray[Any, np.dtype[np.uint8]], line: int = 0) -> None:
        """Bytes that the next `load` brings, behind a line of them."""
        begin = self.source + line
        self.memory[begin : begin + len(held)] = held

    def store(self, rows: int, pitch: int, width: int, at: int) -> None:
        """Store the lines of so many rows, in pieces that a transfer may have."""
        piece = width
        while pitch % window_of(self.tile.dma.bytes_per_cycle, piece) or at % window_of(
            self.tile.dma.bytes_per_cycle, piece
        ):
            piece //= 2
        for part in range(0, width, piece):
            ends: Fields = {"memory": Address(base=self.target + part), "a": Address(base=at + part)}
            self.chain.add(Opcode.STORE, m=rows, n=piece, pitch=pitch, local_pitch=pitch, **ends)
        self.target += padded(rows * pitch, PART)

    def compute(self, function: VectorFunction, m: int, n: int, k: int, a: Address, line: int, **ends: Any) -> None:
        """A function whose result begins a ``line`` behind a whole one, and its result's way to main memory."""
        out = Address(base=self.out + line)
        self.chain.add(Opcode.VECTOR, function=function, m=m, n=n, k=k, narrow=1, a=a, c=out, **ends)
        transposes = function is VectorFunction.TRANSPOSE
        rows, width = (n, m) if transposes else (m, function.spec.result_cols(n))
        self.store(rows, row_values(self.tile, width, 1), line_values(width, self.lanes), self.out + line)


def narrow_lines(chip: Chip) -> LoadedProgram:
    """Operands and results of every kind in lines of half of a whole one, of which each lies behind another line.

    Rows that are copied, turned, transposed, added up by narrow weights, and whose largest element is sought; a product
    whose rows, last panel and last block are narrow, and the parameters by which its sums are requantised.
    """
    rows = NarrowRows(chip)
    tile, lanes = rows.tile, rows.lanes
    half, whole = max(min(lanes // 2, WIDEST), 1), lanes
    first = rows.load(ROWS * half, rows.first, half)
    rows.compute(VectorFunction.COPY, ROWS, half, 1, first, half)
    first = rows.load(half * row_values(tile, whole + 1, 1), rows.first, 0)
    rows.compute(VectorFunction.TRANSPOSE, half, whole + 1, 1, first, half)
    pair = max(half // 2 * 2, 2)
    line = line_values(pair, lanes)
    first = rows.load(ROWS * line, rows.first, line % lanes)
    second = rows.load(2 * ROWS * line, rows.second, line % lanes)
    rows.compute(VectorFunction.ROPE, ROWS, pair, 2, first, line % lanes, b=second)
    rows.put(scalar_bytes(1 << 14, 0, 18))
    scalars = rows.load(SCALAR_BYTES, rows.parameters, 0)
    first = rows.load(ROWS * half * row_values(tile, whole), rows.first, 0)
    second = rows.load(ROWS * half, rows.second, half)
    rows.compute(VectorFunction.COMBINE, ROWS, whole, half, first, 0, b=second, d=scalars)
    parts = line_values(INDEX_BYTES, lanes)
    for columns in (half, whole + 1):
        first = rows.load(ROWS * row_values(tile, columns, 1), rows.first, 0)
        rows.compute(VectorFunction.ARGMAX, ROWS, columns, 1, first, parts % lanes)
    narrow_product(rows)
    return rows.chain.program(rows.memory)


def narrow_product(rows: NarrowRows) -> None:
    """A product of narrow operands that begin behind a line, and its sums as bytes, by narrow parameters."""
    tile, array = rows.tile, rows.tile.array
    side, outer = (max(min(size // 2, WIDEST), 1) for size in (array.rows, array.cols))
    m, n, k = {
        "weight_stationary": (ROWS, outer, side),
        "input_stationary": (outer, ROWS, side),
        "output_stationary": (side, outer, ROWS),
    }[array.dataflow]
    values = product_values(tile, m, n, k, 1)
    panel = line_values(outer, array.cols) * (1 if array.dataflow == "output_stationary" else array.load_rows)
    block = line_values(side, array.rows)
    lines = [size if is_power(whole) else 0 for size, whole in ((block, array.rows), (panel, array.cols))]
    by_input = array.dataflow == "input_stationary"
    sizes = (values.b, values.a) if by_input else (values.a, values.b)
    moves = rows.load(sizes[0], rows.moves, lines[0])
    stays = rows.load(sizes[1], rows.stays, lines[1])
    ends: Fields = {"a": stays, "b": moves} if by_input else {"a": moves, "b": stays}
    rows.chain.add(Opcode.MATMUL, m=m, n=n, k=k, narrow=1, c=Address(base=sums_pitch(array)), **ends)
    count, width = (n, m) if by_input else (m, n)
    line, numbers = line_values(width, rows.lanes), np.random.default_rng(52)
    taken = parameter_bytes(tile, VectorFunction.REQUANTIZE, width, 1)
    wide = padded(width, line)
    planes = parameter_planes(
        numbers.integers(-(2**8), 2**8, wide), numbers.integers(8, 64, wide), numbers.integers(10, 14, wide), line
    )
    rows.put(planes.reshape(-1), line % rows.lanes)
    parameters = rows.load(taken, rows.parameters, line % rows.lanes)
    sums = Address(base=sums_pitch(array))
    rows.compute(VectorFunction.REQUANTIZE, count, width, 1, sums, line % rows.lanes, d=parameters)


def every_table(chip: Chip) -> LoadedProgram:
    """Each function with a table, of every element that there is and by a table of its own."""
    rows = NarrowRows(chip)
    tile = rows.tile
    width = row_values(tile, min(1 << 8, rows.places.bank // ROWS, PART))
    rows.put(np.resize(np.arange(1 << 8, dtype=np.uint8), width))
    first = rows.load(width, rows.first, 0)
    second = rows.load(width, rows.second, 0)
    for name in ("GELU", "TANH", "SILU", "GATED_GELU", "GATED_SILU"):
        function = getattr(VectorFunction, name)
        gate: Fields = {"k": 2, "b": second} if function.spec.second else {"k": 1}
        if function.spec.second:
            rows.put(scalar_bytes(1 << 13, 0, 17))
        table = rows.load(parameter_bytes(tile, function, width), rows.parameters, 0)
        ends: Fields = {"a": first, "c": Address(base=rows.out), "d": table, **gate}
        rows.chain.add(Opcode.VECTOR, function=function, m=1, n=width, **ends)
        rows.chain.add(Opcode.STORE, m=1, n=width, memory=Address(base=rows.target), a=Address(base=rows.out))
        rows.target += PART
    return rows.chain.program(rows.memory)


__all__ = ["every_table", "narrow_lines"]
