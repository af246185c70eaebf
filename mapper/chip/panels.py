"""Where tiles of parameters lie in main memory: panel by panel, the last panel no wider than its columns need.

In local memory a panel has as many columns as the array, whatever is in them. A transfer may spread narrower rows to
that pitch, so an array that is much wider than a product need not move what fills its panels up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.layout import padded, panel_rows, window_of
from siliconloom.arch.vector import Count
from siliconloom.mapper.chip.gemm_layout import GemmLayout

Int = NDArray[np.int64]


class PanelPart(NamedTuple):
    """A transfer of those that a tile takes: where it begins in local and main memory, its rows, their local pitch."""

    local: int
    memory: int
    rows: int
    width: int
    pitch: int


class PanelLayout:
    """Tiles of a product's second operand that lies in the order in which the array takes it; everything in bytes."""

    def __init__(self, chip: Chip, layout: GemmLayout) -> None:
        array, shape = layout.array, layout.shape
        self.layout, self.array, self.halves = layout, array, 2 if shape.output_halved else 1
        self.line = int(layout.size(array.cols))
        self.by_folds = array.dataflow == "weight_stationary"
        accesses = [memory.access_bytes for memory in chip.memory.values()]
        panels = array.dataflow != "input_stationary" and shape.dtype.bits % 8 == 0 and shape.packing is None
        self.widths = _widths(array.cols, self.line, layout.beat, max(accesses)) if panels else None

    def tile(self, n: Any, k: Any) -> Any:
        """All of a tile."""
        columns = n // self.halves
        width = self._last(columns)
        if width is None:
            return self.layout.b_tile(n, k)
        return self.halves * self._rows(k) * (columns // self.array.cols * self.line + width)

    def parts(self, n: int, k: int) -> list[PanelPart]:
        """Transfers that bring a tile; one where all its panels have the pitch of local memory."""
        columns = n // self.halves
        width = self._last(columns)
        if width is None or width in (0, self.line):
            every = int(self.tile(n, k))
            return [PanelPart(0, 0, 1, every, every)]
        rows, local, memory, found = self._rows(k), 0, 0, list[PanelPart]()
        whole = columns // self.array.cols * self.line * rows
        for _ in range(self.halves):
            if whole:
                found.append(PanelPart(local, memory, 1, whole, whole))
            found.append(PanelPart(local + whole, memory + whole, rows, int(width), self.line))
            local, memory = local + whole + self.line * rows, memory + whole + int(width) * rows
        return found

    def narrow(self, n: Int, k: Int) -> tuple[Int, Int, Int] | None:
        """Of tiles of these sizes: bytes of whole panels, rows of narrow ones, and their width; none where none is."""
        columns = n // self.halves
        width = self._last(columns)
        if width is None or not (narrow := (width > 0) & (width < self.line)).any():
            return None
        whole = columns // self.array.cols * self.line + np.where(narrow, 0, width)
        rows = self.halves * self._rows(k)
        return rows * whole, np.where(narrow, rows, 0), np.where(narrow, width, 0)

    def _last(self, columns: Any) -> Any:
        """From row to row of the last panel of so many columns, 0 where all are whole; nothing where there is none."""
        if self.widths is None:
            return None
        width = self.widths[columns % self.array.cols]
        return width if isinstance(columns, np.ndarray) else int(width)

    def _rows(self, k: Count) -> Count:
        return panel_rows(self.array, k) if self.by_folds else k


@lru_cache(maxsize=64)
def _widths(cols: int, line: int, bus: int, access: int) -> Int:
    """From row to row of a panel, by the columns that it has: the least that a row may have, or a whole line.

    The least where that moves fewer bytes: by rows, each of them is rounded up to the memory's access.
    """
    found = [0]
    for columns in range(1, cols):
        width = -(-columns * line // cols)
        if bus & bus - 1 == 0:
            width = window_of(bus, width) if width <= bus else padded(width, bus)
        legal = bus & bus - 1 != 0 or line % window_of(bus, width) == 0
        found.append(width if legal and padded(width, access) < line else line)
    return np.array(found, np.int64)


__all__ = ["PanelLayout", "PanelPart"]
