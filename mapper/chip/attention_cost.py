"""Choice of attention's tiles: every candidate is costed with the durations that the simulator uses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd, lcm, prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import TILE_FORMATS, Chip, Memory, NpuTile
from siliconloom.arch.layout import (
    filled_values,
    first_values,
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
from siliconloom.arch.packing import weight_bytes
from siliconloom.arch.timing import (
    ACCUMULATOR_WRITE,
    LOAD_WRITE,
    OPERAND_LATENCY,
    QUEUE_POP,
    STORE_WRITE,
    TRANSFER_START,
)
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT, VectorFunction
from siliconloom.mapper.chip.builder import SLOTS
from siliconloom.mapper.chip.gemm_layout import row_bytes
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.lowering import segments
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.operands import key_block, packing_of
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.pipelined import outside
from siliconloom.mapper.chip.transfers import pieces
from siliconloom.sim.timing.pace import product_pace
from siliconloom.sim.timing.units import access_cycles, fetch_cycles, moved_bytes, vector_cycles
from siliconloom.workloads import Attention

KEPT = 3
"""Candidates of each layout that are looked at again."""
NEAR = 1.1
"""The best with every other tile of keys is looked at, too, where it takes at most so many times as long as the best:
estimates of tiles of one size err alike."""
MOST_SUMMED = (2**31 - 1) // (127 * 128)
"""Keys whose values, times powers of at most 127, sums of 32 bits hold whatever they are."""
CAUSAL_SEGMENTS = 8
"""Parts of the query range of a prompt under a mask: of all pairs at most 1/16 are masked and still computed."""


class AttentionTiling(Struct, frozen=True):
    """Query and key tile sizes (in tokens), heads stacked as rows, what they move and what they should take.

    ``whole``: where keys take several tiles, all sums of a query are there before its softmax; otherwise peak and sum
    are carried from tile to tile. ``resident``: where all keys are one tile, it and its values are loaded once for all
    tiles of queries in a pipeline that are multiplied with them.
    """

    queries: int
    keys: int
    heads: int
    read_bytes: int
    write_bytes: int
    array_cycles: int
    memory_cycles: int
    vector_cycles: int
    cycles: int
    whole: bool = False
    resident: bool = False


class AttentionPart(Struct, frozen=True):
    """A range of query tokens and the range of keys that some of them may see."""

    query_start: int
    queries: int
    key_start: int
    keys: int


def query_parts(shape: Attention) -> list[AttentionPart]:
    """Cut the queries so that each part reads only the keys that its mask admits.

    A few queries behind many keys are not cut: their mask hides next to nothing, and each part reads all the keys.
    """
    past = shape.kv_len - shape.q_len
    masked = shape.causal or shape.window is not None
    seen = min(shape.kv_len, shape.window or shape.kv_len)
    count = min(CAUSAL_SEGMENTS, shape.q_len, -(-CAUSAL_SEGMENTS * shape.q_len // seen)) if masked else 1
    size, parts = -(-shape.q_len // count), []
    for segment in segments(shape.q_len, size):
        for index in range(segment.count):
            start = segment.start + index * segment.size
            end = past + start + segment.size if shape.causal else shape.kv_len
            begin = 0 if shape.window is None else max(0, past + start + 1 - shape.window)
            parts.append(AttentionPart(start, segment.size, begin, end - begin))
    return parts


def places(shape: Attention, part: AttentionPart, queries: int, heads: int) -> list[tuple[int, int]]:
    """Dimensions that tiles of queries are cut from, the outermost first: elements of each, and of a tile.

    They are sequences, key-value heads, heads that share one and are stacked as rows, and query tokens.
    """
    groups = shape.heads // shape.kv_heads
    return [(shape.batch, 1), (shape.kv_heads, 1), (groups, heads), (part.queries, queries)]


PARTS = 2
"""Where parts of the queries stand in the dimensions of `whole_places`: in sequences and key-value heads."""


def whole_places(shape: Attention, parts: Sequence[AttentionPart], queries: int, heads: int) -> list[tuple[int, int]]:
    """As `places`, with parts of the queries, of one size, between key-value heads and the heads that share one."""
    sizes = places(shape, parts[0], queries, heads)
    return [*sizes[:PARTS], (len(parts), 1), *sizes[PARTS:]]


def as_one(shape: Attention, parts: Sequence[AttentionPart], keys: int) -> list[Sequence[AttentionPart]]:
    """Parts of the queries that are in one pipeline: all of them where all keys are one tile, or each by itself."""
    alike = len({part.queries for part in parts}) == 1 and not shape.values_in_keys
    if alike and all(part.keys <= keys for part in parts):
        return [parts]
    return [[part] for part in parts]


def kept_from(outer: int, *, parts: bool = False) -> int:
    """The first dimension of `whole_places` for whose tiles one tile of keys stays.

    Pipelines have ``outer`` loops around them; all ``parts`` may read the keys of the one that reads the most.
    """
    return max(outer, PARTS if parts else PARTS + 1)


def sharing(sizes: Sequence[tuple[int, int]], kept: int) -> int:
    """How many tiles of queries of a pipeline are multiplied with the same keys, that stay from `kept_from` on."""
    return prod(-(-total // size) for total, size in sizes[kept:])


def loads(made: AttentionLayout, parts: Sequence[AttentionPart], queries: int, keys: int, heads: int) -> int:
    """How often keys are loaded for a key-value head by one pipeline of `as_one`, where they may stay, or else 0."""
    if any(part.keys > keys for part in parts) or made.shape.values_in_keys:
        return 0
    sizes = whole_places(made.shape, parts, queries, heads)
    kept = kept_from(pipelines_from(made.shape, parts, sizes), parts=made.holds(parts))
    if sharing(sizes, kept) < 2:
        return 0
    return prod(-(-total // size) for total, size in sizes[PARTS:kept])


def pipelines_from(shape: Attention, parts: Sequence[AttentionPart], sizes: Sequence[tuple[int, int]]) -> int:
    """The first dimension of `whole_places` that is not a loop around pipelines."""
    if len(parts) > 1:
        return outside(sizes, unlike=PARTS)
    return outside(sizes, len(query_parts(shape)))


def may_stay(made: AttentionLayout, queries: int, keys: int, heads: int) -> bool:
    """Whether keys of any part of the queries may stay for several tiles of these."""
    nests = as_one(made.shape, query_parts(made.shape), keys)
    return any(loads(made, parts, queries, keys, heads) for parts in nests)


def choose_attention_tilings(
    chip: Chip, layouts: Sequence[Layout], shape: Attention, held: int, objective: Objective = ESTIMATED
) -> list[list[AttentionTiling]]:
    """For each layout the cheapest tilings that fit its buffers, the best first; for ``held`` see `AttentionLayout`."""
    costs, made = _Costs(chip, shape, held), AttentionLayout.of(chip, shape)
    most_keys, most_queries = (max(sizes) for sizes in zip(*((p.keys, p.queries) for p in costs.parts), strict=True))
    by_rows = carries(shape) and most_keys <= COLUMN_LIMIT
    tilings = [
        (queries, keys, heads, whole, resident)
        for whole in ((True, False) if by_rows else (False,))
        for keys in dict.fromkeys(min(padded(k, key_unit(costs.tile, whole)), most_keys) for k in _halvings(most_keys))
        if keys < most_keys or not whole
        for queries in (_between(most_queries) if whole else _halvings(most_queries))
        for heads in _halvings(most_heads(shape))
        if queries * heads <= ROW_LIMIT
        for resident in ((False, True) if may_stay(made, queries, keys, heads) else (False,))
    ]
    sizes = {keys: _cached_tiles(made, keys, most_keys) for _, keys, *_ in tilings}
    rooms: dict[bool, NDArray[np.int64]] = {}
    names: dict[bool, list[str]] = {}
    for apart in {layout.values > 0 for layout in layouts}:
        needs = [
            _needs(made, queries * heads, most_keys if whole else keys, *sizes[keys], apart=apart)
            for queries, keys, heads, whole, _ in tilings
        ]
        rings = list(needs[0]) if needs else []
        rooms[apart] = np.array([[*need.values()] for need in needs], np.int64).reshape(len(needs), -1)
        names[apart] = rings
    found: list[list[AttentionTiling]] = []
    for layout in layouts:
        apart = layout.values > 0
        room = [getattr(layout, ring) for ring in names[apart]]
        fits = np.flatnonzero((rooms[apart] <= room).all(axis=1)).tolist()
        fitting = [costs.of(*tilings[number], apart) for number in fits]
        cost = objective.of_tiling
        limit = objective.slack * min(map(cost, fitting), default=0)
        fast = [tiling for tiling in fitting if cost(tiling) <= limit]
        frugal = min(fast, key=lambda t: (t.read_bytes + t.write_bytes, t.cycles), default=None)
        others = sorted((t for t in fitting if t != frugal), key=cost)
        kept = [frugal, *others[: KEPT - 1]] if frugal else []
        firsts = {(t.keys, t.whole, t.resident): t for t in reversed(others) if cost(t) <= NEAR * limit}
        found.append(list(dict.fromkeys([*kept, *sorted(firsts.values(), key=cost)])))
    return found


def is_masked(shape: Attention) -> bool:
    """Whether a query sees other keys than its neighbours do."""
    return (shape.causal and shape.q_len > 1) or shape.window is not None


def most_heads(shape: Attention) -> int:
    """Heads that may be stacked as rows: a mask moves on by one column with every row."""
    return 1 if is_masked(shape) else shape.heads // shape.kv_heads


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
        self.packing, self.kept_size = packing_of(shape), shape.kept.size
        size = self.kept_size
        self.key_block = size(panel_rows(self.array, shape.head_dim) * self.block)
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
        if self.blocks:
            self.value_plane = self.positions * self.panels * self.value_line
        else:
            self.value_plane = shape.positions * size(shape.v_head_dim)
        self.softmax_bytes = parameter_bytes(tile, VectorFunction.SOFTMAX, 1, narrow=1)
        self.constants = attention_constants(tile, shape)

    @classmethod
    def of(cls, chip: Chip, shape: Attention, held: int = 0) -> AttentionLayout:
        """The layout of one tile of a chip."""
        assert isinstance(chip.tile, NpuTile)
        made = cls(chip.tile, chip.nearest, shape, held)
        made.chip = chip
        return made

    def _value_line(self, memory: Memory) -> int:
        """From position to position of a panel of values in main memory."""
        own = self.kept_size(self.shape.v_head_dim)
        line, bus = padded(own, memory.access_bytes), self.tile.dma.bytes_per_cycle
        begins = bus & bus - 1 or not (line | self.line) & window_of(bus, own) - 1
        return line if line < self.line and begins else self.line

    def _value_positions(self) -> int:
        """Positions from panel to panel of values: whole beats of a fold, and of several panels whole ones of the DMA.

        Panels that begin where no long row of a transfer may would be moved in columns.
        """
        positions = padded(padded(self.shape.positions, self.block), self.array.load_rows)
        bus, line = self.tile.dma.bytes_per_cycle, self.value_line
        if self.panels == 1 or not is_power(bus):
            return positions
        window = window_of(bus, positions * line)
        return padded(positions, lcm(self.array.load_rows, window // gcd(window, line)))

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

    def turned_bytes(self, rows: int, cols: int) -> int:
        """So many rows that are transposed: whole blocks of them are read, the last ones beyond the last column."""
        pitch, whole = self.turned_pitch(rows), self.shape.precision.size(filled_values(rows, self.array.rows))
        return (cols - 1) * pitch + max(pitch, whole)

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
        taken = access_cycles(chip, chip.nearest, panel_rows(self.array, self.shape.head_dim), width)
        if keys > self.block:  # a transfer more
            taken += QUEUE_POP + TRANSFER_START
        return width if taken < access_cycles(chip, chip.nearest, 1, self.key_block) else 0

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

    def split(self, cols: int) -> int:
        """How lines of sums of so many columns are split."""
        return int(sums_split(self.array, cols))

    def sums(self, rows: int, cols: int) -> int:
        """Local addresses of so many rows of sums."""
        return int(sums_bytes(self.array, cols, rows, self.split(cols)))

    def value_tile(self, keys: int) -> int:
        """A tile of values as the array takes it."""
        if self.packing is not None:
            return int(weight_bytes(self.array, self.packing, self.value_cols, keys))
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
        return self.panels, self.value_panel(keys), self.positions * self.line, self.value_panel(keys)

    def value_panel(self, keys: int) -> int:
        """From panel to panel of a tile of values."""
        return self.kept_size(panel_rows(self.array, keys) * self.value_width)


def attention_constants(tile: NpuTile, shape: Attention) -> int:
    """Bytes of parameters: softmax's, then what requantises the columns of a head."""
    parameters = ((VectorFunction.SOFTMAX, 1), (VectorFunction.REQUANTIZE, shape.v_head_dim))
    return sum(parameter_bytes(tile, function, cols, narrow=1) for function, cols in parameters)


