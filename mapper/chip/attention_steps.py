"""Steps of attention on one tile: its loads, both products, what the vector unit makes of sums, and its store.

In which order tiles pass, and which step of one goes beside which of another, is `siliconloom.mapper.chip.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import Address
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LOCAL_BITS
from siliconloom.mapper.chip.attention_cost import MOST_SUMMED, AttentionTiling, carries
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.attention_places import AttentionPart, is_masked
from siliconloom.mapper.chip.attention_tiles import KeyTile, QueryTile
from siliconloom.mapper.chip.lowering import Context, Nest, when
from siliconloom.mapper.chip.operands import NO_BIAS, attended, has_biases
from siliconloom.mapper.chip.rings import Loop, Ring, affine
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Attention


class AttentionSteps:
    """Writes what is done with one tile of an attention operator, behind whatever was written before."""

    def __init__(self, context: Context, task: Task, shape: Attention, tiling: AttentionTiling) -> None:
        self.context, self.shape, self.tiling = context, shape, tiling
        self.nest = Nest(context, task)
        self.final = False
        """Whether a store is of the last part of the task, which may end it."""
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


__all__ = ["AttentionSteps"]
