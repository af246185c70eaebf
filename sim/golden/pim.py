"""The numbers of a PIM channel, bit for bit: what its banks' lanes compute and what its macros leave behind.

bf16: products are exact in fp32; the products of adjacent lanes are added pairwise, level by level; the sum of a beat
is added to the accumulator, which begins as +0. Every number is as `arch.floats` says.

int8: sums are exact modulo 2^32.

The number of a beat's elements, and so the order of the additions, is ``arch.pim.PimTile.beat_elements``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.floats import Words, float_product, float_sum, tree_sum, widened
from siliconloom.arch.pim import Macro, MacroKind, PimTile, check_macro

Bytes = NDArray[np.uint8]


def dot(tile: PimTile, dtype: DataType, data: Bytes, vector: Bytes, total: Words) -> Words:
    """Accumulators after one burst.

    Parameters
    ----------
    tile, dtype
        The lanes, and the operands' format.
    data
        A burst of every bank: [banks, request_bytes].
    vector
        The burst of the global buffer: [request_bytes].
    total
        Accumulators before: [banks].
    """
    if dtype == DataType.INT8:
        products = data.view(np.int8).astype(np.int64) * vector.view(np.int8).astype(np.int64)
        wrapped: Words = ((total + products.sum(axis=-1)) & 0xFFFFFFFF).astype(np.uint32)
        return wrapped
    if dtype != DataType.BF16:
        raise NotSupported(f"{dtype.value} operands of bank-side lanes in numbers")
    each = float_product(widened(data.view("<u2"), dtype), widened(vector.view("<u2"), dtype))
    width = tile.beat_elements(dtype)
    for beat in range(0, each.shape[-1], width):
        total = float_sum(total, tree_sum(each[..., beat : beat + width]))
    return total


@dataclass
class GoldenPim:
    """The memory of a channel and what its macros made of it.

    Parameters
    ----------
    tile
        The description.
    memory
        Rows by (bank, row), each of a row's bytes; rows that are not there are zeros.
    buffer
        The global buffer.
    results
        Per GEMV: [rounds, segments, banks].
    reads
        Per READ: [columns, request_bytes].
    """

    tile: PimTile
    memory: dict[tuple[int, int], Bytes]
    buffer: Bytes = field(init=False)
    results: list[Words] = field(default_factory=list)
    reads: list[Bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffer = np.zeros(self.tile.global_buffer, np.uint8)

    def row(self, bank: int, row: int) -> Bytes:
        """A row of a bank: [columns, request_bytes], to be changed in place."""
        size = self.tile.dram.organization.row_bytes
        return self.memory.setdefault((bank, row), np.zeros(size, np.uint8)).reshape(self.tile.row_columns, -1)

    def fill(self, content: Bytes) -> None:
        """Put bytes into the rows, from address 0 on: through a row, then through the banks, then their next rows."""
        size = self.tile.dram.organization.row_bytes
        for number in range(-(-content.size // size)):
            part = content[number * size :][:size]
            self.row(number % self.tile.banks, number // self.tile.banks).reshape(-1)[: part.size] = part

    def content(self, size: int) -> Bytes:
        """So many bytes of the rows from address 0 on."""
        width = self.tile.dram.organization.row_bytes
        found = np.zeros(-(-size // width) * width, np.uint8)
        for (bank, row), held in self.memory.items():
            place = (row * self.tile.banks + bank) * width
            if place < found.size:
                found[place : place + width] = held.reshape(-1)
        return found[:size]

    def run(self, macros: Sequence[Macro], written: Sequence[Bytes] = (), vectors: Sequence[Bytes] = ()) -> None:
        """Execute ``macros`` one after the other.

        Parameters
        ----------
        macros
            In any order that keeps the order of each stream; a transfer must not meet a row that computes.
        written, vectors
            Data of the WRITE and of the GWRITE macros, in order.

        Raises
        ------
        LoomError
            When a macro does not fit the tile, or its data are missing or of another size.
        """
        burst = self.tile.dram.organization.request_bytes
        sources = {MacroKind.WRITE: iter(written), MacroKind.GWRITE: iter(vectors)}
        for macro in macros:
            check_macro(self.tile, macro)
            if macro.kind in sources:
                data = next(sources[macro.kind], np.zeros(0, np.uint8))
                if data.size != macro.columns * burst:
                    raise LoomError(
                        f"{macro.kind.name.lower()}: {macro.columns} bursts of {burst} bytes are needed (got "
                        f"{data.size} bytes)"
                    )
            if macro.kind == MacroKind.GWRITE:
                self.buffer[macro.column * burst :][: data.size] = data.ravel()
            elif macro.kind == MacroKind.GEMV:
                self.results.append(self._gemv(macro))
            elif macro.kind == MacroKind.READ:
                self.reads.append(self.row(macro.bank, macro.row)[macro.column :][: macro.columns].copy())
            else:
                self.row(macro.bank, macro.row)[macro.column :][: macro.columns] = data.reshape(-1, burst)

    def _gemv(self, macro: Macro) -> Words:
        tile = self.tile
        buffer = self.buffer.reshape(-1, tile.dram.organization.request_bytes)
        results = np.zeros((macro.rounds, macro.segments, tile.banks), np.uint32)
        for round_ in range(macro.rounds):
            for chunk in range(macro.chunks):
                number = macro.row + round_ * macro.chunks + chunk
                rows = np.stack([self.row(bank, number) for bank in range(tile.banks)])
                width = macro.columns
                if chunk == macro.chunks - 1 and macro.last_columns:
                    width = macro.last_columns
                for segment in range(macro.segments):
                    total = results[round_, segment]
                    first = macro.column + chunk * macro.columns + (segment * width if macro.apart else 0)
                    for column in range(width):
                        data = np.ascontiguousarray(rows[:, segment * width + column])
                        total = dot(tile, macro.dtype, data, buffer[first + column], total)
                    results[round_, segment] = total
        return results


def read_out(tile: PimTile, results: Words) -> Bytes:
    """One round's results [segments, banks] as bursts: [bursts, request_bytes]; the rest of the last burst is zero."""
    burst = tile.dram.organization.request_bytes
    data = np.frombuffer(results.astype("<u4").tobytes(), np.uint8)
    return np.pad(data, (0, -data.size % burst)).reshape(-1, burst)
