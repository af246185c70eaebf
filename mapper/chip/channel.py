"""Lowering of attention in a channel of memory that computes, and of what appends keys and values there.

For each query head the scores of all keys are one product of the channel, in the order of the keys, and the columns of
the result another one, of the probabilities that the vector unit makes of the scores. The channel is one head ahead
with the scores, so that the softmax is beside its work.

New keys are written as they are. New values go into a row of a block of as many positions as a burst has elements,
which lies in main memory, and the block is transposed: a column of it is a burst of the channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from siliconloom.arch.isa import Address, Unit
from siliconloom.arch.layout import parameter_bytes, row_values
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.banked import first_rows, layout_of
from siliconloom.mapper.chip.layout import ChannelRings
from siliconloom.mapper.chip.lowering import Context, Nest, Walk
from siliconloom.mapper.chip.operands import Cached, attended
from siliconloom.mapper.chip.pipelined import outside, pipeline
from siliconloom.mapper.chip.rings import SLOTS, Loop, affine, affine_more
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.workloads import Attention, Vector


def rings_of(context: Context) -> ChannelRings:
    """The channel's rings of a program."""
    assert context.rings.channel is not None
    return context.rings.channel


class ChannelAttention:
    """Writes one attention operator: for every sequence its heads, one after the other."""

    def __init__(self, context: Context, task: Task, shape: Attention) -> None:
        self.context, self.shape, self.dtype = context, shape, shape.precision
        self.nest, self.rings = Nest(context, task), rings_of(context)
        self.layout = layout_of(context.tile, shape)
        self.group, size, name = shape.heads // shape.kv_heads, shape.precision.size, task.operator.name
        rows = AttentionLayout(context.tile, context.chip.nearest, shape, task.held_by(shape))
        self.q_row, self.q_head, self.o_row, self.o_head = rows.q_row, rows.q_head, rows.o_row, size(shape.v_head_dim)
        found = attended(context.graph, shape)
        self.q_base = context.operand(name, "input", found[0], shape.batch * rows.q_row, rows.q_row)
        for each in found:
            if isinstance(each, str):
                context.apart.setdefault(name, each)
        self.scale_bytes = parameter_bytes(context.tile, VectorFunction.SOFTMAX_ROWS, 1, narrow=1)
        self.scale_base = context.memory.take(name, "scales", self.scale_bytes, shape.repeat)
        self.o_base = context.output_of(task, shape.batch * rows.o_row, rows.o_row)
        self.first = first_rows(context.tile, context.graph)[name]

    def emit(self) -> None:
        """Write the task."""
        constants, builder = self.context.rings.constants, self.context.builder
        scales = affine(self.scale_base, (self.context.layer, self.scale_bytes))
        self.nest.load(constants, 1, self.scale_bytes, self.scale_bytes, scales, depends=False)
        builder.barrier(Unit.VECTOR, wait=constants.full_bit)
        sizes = [(self.shape.batch, 1), (self.shape.kv_heads, 1), (self.group, 1)]
        pipeline(self.nest, sizes, self._scores, self._columns, outside(sizes, 1, self.context.written))
        builder.barrier(Unit.VECTOR, post=constants.free_bit)
        constants.read()

    def _scores(self, walks: Sequence[Walk]) -> None:
        """Scores of all keys, then their probabilities."""
        sequence, head, query = walks
        layout, rings, builder = self.layout, self.rings, self.context.builder
        where = affine(
            self.q_base + sequence.start * self.q_row + (head.start * self.group + query.start) * self.q_head,
            (sequence.loop, self.q_row),
            (head.loop, self.group * self.q_head),
            (query.loop, self.q_head),
        )
        self.nest.load(rings.operands, 1, self.q_head, self.q_head, where)
        builder.channel_vector(
            rings.operands,
            layout.key_bursts,
            self.dtype,
            layout.seen_bursts,
            wait=rings.operands.full_bit,
            release=rings.operands.free_bit,
        )
        rings.operands.read()
        builder.channel_product(
            rings.scores,
            layout.key_rounds,
            layout.segments,
            layout.key_bursts,
            self.dtype,
            self._rows(sequence, head, 0),
            layout.seen_bursts,
            wait=0,
            post=rings.scores.full_bit,
        )
        builder.vector(
            VectorFunction.SOFTMAX_ROWS,
            1,
            layout.seen_bursts * layout.elements,
            self.dtype,
            rings.scores,
            rings.powers,
            parameters=self.context.rings.constants,
            inputs=SLOTS,
            mask=affine(self.shape.kv_len - 1),
            wait=rings.scores.full_bit | rings.powers.free_bit,
            post=rings.powers.full_bit,
        )
        rings.scores.read()
        rings.powers.written()

    def _columns(self, walks: Sequence[Walk]) -> None:
        """Columns of the result, from all values and their probabilities."""
        sequence, head, query = walks
        layout, rings, builder = self.layout, self.rings, self.context.builder
        builder.channel_vector(
            rings.powers, layout.seen_bursts, self.dtype, 0, wait=rings.powers.full_bit, release=rings.powers.free_bit
        )
        rings.powers.read()
        builder.channel_product(
            rings.results,
            layout.value_rounds,
            1,
            layout.seen_bursts,
            self.dtype,
            self._rows(sequence, head, layout.key_rows),
            0,
            wait=rings.results.free_bit,
            post=rings.results.full_bit,
        )
        where = affine(
            self.o_base + sequence.start * self.o_row + (head.start * self.group + query.start) * self.o_head,
            (sequence.loop, self.o_row),
            (head.loop, self.group * self.o_head),
            (query.loop, self.o_head),
        )
        self.nest.store(rings.results, 1, self.o_head, self.o_head, where)

    def _rows(self, sequence: Walk, head: Walk, within: int) -> Address:
        """The first row of every bank of a head's keys, or of its values ``within`` its rows."""
        rows, heads = self.layout.head_rows, self.shape.kv_heads
        return affine(
            self.first + (sequence.start * heads + head.start) * rows + within,
            (self.context.layer, self.layout.rows),
            (sequence.loop, heads * rows),
            (head.loop, rows),
        )


