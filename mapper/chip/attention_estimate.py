"""What tilings of attention move and should take: all of them at once, with the durations that the simulator uses.

Every number is an array of a row for each tiling and a column for each part of the queries (`query_parts`). What whole
tiles leave over is a second kind of tile, which is left out where no tiling has one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, reduce
from math import prod
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.array import TILE_FORMATS
from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_layout import AttentionLayout, loads
from siliconloom.mapper.chip.attention_places import (
    AttentionPart,
    are_alike,
    key_places,
    pipelines_from,
    places,
    query_parts,
    whole_places,
)
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.pipelined import outside
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.transfers import pieces
from siliconloom.sim.timing.pace import matmul_pace
from siliconloom.sim.timing.units import access_cycles, fetch_cycles, moved_bytes, vector_cycles
from siliconloom.workloads import Attention

Int = NDArray[np.int64]
Flags = NDArray[np.bool_]
Real = NDArray[np.float64]
Numbers = TypeVar("Numbers", Int, Real)


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


class TilingSizes(NamedTuple):
    """What a tiling is chosen by; see `AttentionTiling`."""

    queries: int
    keys: int
    heads: int
    whole: bool
    resident: bool


class _Columns(NamedTuple):
    """`TilingSizes` of all tilings, each a column."""

    queries: Int
    keys: Int
    heads: Int
    whole: Flags
    resident: Flags

    @classmethod
    def of(cls, tilings: Sequence[TilingSizes]) -> _Columns:
        queries, keys, heads, whole, resident = (np.array(each)[:, None] for each in zip(*tilings, strict=True))
        return cls(queries, keys, heads, whole, resident)


MOST_KEPT = 8
"""Shapes of attention on chips of which estimates are kept."""
_KEPT: OrderedDict[Hashable, AttentionCosts] = OrderedDict()
_LOCK = Lock()


class _Tile(NamedTuple):
    """Cycles of query tiles against key tiles: both products, softmax, merge, and both loads of the cache."""

    scores: Int
    context: Int
    softmax: Int
    merge: Int
    keys: Int
    values: Int


class _Row(NamedTuple):
    """Tiles of keys that a tile of queries is multiplied with: so many of a size, and what loads of one take."""

    tiles: Int
    size: Int
    moved: Int
    keys: Int
    values: Int


class _Work:
    """What tiles of queries take of each unit, for one sequence and key-value head.

    ``tiles`` of keys are counted for each tile of queries; ``paced`` are cycles one after the other, and ``filled``
    those in which pipelines fill, of all sequences and heads.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        whole, real = np.zeros((6, *shape), np.int64), np.zeros((2, *shape), np.float64)
        self.array, self.vector, self.port, self.reads, self.writes, self.tiles = whole
        self.paced: Real = real[0]
        self.filled: Real = real[1]


