"""Where tiles of parameters lie in main memory: panel by panel, the last panel no wider than its columns need.

In local memory a panel has as many columns as the array, the last one as many as the next power of two of its own. A
transfer may spread narrower rows to that pitch, so an array that is much wider than a product need not move what fills
its panels up.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.layout import is_power, line_values, padded, panel_rows, window_of
from siliconloom.arch.vector import Count
from siliconloom.mapper.chip.gemm_layout import GemmLayout, in_beats, known_of_tiles

Int = NDArray[np.int64]


class PanelPart(NamedTuple):
    """A transfer of those that a tile takes: where it begins in local and main memory, its rows, their local pitch."""

    local: int
    memory: int
    rows: int
    width: int
    pitch: int


class PanelRows(Struct, frozen=True, eq=False):
    """From row to row of a last panel, by the columns that it has: in main memory, and in local memory."""

    memory: Int
    local: Int


class Panels(NamedTuple):
    """Panels of ``cols`` columns, ``line`` bytes a row of each in main memory, and the last ones of all ``halves``."""

    ends: tuple[PanelRows, ...]
    halves: int
    cols: int
    line: int

    def width(self, n: Any) -> Any:
        """Bytes of a row of all panels of ``n`` columns in main memory."""
        columns = n // self.halves
        last = self.ends[0].memory[columns % self.cols]
        for rows in self.ends[1:]:
            last = last + rows.memory[columns % self.cols]
        return self.halves * (columns // self.cols) * self.line + last


def _tile_sizes(panel: int, columns: int) -> Int:
    """Columns of tiles of panels, or of parts of one; panels that are no power of two have none."""
    half = panel // 2 if is_power(panel) and panel > 1 else panel
    parts = [panel >> part for part in range(panel.bit_length())] if is_power(panel) else [panel]
    return np.array([*parts, *range(half, columns, half)], np.int64)


@lru_cache(maxsize=1 << 12)
def _most_room(panels: Panels, n: int, rows: int, bus: int) -> int:
    """Bytes of ``n`` columns of so many rows, in tiles of as many panels, or parts of one, as take the most."""
    columns = n // panels.halves
    size, every = panels.halves * _tile_sizes(panels.cols, columns), panels.halves * columns
    rest = rows * panels.width(every % size)
    cut = every // size * in_beats(rows * panels.width(size), bus) + in_beats(rest, bus)
    return max(int(in_beats(rows * int(panels.width(n)), bus)), int(cut.max()))


def _access(chip: Chip) -> int:
    """Bytes of an access of the memory that has the widest."""
    return max(memory.access_bytes for memory in chip.memory.values())


class PanelLayout:
    """Tiles of a product's second operand that lies in the order in which the array takes it; everything in bytes.

    Halves that are gated begin with panels of their own; where sums are not split, the last panel of the first half is
    as wide as the array.
    """

    def __init__(self, chip: Chip, layout: GemmLayout) -> None:
        array, shape, access = layout.array, layout.shape, _access(chip)
        self.layout, self.array, self.halves = layout, array, shape.halves
        self.line = int(layout.b_size(array.cols))
        self.known: dict[Hashable, Any] = {}
        """What was asked of single tiles."""
        self.by_folds = array.dataflow == "weight_stationary"
        self.ends: tuple[PanelRows, ...] = ()
        """Last panels of the halves; none where elements are no whole bytes, packed or compressed."""
        grouped = shape.packing is not None and shape.packing.group > 0
        self.slim = layout.narrow and grouped and shape.compression is None
        """Whether last panels of groups may be narrow: in main memory they are as in local memory."""
        plain = layout.narrow and shape.compression is None and not grouped
        if array.dataflow != "input_stationary" and layout.b_bits % 8 == 0 and plain:
            size = layout.b_bits // 8
            self.ends = tuple(
                _last_rows(array.cols, size, layout.beat, access, layout.shares or half == self.halves - 1)
                for half in range(self.halves)
            )

    @classmethod
    def of(cls, chip: Chip, layout: GemmLayout) -> PanelLayout:
        """The one of a layout, of which it knows what was asked before."""
        key = "panels", _access(chip)
        found: PanelLayout | None = layout.known.get(key)
        if found is None:
            found = layout.known[key] = cls(chip, layout)
        return found

    @known_of_tiles
    def tile(self, n: Any, k: Any) -> Any:
        """All of a tile, in main memory."""
        if not self.ends:
            return self._stored(self.layout.b_tile(n, k))
        taken = self._rows(k) * Panels(self.ends, self.halves, self.array.cols, self.line).width(n)
        return taken if isinstance(taken, np.ndarray) else int(taken)

    @known_of_tiles
    def pitch(self, n: Any) -> Any:
        """From tile to tile of ``n`` columns of all of the depth: so far apart that a transfer may bring each."""
        taken = self.tile(n, self.layout.shape.k)
        return in_beats(taken, self.layout.beat) if self.ends or self.slim else taken

    @known_of_tiles
    def room(self, n: int, k: int) -> int:
        """Room for all ``n`` columns in main memory, whatever tiles of panels or halves of them they are cut into."""
        if self.slim:
            return self._slim_room(n, k)
        if not self.ends:
            return int(self.tile(n, k))
        panels = Panels(self.ends, self.halves, self.array.cols, self.line)
        # what is repeated follows at once, and begins where a tile may, too
        return int(in_beats(_most_room(panels, n, int(self._rows(k)), self.layout.beat), self.layout.beat))

    def _slim_room(self, n: int, k: int) -> int:
        """As `room`, of groups whose last panels may be narrow."""
        sizes, every = _tile_sizes(self.array.cols, n // self.halves), n // self.halves
        bus, halves = self.layout.beat, self.halves
        rest = in_beats(self.tile(halves * (every % sizes), k), bus) * (every % sizes > 0)
        cut = every // sizes * in_beats(self.tile(halves * sizes, k), bus) + rest
        return int(in_beats(max(int(in_beats(self.tile(n, k), bus)), int(cut.max())), bus))

    @known_of_tiles
    def parts(self, n: int, k: int) -> list[PanelPart]:
        """Transfers that bring a tile; what lies in local memory as in main memory is one."""
        if not self.ends:
            every = int(self.layout.b_tile(n, k))
            return [PanelPart(0, 0, 1, every, every)]
        columns, rows = n // self.halves, int(self._rows(k))
        gap = int(self.layout.gap(columns, k)) if self.halves > 1 and self.layout.shares else 0
        whole, rest = columns // self.array.cols * self.line * rows, columns % self.array.cols
        found, local, memory = list[PanelPart](), 0, 0
        for end in self.ends:
            width, pitch = int(end.memory[rest]), int(end.local[rest])
            alike = whole + (rows * width if width == pitch else 0)
            joins = bool(found) and found[-1].pitch == found[-1].width and not gap
            first = found.pop() if joins else PanelPart(local, memory, 1, 0, 0)
            if together := first.width + alike:
                found.append(PanelPart(first.local, first.memory, 1, together, together))
            if width != pitch:
                found.append(PanelPart(local + whole, memory + whole, rows, width, pitch))
            local, memory = local + whole + rows * pitch + gap, memory + whole + rows * width
        return found

    def longest(self, n: int, k: int) -> int:
        """Bytes of the longest of those transfers that are one row; 0 where none is."""
        return max((part.width for part in self.parts(n, k) if part.rows == 1), default=0)

    def spread(self, n: Int, k: Int) -> tuple[Int, list[tuple[Int, Int, Int]]]:
        """Of tiles of these sizes: bytes that are moved as they lie; and rows of others, their widths, local pitches.

        Of tiles that have none the rows are zero.
        """
        columns, rows = n // self.halves, self._rows(k)
        rest = columns % self.array.cols
        alike, others = self.halves * (columns // self.array.cols) * self.line, list[tuple[Int, Int, Int]]()
        for end in self.ends:
            width, pitch = end.memory[rest], end.local[rest]
            apart = width != pitch
            alike = alike + np.where(apart, 0, width)
            if apart.any():
                others.append((rows * apart, np.where(apart, width, 0), pitch))
        return rows * alike, others

    def _stored(self, size: Any) -> Any:
        """Bytes in main memory of whole tiles: compressed beat by beat, so that tiles of a tile adjoin."""
        ratio = self.layout.shape.compression
        if ratio is None:
            return size
        beat = self.array.load_rows * self.line
        return size // beat * math.ceil(beat * ratio) + -(-(size % beat) * math.ceil(beat * ratio) // beat)

    def _rows(self, k: Count) -> Count:
        return panel_rows(self.array, k) if self.by_folds else k


@lru_cache(maxsize=128)
def _last_rows(cols: int, size: int, bus: int, access: int, narrow: bool) -> PanelRows:
    """Rows of a last panel, which may be narrow in local memory, or of one that others follow.

    In main memory the least that a row may have where that moves fewer bytes: by rows, each of them is rounded up to
    the memory's access.
    """
    memory, local = [0], [0]
    for columns in range(1, cols):
        width, line = columns * size, size * int(line_values(columns, cols, narrow))
        if bus & bus - 1 == 0:
            width = window_of(bus, width) if width <= bus else padded(width, bus)
        legal = bus & bus - 1 != 0 or line % window_of(bus, width) == 0
        memory.append(width if legal and padded(width, access) < line else line)
        local.append(line)
    return PanelRows(np.array(memory, np.int64), np.array(local, np.int64))


__all__ = ["PanelLayout", "PanelPart"]