class ChannelAppend:
    """Writes what appends the new key, or value, of every sequence and head to those in a channel."""

    def __init__(self, context: Context, task: Task) -> None:
        cached, operator = task.cached, task.operator
        assert isinstance(cached, Cached)
        assert isinstance(operator, Vector)
        self.context, self.cached, self.dtype = context, cached, operator.precision
        self.nest, self.rings = Nest(context, task), rings_of(context)
        self.layout, self.size = layout_of(context.tile, cached.attention), operator.precision.size
        self.row = VectorLayout(context.tile, vector_shape(context.tile, operator, task)).source_row
        found = cached.found(context.graph)
        self.source = context.operand(operator.name, "input", found, cached.sequences * self.row, self.row)
        self.first = first_rows(context.tile, context.graph)[cached.owner.name]
        self.head = self.size(cached.width)
        self.block_row = self.size(row_values(context.tile, cached.heads * cached.width, narrow=1))
        if not cached.keys:
            block = cached.sequences * self.layout.elements * self.block_row
            self.block = context.memory.take(cached.owner.name, "values", block, cached.units)
            self.block_unit = block

    def emit(self) -> None:
        """Write the task."""
        for sequence in self.nest.walk(self.cached.sequences, 1):
            if self.cached.keys:
                self._keys(sequence)
            else:
                self._values(sequence)
        if self.cached.keys and self.nest.posts:  # nothing of it is in main memory, and the next task waits for none
            self.context.builder.barrier(Unit.STORE, post=1 << self.context.stored)

    def _from(self, sequence: Walk, *terms: tuple[Loop, int], first: int = 0) -> Address:
        """Where the new row of a sequence is read, from a column on."""
        return affine(self.source + sequence.start * self.row + first, (sequence.loop, self.row), *terms)

    def _to(self, sequence: Walk, head: Walk, within: int) -> Address:
        """Where in the channel the rows of a head are, and what lies ``within`` them."""
        plane, heads = self.layout.plane, self.cached.heads
        base = self.first * self.layout.pim.banks * self.layout.row_bytes + within
        return affine(
            base + (sequence.start * heads + head.start) * plane,
            (self.context.layer, self.layout.rows * self.layout.pim.banks * self.layout.row_bytes),
            (sequence.loop, heads * plane),
            (head.loop, head.size * plane),
        )

    def _keys(self, sequence: Walk) -> None:
        """A new key of every head."""
        rings, most = self.rings, max(rings_slot(self.context) // self.head, 1)
        for head in self.nest.walk(self.cached.heads, min(self.cached.heads, most)):
            start = self.size(head.start * self.cached.width)
            where = self._from(sequence, (head.loop, head.size * self.head), first=start)
            self.nest.load(rings.operands, head.size, self.head, self.head, where)
            self.context.builder.channel_write(
                rings.operands,
                head.size,
                self.layout.key_bursts * self.layout.burst,
                self.layout.plane,
                self._to(sequence, head, self.layout.key_at(self.cached.past)),
                local_pitch=self.head,
                wait=rings.operands.full_bit,
                release=rings.operands.free_bit,
            )
            rings.operands.read()

    def _values(self, sequence: Walk) -> None:
        """The block of positions that a new value of every head is in: its row is put down, and all is transposed."""
        context, layout, cached, builder = self.context, self.layout, self.cached, self.context.builder
        rings, inner, place = self.rings, context.rings, cached.past % layout.elements
        kept = affine(
            self.block + place * self.block_row + sequence.start * layout.elements * self.block_row,
            (context.layer, self.block_unit if cached.units > 1 else 0),
            (sequence.loop, layout.elements * self.block_row),
        )
        columns = layout.elements * self.size(1) * cached.width
        most = max(min(context.layout.vector // columns, context.layout.results // self.head), 1)
        most = min(most, rings_slot(context) // columns, cached.heads)
        for head in self.nest.walk(cached.heads, most):
            start, width = self.size(head.start * cached.width), head.size * self.head
            local = self.size(row_values(context.tile, head.size * cached.width, narrow=1))
            fresh = self._from(sequence, (head.loop, width), first=start)
            there = replace(kept, base=kept.base + start)
            there = affine_more(there, (head.loop, width))
            # the row of the new value, which is kept for those that come behind it
            self.nest.load(inner.vector, 1, width, width, fresh)
            builder.vector(
                VectorFunction.KV_APPEND,
                1,
                head.size * cached.width,
                self.dtype,
                inner.vector,
                inner.results,
                inputs=1,
                wait=inner.vector.full_bit | inner.results.free_bit,
                release=inner.vector.free_bit,
                post=inner.results.full_bit,
            )
            inner.vector.read()
            inner.results.written()
            self.nest.store(inner.results, 1, width, width, there)
            # the block with that row in its place
            runs = [(0, place), (place + 1, layout.elements - place - 1)]
            pieces = [(first, rows) for first, rows in runs if rows]
            for number, (first, rows) in enumerate(pieces):
                self.nest.load(
                    inner.vector,
                    rows,
                    width,
                    self.block_row,
                    replace(there, base=there.base + (first - place) * self.block_row),
                    opens=number == 0,
                    closes=False,
                    offset=first * local,
                    local_pitch=local,
                )
            self.nest.load(inner.vector, 1, width, width, fresh, opens=not pieces, offset=place * local)
            builder.vector(
                VectorFunction.TRANSPOSE,
                layout.elements,
                head.size * cached.width,
                self.dtype,
                inner.vector,
                rings.powers,
                wait=inner.vector.full_bit | rings.powers.free_bit,
                release=inner.vector.free_bit,
                post=rings.powers.full_bit,
            )
            inner.vector.read()
            rings.powers.written()
            self._write_columns(sequence, head)

    def _write_columns(self, sequence: Walk, head: Walk) -> None:
        """A burst of every column of some heads."""
        layout, cached, rings, banks = self.layout, self.cached, self.rings, self.layout.pim.banks
        local = self.size(row_values(self.context.tile, layout.elements, narrow=1))
        some = cached.width if layout.chunks == 1 else banks  # columns whose rows follow one another
        writes = [(number, column) for number in range(head.size) for column in range(0, cached.width, some)]
        for turn, (number, column) in enumerate(writes):
            within = number * layout.plane + layout.value_at(column, cached.past)
            self.context.builder.channel_write(
                rings.powers,
                some,
                layout.burst,
                layout.row_bytes,
                self._to(sequence, head, within),
                local_pitch=local,
                offset=(number * cached.width + column) * local,
                wait=rings.powers.full_bit if turn == 0 else 0,
                release=rings.powers.free_bit if turn == len(writes) - 1 else 0,
            )
        rings.powers.read()


def rings_slot(context: Context) -> int:
    """Bytes of a slot of the channel's rings."""
    return rings_of(context).operands.slot_bytes


__all__ = ["ChannelAppend", "ChannelAttention"]
