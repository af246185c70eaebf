"""Where new keys and values lie in the cache that attention reads: keys in blocks, values in panels.

Keys go into blocks of as many positions as the array has columns, each block transposed; values go into panels of as
many columns, position by position (`attention_cost.AttentionLayout`). Of a block that is not full only what is new is
stored: its other columns may hold something already.
"""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.arch.description import Memory, NpuTile
from siliconloom.arch.layout import row_values
from siliconloom.mapper.chip.attention_cost import AttentionLayout
from siliconloom.mapper.chip.operands import Cached


@dataclass(frozen=True)
class CacheRows:
    """Rows of a tile that lie in the cache at one pitch; everything in bytes.

    ``local`` is where they begin in the tile of results, ``offset`` where they begin behind the tile's first.
    """

    local: int
    offset: int
    rows: int
    width: int
    pitch: int
    local_pitch: int


class CacheLayout:
    """Where the results of an operator that fills a cache go."""

    def __init__(self, tile: NpuTile, memory: Memory, cached: Cached) -> None:
        self.cached, self.size, self.tile = cached, cached.attention.precision.size, tile
        self.layout = layout = AttentionLayout(tile, memory, cached.attention)
        self.block = tile.array.cols
        self.plane = layout.key_plane if self.cached.keys else layout.value_plane
        """From head to head of a sequence."""
        self.unit = self.cached.attention.batch * self.cached.attention.kv_heads * self.plane
        """All sequences, of one layer."""

    def local(self, cols: int) -> int:
        """From row to row of a tile of ``cols`` columns."""
        return self.size(row_values(self.tile, cols))

    def at(self, position: int) -> int:
        """Where a position lies in the plane of a head."""
        if not self.cached.keys:
            return position * self.layout.value_line
        return position // self.block * self.layout.key_block + self.size(position % self.block)

    def within(self, column: int) -> int:
        """Where a column of a head lies in its plane: of values, the first of a panel."""
        if self.cached.keys:
            return column * self.layout.line
        return column // self.block * self.layout.positions * self.layout.value_line

    def rows(self, tokens: int, heads: int, width: int) -> list[CacheRows]:
        """What is stored of a tile of so many tokens, heads, and columns of each."""
        layout, size, made = self.layout, self.size, []
        if self.cached.keys:
            local = self.local(tokens)
            whole = tokens == self.block and width * layout.line == layout.key_block and local == layout.line
            if whole and width == self.cached.width and heads > 1:
                return [CacheRows(0, 0, heads, layout.key_block, self.plane, layout.key_block)]
            return [
                CacheRows(head * width * local, head * self.plane, width, size(tokens), layout.line, local)
                for head in range(heads)
            ]
        local = self.local(heads * width)
        for head in range(heads):
            for column in range(0, width, self.block):
                offset = head * self.plane + self.within(column)
                part = size(min(self.block, width - column))
                made.append(CacheRows(size(head * width + column), offset, tokens, part, layout.value_line, local))
        return made


__all__ = ["CacheLayout", "CacheRows"]
