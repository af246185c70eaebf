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

from siliconloom.arch.isa import Unit
from siliconloom.arch.layout import row_values, sums_pitch
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_cost import carries, softmax_functions
from siliconloom.mapper.chip.attention_places import (
    PARTS,
    AttentionPart,
    as_one,
    kept_from,
    key_places,
    places,
    query_parts,
    sharing,
    whole_places,
)
from siliconloom.mapper.chip.attention_steps import AttentionSteps
from siliconloom.mapper.chip.attention_tiles import KeyTile, QueryTile
from siliconloom.mapper.chip.lowering import Walk, joined, when
from siliconloom.mapper.chip.pipelined import MOST_WRITTEN, Stage, outside, pipeline
from siliconloom.mapper.chip.rings import SLOTS, affine


class AttentionLowering(AttentionSteps):
    """Writes one attention operator: in which order its tiles pass, and what goes on beside what."""

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