def attention_needs(
    chip: Chip, shape: Attention, queries: int, keys: int, heads: int, whole: bool, most_keys: int, *, apart: bool
) -> dict[str, int]:
    """Bytes that tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`.

    ``most_keys`` are those that some part of the queries reads. Values have a ring of their own where they lie
    ``apart``.
    """
    made = AttentionLayout.of(chip, shape)
    return _needs(
        made, queries * heads, most_keys if whole else keys, *_cached_tiles(made, keys, most_keys), apart=apart
    )


def _cached_tiles(made: AttentionLayout, keys: int, most_keys: int) -> tuple[int, int]:
    """Bytes of a slot that holds a tile of keys, and of one that holds a tile of values."""
    if not made.shape.values_in_keys:
        return made.key_tile(keys), made.value_tile(keys)
    return made.key_tile(keys) * (SLOTS if keys < most_keys else 1), 0


def _needs(made: AttentionLayout, rows: int, row: int, keys: int, values: int, *, apart: bool) -> dict[str, int]:
    """As `attention_needs`: ``row`` is that of sums, and of probabilities; ``keys`` and ``values`` a tile of them."""
    tile, shape, size = made.tile, made.shape, made.shape.precision.size
    scores, context = (first_values(tile, rows, depth, narrow=1) for depth in (shape.head_dim, row))
    queries, powers = rows * made.q_local(), rows * size(row_values(tile, row, narrow=1))
    needs = {
        "weights": keys if apart else max(keys, values),
        "moving": max(size(scores), queries),
        "partial": made.sums(rows, row),
        "probabilities": max(size(context), powers),
        "context": made.sums(rows, shape.v_head_dim),
        "results": rows * made.o_local(),
        "constants": made.constants,
    }
    if apart and values:
        needs["values"] = values
    if made.turned:
        del needs["moving"]
        needs |= {"vector": queries, "queries": made.turned_bytes(rows, shape.head_dim)}
        needs |= {"powers": powers, "probabilities": made.turned_bytes(rows, row)}
    return needs


