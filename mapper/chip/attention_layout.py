"""Where queries, keys, values and results of attention lie, in memory and on chip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from math import gcd, lcm, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.array import TILE_FORMATS
from siliconloom.arch.description import Chip
from siliconloom.arch.layout import (
    filled_values,
    is_power,
    line_values,
    padded,
    panel_rows,
    parameter_bytes,
    product_values,
    row_values,
    sums_bytes,
    sums_split,
    window_of,
)
from siliconloom.arch.memory import Memory
from siliconloom.arch.packing import panel_bytes, weight_bytes
from siliconloom.arch.scaled import group_rows, is_scaled
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import QUEUE_POP, TRANSFER_START
from siliconloom.arch.vector import Count, VectorFunction
from siliconloom.mapper.chip.attention_places import (
    PARTS,
    AttentionPart,
    as_one,
    kept_from,
    pipelines_from,
    query_parts,
    sharing,
    whole_places,
)
from siliconloom.mapper.chip.gemm_layout import row_bytes
from siliconloom.mapper.chip.operands import key_block, packing_of
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.sim.timing.units import access_cycles
from siliconloom.workloads import Attention


def loads(made: AttentionLayout, parts: Sequence[AttentionPart], queries: int, keys: int, heads: int) -> int:
    """How often keys are loaded for a key-value head by one pipeline of `as_one`, where they may stay, or else 0."""
    if any(part.keys > keys for part in parts) or made.shape.values_in_keys:
        return 0
    return made.times_loaded(tuple(parts), queries, heads)


def may_stay(made: AttentionLayout, queries: int, keys: int, heads: int) -> bool:
    """Whether keys of any part of the queries may stay for several tiles of these."""
    nests = as_one(made.shape, query_parts(made.shape), keys)
    return any(loads(made, parts, queries, keys, heads) for parts in nests)


class KeyPart(NamedTuple):
    """A transfer of a tile of keys: where it begins, rows, bytes of each, and from row to row in both memories."""

    offset: int
    rows: int
    width: int
    pitch: int
    local: int


class AttentionLayout:
    """Where queries, keys, values and results lie in memory, and their tiles in local memory; everything in bytes.

    Keys lie head by head and transposed, in blocks of as many positions as the array has columns, or one that is narrow
    (`operands.key_block`). Values lie head by
    head in panels of as many columns, position by position; where heads are narrower than a panel only their own
    columns do, if fewer bytes move so. A latent cache lies token by token.

    ``held`` are the columns of the rows that queries begin, where those hold more.
    """

    def __init__(self, tile: NpuTile, memory: Memory, shape: Attention, held: int = 0) -> None:
        tile = oriented(tile)
        self.tile, self.array, self.shape, self.lanes = tile, tile.array, shape, tile.vector.lanes
        self.chip: Chip | None = None
        self.q_head, self.q_row = self._heads(shape.head_dim, self.q_local(), held)
        self.o_head, self.o_row = self._heads(shape.v_head_dim, self.o_local())
        self.block = key_block(self.array, shape)
        self.blocks = not shape.values_in_keys
        self.turned = tile.array.dataflow == "output_stationary"
        """Whether the array takes rows column by column, so that the vector unit transposes them."""
        self.packing, self.value_packing = (packing_of(shape, keys=keys) for keys in (True, False))
        self.kept_size, self.scaled = shape.kept.size, is_scaled(self.array, self.packing)
        size = self.kept_size
        self.key_block = size(panel_rows(self.array, shape.head_dim) * self.block)
        if self.scaled and self.packing is not None:
            self.key_block = int(panel_bytes(self.array, self.packing, shape.head_dim))
        if self.blocks:
            self.key_plane = -(-shape.positions // self.block) * self.key_block
        else:
            self.key_plane = shape.positions * size(shape.head_dim)
        self.panels = -(-shape.v_head_dim // self.array.cols)
        # one panel may be narrow; of several all are whole, so that they are moved as one
        self.value_cols = shape.v_head_dim if self.panels == 1 else self.panels * self.array.cols
        if self.packing is not None:  # what is made to operands at the array's edge comes in whole panels
            self.value_cols = self.panels * self.array.cols
        self.value_width = line_values(self.value_cols, self.array.cols)
        self.line = size(self.value_width)
        self.value_line = self._value_line(memory)
        self.positions = self._value_positions()
        self.value_pitch = self._value_pitch()
        if self.blocks:
            self.value_plane = self.panels * self.value_pitch
        else:
            self.value_plane = shape.positions * size(shape.v_head_dim)
        self.softmax_bytes = parameter_bytes(tile, VectorFunction.SOFTMAX, 1, narrow=1)
        self.constants = attention_constants(tile, shape)
        self.times_loaded = cache(self._times_loaded)

    @classmethod
    def of(cls, chip: Chip, shape: Attention, held: int = 0) -> AttentionLayout:
        """The layout of one tile of a chip."""
        assert isinstance(chip.tile, NpuTile)
        made = cls(chip.tile, chip.nearest, shape, held)
        made.chip = chip
        return made

    def _times_loaded(self, parts: tuple[AttentionPart, ...], queries: int, heads: int) -> int:
        """As `loads`, of parts all of whose keys are one tile, whatever its size."""
        sizes = whole_places(self.shape, parts, queries, heads)
        kept = kept_from(pipelines_from(self.shape, parts, sizes), parts=self.holds(parts))
        if sharing(sizes, kept) < 2:
            return 0
        return prod(-(-total // size) for total, size in sizes[PARTS:kept])

    def _value_line(self, memory: Memory) -> int:
        """From position to position of a panel of values in main memory."""
        if self.scaled:  # rows of a group adjoin
            return self.line
        own = self.kept_size(self.shape.v_head_dim)
        line, bus = padded(own, memory.access_bytes), self.tile.dma.bytes_per_cycle
        begins = bus & bus - 1 or not (line | self.line) & window_of(bus, own) - 1
        return line if line < self.line and begins else self.line

    def _value_positions(self) -> int:
        """Positions from panel to panel of values: whole beats of a fold, and of several panels whole ones of the DMA.

        Panels that begin where no long row of a transfer may would be moved in columns.
        """
        positions = padded(padded(self.shape.positions, self.block), self.array.load_rows)
        if self.scaled:
            return padded(positions, group_rows(self.array))
        bus, line = self.tile.dma.bytes_per_cycle, self.value_line
        if self.panels == 1 or not is_power(bus):
            return positions
        window = window_of(bus, positions * line)
        return padded(positions, lcm(self.array.load_rows, window // gcd(window, line)))

    def _value_pitch(self) -> int:
        """From panel to panel of values in main memory."""
        if not self.scaled or self.value_packing is None:
            return self.positions * self.value_line
        whole, bus = int(panel_bytes(self.array, self.value_packing, self.positions)), self.tile.dma.bytes_per_cycle
        return padded(whole, window_of(bus, whole)) if is_power(bus) else whole

    def value_at(self, position: int) -> int:
        """Where a position's values lie in a panel; of those with scales a group that begins with it."""
        if not self.scaled or self.value_packing is None:
            return position * self.value_line
        group = group_rows(self.array)
        return position // group * int(panel_bytes(self.array, self.value_packing, group))

    def _heads(self, dim: int, local: int, held: int = 0) -> tuple[int, int]:
        """From head to head in main memory, and from row to row.

        Nothing lies between heads that have values: one that does not begin where a transfer may is moved in parts.
        What no circuit computes is timed with heads that are filled up.
        """
        bus, row = self.tile.dma.bytes_per_cycle, self.shape.precision.size(dim)
        timed = self.shape.precision not in TILE_FORMATS or self.shape.values_in_keys
        if timed and is_power(bus) and row % window_of(bus, row):
            return local, self.shape.heads * local
        return row, row_bytes(self.tile, held or self.shape.heads * dim, self.shape.precision.bits)

    def q_local(self) -> int:
        """From head to head of a tile of queries."""
        return self.shape.precision.size(row_values(self.tile, self.shape.head_dim, narrow=1))

    def o_local(self) -> int:
        """From head to head of a tile of results."""
        return self.shape.precision.size(row_values(self.tile, self.shape.v_head_dim, narrow=1))

    def turned_pitch(self, rows: int) -> int:
        """From column to column of so many rows that are transposed; nothing where none are."""
        return self.shape.precision.size(row_values(self.tile, rows, narrow=1)) if self.turned else 0

    def turned_bytes(self, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.int64]:
        """So many rows that are transposed: whole blocks of them are read, the last ones beyond the last column."""
        bits = self.shape.precision.bits
        pitch, whole = (
            -(-values * bits // 8)
            for values in (row_values(self.tile, rows, narrow=1), filled_values(rows, self.array.rows))
        )
        return (cols - 1) * pitch + np.maximum(pitch, whole)

    def key_tile(self, keys: int) -> int:
        """A tile of keys as the array takes it."""
        if self.shape.values_in_keys:
            return self.shape.precision.size(keys * self.shape.head_dim)
        if self.packing is not None:
            return int(weight_bytes(self.array, self.packing, self.key_cols(keys), self.shape.head_dim))
        return self.shape.precision.size(product_values(self.tile, 1, self.key_cols(keys), self.shape.head_dim, 1).b)

    def key_cols(self, keys: int) -> int:
        """Columns of so many keys: of a last block that comes as a whole all."""
        return keys if self.key_rest(keys) else padded(keys, self.block)

    def key_rest(self, keys: int) -> int:
        """Bytes of each row of the last block that are moved, where that takes less time than the whole block; else 0.

        Only of a layout `of` a chip, which has a time, and none where the keys of a block share exponents, as it counts
        there which of them there are; nor where keys have a format of their own, whose blocks are whole.
        """
        rest, bus, size, chip = keys % self.block, self.tile.dma.bytes_per_cycle, self.shape.precision.size, self.chip
        whole_bytes = not self.shape.precision.bits % 8 and is_power(self.block) and is_power(bus)
        if chip is None or not rest or not self.blocks or not whole_bytes or self.tile.shares or self.packing:
            return 0
        width = size(rest) if size(rest) <= bus else padded(size(rest), bus)
        if size(self.block) % window_of(bus, width) or width > self.key_line(keys):
            return 0
        taken = self._taken.get(width)
        if taken is None:
            rows = panel_rows(self.array, self.shape.head_dim)
            taken = self._taken[width] = access_cycles(chip, chip.nearest, rows, width)
        if keys > self.block:  # a transfer more
            taken += QUEUE_POP + TRANSFER_START
        return width if taken < self._block_cycles else 0

    @cached_property
    def _taken(self) -> dict[int, int]:
        """Cycles of the rows of a part of a block, by bytes of each, as far as they were asked for."""
        return {}

    @cached_property
    def _block_cycles(self) -> int:
        """Cycles in which a whole block is loaded."""
        assert self.chip is not None
        return access_cycles(self.chip, self.chip.nearest, 1, self.key_block)

    @cached_property
    def most_keys(self) -> int:
        """Keys that some part of the queries reads, at most."""
        return max(part.keys for part in query_parts(self.shape))

    def cuts(self, keys: int) -> bool:
        """Whether tiles of so many keys are parts of a block: those of a query take several of these."""
        return self.blocks and keys < min(self.block, self.most_keys)

    def may_cut(self, keys: int) -> bool:
        """Whether tiles may be such parts of a block: halves, quarters and so on, in whole beats of a fold of values.

        Not where keys have a format of their own, whose panels are whole; nor where loops over parts would be one more
        than there are.
        """
        shape, powers = self.shape, is_power(self.block) and is_power(keys) and is_power(self.tile.dma.bytes_per_cycle)
        plain = self.packing is None and shape.precision in TILE_FORMATS
        loops = shape.batch > 1 and shape.kv_heads > 1 and shape.heads > shape.kv_heads
        return self.cuts(keys) and powers and plain and not loops and keys % self.array.load_rows == 0

    def cut_cols(self, keys: Any, tile: Any) -> Any:
        """Columns of so many keys, at most a ``tile`` of them that is a part of a block.

        Where those of a row share an exponent all of the part's count, whichever of them queries see.
        """
        return padded(keys, tile) if self.tile.shares else keys

    def cut_tile(self, keys: int) -> int:
        """A tile of so many keys that is a part of a block."""
        return self.shape.precision.size(product_values(self.tile, 1, keys, self.shape.head_dim, 1).b)

    def cut_part(self, keys: int) -> KeyPart:
        """The transfer of so many keys of a block, from each row of it."""
        width = self.shape.precision.size(line_values(keys, self.block))
        return KeyPart(0, panel_rows(self.array, self.shape.head_dim), width, self.kept_size(self.block), width)

    def key_line(self, keys: int) -> int:
        """From row to row of a part of a block of keys in local memory."""
        return self.shape.precision.size(line_values(keys % self.block, self.block))

    def key_parts(self, keys: int) -> list[KeyPart]:
        """Transfers of so many keys: of whole blocks, and of each row of the last one the positions that are needed."""
        width, pitch = self.key_rest(keys), self.kept_size(self.block)
        whole = keys // self.block if width else -(-keys // self.block)
        parts = [KeyPart(0, whole, self.key_block, self.key_block, self.key_block)] if whole else []
        if width:
            rows = panel_rows(self.array, self.shape.head_dim)
            parts.append(KeyPart(whole * self.key_block, rows, width, pitch, self.key_line(keys)))
        return parts

    def split(self, cols: Count) -> Count:
        """How lines of sums of so many columns are split."""
        return sums_split(self.array, cols)

    def sums(self, rows: Count, cols: Count) -> Count:
        """Local addresses of so many rows of sums."""
        return sums_bytes(self.array, cols, rows, self.split(cols))

    def value_tile(self, keys: int) -> int:
        """A tile of values as the array takes it."""
        if self.value_packing is not None:
            return int(weight_bytes(self.array, self.value_packing, self.value_cols, keys))
        return self.shape.precision.size(product_values(self.tile, 1, self.value_cols, keys, narrow=1).b)

    def holds(self, parts: Sequence[AttentionPart]) -> bool:
        """Whether keys of every part are the first ones of those of the part that has the most.

        They are where lines of a last block that is not whole are as long as those of whole ones, and where the values
        of one panel follow one another.
        """
        if not self.blocks or self.turned or self.packing is not None or self.panels > 1:
            return False
        most = max(part.keys for part in parts)
        if len(parts) == 1 or any(part.key_start for part in parts) or self.key_rest(most):
            return False
        rests = (part.keys % self.block for part in parts if part.keys < most)
        return all(not rest or line_values(rest, self.block) == self.block for rest in rests)

    def value_rows(self, keys: int) -> tuple[int, int, int, int]:
        """Rows of a transfer of a tile of values, bytes of each, and from row to row in main and in local memory."""
        if self.value_line < self.line:
            return keys, self.kept_size(self.shape.v_head_dim), self.value_line, self.line
        return self.panels, self.value_panel(keys), self.value_pitch, self.value_panel(keys)

    def value_panel(self, keys: int) -> int:
        """From panel to panel of a tile of values."""
        if self.scaled and self.value_packing is not None:
            return int(panel_bytes(self.array, self.value_packing, keys))
        return self.kept_size(panel_rows(self.array, keys) * self.value_width)


def attention_constants(tile: NpuTile, shape: Attention) -> int:
    """Bytes of parameters: softmax's, then what requantises the columns of a head."""
    parameters = ((VectorFunction.SOFTMAX, 1), (VectorFunction.REQUANTIZE, shape.v_head_dim))
    return sum(parameter_bytes(tile, function, cols, narrow=1) for function, cols in parameters)


__all__ = ["AttentionLayout", "KeyPart", "attention_constants", "loads", "may_stay"]
