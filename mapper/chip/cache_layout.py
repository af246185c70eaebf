"""Where what a vector unit has brought into the array's order lies: keys in blocks, values in panels, rows transposed.

Keys go into blocks of as many positions as the array has columns, each block transposed; values go into panels of as
many columns, position by position (`attention_cost.AttentionLayout`). Rows of a product on an array that keeps its sums
go into blocks of as many of them as the array has rows, each block transposed. Of a block that is not full only what is
new is stored: its other columns may hold something already.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.description import Memory, NpuTile
from siliconloom.arch.layout import line_values, row_values
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.gemm_layout import BlockRows
from siliconloom.mapper.chip.operands import Cached, Turned


class CacheRows(Struct, frozen=True):
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
    """Where the results of an operator that fills a cache, or transposes an operand, go."""

    def __init__(self, tile: NpuTile, memory: Memory, cached: Cached | Turned) -> None:
        self.cached, self.size, self.tile = cached, cached.kept.size, tile
        self.block = cached.block(tile.array)
        self.line = self.size(self.block)
        """From column to column of a transposed block."""
        self.columns_block = cached.width * self.line
        """One block."""
        # from head to head of a sequence
        if isinstance(cached, Turned):
            blocks = BlockRows(tile, cached.width, cached.owner.precision.bits)
            self.columns_block, self.plane = blocks.pitch, blocks.plane(cached.tokens)
        else:
            layout = AttentionLayout(tile, memory, cached.attention)
            self.columns_block = layout.key_block
            self.plane = layout.key_plane if cached.keys else layout.value_plane
            self.value_line, self.positions = layout.value_line, layout.positions
        self.unit = cached.sequences * cached.heads * self.plane
        """All sequences, of one layer."""

    def local(self, cols: int) -> int:
        """From row to row of a tile of ``cols`` columns of results."""
        return self.size(row_values(self.tile, cols, narrow=1))

    def at(self, position: int) -> int:
        """Where a position lies in the plane of a head."""
        if not self.cached.transposed:
            return position * self.value_line
        return position // self.block * self.columns_block + self.size(position % self.block)

    def line_of(self, tokens: int) -> int:
        """From column to column of a transposed block of so many; the last one of rows of a product may be narrow."""
        return self.size(line_values(tokens, self.block)) if isinstance(self.cached, Turned) else self.line

    def within(self, column: int, tokens: int) -> int:
        """Where a column of a head lies in its plane: of values, the first of a panel; of others, in such a block."""
        if self.cached.transposed:
            return column * self.line_of(tokens)
        return column // self.block * self.positions * self.value_line

    def rows(self, tokens: int, heads: int, width: int) -> list[CacheRows]:
        """What is stored of a tile of so many tokens, heads, and columns of each."""
        size, made = self.size, []
        if self.cached.transposed:
            local, line = self.local(tokens), self.line_of(tokens)
            whole = tokens == self.block and width * self.line == self.columns_block and local == self.line
            if whole and width == self.cached.width and heads > 1:
                return [CacheRows(0, 0, heads, self.columns_block, self.plane, self.columns_block)]
            return [
                CacheRows(head * width * local, head * self.plane, width, size(tokens), line, local)
                for head in range(heads)
            ]
        local = self.local(heads * width)
        for head in range(heads):
            for column in range(0, width, self.block):
                offset = head * self.plane + self.within(column, tokens)
                part = size(min(self.block, width - column))
                made.append(CacheRows(size(head * width + column), offset, tokens, part, self.value_line, local))
        return made


__all__ = ["CacheLayout", "CacheRows"]
