"""Lowering of gathers: indices go to where the DMA reads, rows come by index, are copied and stored.

A side of a bank has one user. What the DMA reads lies in the banks of results, which the vector unit fills, so the
indices are copied there: to the end of the second slot, which the results of a gather leave free. Nothing of an earlier
task is there any more, as the indices are loaded when its results are in memory. Gathered rows lie where loads put
them, so they are copied to where results are stored from.
"""

from __future__ import annotations

from msgspec.structs import replace

from siliconloom.arch.isa import Address
from siliconloom.arch.layout import INDEX_BYTES, padded
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.lowering import STILL, Context, Segment, Walk, joined, when
from siliconloom.mapper.chip.rings import affine
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.vector import VectorLowering
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.mapper.chip.vector_shape import VectorShape
from siliconloom.workloads import Vector


def table_rows(operator: Vector) -> int:
    """Rows of the table that an operator gathers from; without a table of its own, as many as it gathers."""
    return max(operator.weights // operator.cols, 1) if operator.weights else operator.rows


class GatherLowering(VectorLowering):
    """Writes one gather: the indices of some rows, then those rows tile by tile, and so on.

    Rows of a table begin at multiples of the bus. A table that another operator stores lies there in the order in which
    the array takes it, so there is another one for gathering.
    """

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        # the end of the results is free when the task before has stored what it made, whatever else depends on that
        super().__init__(context, replace(task, depends=True), shape, tiling)
        whole, memory, name = task.operator, context.memory, task.operator.name
        assert isinstance(whole, Vector)
        self.rows_of_table = table_rows(whole)
        self.pitch = padded(shape.dtype.size(whole.cols), context.tile.dma.bytes_per_cycle)
        size = self.rows_of_table * self.pitch
        if whole.weight_bytes:
            self.table = affine(memory.take(name, "parameters", size, whole.repeat), (context.layer, size))
        else:
            self.table = affine(memory.take(name, "table" if whole.weights else "input", size))
        self.indices = memory.take(name, "indices", INDEX_BYTES * whole.rows)
        self.chunk = Walk(Segment(0, 1, shape.rows, True, True), STILL)

    def emit(self) -> None:
        """Write the task."""
        rings, layout, shape = self.context.rings, self.layout, self.shape
        for chunk in self.nest.walk(shape.rows, layout.indexed(self.tiling.rows)):
            self.chunk = chunk
            self._load_indices()
            for rows in self.nest.walk(self.chunk.size, self.tiling.rows):
                for cols in self.nest.walk(shape.cols, self.tiling.cols):
                    self._gather(rows, cols)
                    self.context.builder.vector(
                        VectorFunction.COPY,
                        rows.size,
                        layout.copied(cols.size),
                        shape.dtype,
                        rings.vector,
                        rings.results,
                        wait=rings.vector.full_bit | rings.results.free_bit,
                        release=rings.vector.free_bit,
                        post=rings.results.full_bit,
                    )
                    rings.vector.read()
                    rings.results.written()
                    self._store(rows, cols)
            rings.indices.read()

    def _load_indices(self) -> None:
        """Load the indices of a chunk of rows, and copy them to where the DMA reads."""
        rings, chunk = self.context.rings, self.chunk
        width = INDEX_BYTES * chunk.size
        where = affine(self.indices + INDEX_BYTES * chunk.start, (chunk.loop, width))
        self.nest.load(rings.vector, 1, width, width, where)
        self.context.builder.vector(
            VectorFunction.COPY,
            1,
            8 * width // self.shape.dtype.bits,
            self.shape.dtype,
            rings.vector,
            rings.indices,
            wait=rings.vector.full_bit | rings.indices.free_bit,
            release=rings.vector.free_bit,
            post=rings.indices.full_bit,
        )
        rings.vector.read()
        rings.indices.written()

    def _gather(self, rows: Walk, cols: Walk) -> None:
        """Gather a tile; the first of a chunk waits for the indices, the last one gives their place back."""
        rings, size = self.context.rings, self.shape.dtype.size
        first_wait, first = when(joined(w.first for w in (rows, cols)), rings.indices.full_bit)
        last_post, last = when(joined(w.last for w in (rows, cols)), rings.indices.free_bit)
        along = affine(self.table.base + size(cols.start), (cols.loop, size(cols.size)))
        strides = tuple(a + b for a, b in zip(along.strides, self.table.strides, strict=True))
        self.context.builder.gather(
            rings.vector,
            rings.indices,
            rows.size,
            size(cols.size),
            self.pitch,
            Address(base=along.base, strides=strides),
            self.rows_of_table,
            local_pitch=self.layout.local(cols.size),
            index=affine(INDEX_BYTES * rows.start, (rows.loop, INDEX_BYTES * rows.size)),
            first_wait=first_wait,
            first=first,
            last_post=last_post,
            last=last,
        )

    def _place(self, base: int, rows: Walk, cols: Walk, row: int, many: int = 1) -> Address:
        size, chunk = self.shape.dtype.size, self.chunk
        return affine(
            base + (chunk.start + rows.start) * row + many * size(cols.start),
            (chunk.loop, chunk.size * row),
            (rows.loop, rows.size * row),
            (cols.loop, many * size(cols.size)),
        )


__all__ = ["GatherLowering", "table_rows"]
