"""The numbers of a PIM channel, bit for bit: what its banks' lanes compute and what its macros leave behind.

bf16: products are exact in fp32; the products of adjacent lanes are added pairwise, level by level; the sum of a beat
is added to the accumulator, which begins as +0. Every addition is in fp32, rounded to nearest even. Subnormal operands
and results are zeros of their sign; every NaN is 0x7FC00000.

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
from siliconloom.arch.pim import Macro, MacroKind, PimTile, check_macro

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
"""Bit patterns of fp32, or int32 modulo 2^32."""
NAN = np.uint32(0x7FC00000)
EXPONENT = np.uint32(0x7F800000)
SIGN = np.uint32(0x80000000)


def flushed(bits: Words) -> Words:
    """Fp32 patterns with subnormal numbers made zeros of their sign, and every NaN the canonical one."""
    flat = np.where((bits & EXPONENT) == 0, bits & SIGN, bits)
    return np.where((flat & ~SIGN) > EXPONENT, NAN, flat).astype(np.uint32)


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Patterns of the bf16 numbers nearest to fp32 numbers, halves to even; NaN is 0x7FC0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype(np.uint16)


def bf16_values(patterns: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers that bf16 patterns stand for."""
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float_sum(a: Words, b: Words) -> Words:
    """Sums of fp32 patterns."""
    with np.errstate(all="ignore"):
        return flushed((flushed(a).view(np.float32) + flushed(b).view(np.float32)).view(np.uint32))


def bf16_product(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> Words:
    """Products of bf16 patterns, as fp32 patterns."""
    wide = [flushed(bf16_values(x).view(np.uint32)).view(np.float32) for x in (a, b)]
    with np.errstate(all="ignore"):
        return flushed((wide[0] * wide[1]).view(np.uint32))


def tree_sum(products: Words) -> Words:
    """Sums over the last axis, adjacent pairs first; its length is a power of two."""
    while products.shape[-1] > 1:
        products = float_sum(products[..., ::2], products[..., 1::2])
    return products[..., 0]


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
    each = bf16_product(data.view("<u2"), vector.view("<u2"))
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
