"""Where the elements of a matrix lie in the rows of a PIM channel's banks, and the macros that multiply it by vectors.

An output belongs to one bank, so no sum crosses banks. A vector that is longer than a row takes several rows of its
bank (chunks); of short vectors several stand in a row (segments), each with an accumulator; a vector that is longer
than the global buffer is cut into parts, whose sums are added outside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.pim import Macro, MacroKind, PimTile, check_macro

Bytes = NDArray[np.uint8]
Rows = dict[tuple[int, int], Bytes]


class RowPart(Struct, frozen=True, kw_only=True):
    """One GEMV of a layout.

    Parameters
    ----------
    first, elements
        Elements of the vector that it multiplies.
    head, heads
        Vectors of the layout that it multiplies, each with a segment of its own.
    macro
        The GEMV.
    """

    first: int
    elements: int
    head: int
    heads: int
    macro: Macro


class GemvLayout(Struct, frozen=True, kw_only=True):
    """A matrix in the rows of a channel; for ``heads`` > 1 one matrix per head, each with a vector of its own.

    Parameters
    ----------
    tile
        Whose banks.
    heads, n, k
        Matrices, outputs of each, elements of each sum.
    dtype
        Format of the elements.
    parts
        GEMVs whose results make the outputs.
    rows
        Rows of every bank that it takes, from the first part's on.
    """

    tile: PimTile
    heads: int
    n: int
    k: int
    dtype: DataType
    parts: tuple[RowPart, ...]
    rows: int

    def macros(self, arrival: int = 0) -> list[Macro]:
        """A GWRITE and a GEMV for every part, offered from ``arrival`` on."""
        made = []
        for part in self.parts:
            bursts = self._bursts(part) * part.heads
            made += [
                Macro(kind=MacroKind.GWRITE, columns=bursts, arrival=arrival),
                replace(part.macro, arrival=arrival),
            ]
        return made

    def _bursts(self, part: RowPart) -> int:
        """Bursts of one vector of a part."""
        return -(-part.elements // self.tile.burst_elements(self.dtype))

    def vectors(self, values: NDArray[np.generic]) -> list[Bytes]:
        """Data of the GWRITE macros from the vectors [heads, k], as patterns of one element each."""
        given = values.reshape(self.heads, self.k)
        size = self.tile.dram.organization.request_bytes
        made = []
        for part in self.parts:
            data = np.zeros((part.heads, self._bursts(part) * size), np.uint8)
            piece = given[part.head : part.head + part.heads, part.first : part.first + part.elements]
            raw = np.ascontiguousarray(piece).view(np.uint8).reshape(part.heads, -1)
            data[:, : raw.shape[1]] = raw
            made.append(data)
        return made

    def place(self, matrix: NDArray[np.generic]) -> Rows:
        """Rows by (bank, row) that hold the matrices [heads, n, k], as patterns of one element each."""
        given = matrix.reshape(self.heads, self.n, self.k)
        tile, found = self.tile, Rows()
        width = tile.dram.organization.row_bytes
        size = tile.dram.organization.request_bytes
        for part in self.parts:
            macro = part.macro
            for head, output, bank, round_, segment in self._places(part):
                raw = np.ascontiguousarray(given[head, output, part.first : part.first + part.elements]).view(np.uint8)
                for chunk in range(macro.chunks):
                    piece = raw[chunk * macro.columns * size : (chunk + 1) * macro.columns * size]
                    row = found.setdefault((bank, macro.row + round_ * macro.chunks + chunk), np.zeros(width, np.uint8))
                    row[segment * macro.columns * size :][: piece.size] = piece
        return found

    def _places(self, part: RowPart) -> list[tuple[int, int, int, int, int]]:
        """Head, output, bank, round and segment of every sum of a part."""
        banks, segments, made = self.tile.banks, part.macro.segments, []
        for output in range(self.n):
            for number in range(part.heads):
                if part.macro.apart:
                    place = (output % banks, output // banks, number)
                else:
                    place = (output % banks, output // (banks * segments), output // banks % segments)
                made.append((part.head + number, output, *place))
        return made

    def collect(self, results: Sequence[NDArray[np.uint32]]) -> NDArray[np.generic]:
        """Outputs [heads, n], float32 or int32, from the results [rounds, segments, banks] of every part, in order."""
        integer = self.dtype == DataType.INT8
        total = np.zeros((self.heads, self.n), np.int32 if integer else np.float32)
        for part, words in zip(self.parts, results, strict=True):
            values = np.ascontiguousarray(words, np.uint32).view(total.dtype)
            for head, output, bank, round_, segment in self._places(part):
                with np.errstate(all="ignore"):
                    total[head, output] += values[round_, segment, bank]
        return total


def plan_gemv(tile: PimTile, n: int, k: int, dtype: DataType, *, heads: int = 1, row: int = 0) -> GemvLayout:
    """Lay out ``heads`` matrices of ``n`` outputs, each a sum of ``k`` products, from ``row`` of every bank on.

    Several heads share a row, each in a segment, as long as a vector fits a row; keys of an attention are such a
    matrix (n: tokens, k: size of a head), and so are values stored transposed (n: size of a head, k: tokens).

    Raises
    ------
    LoomError
        When it does not fit the rows of a bank, or a size is not positive.
    NotSupported
        When the tile does not multiply ``dtype``, or several heads have vectors longer than a row.
    """
    if dtype not in tile.operands:
        raise NotSupported(f"{dtype.value} operands on a tile of {', '.join(d.value for d in tile.operands)}")
    for name, size in (("n", n), ("k", k), ("heads", heads)):
        if size < 1:
            raise LoomError(f"{name} must be at least 1 (got {size})")
    buffer = tile.global_buffer // tile.dram.organization.request_bytes
    each = tile.burst_elements(dtype)
    parts: list[RowPart] = []
    begin = row
    longest = min(buffer, tile.row_columns) if heads > 1 else buffer
    if heads > 1 and k > longest * each:
        raise NotSupported(f"several heads with vectors of {k} elements; at most {longest * each} fit a row")
    for first in range(0, k, buffer * each):
        elements = min(k - first, buffer * each)
        bursts = -(-elements // each)
        together = min(tile.accumulators, tile.row_columns // bursts, buffer // bursts) if heads > 1 else 1
        for head in range(0, heads, together):
            macro = _gemv(tile, n, bursts, begin, dtype, min(together, heads - head) if heads > 1 else 0)
            check_macro(tile, macro)
            parts.append(
                RowPart(
                    first=first, elements=elements, head=head, heads=max(min(together, heads - head), 1), macro=macro
                )
            )
            begin += macro.rounds * macro.chunks
    return GemvLayout(tile=tile, heads=heads, n=n, k=k, dtype=dtype, parts=tuple(parts), rows=begin - row)


def _gemv(tile: PimTile, n: int, bursts: int, row: int, dtype: DataType, heads: int) -> Macro:
    """One GEMV over vectors of ``bursts``; ``heads`` in segments with vectors of their own, or none."""
    chunks = -(-bursts // tile.row_columns)
    columns = min(bursts, tile.row_columns)
    segments = heads
    if not heads:
        segments = 1 if chunks > 1 else min(tile.accumulators, tile.row_columns // bursts, -(-n // tile.banks))
    rounds = -(-n // (tile.banks * (1 if heads else segments)))
    last = bursts - (chunks - 1) * columns
    return Macro(
        kind=MacroKind.GEMV,
        row=row,
        rounds=rounds,
        chunks=chunks,
        segments=segments,
        columns=columns,
        last_columns=0 if last == columns else last,
        apart=heads > 0,
        dtype=dtype,
    )
