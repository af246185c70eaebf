"""Lowering of functions with a state, or with operands that all columns of a row share: timed, as no circuit is there.

A tile of rows and columns is loaded with what its sequences go on from (`state`), its columns' parameters and its rows'
further operands; the unit works through it, and results and states are stored. So a state passes through memory from
one tile of a sequence to the next, and every instruction is complete by itself.
"""

from __future__ import annotations

from siliconloom.arch.isa import Address
from siliconloom.mapper.chip.lowering import Context, Walk
from siliconloom.mapper.chip.rings import affine
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.vector import VectorLowering
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.mapper.chip.vector_shape import RecurrentShape, VectorLayout, VectorShape, vector_shape
from siliconloom.workloads.recurrence import Recurrence


class RecurrenceLowering(VectorLowering):
    """Writes one operator: sequence by sequence where tiles have a part of one, else several of them at a time."""

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        super().__init__(context, task, shape, tiling)
        whole, name, memory = task.operator, task.operator.name, context.memory
        assert isinstance(whole, Recurrence)
        assert shape.recurrent is not None
        all_of = VectorLayout(context.tile, vector_shape(context.tile, whole, task))
        self.own: RecurrentShape = shape.recurrent
        self.beside = memory.take(name, "beside", whole.rows * all_of.beside_row) if self.own.beside else 0
        self.state = self.given = 0
        if self.own.state_rows:
            size = whole.sequences * self.own.state_rows * all_of.row
            self.state = memory.take(name, "state", size, whole.repeat)
        if self.own.given:
            self.unit = max(self.own.given * all_of.row, whole.weight_bytes)
            self.given = memory.take(name, "parameters", self.unit, whole.repeat)

    def emit(self) -> None:
        """Write the task."""
        shape, tiling, nest = self.shape, self.tiling, self.nest
        parted = self.own.state_rows > 0 and tiling.rows < self.own.run
        times, total = (shape.rows // self.own.run, self.own.run) if parted else (1, shape.rows)
        for sequence in nest.walk(times, 1):
            for rows in nest.walk(total, tiling.rows):
                for cols in nest.walk(shape.cols, tiling.cols):
                    self._tile(sequence, rows, cols)

    def _tile(self, sequence: Walk, rows: Walk, cols: Walk) -> None:
        rings, shape, layout, size = self.context.rings, self.shape, self.layout, self.shape.dtype.size
        local, wide = layout.local(cols.size), size(cols.size)
        for index, base in enumerate(self.sources):
            self.nest.load(
                rings.vector,
                rows.size,
                wide,
                layout.source_row,
                self._at(base, sequence, rows, cols, layout.source_row),
                opens=index == 0,
                closes=index == len(self.sources) - 1,
                offset=index * rows.size * local,
                local_pitch=local,
            )
        second = self._load_further(sequence, rows, cols)
        self.context.builder.vector(
            shape.function,
            rows.size,
            cols.size,
            shape.dtype,
            rings.vector,
            rings.results,
            second=rings.second if second else None,
            inputs=shape.size,
            wait=rings.vector.full_bit | rings.results.free_bit | (rings.second.full_bit if second else 0),
            release=rings.vector.free_bit | (rings.second.free_bit if second else 0),
            post=rings.results.full_bit,
        )
        if second:
            rings.second.read()
        rings.vector.read()
        rings.results.written()
        states = self._state_rows(rows)
        where = self._at(self.target, sequence, rows, cols, layout.result_row)
        self.nest.store(rings.results, rows.size, wide, layout.result_row, where, closes=not states, local_pitch=local)
        if states:
            where = self._state_at(sequence, rows, cols)
            at = rows.size * local
            self.nest.store(rings.results, states, wide, layout.row, where, opens=False, offset=at, local_pitch=local)

    def _load_further(self, sequence: Walk, rows: Walk, cols: Walk) -> bool:
        """Load states, parameters and what all columns of a row share; say whether there is any of it."""
        layout, size, row = self.layout, self.shape.dtype.size, self.layout.row
        local, wide = layout.local(cols.size), size(cols.size)
        loads: list[tuple[int, int, int, Address, int]] = []
        if states := self._state_rows(rows):
            loads.append((states, wide, row, self._state_at(sequence, rows, cols), local))
        if given := self.own.given:
            strides = (self.context.layer, self.unit), (cols.loop, wide)
            loads.append((given, wide, row, affine(self.given + size(cols.start), *strides), local))
        if beside := self.own.beside:
            pitch = layout.beside_row
            where = affine(
                self.beside + rows.start * pitch, (sequence.loop, self.own.run * pitch), (rows.loop, rows.size * pitch)
            )
            loads.append((rows.size, size(beside), pitch, where, layout.local(beside)))
        offset = 0
        for index, (count, width, pitch, where, held) in enumerate(loads):
            self.nest.load(
                self.context.rings.second,
                count,
                width,
                pitch,
                where,
                opens=index == 0,
                closes=index == len(loads) - 1,
                offset=offset,
                local_pitch=held,
            )
            offset += count * held
        return bool(loads)

    def _state_rows(self, rows: Walk) -> int:
        return self.own.states_of(rows.size)

    def _state_at(self, sequence: Walk, rows: Walk, cols: Walk) -> Address:
        """Where the states of a tile's sequences begin."""
        one, size = self.own.state_rows * self.layout.row, self.shape.dtype.size
        return affine(
            self.state + rows.start // self.own.run * one + size(cols.start),
            (sequence.loop, one),
            (rows.loop, rows.size // self.own.run * one),
            (cols.loop, size(cols.size)),
        )

    def _at(self, base: int, sequence: Walk, rows: Walk, cols: Walk, row: int) -> Address:
        """Where a tile begins of a matrix with a row every ``row`` bytes."""
        size = self.shape.dtype.size
        return affine(
            base + rows.start * row + size(cols.start),
            (sequence.loop, self.own.run * row),
            (rows.loop, rows.size * row),
            (cols.loop, size(cols.size)),
        )


__all__ = ["RecurrenceLowering"]
