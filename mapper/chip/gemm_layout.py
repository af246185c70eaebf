"""A product as a tile of the chip computes it, and how its operands and results lie in rows and in local memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.description import NpuTile, SystolicArray
from siliconloom.arch.layout import padded, product_values, row_values, sums_pitch
from siliconloom.arch.packing import weight_bytes
from siliconloom.arch.vector import Count, VectorFunction
from siliconloom.mapper.chip.epilogue import EpiloguePass, column_bytes, epilogue, function_bytes
from siliconloom.mapper.chip.orientation import oriented

LONG_ROW = 8
"""Beats of the DMA from which on a row is filled up to whole ones."""


@dataclass(frozen=True)
class GemmShape:
    """What one tile of the chip computes: ``batch`` products C[m,n] = A[m,k] B[k,n] and their epilogue.

    ``functions`` are the vector unit's, in order; the first of them takes the sums. With ``output_halved`` that is a
    gated activation, which gives one result for two sums; ``residual`` says whether a tile of the results' shape is
    added from memory, and ``listed`` that the product stands by itself: its operands come from outside. ``step`` is 1
    where every row of the first operand is read, and else how many there are to one that is. With ``common`` all
    products have the same first operand. ``packing`` is that of the second operand, where its values are packed.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: DataType
    weight: bool
    functions: tuple[VectorFunction, ...]
    output_halved: bool
    residual: bool
    listed: bool = False
    step: int = 1
    common: bool = False
    packing: Packing | None = None

    @property
    def stored_n(self) -> int:
        """Columns of the result that is stored."""
        return self.n // 2 if self.output_halved else self.n

    @property
    def passes(self) -> tuple[EpiloguePass, ...]:
        """Instructions of the vector unit on every result tile."""
        return epilogue(self.functions)

    @property
    def packed(self) -> bool:
        """The second operand lies in memory tile by tile, in the order in which the array takes it.

        So do parameters, and operands that come from outside. Where it is another operator's result it lies row by row.
        """
        return self.weight or self.listed

    def whole_n(self, array: SystolicArray, n: Count) -> Count:
        """Columns that the array computes of ``n``: halves that are gated begin with panels of their own."""
        if not self.output_halved:
            return n
        half: Any = padded(n // 2, array.cols)
        return cast(Count, 2 * half)


class GemmLayout:
    """Rows of a product's operands and results in memory, and their tiles in local memory; everything in bytes.

    Rows of activations are filled up to whole lines of the array, so that rows that adjoin in memory do in the
    scratchpad. An array that keeps its sums takes them in ``blocks`` of as many as it has rows, each transposed.
    """

    def __init__(self, tile: NpuTile, shape: GemmShape) -> None:
        tile = oriented(tile)
        self.tile, self.array, self.lanes, self.shape = tile, tile.array, tile.vector.lanes, shape
        self.blocks, self.beat = tile.array.dataflow == "output_stationary", tile.dma.bytes_per_cycle
        bits = shape.dtype.bits
        self.a_row, self.b_row, self.c_row = (
            row_bytes(tile, elements, bits) for elements in (shape.k, shape.n, shape.stored_n)
        )
        self.a_row *= shape.step
        passes = shape.passes
        self.column_bytes, self.function_bytes = column_bytes(passes, self.tile), function_bytes(passes, self.tile)

    def size(self, elements: Count) -> Count:
        """Bytes of so many operands."""
        return -(-elements * self.shape.dtype.bits // 8)

    def a_block(self, k: Count) -> Count:
        """A block of ``k`` columns of rows that are transposed."""
        return self.size(k * self.array.rows)

    def a_plane(self, m: int) -> int:
        """All ``m`` rows of one product's first operand."""
        return -(-m // self.array.rows) * self.a_block(self.shape.k) if self.blocks else m * self.a_row

    def a_local(self, k: Count) -> Count:
        """From row to row of a moving tile of ``k`` columns."""
        return self.size(row_values(self.tile, k))

    def b_tile(self, n: Any, k: Any) -> Any:
        """A tile of the second operand as the array takes it."""
        wide = self.shape.whole_n(self.array, n)
        if self.shape.packing is not None:
            return weight_bytes(self.array, self.shape.packing, wide, k)
        return self.size(product_values(self.tile, 1, wide, k).b)

    def b_local(self, n: Count) -> Count:
        """From row to row of a tile of ``n`` columns of a second operand that lies row by row."""
        return padded(self.size(n), self.beat)

    def c_local(self, cols: Count) -> Count:
        """From row to row of a result tile of ``cols`` columns."""
        return self.size(row_values(self.tile, cols))

    def columns(self, cols: Count) -> Count:
        """What requantises ``cols`` columns of results."""
        return self.column_bytes * -(-cols // self.lanes)

    def scales(self, cols: int) -> int:
        """Room for what requantises ``cols`` columns, whatever tiles of whole panels they are cut into.

        Each tile's begins with a line of the vector unit.
        """
        panel = self.columns(self.array.cols)
        return max(int(self.columns(cols)), -(-cols // self.array.cols) * int(panel))

    def scales_at(self, start: int, tile: int) -> int:
        """Where what requantises the tile that begins at column ``start`` lies; tiles have ``tile`` columns each."""
        return start // tile * int(self.columns(tile))

    def needs(self, m: Count, n: Count, k: Count) -> dict[str, Count]:
        """What tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`."""
        shape, array = self.shape, self.array
        values = product_values(self.tile, m, shape.whole_n(array, n), k)
        cols = n // 2 if shape.output_halved else n
        result = m * self.c_local(cols)
        needs = {
            "weights": self.b_tile(n, k) if shape.packed else np.maximum(self.size(values.b), k * self.b_local(n)),
            "moving": self.size(values.a),
            "partial": values.lines * sums_pitch(array),
            "results": result,
            "constants": self.columns(cols) + self.function_bytes,
        }
        targets = {each.target for each in shape.passes} - {"results"}
        return needs | ({"second": result} if shape.residual else {}) | dict.fromkeys(sorted(targets), result)


def row_bytes(tile: NpuTile, elements: int, bits: int) -> int:
    """Bytes from row to row of a matrix of activations in main memory.

    Rows are filled up as they are in local memory; long ones also to whole beats of the DMA, so that parts of them
    begin where they must.
    """
    row, bus = -(-row_values(tile, elements) * bits // 8), tile.dma.bytes_per_cycle
    return padded(row, bus) if row >= LONG_ROW * bus else row


__all__ = ["GemmLayout", "GemmShape", "row_bytes"]
