"""Lowering of attention: scores, softmax and context stay on the tile (FlashAttention, Dao et al., 2022).

For each sequence and key-value head, query rows are taken in tiles; the heads that share a key-value head are stacked
as rows, all of them or as many as fit. A key-value tile gives scores S = Q K^T in the accumulator, the vector unit
turns them into probabilities, and the array multiplies those with V. When all keys fit one tile, that is the result.
Otherwise a softmax follows when the scores of all tiles are there, or it is the online one: peaks and totals of rows
are carried from tile to tile, the products with V add up, and their sums are divided in the end.

Where all keys fit one tile, they and their values may be *resident*: they are loaded once and stay while all tiles of
queries of the heads that share them pass, as far as those are in one pipeline.

The array computes the scores of the next tile before the context of this one, so that the softmax is hidden. Under a
causal mask the query range is cut into `CAUSAL_SEGMENTS` parts, each of which reads only the keys it may see. An array
that keeps its sums takes rows column by column: the vector unit transposes queries, and what a softmax leaves. Where
the values are part of the keys (the latent of absorbed MLA), a tile is loaded once for both products, two key tiles to
a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import LOCAL_BITS, Address, Unit
from siliconloom.arch.layout import row_values, sums_pitch
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_cost import MOST_SUMMED, AttentionTiling, carries, softmax_functions
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.attention_places import (
    PARTS,
    AttentionPart,
    as_one,
    is_masked,
    kept_from,
    key_places,
    places,
    query_parts,
    sharing,
    whole_places,
)
from siliconloom.mapper.chip.builder import SLOTS, Loop, Ring, affine
from siliconloom.mapper.chip.lowering import Context, Nest, Walk, joined, when
from siliconloom.mapper.chip.operands import NO_BIAS, attended, has_biases
from siliconloom.mapper.chip.pipelined import MOST_WRITTEN, Stage, outside, pipeline
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Attention


class QueryTile(NamedTuple):
    """Which tile of queries is meant: its walk over each dimension, the outermost first."""

    sequence: Walk
    head: Walk
    """Key-value heads."""
    subset: Walk
    """Heads that share a key-value head and are stacked as rows."""
    queries: Walk

    @property
    def rows(self) -> int:
        """Rows of the array: so many tokens of so many heads."""
        return self.queries.size * self.subset.size

    def within(self, base: int, sequence: int, head: int, *terms: tuple[Loop, int]) -> Address:
        """An address that moves on by so many bytes from sequence to sequence, and from head to head."""
        base += self.sequence.start * sequence + self.head.start * head
        return affine(base, (self.sequence.loop, sequence), (self.head.loop, head), *terms)


class KeyTile(NamedTuple):
    """Which tile of keys is meant: its walk, and where it is a part of a block, that of the block."""

    tile: Walk
    block: Walk | None = None

    @property
    def size(self) -> int:
        """Keys."""
        return self.tile.size

    @property
    def start(self) -> int:
        """The first one, in the first round of its loops."""
        return self.tile.start + (self.block.start if self.block else 0)

    @property
    def first(self) -> int | None:
        """Loop mask under which this is a query's first tile; ``None`` when it never is."""
        return joined((self.tile.first, self.block.first if self.block else 0))

    @property
    def last(self) -> int | None:
        """Loop mask under which this is a query's last tile; ``None`` when it never is."""
        return joined((self.tile.last, self.block.last if self.block else 0))

    def steps(self, place: Callable[[int], int], within: Callable[[int], int] | None = None) -> list[tuple[Loop, int]]:
        """What rounds of its loops add to where so many keys bring one to, ``within`` a block elsewhere."""
        own = self.tile.loop, (within or place)(self.size)
        return [own] if self.block is None else [(self.block.loop, place(self.block.size)), own]


