"""Choice of attention's tiles: every candidate is costed with the durations that the simulator uses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import lcm, prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import TILE_FORMATS, Chip, NpuTile
from siliconloom.arch.layout import first_values, padded, row_values
from siliconloom.arch.scaled import group_rows, is_scaled
from siliconloom.arch.timing import (
    ACCUMULATOR_WRITE,
    LOAD_WRITE,
    OPERAND_LATENCY,
    QUEUE_POP,
    STORE_WRITE,
    TRANSFER_START,
)
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT, VectorFunction
from siliconloom.mapper.chip.attention_layout import AttentionLayout, loads, may_stay
from siliconloom.mapper.chip.attention_places import (
    AttentionPart,
    as_one,
    most_heads,
    pipelines_from,
    places,
    query_parts,
    whole_places,
)
from siliconloom.mapper.chip.builder import SLOTS
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.lowering import segments
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.operands import packing_of
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
        for keys in dict.fromkeys(
            min(padded(k, key_unit(costs.tile, shape, whole)), most_keys) for k in _halvings(most_keys)
        )
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
    alike: dict[tuple[bool, tuple[int, ...]], list[AttentionTiling]] = {}
    for layout in layouts:
        apart = layout.values > 0
        room = [getattr(layout, ring) for ring in names[apart]]
        fits = tuple(np.flatnonzero((rooms[apart] <= room).all(axis=1)).tolist())
        if (apart, fits) in alike:
            found.append(alike[apart, fits])
            continue
        fitting = [costs.of(*tilings[number], apart) for number in fits]
        cost = objective.of_tiling
        limit = objective.slack * min(map(cost, fitting), default=0)
        fast = [tiling for tiling in fitting if cost(tiling) <= limit]
        frugal = min(fast, key=lambda t: (t.read_bytes + t.write_bytes, t.cycles), default=None)
        others = sorted((t for t in fitting if t != frugal), key=cost)
        kept = [frugal, *others[: KEPT - 1]] if frugal else []
        firsts = {(t.keys, t.whole, t.resident): t for t in reversed(others) if cost(t) <= NEAR * limit}
        alike[apart, fits] = list(dict.fromkeys([*kept, *sorted(firsts.values(), key=cost)]))
        found.append(alike[apart, fits])
    return found


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


def key_unit(tile: NpuTile, shape: Attention, whole: bool) -> int:
    """What tiles of keys are multiples of: whole panels, and whole folds where rows of sums are whole.

    Where values have scales they are whole groups of these.
    """
    cols = group_rows(tile.array) if is_scaled(tile.array, packing_of(shape, keys=False)) else tile.array.cols
    return lcm(cols, tile.array.rows) if whole else cols


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
    "KEPT",
    "MOST_SUMMED",
    "NEAR",
    "AttentionTiling",
    "attention_needs",
    "attention_tiling",
    "carries",
    "choose_attention_tilings",
    "key_unit",
    "softmax_functions",
]
