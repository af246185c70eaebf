"""Main memory that a lowered program starts from: where its operands lie, and their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import WORD_BYTES
from siliconloom.arch.layout import padded
from siliconloom.mapper.chip.quantized import Tensor, weight_image
from siliconloom.sim.golden.npu import parameter_planes

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Columns = tuple[Integers, Integers, Integers]
"""Bias, multiplier and shift of each column."""
PAGE = 1 << 12
"""Memory is a multiple of so many bytes."""


class MemoryImage:
    """Objects one after the other, each aligned to a program word and to the DMA's bus; `memory` has their bytes."""

    def __init__(self, tile: NpuTile) -> None:
        self.tile, self.lanes, self.bus = tile, tile.vector.lanes, tile.dma.bytes_per_cycle
        self._pieces: list[tuple[int, Bytes]] = []
        self._end = 0

    def take(self, size: int) -> int:
        """Address of ``size`` bytes of room."""
        base, self._end = self._end, self._end + padded(size, max(WORD_BYTES, self.bus))
        return base

    def hold(self, values: NDArray[Any]) -> int:
        """Address of values that lie there from the beginning."""
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        base = self.take(data.size)
        self._pieces.append((base, data))
        return base

    def tensor(self, rows: int, cols: int) -> Tensor:
        """Room for int8 rows, as far apart as the DMA needs them."""
        pitch = row_pitch(cols, self.bus)
        return Tensor(self.take(rows * pitch), rows, cols, pitch)

    def weights(self, matrix: Integers, tiles: tuple[int, int]) -> int:
        """Address of int8 weights of (k, n), packed for tiles of so many rows and columns."""
        return self.hold(weight_image(matrix.astype(np.int8), self.tile, tiles))

    def parameters(self, columns: Columns) -> int:
        """Address of bias, multiplier and shift of each column, as the vector unit reads them."""
        count = padded(len(columns[0]), self.lanes)
        bias, multiplier, shift = (np.pad(each, (0, count - len(each))) for each in columns)
        return self.hold(parameter_planes(bias, multiplier, shift, self.lanes))

    def memory(self) -> Bytes:
        """Everything up to the end of what was taken; zeros where nothing is held."""
        made = np.zeros(padded(self._end, PAGE), np.uint8)
        for base, data in self._pieces:
            made[base : base + len(data)] = data
        return made


def write_rows(memory: Bytes, tensor: Tensor, values: NDArray[np.int8]) -> None:
    """Write the first rows of a tensor: int8, (rows, tensor.cols)."""
    for number, row in enumerate(values):
        start = tensor.base + number * tensor.pitch
        memory[start : start + tensor.cols] = row.view(np.uint8)


def read_rows(memory: Bytes, tensor: Tensor, count: int) -> NDArray[np.int8]:
    """The first rows of a tensor: int8, (count, tensor.cols)."""
    starts = (tensor.base + number * tensor.pitch for number in range(count))
    return np.stack([memory[start : start + tensor.cols].view(np.int8) for start in starts])


def row_pitch(width: int, bus: int) -> int:
    """Bytes between rows so that each keeps the DMA's alignment rule."""
    return padded(width, bus) if width > bus else 1 << (width - 1).bit_length()


__all__ = ["Columns", "MemoryImage", "read_rows", "row_pitch", "write_rows"]
