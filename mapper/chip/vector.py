"""Lowering of element-wise and row-wise operators: load rows, compute, store."""

from __future__ import annotations

from siliconloom.arch.isa import Address
from siliconloom.mapper.chip.lowering import Context, Nest, Walk, when
from siliconloom.mapper.chip.operands import expert_weights, operands
from siliconloom.mapper.chip.rings import affine
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.mapper.chip.vector_shape import VectorLayout, VectorShape, vector_shape
from siliconloom.workloads import Attention, Vector


class VectorLowering:
    """Writes one operator: parameters once, then tile by tile."""

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        self.context, self.task, self.shape, self.tiling = context, task, shape, tiling
        self.nest = Nest(context, task)
        self.layout = VectorLayout(context.tile, shape)
        name, whole, memory = task.operator.name, task.operator, context.memory
        assert isinstance(whole, Vector)
        # of the same size whatever part of it a tile has
        all_of = VectorLayout(context.tile, vector_shape(context.tile, whole, task))
        roles = () if shape.gathers else ("input", *(f"operand {n}" for n in range(1, shape.inputs)))
        found, row = operands(context.graph, whole), all_of.source_row
        self.sources = [
            context.operand(name, role, found[n] if n < len(found) else None, whole.rows * row, row)
            for n, role in enumerate(roles)
        ]
        self.sources, self.seconds = self.sources[: shape.firsts], self.sources[shape.firsts :]
        if shape.table:
            self.seconds = [memory.take(name, "table", whole.rows * all_of.table_row)]
        self.constants, self.step = 0, 0
        if shape.constants:
            self.step = max(vector_shape(context.tile, whole, task).constants, whole.weight_bytes)
            self.constants = memory.take(name, "parameters", self.step, whole.repeat)
        served = context.graph.dataflow[task.serves] if task.serves else None
        self.head = served.head_dim if isinstance(served, Attention) else shape.cols
        self.weights = 0
        if shape.weighs:
            size, row = whole.rows * all_of.weight_row, all_of.weight_row
            self.weights = context.operand(name, "weights", expert_weights(context.graph, whole), size, row)
        self.target = context.output_of(task, all_of.plane * shape.outputs, all_of.result_row)

    def emit(self) -> None:
        """Write the task."""
        rings, shape, layout, size = self.context.rings, self.shape, self.layout, self.shape.dtype.size
        if shape.constants:
            width, where = shape.constants, affine(self.constants, (self.context.layer, self.step))
            self.nest.load(rings.constants, 1, width, width, where, depends=False)
        for rows in self.nest.walk(shape.rows, self.tiling.rows):
            for cols in self.nest.walk(shape.cols, self.tiling.cols):
                local = layout.local(cols.size)
                beside = shape.inputs if shape.weighs else 1
                for index, base in enumerate(self.sources):
                    self.nest.load(
                        rings.vector,
                        rows.size,
                        size(cols.size),
                        layout.source_row,
                        self._place(base, rows, cols, layout.source_row),
                        opens=index == 0,
                        closes=index == len(self.sources) - 1,
                        offset=index * local if shape.weighs else index * rows.size * local,
                        local_pitch=beside * local,
                        fills=layout.all_of_row(cols.size),
                    )
                masks = [rows.first, cols.first], [rows.last, cols.last]
                first = None if None in masks[0] else sum(m or 0 for m in masks[0])
                last = None if None in masks[1] else sum(m or 0 for m in masks[1])
                first_wait, first_levels = when(first if shape.constants else None, rings.constants.full_bit)
                last_post, last_levels = when(last if shape.constants else None, rings.constants.free_bit)
                self._compute(rows, cols, (first_wait, first_levels), (last_post, last_levels))
                rings.vector.read()
                rings.results.written()
                self._store(rows, cols)
        if shape.constants:
            rings.constants.read()

    def _place(self, base: int, rows: Walk, cols: Walk, row: int, many: int = 1) -> Address:
        """Where a tile begins of a matrix with a row every ``row`` bytes, ``many`` for one of an operand's."""
        size = self.shape.dtype.size
        offset = rows.start * row + many * size(cols.start)
        return affine(base + offset, (rows.loop, rows.size * row), (cols.loop, many * size(cols.size)))

    def _store(self, rows: Walk, cols: Walk) -> None:
        """Store the results; a tile of a transposed matrix is one block of columns."""
        rings, shape, layout, size = self.context.rings, self.shape, self.layout, self.shape.dtype.size
        if shape.transposes:
            self._store_transposed(rows, cols)
            return
        wide, row = shape.result(cols.size), layout.result_row
        local = layout.local(wide)
        for index in range(shape.outputs):
            self.nest.store(
                rings.results,
                rows.size,
                size(wide),
                row,
                self._place(self.target + index * layout.plane, rows, cols, row),
                opens=index == 0,
                closes=index == shape.outputs - 1,
                offset=index * rows.size * local,
                local_pitch=local,
                fills=layout.stores_fill(cols.size),
            )

    def _store_transposed(self, rows: Walk, cols: Walk) -> None:
        """Store one block of columns of every head, where attention finds it.

        Of a block that is not full only what is new: its other columns may hold something already.
        """
        shape, layout, store = self.shape, self.layout, self.nest.store
        line, block = layout.line, self.head * layout.line
        plane = -(-shape.rows // layout.block) * block
        width, local = shape.dtype.size(rows.size), layout.local(rows.size)
        base, ring = self.target + rows.start // layout.block * block, self.context.rings.results
        along = (rows.loop, block)
        if cols.size % self.head or (width < line and plane > block):
            # heads, or parts of one, by themselves
            for at in range(0, cols.size, step := min(self.head, cols.size)):
                first = cols.start + at
                where = affine(
                    base + first // self.head * plane + first % self.head * line,
                    along,
                    (cols.loop, cols.size // self.head * plane if cols.size >= self.head else step * line),
                )
                ends = at + step >= cols.size
                store(ring, step, width, line, where, opens=at == 0, closes=ends, offset=at * local, local_pitch=local)
            return
        where = affine(base + cols.start // self.head * plane, along, (cols.loop, cols.size // self.head * plane))
        if width < line or plane == block:
            store(ring, cols.size, width, line, where, local_pitch=local)
        else:
            store(ring, cols.size // self.head, block, plane, where, local_pitch=self.head * local)

    def _compute(self, rows: Walk, cols: Walk, first: tuple[int, int], last: tuple[int, int]) -> None:
        """One instruction for each pass over what lies there.

        Operands beyond the second are added to what the instruction before left, with parameters of their own.
        """
        rings, shape = self.context.rings, self.shape
        freed, second = 0 if shape.chained else shape.passes - 1, shape.seconds > 0 or shape.weighs
        for index in range(shape.passes):
            begins, ends = index == 0, index == shape.passes - 1
            if shape.seconds:
                self._load_second(self.seconds[index], rows, cols)
            elif shape.weighs:
                self._load_weights(rows)
            self.context.builder.vector(
                shape.function,
                rows.size,
                cols.size,
                shape.dtype,
                rings.vector if begins or not shape.chained else rings.chained,
                rings.results if ends or not shape.chained else rings.chained,
                second=rings.second if second else None,
                parameters=rings.constants if shape.constants else None,
                parameter_offset=index * (shape.constants // shape.passes),
                inputs=shape.size,
                wait=(rings.vector.full_bit | rings.results.free_bit if begins else 0)
                | (rings.second.full_bit if second else 0),
                release=(rings.vector.free_bit if index == freed else 0) | (rings.second.free_bit if second else 0),
                post=rings.results.full_bit if ends else 0,
                first_wait=first[0] if begins else 0,
                first=first[1] if begins else 0,
                last_post=last[0] if ends else 0,
                last=last[1] if ends else 0,
            )
            if second:
                rings.second.read()

    def _load_second(self, base: int, rows: Walk, cols: Walk) -> None:
        """Load what the vector unit reads as its second operand."""
        many = self.shape.seconds
        width, row = self.layout.second_width(cols.size), self.layout.second_row
        local = many * self.layout.local(cols.size)
        where = self._place(base, rows, cols, row, many)
        fills = self.layout.all_of_row(cols.size)
        self.nest.load(self.context.rings.second, rows.size, width, row, where, local_pitch=local, fills=fills)

    def _load_weights(self, rows: Walk) -> None:
        """Load the weights of some rows."""
        row, cols = self.layout.weight_row, self.shape.counted
        where = affine(self.weights + rows.start * row, (rows.loop, rows.size * row))
        local = self.layout.local(cols)
        self.nest.load(self.context.rings.second, rows.size, self.shape.dtype.size(cols), row, where, local_pitch=local)
