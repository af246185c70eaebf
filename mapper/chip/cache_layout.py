"""Where what a vector unit has brought into the array's order lies: keys in blocks, values in panels, rows transposed.

Keys go into blocks of as many positions as the array has columns, each block transposed; values go into panels of as
many columns, position by position (`attention_cost.AttentionLayout`). Rows of a product on an array that keeps its sums
go into blocks of as many of them as the array has rows, each block transposed. Of a block that is not full only what is
new is stored: its other columns may hold something already.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.layout import line_values, row_values
from siliconloom.arch.memory import Memory
from siliconloom.arch.scaled import group_rows
from siliconloom.arch.tile import NpuTile
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
    scales: bool = False
    """Whether they are scales of keys, which move on otherwise than codes from part to part of a head."""


class CacheLayout:
    """Where the results of an operator that fills a cache, or transposes an operand, go."""

    def __init__(self, tile: NpuTile, memory: Memory, cached: Cached | Turned) -> None:
        self.cached, self.size, self.tile = cached, cached.kept.size, tile
        self.block, self.run = cached.block(tile.array), cached.run(tile.array)
        self.line = self.size(self.block)
        """From column to column of a transposed block."""
        self.columns_block = cached.width * self.line
        """One block."""
        # from head to head of a sequence
        if isinstance(cached, Turned):
            blocks = BlockRows(tile, cached.width, cached.owner.precision.bits, cached.rows)
            self.columns_block, self.plane = blocks.pitch, blocks.plane(cached.tokens)
        else:
            layout = AttentionLayout(tile, memory, cached.attention)
            self.columns_block = layout.key_block
            self.plane = layout.key_plane if cached.keys else layout.value_plane
            self.value_line, self.value_pitch, self.value_at = layout.value_line, layout.value_pitch, layout.value_at
        self.unit = cached.sequences * cached.heads * self.plane
        """All sequences, of one layer."""

    def local(self, cols: int) -> int:
        """From row to row of a tile of ``cols`` columns of results."""
        bits = (
            16 if self.cached.scaled and self.cached.transposed else self.cached.result_bits
        )  # of keys, pairs in int4
        return row_values(self.tile, cols, narrow=1) * bits // 8

    def at(self, position: int) -> int:
        """Where a position lies in the plane of a head, or its group's header and its place in that, of scales."""
        if self.cached.scaled:
            within = position % self.run
            if self.cached.transposed:
                return position // self.run * self.columns_block + within
            return self.value_at(position) + within * self.value_line
        if not self.cached.transposed:
            return position * self.value_line
        return position // self.block * self.columns_block + self.size(position % self.block)

    def line_of(self, tokens: int) -> int:
        """From column to column of a transposed block of so many; the last one of rows of a product may be narrow."""
        return self.size(line_values(tokens, self.block)) if isinstance(self.cached, Turned) else self.line

    def within(self, column: int, tokens: int) -> int:
        """Where a column of a head lies in its plane: of values, the first of a panel; of others, in such a block."""
        if self.cached.transposed:
            return self.scaled_key(column) if self.cached.scaled else column * self.line_of(tokens)
        return column // self.block * self.value_pitch

    def scales_within(self, column: int) -> int:
        """As `within`, of scales of keys."""
        group = group_rows(self.tile.array)
        return self.scaled_key(column // group * group) + column % group // self.block * self.block

    def scaled_key(self, column: int) -> int:
        """Where a column of a head lies in a block of keys with scales, less the header before it."""
        group = group_rows(self.tile.array)
        return column // group * (group + self.size(group * self.block)) + self.size(column % group * self.block)

    def rows(self, tokens: int, heads: int, width: int, first: int = 0) -> list[CacheRows]:
        """What is stored of a tile of so many tokens, heads, and columns of each; ``first`` is the first's position."""
        size, made = self.size, list[CacheRows]()
        if self.cached.scaled:
            parts = self._scaled_keys(tokens, heads, width) if self.cached.transposed else None
            return parts or self._scaled_values(tokens, heads, width, first % self.run)
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

    def _scaled_keys(self, tokens: int, heads: int, width: int) -> list[CacheRows]:
        """Keys with scales: of each group of columns the codes, a row of tokens for each, or for two; then scales.

        A tile that has a part of a head begins with a header's column; scales lie behind each line.
        """
        made, group, pairs = list[CacheRows](), group_rows(self.tile.array), 2 if self.cached.kept.bits < 8 else 1
        local, line = self.local(tokens), line_values(tokens, self.tile.vector.lanes, narrow=1)
        for head in range(heads):
            for start in range(0, width, group):
                count, begin = min(group, width - start), (head * width + start) // pairs * local
                place = head * self.plane + self.scaled_key(start)
                made += [
                    CacheRows(begin, place + group, count // pairs, tokens, self.block, local),
                    CacheRows(
                        begin + line,
                        place,
                        -(-count // self.block),
                        tokens,
                        self.block,
                        self.block // pairs * local,
                        True,
                    ),
                ]
        return made

    def _scaled_values(self, tokens: int, heads: int, width: int, within: int) -> list[CacheRows]:
        """Values with scales, from the place ``within`` a group on: of each panel codes, and a byte of each token.

        Of one token those of all panels of a head are stored at once, where lines are whole panels.
        """
        made, group, bits = list[CacheRows](), group_rows(self.tile.array), self.cached.kept.bits
        local, line = self.local(heads * width), line_values(heads * width, self.tile.vector.lanes, narrow=1)
        scale = within - within * self.value_line  # from where a token's codes would be, without the header
        panels = width // self.block
        if tokens == 1 and line == self.block and width % self.block == 0:
            pitch = 2 * line * bits // 8
            for head in range(heads):
                begin, place = head * panels * pitch, head * self.plane
                for width_, at, offset in ((line * bits // 8, 0, group), (1, line * bits // 8, scale)):
                    made.append(CacheRows(begin + at, place + offset, panels, width_, self.value_pitch, pitch))
            return made
        for column in range(0, heads * width, self.block) if width % self.block == 0 else range(0, width, self.block):
            head, part = divmod(column, width)
            place = head * self.plane + self.within(part, tokens)
            count = min(self.block, width - part) * bits // 8
            begin = column // line * 2 * line * bits // 8 + column % line * bits // 8
            made += [
                CacheRows(begin, place + group, tokens, count, self.value_line, local),
                CacheRows(begin + line * bits // 8, place + scale, tokens, 1, 1, local),
            ]
        return made


__all__ = ["CacheLayout", "CacheRows"]