def attention_tiling(
    chip: Chip,
    shape: Attention,
    held: int,
    queries: int,
    keys: int,
    heads: int,
    whole: bool,
    resident: bool,
    *,
    apart: bool,
) -> AttentionTiling:
    """A tiling of these sizes with what it should take; values have a ring of their own where they lie ``apart``."""
    return _Costs(chip, shape, held).of(queries, keys, heads, whole, resident, apart)


class _Tile(Struct, frozen=True):
    """Cycles of one query tile against one key tile: both products, softmax, merge, and both loads of the cache."""

    scores: int
    context: int
    softmax: int
    merge: int
    keys: int
    values: int


class _Work(Struct):
    """What tiles of queries take of each unit, for one sequence and key-value head.

    ``tiles`` of keys are counted for each tile of queries; ``paced`` are cycles one after the other, and ``filled``
    those in which pipelines fill, of all sequences and heads.
    """

    array: int = 0
    vector: int = 0
    port: int = 0
    reads: int = 0
    writes: int = 0
    tiles: int = 0
    paced: float = 0.0
    filled: float = 0.0


class _Costs:
    """What attention of one shape should take under each tiling; every part of it is worked out once."""

    def __init__(self, chip: Chip, shape: Attention, held: int) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.chip, self.tile, self.shape, self.parts = chip, oriented(chip.tile), shape, query_parts(shape)
        latency = chip.cycles(chip.nearest.latency) + QUEUE_POP + TRANSFER_START
        self.arrive, self.away = latency + LOAD_WRITE, latency + STORE_WRITE
        self.out = chip.tile.array.output_latency + ACCUMULATOR_WRITE
        self.of, self.tile_of, self.transfer = cache(self._of), cache(self._tile_of), cache(self._transfer)
        self.closing, self.moved, self.whole_row = cache(self._closing), cache(self._moved), cache(self._whole_row)
        self.layout = AttentionLayout.of(chip, shape, held)
        self.carries = carries(shape)
        self.alone, self.online = (softmax_functions(shape, merged=many) for many in (False, True))

    def _tile_of(self, rows: int, keys: int, one_tile: bool) -> _Tile:
        shape, unit, array = self.shape, self.tile.vector, self.tile.array
        softmax, merge = self.alone if one_tile else self.online
        loads = [self.keys(keys)[1], self.values(keys)[1]]
        merges = one_tile or not self.carries  # a carried tile's product adds to the sums by itself
        return _Tile(
            product_pace(array, rows, keys, shape.head_dim),
            product_pace(array, rows, shape.v_head_dim, keys),
            vector_cycles(unit, softmax, rows, keys) + self._turning(rows, keys),
            vector_cycles(unit, merge, rows, shape.v_head_dim) if merges else 0,
            loads[0],
            0 if shape.values_in_keys else loads[1],
        )

    def _turning(self, rows: int, cols: int) -> int:
        """Vector cycles that transpose rows, where the array takes them column by column."""
        return vector_cycles(self.tile.vector, VectorFunction.TRANSPOSE, rows, cols) if self.layout.turned else 0

    def cached(self, size: int) -> tuple[int, int]:
        """Bytes moved and port cycles of a tile of the cache."""
        memory = self.chip.nearest
        return moved_bytes(memory, 1, size), access_cycles(self.chip, memory, 1, size)

    def keys(self, keys: int) -> tuple[int, int]:
        """Bytes moved and port cycles of a tile of keys."""
        if not self.layout.blocks:
            return self.cached(self.layout.key_tile(keys))
        moved, memory = [(part.rows, part.width) for part in self.layout.key_parts(keys)], self.chip.nearest
        return (
            sum(moved_bytes(memory, *part) for part in moved),
            sum(access_cycles(self.chip, memory, *part) for part in moved),
        )

    def values(self, keys: int) -> tuple[int, int]:
        """Bytes moved and port cycles of a tile of values."""
        if not self.layout.blocks:
            return self.cached(self.layout.value_tile(keys))
        parts = pieces(self.tile.dma.bytes_per_cycle, *self.layout.value_rows(keys), 0)
        one, memory = (parts[0].fields["m"], parts[0].fields["n"]), self.chip.nearest  # they have one shape
        return len(parts) * moved_bytes(memory, *one), len(parts) * access_cycles(self.chip, memory, *one)

    def _moved(self, keys: int) -> int:
        """Bytes moved of a tile of keys and one of values."""
        values = 0 if self.shape.values_in_keys else self.values(keys)[0]
        return self.keys(keys)[0] + values

    def _transfer(self, rows: int, elements: int) -> tuple[int, int]:
        """Bytes moved and port cycles of ``rows`` rows of so many elements."""
        width, memory = self.shape.precision.size(elements), self.chip.nearest
        return moved_bytes(memory, rows, width), access_cycles(self.chip, memory, rows, width)

    def _of(self, queries: int, keys: int, heads: int, whole: bool, resident: bool, apart: bool) -> AttentionTiling:
        shape = self.shape
        pairs = shape.batch * shape.kv_heads
        array = vector = port = reads = writes = tiles = 0
        paced = filled = 0.0
        for nest in as_one(shape, self.parts, keys):
            made = self._nest(nest, queries, keys, heads, whole, resident, apart)
            array, vector, port = array + made.array, vector + made.vector, port + made.port
            reads, writes, tiles = reads + made.reads, writes + made.writes, tiles + made.tiles
            paced, filled = paced + made.paced, filled + made.filled
        sequencer = pairs * tiles * 7 * self.tile.sequencer.issue_cycles
        last = array // tiles + vector // tiles
        fetch, _ = fetch_cycles(self.chip)
        lead = fetch + self.cached(self.layout.constants)[1] + 2 * self.arrive
        edge = lead + self.out + self.away + last // 2
        busy = max(pairs * array, pairs * port, pairs * vector, sequencer, round(pairs * paced + filled))
        return AttentionTiling(
            queries,
            keys,
            heads,
            pairs * reads,
            pairs * writes,
            pairs * array,
            pairs * port,
            pairs * vector,
            busy + edge,
            whole,
            resident,
        )

    def _nest(
        self,
        parts: Sequence[AttentionPart],
        queries: int,
        keys: int,
        heads: int,
        whole: bool,
        resident: bool,
        apart: bool,
    ) -> _Work:
        """What tiles of queries of the parts of one pipeline take, for one sequence and key-value head."""
        shape, work = self.shape, _Work()
        group = shape.heads // shape.kv_heads
        fill, stays = 0.0, loads(self.layout, parts, queries, keys, heads) if resident else 0
        held_by_all = stays > 0 and self.layout.holds(parts)
        most = max(part.keys for part in parts)
        for part in parts:
            for subset in segments(group, heads):
                for q in segments(part.queries, queries):
                    count, rows = subset.count * q.count, q.size * subset.size
                    q_moved, q_held = self._rows(q.size, subset.size * shape.head_dim, self.layout.q_row)
                    o_moved, o_held = self._rows(q.size, subset.size * shape.v_head_dim, self.layout.o_row)
                    one = whole or part.keys <= keys
                    row = [(k.count, k.size, self.tile_of(rows, k.size, one)) for k in segments(part.keys, keys)]
                    scores = context = of_keys = of_values = softmax = merge = kv_moved = key_tiles = 0
                    for n, size, t in row:
                        scores += n * t.scores
                        context += n * t.context
                        of_keys += n * t.keys
                        of_values += n * t.values
                        softmax += n * t.softmax
                        merge += n * t.merge
                        kv_moved += n * self.moved(size)
                        key_tiles += n
                    if stays:
                        taken, of_keys, of_values, kv_moved = (of_keys, of_values, kv_moved), 0, 0, 0
                    work.array += count * (scores + context)
                    if one:
                        softmax, merge = self.whole_row(rows, part.keys)
                        closing = 0
                    else:
                        closing = self.closing(rows)
                    turning = self._turning(rows, shape.head_dim)
                    work.vector += count * (softmax + merge + closing + turning)
                    q_held += turning
                    work.reads += count * (kv_moved + q_moved)
                    work.writes += count * o_moved
                    held = q_held - turning + o_held + of_keys + of_values
                    work.port += count * held
                    work.tiles += count * key_tiles
                    if shape.values_in_keys:
                        work.paced += count * sum(self._shared(n, t, part.keys <= keys) for n, _, t in row)
                        continue
                    # query tiles follow one another in the pipeline
                    if one:
                        merged = _Tile(scores, context, softmax, merge, of_keys, of_values)
                        each, after = self._pace(merged, q_held + o_held, key_tiles, apart)
                    else:
                        paces = [(n, *self._pace(t, 0, 1, apart)) for n, _, t in row]
                        each, after = sum(n * pace for n, pace, _ in paces), paces[0][2]
                        each = max(each, held, softmax + merge + closing + turning)
                        if not self.carries:  # nor do they, where no circuit keeps what is carried
                            each += q_held + after
                    work.paced += count * each
                    fill = max(fill, after) if len(parts) > 1 else after
            if stays and (not held_by_all or part.keys == most):  # what follows the last tile of queries
                times = stays if held_by_all else stays // len(parts)
                work.reads += times * taken[2]
                work.port += times * (taken[0] + taken[1])
                if not apart:  # the next ones are loaded when these have been read for the last time
                    wait = self.arrive + OPERAND_LATENCY
                    exposed = max(taken[0] + wait - context, 0) + max(taken[1] + wait - scores, 0)
                    work.filled += times * shape.batch * shape.kv_heads * exposed
        one_tile = whole or all(part.keys <= keys for part in parts)
        work.filled += fill * self._pipelines(parts, queries, keys, heads, one_tile=one_tile)
        return work

    def _pipelines(self, parts: Sequence[AttentionPart], queries: int, keys: int, heads: int, *, one_tile: bool) -> int:
        """How many pipelines the tiles of parts of the queries make."""
        if all(part.keys <= keys for part in parts):
            sizes = whole_places(self.shape, parts, queries, heads)
            outer = sizes[: pipelines_from(self.shape, parts, sizes)]
        else:
            sizes = places(self.shape, parts[0], queries, heads)
            if not one_tile:
                sizes.append((parts[0].keys, keys))
            outer = sizes[: outside(sizes, len(self.parts))]
        return prod(-(-total // size) for total, size in outer)

    def _closing(self, rows: int) -> int:
        """What a query tile whose rows are carried takes of the vector unit in the end."""
        if not self.carries:
            return 0
        return vector_cycles(self.tile.vector, self.online[1], rows, self.shape.v_head_dim)

    def _whole_row(self, rows: int, keys: int) -> tuple[int, int]:
        """Vector cycles of a query tile whose sums are all there before its softmax: that, and its results."""
        unit = self.tile.vector
        softmax = vector_cycles(unit, self.alone[0], rows, keys) + self._turning(rows, keys)
        return softmax, vector_cycles(unit, self.alone[1], rows, self.shape.v_head_dim)

    def _rows(self, queries: int, elements: int, row: int) -> tuple[int, int]:
        """A tile of queries or results, whose rows adjoin where nothing else lies in them."""
        whole = self.shape.precision.size(elements) == row
        return self.transfer(1, queries * elements) if whole else self.transfer(queries, elements)

    def _pace(self, t: _Tile, rows: int, parts: int, apart: bool) -> tuple[float, float]:
        """Cycles from tile to tile, the scores of each ahead of the context of the one before; and until that is so.

        ``rows`` are cycles of transfers of queries and results, ``parts`` tiles of keys, and as many of values, that
        each takes; keys and values take turns in the slots of one ring, or each have their own.
        """
        loads, wait = t.keys + t.values + rows, self.arrive + OPERAND_LATENCY
        # slots of the cache's ring: loaded, then read by the array; and sums through the vector unit
        if apart:
            turn = max(t.keys + t.scores, t.values + t.context) + parts * wait
        else:
            turn = loads + 2 * parts * wait + t.scores + t.context
        sums = t.scores + self.out + t.softmax + self.out + t.context + t.merge
        each = max(t.scores + t.context, t.softmax + t.merge, loads, turn / SLOTS, sums / SLOTS)
        first = t.scores + self.out + t.softmax + t.context + 2 * OPERAND_LATENCY
        return each, max(first - each, 0)

    def _shared(self, count: int, t: _Tile, alone: bool) -> int:
        """So many tiles, two to a slot: two scores, then two contexts, each of which waits for its softmax."""
        softmax = self.out + t.softmax
        if alone:
            return count * (t.scores + softmax + t.context)
        first = max(softmax - t.scores, 0)
        second = max(softmax + t.softmax - first - t.scores - t.context, 0)
        pair = 2 * (t.scores + t.context) + first + second
        turn = (2 * t.keys + self.arrive + pair) / SLOTS
        return round(count * max(pair, 2 * t.keys, turn) / SLOTS)


def _between(total: int) -> list[int]:
    """Its halvings and sizes between them, of which room for whole rows of sums leaves few."""
    between = (part << n for part in (3, 5, 7) for n in range(total.bit_length()))
    return sorted({*_halvings(total), *(size for size in between if size < total)}, reverse=True)


def key_unit(tile: NpuTile, whole: bool) -> int:
    """What tiles of keys are multiples of: whole panels, and whole folds where rows of sums are whole."""
    return lcm(tile.array.cols, tile.array.rows) if whole else tile.array.cols


def carries(shape: Attention) -> bool:
    """Whether rows whose keys take several tiles have circuits in the format; others are timed by a specification."""
    return shape.precision in TILE_FORMATS and not shape.values_in_keys


def softmax_functions(shape: Attention, *, merged: bool = False) -> tuple[VectorFunction, VectorFunction]:
    """What makes probabilities of sums, and what makes the result of the products with them.

    Where there are circuits, powers are divided by their rows' totals in the end and not before, of one tile of keys
    and of several: a byte holds no probability of a long row, but each power below its largest. Elsewhere tiles of
    keys are ``merged`` one by one, where there are several.
    """
    if carries(shape):
        return VectorFunction.SOFTMAX_ONLINE, VectorFunction.REQUANTIZE_ROWS
    if merged:
        return VectorFunction.SOFTMAX_MERGED, VectorFunction.RESCALE
    return VectorFunction.SOFTMAX, VectorFunction.REQUANTIZE


def _halvings(total: int) -> list[int]:
    sizes, size = [total], total
    while size > 1:
        size = -(-size // 2)
        sizes.append(size)
    return sizes


__all__ = [
    "MOST_SUMMED",
    "PARTS",
    "AttentionLayout",
    "AttentionPart",
    "AttentionTiling",
    "attention_constants",
    "carries",
    "choose_attention_tilings",
    "is_masked",
    "as_one",
    "kept_from",
    "key_unit",
    "may_stay",
    "most_heads",
    "pipelines_from",
    "places",
    "query_parts",
    "sharing",
    "softmax_functions",
    "whole_places",
]
