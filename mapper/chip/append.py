"""Lowering of what fills a cache: new keys are transposed into blocks, new values are copied into panels.

So is what an array that keeps its sums multiplies with parameters: rows are transposed into blocks of them.

A tile holds some tokens of one sequence and some heads, or a part of one head. The first tile of keys of a sequence
ends where the block does that older keys begin.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from siliconloom.arch.isa import Address
from siliconloom.arch.layout import row_values
from siliconloom.mapper.chip.cache_layout import CacheLayout
from siliconloom.mapper.chip.lowering import Context, Nest, Walk
from siliconloom.mapper.chip.rings import affine
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.mapper.chip.vector_shape import VectorLayout, VectorShape, vector_shape
from siliconloom.workloads import Vector


class AppendLowering:
    """Writes what appends keys or values: for every sequence its tokens, tile by tile."""

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        assert shape.cached is not None
        self.context, self.shape, self.tiling = context, shape, tiling
        self.cached, self.nest = shape.cached, Nest(context, task)
        self.layout = CacheLayout(context.tile, context.chip.nearest, shape.cached)
        cached, operator = self.cached, task.operator
        assert isinstance(operator, Vector)
        self.row = VectorLayout(context.tile, shape).source_row
        # of the same size whatever part of it a tile has
        whole = VectorLayout(context.tile, vector_shape(context.tile, operator, task)).source_row
        size = cached.sequences * cached.tokens * whole
        found = cached.found(context.graph)
        self.source = context.operand(operator.name, "input", found, size, whole)
        self.target = context.memory.take(cached.owner.name, cached.role, self.layout.unit, cached.units)

    def emit(self) -> None:
        """Write the task."""
        shape, cached = self.shape, self.cached
        heads, width = shape.heads_of(self.tiling.cols)
        lead = shape.lead(self.layout.run)
        for sequence in self.nest.walk(shape.sequences, 1):
            for tokens in self.nest.walk(shape.tokens, self.tiling.rows, lead):
                for head in self.nest.walk(shape.heads, heads):
                    for part in self.nest.walk(min(cached.width, shape.cols), width):
                        self._tile(sequence, tokens, head, part)

    def _tile(self, sequence: Walk, tokens: Walk, head: Walk, part: Walk) -> None:
        layout, rings, size, builder = self.layout, self.context.rings, self.shape.dtype.size, self.context.builder
        cols, column = head.size * part.size, head.start * self.cached.width + part.start
        where = affine(
            self.source + tokens.start * self.row + size(column),
            (sequence.loop, self.cached.tokens * self.row),
            (tokens.loop, tokens.size * self.row),
            (head.loop, size(head.size * self.cached.width)),
            (part.loop, size(part.size)),
        )
        local = size(row_values(self.context.tile, cols, narrow=1))
        self.nest.load(rings.vector, tokens.size, size(cols), self.row, where, local_pitch=local)
        builder.vector(
            self.shape.function,
            tokens.size,
            cols,
            self.shape.dtype,
            rings.vector,
            rings.results,
            inputs=1,
            wait=rings.vector.full_bit | rings.results.free_bit,
            release=rings.vector.free_bit,
            post=rings.results.full_bit,
            packing=self.cached.packing,
        )
        rings.vector.read()
        rings.results.written()
        first = self.cached.past + tokens.start

        def place(within: Callable[[int], int]) -> Address:
            return affine(
                self.target + layout.at(first) + head.start * layout.plane + within(part.start),
                (self.context.layer, layout.unit if self.cached.units > 1 else 0),
                (sequence.loop, self.cached.heads * layout.plane),
                (tokens.loop, layout.at(first + tokens.size) - layout.at(first)),
                (head.loop, head.size * layout.plane),
                (part.loop, within(part.size)),
            )

        codes = place(lambda column: layout.within(column, tokens.size))
        scales = place(layout.scales_within) if self.cached.scaled and self.cached.transposed else codes
        rows = layout.rows(tokens.size, head.size, part.size, first)
        for number, each in enumerate(rows):
            where = scales if each.scales else codes
            self.nest.store(
                rings.results,
                each.rows,
                each.width,
                each.pitch,
                replace(where, base=where.base + each.offset),
                opens=number == 0,
                closes=number == len(rows) - 1,
                offset=each.local,
                local_pitch=each.local_pitch,
            )


__all__ = ["AppendLowering"]
