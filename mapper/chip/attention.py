"""Lowering of attention: scores, softmax and context stay on the tile (FlashAttention, Dao et al., 2022).

For each sequence and key-value head, query rows are taken in tiles; the heads that share a key-value head are stacked
as rows, all of them or as many as fit. A key-value tile gives scores S = Q K^T in the accumulator, the vector unit
turns them into probabilities, and the array multiplies those with V. When all keys fit one tile, that is the result.
Otherwise a softmax follows when the scores of all tiles are there, or it is the online one: peaks and totals of rows
are carried from tile to tile, the products with V add up, and their sums are divided in the end.

The array computes the scores of the next tile before the context of this one, so that the softmax is hidden. Under a
causal mask the query range is cut into `CAUSAL_SEGMENTS` parts, each of which reads only the keys it may see. An array
that keeps its sums takes rows column by column: the vector unit transposes queries, and what a softmax leaves. Where
the values are part of the keys (the latent of absorbed MLA), a tile is loaded once for both products, two key tiles to
a slot.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import LOCAL_BITS, Address, Unit
from siliconloom.arch.layout import row_values, sums_pitch
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_cost import (
    MOST_SUMMED,
    AttentionLayout,
    AttentionPart,
    AttentionTiling,
    carries,
    is_masked,
    query_parts,
    softmax_functions,
)
from siliconloom.mapper.chip.builder import SLOTS, Ring, affine
from siliconloom.mapper.chip.lowering import STILL, Context, Nest, Segment, Walk, when
from siliconloom.mapper.chip.operands import NO_BIAS, attended, has_biases
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Attention


class AttentionLowering:
    """Writes one attention operator."""

    def __init__(self, context: Context, task: Task, shape: Attention, tiling: AttentionTiling) -> None:
        self.context, self.shape, self.tiling = context, shape, tiling
        self.nest = Nest(context, task.depends)
        self.dtype: DataType = shape.precision
        self.group = shape.heads // shape.kv_heads
        size, memory, name = self.dtype.size, context.memory, task.operator.name
        held = task.held_by(shape)
        self.layout = layout = AttentionLayout.of(context.chip, shape, held)
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
        constants, builder = self.context.rings.constants, self.context.builder
        scales = affine(self.scale_base, (self.context.layer, self.scale_bytes))
        self.nest.load(constants, 1, self.scale_bytes, self.scale_bytes, scales, depends=False)
        builder.barrier(Unit.VECTOR, wait=constants.full_bit)
        for index, part in enumerate(parts):
            self.final = index == len(parts) - 1
            for sequence in self.nest.walk(self.shape.batch, 1):
                for head in self.nest.walk(self.shape.kv_heads, 1):
                    for subset in self.nest.walk(self.group, self.tiling.heads):
                        self.subset = subset
                        if self.shape.values_in_keys:
                            self._shared(part, sequence, head)
                        elif part.keys <= self.tiling.keys:
                            self._over_queries(part, sequence, head)
                        elif self.tiling.whole:
                            self._by_rows(part, sequence, head)
                        elif carries(self.shape):
                            self._carried(part, sequence, head)
                        else:
                            self._over_keys(part, sequence, head)
        builder.barrier(Unit.VECTOR, post=constants.free_bit)
        constants.read()

    def _over_queries(self, part: AttentionPart, sequence: Walk, head: Walk) -> None:
        """All keys in one tile: the array runs one query tile ahead with the scores."""
        softmax, closing = softmax_functions(self.shape)

        def scores(queries: Walk) -> None:
            self._load_q(part, sequence, head, queries)
            self._load_k(part, sequence, head, None)
            mask = self._mask(part, queries)
            self._scores(queries.size, part.keys, softmax, moving=True, mask=mask)

        def context(queries: Walk) -> None:
            self._load_v(part, sequence, head, None)
            self._context(queries.size, part.keys)
            self._requantized(part, sequence, head, queries, closing)

        pipeline(self.nest, part.queries, self.tiling.queries, scores, context)

    def _by_rows(self, part: AttentionPart, sequence: Walk, head: Walk) -> None:
        """Keys in several tiles, and sums of whole rows: the array runs one query tile ahead with the scores."""
        rings, builder, layout = self.context.rings, self.context.builder, self.layout
        cols, line, size = layout.array.cols, sums_pitch(layout.array), self.dtype.size
        softmax, closing = softmax_functions(self.shape)

        def scores(queries: Walk) -> None:
            rows = queries.size * self.subset.size
            self._load_q(part, sequence, head, queries)
            builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)
            for keys in self.nest.walk(part.keys, self.tiling.keys):
                self._load_k(part, sequence, head, keys)
                first_wait, first = when(keys.first, rings.partial.free_bit)
                last_post, last = when(keys.last, rings.partial.full_bit)
                panels = rows * line
                builder.matmul(
                    rows,
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
                    pitch=layout.turned_pitch(rows),
                    split=layout.split(keys.size),
                    packing=layout.packing,
                )
                rings.weights.read()
            builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
            rings.queries.read()
            self._probabilities(rows, part.keys, softmax, self._mask(part, queries))

        def context(queries: Walk) -> None:
            rows = queries.size * self.subset.size
            # from row to row of probabilities, or from column to column, and from key to key
            pitch = layout.turned_pitch(rows) or size(row_values(layout.tile, part.keys, narrow=1))
            step = layout.turned_pitch(rows) or size(1)
            builder.barrier(Unit.MATMUL, wait=rings.probabilities.full_bit | rings.context.free_bit)
            for keys in self.nest.walk(part.keys, self.tiling.keys):
                self._load_v(part, sequence, head, keys)
                last_post, last = when(keys.last, rings.context.full_bit)
                builder.matmul(
                    rows,
                    layout.value_cols,
                    keys.size,
                    self.dtype,
                    rings.probabilities,
                    rings.weights,
                    rings.context,
                    wait=rings.weights.full_bit,
                    release=rings.weights.free_bit,
                    first=keys.first or 0,
                    last_post=last_post,
                    last=last,
                    accumulate=keys.first is None,
                    a_offset=affine(keys.start * step, (keys.loop, keys.size * step)),
                    pitch=pitch,
                    split=layout.split(self.shape.v_head_dim),
                    packing=layout.packing,
                )
                rings.weights.read()
            builder.barrier(Unit.MATMUL, release=rings.probabilities.free_bit)
            rings.probabilities.read()
            self._requantized(part, sequence, head, queries, closing)

        pipeline(self.nest, part.queries, self.tiling.queries, scores, context)

    def _requantized(
        self, part: AttentionPart, sequence: Walk, head: Walk, queries: Walk, function: VectorFunction
    ) -> None:
        """The whole context of a query tile, from the accumulator to memory."""
        rings = self.context.rings
        wait = rings.context.full_bit | rings.results.free_bit
        self._merge(function, queries.size, wait, rings.results.full_bit)
        rings.results.written()
        self._store(part, sequence, head, queries)

    def _mask(self, part: AttentionPart, queries: Walk, keys: Walk | None = None) -> Address | None:
        """The last of some keys that the first query of a tile sees: itself, and what comes before it.

        Where that is a key of an earlier tile the number is below zero, and wraps as addresses do.
        """
        if not is_masked(self.shape):
            return None
        seen = self.shape.kv_len - self.shape.q_len + part.query_start + queries.start - part.key_start
        if keys is None:
            return affine(seen, (queries.loop, queries.size))
        seen = (seen - keys.start) % (1 << LOCAL_BITS)
        return affine(seen, (queries.loop, queries.size), (keys.loop, -keys.size))

    def _carried(self, part: AttentionPart, sequence: Walk, head: Walk) -> None:
        """Keys in several tiles, and peaks and totals of rows in the vector unit: the array runs one key tile ahead.

        The products with the values add up in the accumulator, which rescales what it has by how far peaks have risen.
        """
        rings, builder = self.context.rings, self.context.builder
        softmax, closing = softmax_functions(self.shape)
        for queries in self.nest.walk(part.queries, self.tiling.queries):
            rows = queries.size * self.subset.size
            self._load_q(part, sequence, head, queries)
            builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)

            def scores(keys: Walk, queries: Walk = queries) -> None:
                self._load_k(part, sequence, head, keys)
                mask = self._mask(part, queries, keys)
                self._scores(queries.size, keys.size, softmax, moving=False, mask=mask, adds=keys.first is None)

            def context(keys: Walk, rows: int = rows) -> None:
                self._load_v(part, sequence, head, keys)
                first_wait, first = when(keys.first, rings.context.free_bit)
                last_post, last = when(keys.last, rings.context.full_bit)
                builder.matmul(
                    rows,
                    self.layout.value_cols,
                    keys.size,
                    self.dtype,
                    rings.probabilities,
                    rings.weights,
                    rings.context,
                    wait=rings.probabilities.full_bit | rings.weights.full_bit,
                    release=rings.probabilities.free_bit | rings.weights.free_bit,
                    first_wait=first_wait,
                    first=first,
                    last_post=last_post,
                    last=last,
                    accumulate=keys.first is None,
                    rescale=True,
                    pitch=self.layout.turned_pitch(rows),
                    split=self.layout.split(self.shape.v_head_dim),
                    packing=self.layout.packing,
                )
                rings.probabilities.read()
                rings.weights.read()

            pipeline(self.nest, part.keys, self.tiling.keys, scores, context)
            builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
            rings.queries.read()
            self._requantized(part, sequence, head, queries, closing)

    def _over_keys(self, part: AttentionPart, sequence: Walk, head: Walk) -> None:
        """Keys in several tiles, by a specification: the array is one key tile ahead with the scores."""
        rings, builder = self.context.rings, self.context.builder
        for queries in self.nest.walk(part.queries, self.tiling.queries):
            self._load_q(part, sequence, head, queries)
            builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)

            def scores(keys: Walk, queries: Walk = queries) -> None:
                self._load_k(part, sequence, head, keys)
                self._scores(queries.size, keys.size, VectorFunction.SOFTMAX_MERGED, moving=False)

            def context(keys: Walk, queries: Walk = queries) -> None:
                self._load_v(part, sequence, head, keys)
                self._context(queries.size, keys.size)
                first_wait, first = when(keys.first, rings.results.free_bit)
                last_post, last = when(keys.last, rings.results.full_bit)
                self._merge(
                    VectorFunction.RESCALE,
                    queries.size,
                    rings.context.full_bit,
                    0,
                    (first_wait, first),
                    (last_post, last),
                )

            pipeline(self.nest, part.keys, self.tiling.keys, scores, context)
            builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
            rings.queries.read()
            rings.results.written()
            self._store(part, sequence, head, queries)

    def _shared(self, part: AttentionPart, sequence: Walk, head: Walk) -> None:
        """Keys that hold the values: two tiles to a slot, both their scores before both their contexts."""
        rings, builder, keys = self.context.rings, self.context.builder, self.tiling.keys
        slot = keys if part.keys <= keys else SLOTS * keys
        for queries in self.nest.walk(part.queries, self.tiling.queries):
            self._load_q(part, sequence, head, queries)
            builder.barrier(Unit.MATMUL, wait=rings.queries.full_bit)
            for walk in self.nest.walk(part.keys, slot):
                self._load_cache(self.k_base, self.k_row, part, sequence, head, walk)
                tiles = [(start, min(keys, walk.size - start)) for start in range(0, walk.size, keys)]
                one = part.keys <= keys
                for start, size in tiles:
                    softmax = VectorFunction.SOFTMAX if one else VectorFunction.SOFTMAX_MERGED
                    self._scores(
                        queries.size, size, softmax, moving=False, offset=start, opens=start == 0, closes=False
                    )
                for start, size in tiles:
                    ends = start + size == walk.size
                    self._context(queries.size, size, offset=start, opens=False, closes=ends)
                    first_wait, first = when(walk.first if start == 0 else None, rings.results.free_bit)
                    last_post, last = when(walk.last if ends else None, rings.results.full_bit)
                    merge = VectorFunction.REQUANTIZE if one else VectorFunction.RESCALE
                    self._merge(merge, queries.size, rings.context.full_bit, 0, (first_wait, first), (last_post, last))
            builder.barrier(Unit.MATMUL, release=rings.queries.free_bit)
            rings.queries.read()
            rings.results.written()
            self._store(part, sequence, head, queries)

    def _load_q(self, part: AttentionPart, sequence: Walk, head: Walk, queries: Walk) -> None:
        address = self._rows(self.q_base, self.layout.q_row, self.layout.q_head, part, sequence, head, queries)
        rings, heads, local = self.context.rings, self.subset.size, self.layout.q_local()
        ring = rings.vector if self.layout.turned else rings.queries
        for number, width in self._stacked(self.layout.q_head, local):
            self.nest.load(
                ring,
                queries.size,
                width,
                self.layout.q_row,
                replace(address, base=address.base + number * self.layout.q_head),
                opens=number == 0,
                closes=width > self.layout.q_head or number == heads - 1,
                offset=number * local,
                local_pitch=heads * local,
            )
        if self.layout.turned:
            self._turn(queries.size * heads, self.shape.head_dim, rings.vector, rings.queries, rings.queries.free_bit)

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

    def _stacked(self, row: int, local: int) -> list[tuple[int, int]]:
        """Heads that are moved by themselves, as each is filled up to whole lines, or all of them; and their bytes."""
        heads = self.subset.size
        return [(0, heads * row)] if row == local or heads == 1 else [(number, row) for number in range(heads)]

    def _rows(
        self, base: int, row: int, width: int, part: AttentionPart, sequence: Walk, head: Walk, queries: Walk
    ) -> Address:
        """Where a tile of queries or results begins: a row to a token, ``width`` bytes of it to a head."""
        return affine(
            base + (part.query_start + queries.start) * row + self.subset.start * width,
            (sequence.loop, self.shape.q_len * row),
            (head.loop, self.group * width),
            (self.subset.loop, self.subset.size * width),
            (queries.loop, queries.size * row),
        )

    def _load_k(self, part: AttentionPart, sequence: Walk, head: Walk, keys: Walk | None) -> None:
        """A tile of keys: blocks of positions, of the last one perhaps a part."""
        layout, shape = self.layout, self.shape
        if not layout.blocks:
            return self._load_cache(self.k_base, self.k_row, part, sequence, head, keys)
        count, start = (part.keys, part.key_start) if keys is None else (keys.size, part.key_start + keys.start)
        cols, block = layout.block, layout.key_block
        terms = [
            (self.context.layer, self.k_unit),
            (sequence.loop, shape.kv_heads * layout.key_plane),
            (head.loop, layout.key_plane),
        ]
        if keys is not None:
            terms.append((keys.loop, keys.size // cols * block))
        parts = layout.key_parts(count)
        for each in parts:
            self.nest.load(
                self.context.rings.weights,
                each.rows,
                each.width,
                each.pitch,
                affine(self.k_base + start // cols * block + each.offset, *terms),
                opens=each is parts[0],
                closes=each is parts[-1],
                offset=each.offset,
                local_pitch=each.local,
            )
        return None

    def _load_v(self, part: AttentionPart, sequence: Walk, head: Walk, keys: Walk | None) -> None:
        """A tile of values: of each panel of columns so many positions."""
        layout, shape = self.layout, self.shape
        if not layout.blocks:
            return self._load_cache(self.v_base, self.v_row, part, sequence, head, keys)
        count, start = (part.keys, part.key_start) if keys is None else (keys.size, part.key_start + keys.start)
        line = layout.value_line
        terms = [
            (self.context.layer, self.v_unit),
            (sequence.loop, shape.kv_heads * layout.value_plane),
            (head.loop, layout.value_plane),
        ]
        if keys is not None:
            terms.append((keys.loop, keys.size * line))
        rows, width, pitch, local = layout.value_rows(count)
        where = affine(self.v_base + start // layout.block * layout.block * line, *terms)
        # whole panels: positions are filled up to whole beats of a fold, as its rows are
        self.nest.load(self.context.rings.weights, rows, width, pitch, where, local_pitch=local)
        return None

    def _load_cache(
        self, base: int, row: int, part: AttentionPart, sequence: Walk, head: Walk, keys: Walk | None
    ) -> None:
        """A tile of the cache is contiguous: it is kept per layer, sequence and head, token by token."""
        shape = self.shape
        plane = shape.positions * row
        count, start = (part.keys, 0) if keys is None else (keys.size, keys.start)
        terms = [
            (self.context.layer, self.k_unit if base == self.k_base else self.v_unit),
            (sequence.loop, shape.kv_heads * plane),
            (head.loop, plane),
        ]
        if keys is not None:
            terms.append((keys.loop, keys.size * row))
        self.nest.load(
            self.context.rings.weights, count, row, row, affine(base + (part.key_start + start) * row, *terms)
        )

    def _scores(
        self,
        queries: int,
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
        builder, rings, rows = self.context.builder, self.context.rings, queries * self.subset.size
        wait, release = opens * rings.weights.full_bit, closes * rings.weights.free_bit
        if moving:
            wait, release = wait | rings.queries.full_bit, release | rings.queries.free_bit
        builder.matmul(
            rows,
            self.layout.key_cols(keys),
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

    def _context(self, queries: int, keys: int, offset: int = 0, *, opens: bool = True, closes: bool = True) -> None:
        """Multiply the probabilities with V."""
        builder, rings = self.context.builder, self.context.rings
        builder.matmul(
            queries * self.subset.size,
            self.layout.value_cols,
            keys,
            self.dtype,
            rings.probabilities,
            rings.weights,
            rings.context,
            wait=rings.probabilities.full_bit | opens * rings.weights.full_bit,
            release=rings.probabilities.free_bit | closes * rings.weights.free_bit,
            first_wait=rings.context.free_bit,
            last_post=rings.context.full_bit,
            b_offset=offset * self.k_row,
            pitch=self.layout.turned_pitch(queries * self.subset.size),
            split=self.layout.split(self.shape.v_head_dim),
            packing=self.layout.packing,
        )
        rings.probabilities.read()
        if closes:
            rings.weights.read()

    def _merge(
        self,
        function: VectorFunction,
        queries: int,
        wait: int,
        post: int,
        first: tuple[int, int] = (0, 0),
        last: tuple[int, int] = (0, 0),
    ) -> None:
        """Bring the context from the accumulator into the result tile."""
        rings = self.context.rings
        self.context.builder.vector(
            function,
            queries * self.subset.size,
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

    def _store(self, part: AttentionPart, sequence: Walk, head: Walk, queries: Walk) -> None:
        address = self._rows(self.o_base, self.layout.o_row, self.layout.o_head, part, sequence, head, queries)
        ring, heads, local = self.context.rings.results, self.subset.size, self.layout.o_local()
        for number, width in self._stacked(self.layout.o_head, local):
            self.nest.store(
                ring,
                queries.size,
                width,
                self.layout.o_row,
                replace(address, base=address.base + number * self.layout.o_head),
                final=self.final,
                opens=number == 0,
                closes=width > self.layout.o_head or number == heads - 1,
                offset=number * local,
                local_pitch=heads * local,
            )


Stage = Callable[[Walk], None]


def pipeline(nest: Nest, total: int, size: int, head: Stage, tail: Stage) -> None:
    """Run two stages over the tiles of a dimension, ``head`` one tile ahead of ``tail``.

    ``head(0); loop {head(i + 1); tail(i)}; tail(last)``, with the dimension's shorter last tile unrolled at the end.
    """
    full, rest = divmod(total, size)
    tiles = full + (rest > 0)

    def at(index: int) -> Walk:
        width = size if index < full else rest
        return Walk(Segment(index * size, 1, width, index == 0, index == tiles - 1), STILL)

    nest.within(at(0), head)
    if full > 1:
        with nest.context.builder.loop(full - 1) as loop:
            nest.within(Walk(Segment(size, full - 1, size, False, False), loop), head)
            nest.within(Walk(Segment(0, full - 1, size, True, False), loop), tail)
    if rest and full:
        nest.within(at(full), head)
        nest.within(at(full - 1), tail)
    nest.within(at(tiles - 1), tail)