class AttentionCosts:
    """Estimates of tilings of one shape on one chip; for ``held`` see `AttentionLayout`.

    Those that were asked for are known: attention is looked at among all tasks, and for itself.
    """

    def __init__(self, chip: Chip, shape: Attention, held: int = 0) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.chip, self.tile, self.shape, self.parts = chip, oriented(chip.tile), shape, query_parts(shape)
        latency = chip.cycles(chip.nearest.latency) + QUEUE_POP + TRANSFER_START
        self.arrive, self.away = latency + LOAD_WRITE, latency + STORE_WRITE
        self.enter = chip.tile.array.operand_latency
        self.out = chip.tile.array.output_latency + chip.tile.array.accumulator_write
        self.layout = AttentionLayout.of(chip, shape, held)
        self.carries = carries(shape)
        self.alone, self.online = (softmax_functions(shape, merged=many) for many in (False, True))
        self.part_queries, self.part_keys = np.array([(part.queries, part.keys) for part in self.parts], np.int64).T
        self.alike = are_alike(shape, self.parts)
        """Whether all parts of the queries are in one pipeline, where all of their keys are one tile."""
        self._keys, self._values = cache(self._load_of_keys), cache(self._load_of_values)
        self._parts = cache(self._load_of_parts)
        self._pipelines = cache(self._number_of_pipelines)
        self._known = dict[tuple[TilingSizes, bool], AttentionTiling]()

    def of(self, tilings: Sequence[TilingSizes], *, apart: bool) -> list[AttentionTiling]:
        """Each tiling with what it should take; values have a ring of their own where they lie ``apart``."""
        if new := [each for each in tilings if (each, apart) not in self._known]:
            self._known |= {(each, apart): made for each, made in zip(new, self._costed(new, apart), strict=True)}
        return [self._known[each, apart] for each in tilings]

    def _costed(self, tilings: Sequence[TilingSizes], apart: bool) -> list[AttentionTiling]:
        """As `of`, worked out."""
        shape, made = self.shape, self._work(_Columns.of(tilings), tilings, apart)
        pairs = shape.batch * shape.kv_heads
        array, vector, port, reads, writes, tiles = (
            each.sum(axis=1) for each in (made.array, made.vector, made.port, made.reads, made.writes, made.tiles)
        )
        paced, filled = made.paced.sum(axis=1), made.filled.sum(axis=1)
        sequencer = pairs * tiles * 7 * self.tile.sequencer.issue_cycles
        last = array // tiles + vector // tiles
        fetch, _ = fetch_cycles(self.chip)
        lead = fetch + self._transfers([(1, self.layout.constants)])[1] + 2 * self.arrive
        edge = lead + self.out + self.away + last // 2
        steps = np.round(pairs * paced + filled).astype(np.int64)
        busy = np.max([pairs * array, pairs * port, pairs * vector, sequencer, steps], axis=0)
        columns = (pairs * reads, pairs * writes, pairs * array, pairs * port, pairs * vector, busy + edge)
        found = zip(*(each.tolist() for each in columns), strict=True)
        return [
            AttentionTiling(each.queries, each.keys, each.heads, *numbers, each.whole, each.resident)  # type: ignore[call-arg]
            for each, numbers in zip(tilings, found, strict=True)
        ]

    @classmethod
    def of_chip(cls, chip: Chip, shape: Attention, held: int) -> AttentionCosts:
        """Those of this shape, which are the same ones as long as nobody asks about more than a few others."""
        key = id(chip), shape, held
        with _LOCK:
            found = _KEPT.pop(key, None) or cls(chip, shape, held)  # it has the chip, so no other one has its place
            _KEPT[key] = found
            if len(_KEPT) > MOST_KEPT:
                _KEPT.popitem(last=False)
        return found

    def _work(self, sizes: _Columns, tilings: Sequence[TilingSizes], apart: bool) -> _Work:
        """What tiles of queries of every part take."""
        shape = self.shape
        work = _Work((len(tilings), len(self.parts)))
        one_each = self.part_keys <= sizes.keys
        one = sizes.whole | one_each
        joined = np.full_like(sizes.whole, self.alike) & one_each.all(axis=1, keepdims=True)
        stays = self._staying(tilings, joined)
        row = self._row(sizes)
        taken_keys = _sum(each.tiles * each.keys for each in row)
        taken_values = _sum(each.tiles * each.values for each in row)
        taken_moved = _sum(each.tiles * each.moved for each in row)
        moves = stays == 0
        of_keys, of_values, of_both = moves * taken_keys, moves * taken_values, moves * taken_moved
        fill = np.zeros(work.paced.shape)
        last_scores, last_context = np.zeros_like(work.array), np.zeros_like(work.array)
        for count, queries, heads in self._query_tiles(sizes):
            rows, some = queries * heads, count > 0
            q_moved, q_held = self._rows(queries, heads * shape.head_dim, self.layout.q_row)
            o_moved, o_held = self._rows(queries, heads * shape.v_head_dim, self.layout.o_row)
            tiles = [self._tile(rows, each, one) for each in row]
            scores, context, softmax, merge = (
                _sum(each.tiles * tile[kind] for each, tile in zip(row, tiles, strict=True)) for kind in range(4)
            )
            work.array += count * (scores + context)
            alone, result = self._whole_row(rows)
            softmax, merge = np.where(one, alone, softmax), np.where(one, result, merge)
            turning = self._turning(rows, shape.head_dim)
            units = softmax + merge + np.where(one, 0, self._closing(rows)) + turning
            work.vector += count * units
            work.reads += count * (of_both + q_moved)
            work.writes += count * o_moved
            held = q_held + o_held + of_keys + of_values
            work.port += count * held
            work.tiles += count * _sum(each.tiles for each in row)
            if shape.values_in_keys:
                for k, tile in zip(row, tiles, strict=True):
                    work.paced += count * self._shared(k.tiles, tile, one_each)
                continue
            # query tiles follow one another in the pipeline
            ends = q_held + turning + o_held
            merged = _Tile(scores, context, softmax, merge, of_keys, of_values)
            each, after = self._pace(merged, ends, moves * _sum(k.tiles for k in row), apart)
            if not one.all():
                paces = [self._pace(tile, 0, 1, apart) for tile in tiles]
                carried = _sum(k.tiles * pace for k, (pace, _) in zip(row, paces, strict=True))
                carried = np.maximum(np.maximum(carried, held), units)
                behind = paces[0][1] if len(paces) == 1 else np.where(row[0].tiles > 0, paces[0][1], paces[1][1])
                if not self.carries:  # nor do they, where no circuit keeps what is carried
                    carried = carried + q_held + turning + behind
                each, after = np.where(one, each, carried), np.where(one, after, behind)
            work.paced += count * each
            fill = np.where(some, np.where(joined & (len(self.parts) > 1), np.maximum(fill, after), after), fill)
            last_scores, last_context = np.where(some, scores, last_scores), np.where(some, context, last_context)
        if stays.any():
            last = (last_scores, last_context) if not apart else None
            self._resident(work, stays, joined, (taken_moved, taken_keys, taken_values), last)
        self._filled(work, tilings, joined, one_each, fill)
        return work

    def _query_tiles(self, sizes: _Columns) -> Iterator[tuple[Int, Int, Int]]:
        """Number, query tokens and heads of tiles, of each kind of them that there is."""
        for heads_count, heads in _segments(np.asarray(self.shape.heads // self.shape.kv_heads), sizes.heads):
            for query_count, queries in _segments(self.part_queries, sizes.queries):
                yield heads_count * query_count, queries, heads

    def _row(self, sizes: _Columns) -> list[_Row]:
        """The tiles of keys of each part."""
        found = []
        for count, size in _segments(self.part_keys, sizes.keys):
            keys, values = (_by_size(load, size) for load in (self._keys, self._values))
            if (cut := self._cut(sizes)).any():
                moved, taken = _by_size(self._parts, np.asarray(self.layout.cut_cols(size, sizes.keys)))
                keys = np.where(cut, moved, keys[0]), np.where(cut, taken, keys[1])
            moved = keys[0] if self.shape.values_in_keys else keys[0] + values[0]
            found.append(_Row(count, size, moved, keys[1], values[1]))
        return found

    def _tile(self, rows: Int, row: _Row, one: Flags) -> _Tile:
        shape, array = self.shape, self.tile.array
        values = np.asarray(shape.v_head_dim)
        softmax = self._either(one, self.alone[0], self.online[0], rows, row.size)
        merge = self._either(one, self.alone[1], self.online[1], rows, values)
        if self.carries:  # a carried tile's product adds to the sums by itself
            merge = np.where(one, merge, 0)
        return _Tile(
            matmul_pace(array, rows, row.size, np.asarray(shape.head_dim)),
            matmul_pace(array, rows, values, row.size),
            softmax + self._turning(rows, row.size),
            merge,
            row.keys,
            row.values,
        )

    def _either(self, first: Flags, one: VectorFunction, other: VectorFunction, rows: Int, cols: Int) -> Int:
        if one == other or first.all():
            return self._cycles(one, rows, cols)
        return np.where(first, self._cycles(one, rows, cols), self._cycles(other, rows, cols))

    def _cycles(self, function: VectorFunction, rows: Int, cols: Int) -> Int:
        return np.asarray(vector_cycles(self.tile.vector, function, rows, cols))

    def _turning(self, rows: Int, cols: Int | int) -> Int:
        """Vector cycles that transpose rows, where the array takes them column by column."""
        if not self.layout.turned:
            return np.zeros_like(rows)
        return self._cycles(VectorFunction.TRANSPOSE, rows, np.asarray(cols))

    def _closing(self, rows: Int) -> Int:
        """What a query tile whose rows are carried takes of the vector unit in the end."""
        if not self.carries:
            return np.zeros_like(rows)
        return self._cycles(self.online[1], rows, np.asarray(self.shape.v_head_dim))

    def _whole_row(self, rows: Int) -> tuple[Int, Int]:
        """Vector cycles of query tiles whose sums are all there before their softmax: that, and their results."""
        keys = np.broadcast_to(self.part_keys, rows.shape)
        softmax = self._cycles(self.alone[0], rows, keys) + self._turning(rows, keys)
        return softmax, self._cycles(self.alone[1], rows, np.asarray(self.shape.v_head_dim))

    def _load_of_keys(self, keys: int) -> tuple[int, int]:
        """Bytes moved and port cycles of a tile of keys."""
        layout = self.layout
        moved = [(part.rows, part.width) for part in layout.key_parts(keys)] if layout.blocks else []
        return self._transfers(moved or [(1, layout.key_tile(keys))])

    def _cut(self, sizes: _Columns) -> Flags:
        """Which tilings' keys are parts of blocks."""
        return (sizes.keys < min(self.layout.block, self.layout.most_keys)) & self.layout.blocks

    def _load_of_parts(self, keys: int) -> tuple[int, int]:
        """Bytes moved and port cycles of so many keys of a block."""
        part = self.layout.cut_part(min(keys, self.layout.block))
        return self._transfers([(part.rows, part.width)])

    def _load_of_values(self, keys: int) -> tuple[int, int]:
        """Bytes moved and port cycles of a tile of values."""
        if not self.layout.blocks:
            return self._transfers([(1, self.layout.value_tile(keys))])
        parts = pieces(self.tile.dma.bytes_per_cycle, *self.layout.value_rows(keys), 0)
        return self._transfers([(part.fields["m"], part.fields["n"]) for part in parts])

    def _transfers(self, moved: Sequence[tuple[int, int]]) -> tuple[int, int]:
        memory = self.chip.nearest
        return (
            sum(moved_bytes(memory, *each) for each in moved),
            sum(access_cycles(self.chip, memory, *each) for each in moved),
        )

    def _transfer(self, rows: Int, width: Int) -> tuple[Int, Int]:
        """Bytes moved and port cycles of ``rows`` rows of so many bytes."""
        memory = self.chip.nearest
        return np.asarray(moved_bytes(memory, rows, width)), np.asarray(access_cycles(self.chip, memory, rows, width))

    def _rows(self, queries: Int, elements: Int, row: int) -> tuple[Int, Int]:
        """Tiles of queries or results, whose rows adjoin where nothing else lies in them."""
        bits = self.shape.precision.bits
        adjoin = -(-elements * bits // 8) == row
        width = -(-np.where(adjoin, queries, 1) * elements * bits // 8)
        return self._transfer(np.where(adjoin, 1, queries), width)

    def _pace(self, t: _Tile, rows: Int | int, parts: Int | int, apart: bool) -> tuple[Real, Real]:
        """Cycles from tile to tile, the scores of each ahead of the context of the one before; and until that is so.

        ``rows`` are cycles of transfers of queries and results, ``parts`` tiles of keys, and as many of values, that
        each takes, none where these stay; keys and values take turns in the slots of one ring, or each have their own.
        Queries have theirs.
        """
        moved, wait = t.keys + t.values + rows, self.arrive + self.enter
        # slots of the cache's ring: loaded, then read by the array; and sums through the vector unit
        if apart:
            turn = np.maximum(t.keys + t.scores, t.values + t.context) + np.maximum(parts, 1) * wait
        else:
            turn = moved + np.maximum(2 * parts, 1) * wait + t.scores + t.context
        sums = t.scores + self.out + t.softmax + self.out + t.context + t.merge
        products, units = t.scores + t.context, t.softmax + t.merge
        each = np.maximum(np.maximum(products, units), np.maximum(moved, np.maximum(turn, sums) / SLOTS))
        first = t.scores + self.out + t.softmax + t.context + 2 * self.enter
        return each, np.maximum(first - each, 0)

    def _shared(self, count: Int, t: _Tile, alone: Flags) -> Int:
        """So many tiles, two to a slot: two scores, then two contexts, each of which waits for its softmax."""
        softmax = self.out + t.softmax
        first = np.maximum(softmax - t.scores, 0)
        second = np.maximum(softmax + t.softmax - first - t.scores - t.context, 0)
        pair = 2 * (t.scores + t.context) + first + second
        turn = (2 * t.keys + self.arrive + pair) / SLOTS
        paced = np.round(count * np.maximum(np.maximum(pair, 2 * t.keys), turn) / SLOTS).astype(np.int64)
        return np.where(alone, count * (t.scores + softmax + t.context), paced)

    def _staying(self, tilings: Sequence[TilingSizes], joined: Flags) -> Int:
        """How often each pipeline loads keys that stay, by tilings and the parts that begin one; else 0."""
        found = np.zeros((len(tilings), len(self.parts)), np.int64)
        for number, (each, as_one) in enumerate(zip(tilings, joined[:, 0].tolist(), strict=True)):
            if each.resident and as_one:
                found[number] = loads(self.layout, self.parts, each.queries, each.keys, each.heads)
            elif each.resident:
                found[number] = [loads(self.layout, [p], each.queries, each.keys, each.heads) for p in self.parts]
        return found

    def _resident(
        self, work: _Work, stays: Int, joined: Flags, taken: tuple[Int, Int, Int], last: tuple[Int, Int] | None
    ) -> None:
        """What stays is loaded before the first tile of queries that is multiplied with it.

        ``taken`` are its bytes, and cycles of keys and of values; ``last`` those of the last tile's products, which the
        next loads into the slots of one ring wait for.
        """
        shape, (moved, keys, values) = self.shape, taken
        held = joined & (stays > 0) & self.layout.holds(self.parts)
        most = np.where(joined, self.part_keys.max(), self.part_keys)
        loaded = (stays > 0) & (~held | (self.part_keys == most))
        times = np.where(loaded, np.where(held, stays, stays // np.where(joined, len(self.parts), 1)), 0)
        work.reads += times * moved
        work.port += times * (keys + values)
        if last is not None:
            scores, context = last
            wait = self.arrive + self.enter
            exposed = np.maximum(keys + wait - context, 0) + np.maximum(values + wait - scores, 0)
            work.filled += times * shape.batch * shape.kv_heads * exposed

    def _filled(self, work: _Work, tilings: Sequence[TilingSizes], joined: Flags, one_each: Flags, fill: Real) -> None:
        """Every pipeline fills once."""
        queries = self.part_queries.tolist()
        keys = self.part_keys.tolist()
        for number, (each, as_one, alone) in enumerate(
            zip(tilings, joined[:, 0].tolist(), one_each.tolist(), strict=True)
        ):
            if as_one:
                times = self._pipelines(queries[0], len(queries), each.queries, each.heads, None)
                work.filled[number, 0] += fill[number].max() * times
                continue
            for part, (of_queries, of_keys) in enumerate(zip(queries, keys, strict=True)):
                cut = () if each.whole else (of_keys, each.keys)
                times = self._pipelines(of_queries, 1, each.queries, each.heads, None if alone[part] else cut)
                work.filled[number, part] += fill[number, part] * times

    def _number_of_pipelines(
        self, part: int, parts: int, queries: int, heads: int, keys: tuple[int, ...] | None
    ) -> int:
        """How many pipelines tiles of so many ``parts`` of the queries make, of ``part`` tokens each.

        ``keys`` are None where those of a part are one tile, nothing where rows are whole, or all and those of a tile.
        """
        some = [AttentionPart(0, part, 0, 0)] * parts
        if keys is None:
            sizes = whole_places(self.shape, some, queries, heads)
            outer = sizes[: pipelines_from(self.shape, some, sizes)]
        else:
            within = key_places(keys[0], keys[1], self.layout.block) if keys else []
            sizes = [*places(self.shape, some[0], queries, heads), *within]
            outer = sizes[: outside(sizes, len(self.parts), cut=len(within) > 1)]
        return prod(-(-total // size) for total, size in outer)


def _sum(each: Iterable[Numbers]) -> Numbers:
    return reduce(np.add, each)


def _segments(total: Int, size: Int) -> Iterator[tuple[Int, Int]]:
    """Number and size of whole tiles, and of what they leave over; only where there are any."""
    full, rest = np.divmod(total, size)
    if full.any():
        yield full, np.broadcast_to(size, full.shape)
    if rest.any():
        yield (rest > 0).astype(np.int64), np.maximum(rest, 1)


def _by_size(load: Callable[[int], tuple[int, int]], sizes: Int) -> tuple[Int, Int]:
    """What loads of so many keys move and take."""
    some, places = np.unique(sizes, return_inverse=True)
    moved, held = np.array([load(size) for size in some.tolist()], np.int64).T
    return moved[places].reshape(sizes.shape), held[places].reshape(sizes.shape)


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


__all__ = ["AttentionCosts", "AttentionTiling", "TilingSizes", "carries", "softmax_functions"]