class AttentionLowering:
    """Writes one attention operator."""

    def __init__(self, context: Context, task: Task, shape: Attention, tiling: AttentionTiling) -> None:
        self.context, self.shape, self.tiling = context, shape, tiling
        self.nest = Nest(context, task.depends)
        self.values = context.rings.weights if shape.values_in_keys else context.rings.values
        self.dtype: DataType = shape.precision
        self.group = shape.heads // shape.kv_heads
        size, memory, name = self.dtype.size, context.memory, task.operator.name
        held = task.held_by(shape)
        self.layout = layout = AttentionLayout.of(context.chip, shape, held)
        self.cut = layout.cuts(tiling.keys) and layout.may_cut(tiling.keys)
        """Whether tiles of keys are parts of blocks."""
        self.k_row, self.v_row = size(shape.head_dim), size(shape.v_head_dim)
        whole, repeat = task.operator, task.operator.repeat
        assert isinstance(whole, Attention)
        all_of = AttentionLayout(context.tile, context.chip.nearest, whole, task.held)
        pairs, tokens = max(whole.batch * whole.kv_heads, shape.batch * shape.kv_heads), whole.batch * whole.q_len
        found = attended(context.graph, whole)
        if has_biases(context.graph, whole):
            context.apart.setdefault(name, NO_BIAS)
        self.q_base = context.operand(name, "input", found[0], tokens * all_of.q_row, all_of.q_row)
        for each in found:
            if isinstance(each, str):
                context.apart.setdefault(name, each)
        if whole.window is not None and whole.window < whole.kv_len:
            context.apart.setdefault(name, "no mask for the keys that a window leaves behind")
        if carries(whole) and whole.kv_read > MOST_SUMMED:
            rule = f"sums of {whole.kv_read:,} keys may wrap: 32 bits hold those of {MOST_SUMMED:,}"
            context.apart.setdefault(name, rule)
        self.k_unit, self.v_unit = pairs * all_of.key_plane, pairs * all_of.value_plane
        self.k_base = memory.take(name, "keys", self.k_unit, repeat)
        if not shape.values_in_keys:
            self.v_base = memory.take(name, "values", self.v_unit, repeat)
        self.scale_bytes = layout.constants
        self.scale_base = memory.take(name, "scales", self.scale_bytes, repeat)
        self.o_base = context.output_of(task, tokens * all_of.o_row, all_of.o_row)

    def emit(self) -> None:
        """Write the task, part by part; only the last part's last store ends it."""
        parts = query_parts(self.shape)
        self.parts = len(parts)
        constants, builder = self.context.rings.constants, self.context.builder
        scales = affine(self.scale_base, (self.context.layer, self.scale_bytes))
        self.nest.load(constants, 1, self.scale_bytes, self.scale_bytes, scales, depends=False)
        builder.barrier(Unit.VECTOR, wait=constants.full_bit)
        nests = as_one(self.shape, parts, self.tiling.keys) if self._is_long else [[part] for part in parts]
        for index, nest in enumerate(nests):
            self.final, part = index == len(nests) - 1, nest[0]
            if self.shape.values_in_keys:
                self._each(part, self._shared)
            elif part.keys <= self.tiling.keys:
                self._over_queries(nest)
            elif self.tiling.whole:
                self._by_rows(part)
            elif carries(self.shape):
                self._carried(part)
            else:
                self._each(part, self._over_keys)
        builder.barrier(Unit.VECTOR, post=constants.free_bit)
        constants.read()

    def _each(self, part: AttentionPart, tile: Callable[[AttentionPart, QueryTile], None]) -> None:
        """Tiles of queries one after the other, without overlap of what stands in them."""
        for sequence in self.nest.walk(self.shape.batch, 1):
            for head in self.nest.walk(self.shape.kv_heads, 1):
                for subset in self.nest.walk(self.group, self.tiling.heads):
                    for queries in self.nest.walk(part.queries, self.tiling.queries):
                        tile(part, QueryTile(sequence, head, subset, queries))

    def _places(self, part: AttentionPart) -> list[tuple[int, int]]:
        return places(self.shape, part, self.tiling.queries, self.tiling.heads)

    def _pipeline(
        self,
        sizes: Sequence[tuple[int, int]],
        scores: Stage,
        context: Stage,
        ended: Callable[[], None] = lambda: None,
        *,
        cut: bool = False,
    ) -> None:
        outer = outside(sizes, self.parts, self.context.written, cut=cut)
        pipeline(self.nest, sizes, scores, context, outer, ended, cut=cut)

    @property
    def _is_long(self) -> bool:
        """Whether pipelines may be written out as far as is good for time."""
        return self.context.written >= MOST_WRITTEN

    def _over_queries(self, parts: Sequence[AttentionPart]) -> None:
        """All keys in one tile: the array runs one query tile ahead with the scores, from part to part, too."""
        softmax, closing = softmax_functions(self.shape)
        sizes = whole_places(self.shape, parts, self.tiling.queries, self.tiling.heads)
        unlike = PARTS if len(parts) > 1 else None
        outer = outside(sizes, self.parts if unlike is None else 1, self.context.written, unlike)
        if self.tiling.resident:
            kept = kept_from(outer, parts=self.layout.holds(parts))
            if sharing(sizes, kept) > 1:
                self._resident(parts, sizes, outer, kept)
                return

        def scores(walks: Sequence[Walk]) -> None:
            part, at = self._place(parts, walks)
            self._load_q(part, at)
            self._load_k(part, at, None)
            self._scores(at.rows, part.keys, softmax, moving=True, mask=self._mask(part, at))

        def context(walks: Sequence[Walk]) -> None:
            part, at = self._place(parts, walks)
            self._load_v(part, at, None)
            self._context(at.rows, part.keys)
            self._requantized(part, at, closing)

        pipeline(self.nest, sizes, scores, context, outer, unlike=unlike)

    def _place(self, parts: Sequence[AttentionPart], walks: Sequence[Walk]) -> tuple[AttentionPart, QueryTile]:
        """The part of the queries that a tile of `whole_places` is in, and where it is there."""
        sequence, head, part, subset, queries = walks
        return parts[part.start], QueryTile(sequence, head, subset, queries)

    def _resident(
        self, parts: Sequence[AttentionPart], sizes: Sequence[tuple[int, int]], outer: int, kept: int
    ) -> None:
        """All keys in one tile: it stays with its values while all tiles of queries pass that are multiplied with it.

        These are the tiles of the dimensions from ``kept`` on; those of all parts read the first of the keys of the
        part that reads the most. The array runs one query tile ahead with the scores. Where keys and values each have
        a ring the next ones are loaded while these stay. In one ring keys have always one slot and values the other,
        and values are loaded when those before are read for the last time: instructions are issued in order, so that
        what reads them stands first.
        """
        rings = self.context.rings
        softmax, closing = softmax_functions(self.shape)
        one_ring, most = self.values is rings.weights, max(parts, key=lambda part: part.keys)
        begun, later = False, list[tuple[AttentionPart, QueryTile]]()

        def ends(walks: Sequence[Walk]) -> tuple[int | None, int | None]:
            """Loops in whose first iterations what is kept is read for the first time; whether it is the last time."""
            first, last = (joined(each) for each in zip(*((w.first, w.last) for w in walks[kept:]), strict=True))
            assert not last, "what is freed in some rounds of a loop is freed in all"
            return first, last

        def scores(walks: Sequence[Walk]) -> None:
            nonlocal begun
            (part, at), (first, last) = self._place(parts, walks), ends(walks)
            of = most if kept == PARTS else part
            if first is not None:
                assert not first, "what is loaded in some rounds of a loop is loaded in all"
                self._load_k(of, at, None)
            self._load_q(part, at)
            if first is not None and one_ring and begun:
                later.append((of, at))
            elif first is not None:
                self._load_v(of, at, None)
            begun = True
            opens, closes = first is not None, last is not None
            mask = self._mask(part, at)
            self._scores(at.rows, part.keys, softmax, moving=True, opens=opens, closes=closes, mask=mask)
            if closes and one_ring:
                rings.weights.read()

        def context(walks: Sequence[Walk]) -> None:
            (part, at), (first, last) = self._place(parts, walks), ends(walks)
            self._context(at.rows, part.keys, first=first, closes=last is not None, other=one_ring)
            while later:
                of, place = later.pop()
                self._load_v(of, place, None)
            if last is not None and one_ring:
                rings.weights.read()
            self._requantized(part, at, closing)

        def ended() -> None:
            nonlocal begun
            begun = False

        unlike = PARTS if len(parts) > 1 else None
        pipeline(self.nest, sizes, scores, context, outer, ended, kept, unlike)

    def _by_rows(self, part: AttentionPart) -> None:
        """Keys in several tiles, and sums of whole rows: the array runs one query tile ahead with the scores."""
        rings, builder, layout = self.context.rings, self.context.builder, self.layout
        cols, line, size = layout.array.cols, sums_pitch(layout.array), self.dtype.size
        softmax, closing = softmax_functions(self.shape)

        def scores(walks: Sequence[Walk]) -> None:
            at = QueryTile(*walks)
            self._load_q(part, at)
            builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)
            for keys in self.nest.walk(part.keys, self.tiling.keys):
                self._load_k(part, at, KeyTile(keys))
                first_wait, first = when(keys.first, rings.partial.free_bit)
                last_post, last = when(keys.last, rings.partial.full_bit)
                panels = at.rows * line
                builder.matmul(
                    at.rows,
                    layout.key_cols(keys.size),
                    self.shape.head_dim,
                    self.dtype,
                    rings.queries,
                    rings.weights,
                    rings.partial,
                    wait=rings.weights.full_bit,
                    release=rings.weights.free_bit,
                    first_wait=first_wait,
                    first=first,
                    last_post=last_post,
                    last=last,
                    overwrite=0,
                    c_offset=affine(keys.start // cols * panels, (keys.loop, keys.size // cols * panels)),
                    pitch=layout.turned_pitch(at.rows),
                    split=layout.split(keys.size),
                    packing=layout.packing,
                )
                rings.weights.read()
            builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
            rings.queries.read()
            self._probabilities(at.rows, part.keys, softmax, self._mask(part, at))

        def context(walks: Sequence[Walk]) -> None:
            at = QueryTile(*walks)
            # from row to row of probabilities, or from column to column, and from key to key
            pitch = layout.turned_pitch(at.rows) or size(row_values(layout.tile, part.keys, narrow=1))
            step = layout.turned_pitch(at.rows) or size(1)
            builder.barrier(Unit.MATMUL, wait=rings.probabilities.full_bit | rings.context.free_bit)
            for keys in self.nest.walk(part.keys, self.tiling.keys):
                self._load_v(part, at, KeyTile(keys))
                last_post, last = when(keys.last, rings.context.full_bit)
                builder.matmul(
                    at.rows,
                    layout.value_cols,
                    keys.size,
                    self.dtype,
                    rings.probabilities,
                    self.values,
                    rings.context,
                    wait=self.values.full_bit,
                    release=self.values.free_bit,
                    first=keys.first or 0,
                    last_post=last_post,
                    last=last,
                    accumulate=keys.first is None,
                    a_offset=affine(keys.start * step, (keys.loop, keys.size * step)),
                    pitch=pitch,
                    split=layout.split(self.shape.v_head_dim),
                    packing=layout.value_packing,
                )
                self.values.read()
            builder.barrier(Unit.MATMUL, release=rings.probabilities.free_bit)
            rings.probabilities.read()
            self._requantized(part, at, closing)

        self._pipeline(self._places(part), scores, context)

    def _requantized(self, part: AttentionPart, at: QueryTile, function: VectorFunction) -> None:
        """The whole context of a query tile, from the accumulator to memory."""
        rings = self.context.rings
        wait = rings.context.full_bit | rings.results.free_bit
        self._merge(function, at.rows, wait, rings.results.full_bit)
        rings.results.written()
        self._store(part, at)

    def _mask(self, part: AttentionPart, at: QueryTile, keys: KeyTile | None = None) -> Address | None:
        """The last of some keys that the first query of a tile sees: itself, and what comes before it.

        Where that is a key of an earlier tile the number is below zero, and wraps as addresses do.
        """
        if not is_masked(self.shape):
            return None
        queries = at.queries
        seen = self.shape.kv_len - self.shape.q_len + part.query_start + queries.start - part.key_start
        if keys is None:
            return affine(seen, (queries.loop, queries.size))
        seen = (seen - keys.start) % (1 << LOCAL_BITS)
        return affine(seen, (queries.loop, queries.size), *keys.steps(lambda size: -size))

    def _carried(self, part: AttentionPart) -> None:
        """Keys in several tiles, and peaks and totals of rows in the vector unit: the array runs one key tile ahead.

        The products with the values add up in the accumulator, which rescales what it has by how far peaks have risen.
        A tile of queries waits in its slot until its last product is done, while the next one has begun.
        """
        rings, builder = self.context.rings, self.context.builder
        softmax, closing = softmax_functions(self.shape)
        begun, outer = False, self._places(part)

        def tile_of(walks: Sequence[Walk]) -> tuple[QueryTile, KeyTile]:
            return QueryTile(*walks[: len(outer)]), KeyTile(*reversed(walks[len(outer) :]))

        def scores(walks: Sequence[Walk]) -> None:
            nonlocal begun
            at, keys = tile_of(walks)
            if keys.first is not None:
                if begun:
                    rings.queries.read()
                begun = True
                self._load_q(part, at)
                builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)
            self._load_k(part, at, keys)
            mask = self._mask(part, at, keys)
            self._scores(at.rows, keys.size, softmax, moving=False, mask=mask, adds=keys.first is None)

        def context(walks: Sequence[Walk]) -> None:
            at, keys = tile_of(walks)
            self._load_v(part, at, keys)
            first_wait, first = when(keys.first, rings.context.free_bit)
            last_post, last = when(keys.last, rings.context.full_bit)
            builder.matmul(
                at.rows,
                self.layout.value_cols,
                keys.size,
                self.dtype,
                rings.probabilities,
                self.values,
                rings.context,
                wait=rings.probabilities.full_bit | self.values.full_bit,
                release=rings.probabilities.free_bit | self.values.free_bit,
                first_wait=first_wait,
                first=first,
                last_post=last_post,
                last=last,
                accumulate=keys.first is None,
                rescale=True,
                pitch=self.layout.turned_pitch(at.rows),
                split=self.layout.split(self.shape.v_head_dim),
                packing=self.layout.value_packing,
            )
            rings.probabilities.read()
            self.values.read()
            if keys.last is not None:
                builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
                self._requantized(part, at, closing)

        def ended() -> None:
            nonlocal begun
            begun = False
            rings.queries.read()

        block = self.layout.block if self.cut else self.tiling.keys
        sizes = [*outer, *key_places(part.keys, self.tiling.keys, block)]
        self._pipeline(sizes, scores, context, ended, cut=self.cut)

    def _over_keys(self, part: AttentionPart, at: QueryTile) -> None:
        """Keys in several tiles, by a specification: the array is one key tile ahead with the scores."""
        rings, builder = self.context.rings, self.context.builder
        self._load_q(part, at)
        builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)

        def scores(walks: Sequence[Walk]) -> None:
            keys = KeyTile(*walks)
            self._load_k(part, at, keys)
            self._scores(at.rows, keys.size, VectorFunction.SOFTMAX_MERGED, moving=False)

        def context(walks: Sequence[Walk]) -> None:
            keys = KeyTile(*walks)
            self._load_v(part, at, keys)
            self._context(at.rows, keys.size)
            first = when(keys.first, rings.results.free_bit)
            last = when(keys.last, rings.results.full_bit)
            self._merge(VectorFunction.RESCALE, at.rows, rings.context.full_bit, 0, first, last)

        pipeline(self.nest, [(part.keys, self.tiling.keys)], scores, context)
        builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
        rings.queries.read()
        rings.results.written()
        self._store(part, at)

    def _shared(self, part: AttentionPart, at: QueryTile) -> None:
        """Keys that hold the values: two tiles to a slot, both their scores before both their contexts."""
        rings, builder, keys = self.context.rings, self.context.builder, self.tiling.keys
        slot = keys if part.keys <= keys else SLOTS * keys
        self._load_q(part, at)
        builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)
        for walk in self.nest.walk(part.keys, slot):
            self._load_cache(self.k_base, self.k_row, part, at, KeyTile(walk))
            tiles = [(start, min(keys, walk.size - start)) for start in range(0, walk.size, keys)]
            one = part.keys <= keys
            for start, size in tiles:
                softmax = VectorFunction.SOFTMAX if one else VectorFunction.SOFTMAX_MERGED
                self._scores(at.rows, size, softmax, moving=False, offset=start, opens=start == 0, closes=False)
            for start, size in tiles:
                ends = start + size == walk.size
                self._context(at.rows, size, offset=start, opens=False, closes=ends)
                first = when(walk.first if start == 0 else None, rings.results.free_bit)
                last = when(walk.last if ends else None, rings.results.full_bit)
                merge = VectorFunction.REQUANTIZE if one else VectorFunction.RESCALE
                self._merge(merge, at.rows, rings.context.full_bit, 0, first, last)
        builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
        rings.queries.read()
        rings.results.written()
        self._store(part, at)

    def _load_q(self, part: AttentionPart, at: QueryTile) -> None:
        address = self._rows(self.q_base, self.layout.q_row, self.layout.q_head, part, at)
        rings, heads, local = self.context.rings, at.subset.size, self.layout.q_local()
        ring = rings.vector if self.layout.turned else rings.queries
        for number, width in self._stacked(self.layout.q_head, local, heads):
            self.nest.load(
                ring,
                at.queries.size,
                width,
                self.layout.q_row,
                replace(address, base=address.base + number * self.layout.q_head),
                opens=number == 0,
                closes=width > self.layout.q_head or number == heads - 1,
                offset=number * local,
                local_pitch=heads * local,
            )
        if self.layout.turned:
            self._turn(at.rows, self.shape.head_dim, rings.vector, rings.queries, rings.queries.free_bit)

    def _turn(self, rows: int, cols: int, source: Ring, target: Ring, wait: int) -> None:
        """Transpose rows that were loaded, or that lie where nobody waits."""
        loaded = source is self.context.rings.vector
        self.context.builder.vector(
            VectorFunction.TRANSPOSE,
            rows,
            cols,
            self.dtype,
            source,
            target,
            wait=wait | (source.full_bit if loaded else 0),
            release=source.free_bit if loaded else 0,
            post=target.full_bit,
        )
        source.read()
        target.written()

    def _stacked(self, row: int, local: int, heads: int) -> list[tuple[int, int]]:
        """Heads that are moved by themselves, as each is filled up to whole lines, or all of them; and their bytes."""
        return [(0, heads * row)] if row == local or heads == 1 else [(number, row) for number in range(heads)]

    def _rows(self, base: int, row: int, width: int, part: AttentionPart, at: QueryTile) -> Address:
        """Where a tile of queries or results begins: a row to a token, ``width`` bytes of it to a head."""
        return at.within(
            base + (part.query_start + at.queries.start) * row + at.subset.start * width,
            self.shape.q_len * row,
            self.group * width,
            (at.subset.loop, at.subset.size * width),
            (at.queries.loop, at.queries.size * row),
        )

    def _key_cols(self, keys: int) -> int:
        """Columns that the array computes of a tile of so many keys."""
        return int(self.layout.cut_cols(keys, self.tiling.keys)) if self.cut else self.layout.key_cols(keys)

    def _load_k(self, part: AttentionPart, at: QueryTile, keys: KeyTile | None) -> None:
        """A tile of keys: blocks of positions, of the last one perhaps a part, or parts of each."""
        layout = self.layout
        if not layout.blocks:
            return self._load_cache(self.k_base, self.k_row, part, at, keys)
        count, start = (part.keys, part.key_start) if keys is None else (keys.size, part.key_start + keys.start)
        cols, block = layout.block, layout.key_block
        terms = [(self.context.layer, self.k_unit)]
        if keys is not None:
            terms += keys.steps(lambda size: size // cols * block, self.dtype.size if self.cut else None)
        parts = [layout.cut_part(self._key_cols(count))] if self.cut else layout.key_parts(count)
        within = self.dtype.size(start % cols // self.tiling.keys * self.tiling.keys) if self.cut else 0
        for each in parts:
            base = self.k_base + start // cols * block + within + each.offset
            self.nest.load(
                self.context.rings.weights,
                each.rows,
                each.width,
                each.pitch,
                self._plane(base, at, layout.key_plane, terms),
                opens=each is parts[0],
                closes=each is parts[-1],
                offset=each.offset,
                local_pitch=each.local,
            )
        return None

    def _load_v(self, part: AttentionPart, at: QueryTile, keys: KeyTile | None) -> None:
        """A tile of values: of each panel of columns so many positions."""
        layout = self.layout
        if not layout.blocks:
            return self._load_cache(self.v_base, self.v_row, part, at, keys)
        count, start = (part.keys, part.key_start) if keys is None else (keys.size, part.key_start + keys.start)
        terms = [(self.context.layer, self.v_unit)]
        if keys is not None:
            terms += keys.steps(layout.value_at)
        rows, width, pitch, local = layout.value_rows(count)
        unit = self.tiling.keys if self.cut else layout.block
        begin = layout.value_at(start // unit * unit)
        where = self._plane(self.v_base + begin, at, layout.value_plane, terms)
        # whole panels: positions are filled up to whole beats of a fold, as its rows are
        self.nest.load(self.values, rows, width, pitch, where, local_pitch=local)
        return None

    def _load_cache(self, base: int, row: int, part: AttentionPart, at: QueryTile, keys: KeyTile | None) -> None:
        """A tile of the cache is contiguous: it is kept per layer, sequence and head, token by token."""
        of_keys = base == self.k_base
        count, start = (part.keys, 0) if keys is None else (keys.size, keys.start)
        terms = [(self.context.layer, self.k_unit if of_keys else self.v_unit)]
        if keys is not None:
            terms += keys.steps(lambda size: size * row)
        where = self._plane(base + (part.key_start + start) * row, at, self.shape.positions * row, terms)
        self.nest.load(self.context.rings.weights if of_keys else self.values, count, row, row, where)

    def _plane(self, base: int, at: QueryTile, plane: int, terms: Sequence[tuple[Loop, int]]) -> Address:
        """Within what is kept of one sequence and one head, ``plane`` bytes; ``base`` is in the first one."""
        return at.within(base, self.shape.kv_heads * plane, plane, *terms)

    def _scores(
        self,
        rows: int,
        keys: int,
        softmax: VectorFunction,
        *,
        moving: bool,
        offset: int = 0,
        opens: bool = True,
        closes: bool = True,
        mask: Address | None = None,
        adds: bool = False,
    ) -> None:
        """S = Q K^T, then probabilities; the keys begin ``offset`` tokens into a slot that is waited for and freed."""
        builder, rings = self.context.builder, self.context.rings
        wait, release = opens * rings.weights.full_bit, closes * rings.weights.free_bit
        if moving:
            wait, release = wait | rings.queries.full_bit, release | rings.queries.free_bit
        builder.matmul(
            rows,
            self._key_cols(keys),
            self.shape.head_dim,
            self.dtype,
            rings.queries,
            rings.weights,
            rings.partial,
            wait=wait,
            release=release,
            first_wait=rings.partial.free_bit,
            last_post=rings.partial.full_bit,
            b_offset=offset * self.k_row,
            pitch=self.layout.turned_pitch(rows),
            split=self.layout.split(keys),
            packing=self.layout.packing,
        )
        if closes:
            rings.weights.read()
        if moving:
            rings.queries.read()
        self._probabilities(rows, keys, softmax, mask, adds=adds)

    def _probabilities(
        self, rows: int, keys: int, softmax: VectorFunction, mask: Address | None, *, adds: bool = False
    ) -> None:
        """Probabilities of the sums in the accumulator; ``adds``: of rows of which there were others."""
        builder, rings, turned = self.context.builder, self.context.rings, self.layout.turned
        builder.vector(
            softmax,
            rows,
            keys,
            self.dtype,
            rings.partial,
            rings.powers,
            parameters=rings.constants,
            inputs=1 if mask is None else 2,
            mask=mask,
            # what this slot had before is multiplied: its rows' rises may be written again
            wait=rings.partial.full_bit | rings.probabilities.free_bit,
            release=rings.partial.free_bit,
            post=0 if turned else rings.probabilities.full_bit,
            accumulate=adds,
            split=self.layout.split(keys),
        )
        rings.partial.written()
        rings.partial.read()
        rings.powers.written()
        if turned:
            self._turn(rows, keys, rings.powers, rings.probabilities, 0)

    def _context(
        self,
        rows: int,
        keys: int,
        offset: int = 0,
        *,
        opens: bool = True,
        closes: bool = True,
        first: int | None = 0,
        other: bool = False,
    ) -> None:
        """Multiply the probabilities with V, which is waited for in the ``first`` iteration of loops, or not at all.

        It may lie in the ``other`` slot of its ring than the one whose turn it is.
        """
        builder, rings = self.context.builder, self.context.rings
        first_wait, levels = when(first, opens * self.values.full_bit)
        builder.matmul(
            rows,
            self.layout.value_cols,
            keys,
            self.dtype,
            rings.probabilities,
            self.values,
            rings.context,
            wait=rings.probabilities.full_bit | rings.context.free_bit,
            release=rings.probabilities.free_bit | closes * self.values.free_bit,
            first_wait=first_wait,
            first=levels,
            last_post=rings.context.full_bit,
            overwrite=0,
            b_other=other,
            b_offset=offset * self.k_row,
            pitch=self.layout.turned_pitch(rows),
            split=self.layout.split(self.shape.v_head_dim),
            packing=self.layout.value_packing,
        )
        rings.probabilities.read()
        if closes:
            self.values.read()

    def _merge(
        self,
        function: VectorFunction,
        rows: int,
        wait: int,
        post: int,
        first: tuple[int, int] = (0, 0),
        last: tuple[int, int] = (0, 0),
    ) -> None:
        """Bring the context from the accumulator into the result tile."""
        rings = self.context.rings
        self.context.builder.vector(
            function,
            rows,
            self.shape.v_head_dim,
            self.dtype,
            rings.context,
            rings.results,
            parameters=rings.constants,
            powers=rings.probabilities if function.spec.divides else None,
            parameter_offset=self.layout.softmax_bytes,
            split=self.layout.split(self.shape.v_head_dim),
            wait=wait,
            release=rings.context.free_bit,
            post=post,
            first_wait=first[0],
            first=first[1],
            last_post=last[0],
            last=last[1],
        )
        rings.context.written()
        rings.context.read()

    def _store(self, part: AttentionPart, at: QueryTile) -> None:
        address = self._rows(self.o_base, self.layout.o_row, self.layout.o_head, part, at)
        ring, heads, local = self.context.rings.results, at.subset.size, self.layout.o_local()
        for number, width in self._stacked(self.layout.o_head, local, heads):
            self.nest.store(
                ring,
                at.queries.size,
                width,
                self.layout.o_row,
                replace(address, base=address.base + number * self.layout.o_head),
                final=self.final,
                opens=number == 0,
                closes=width > self.layout.o_head or number == heads - 1,
                offset=number * local,
                local_pitch=heads * local,
            )
