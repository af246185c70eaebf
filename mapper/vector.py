"""Lowering of element-wise and row-wise operators: load rows, compute, store."""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import LoomError
from siliconloom.arch.vector import ROW_LIMIT, VectorFunction, vector_cost
from siliconloom.mapper.builder import affine
from siliconloom.mapper.layout import Layout
from siliconloom.mapper.lowering import Context, Nest, when
from siliconloom.mapper.tasks import Task, share
from siliconloom.sim.timing.units import vector_cycles
from siliconloom.workloads import Vector


@dataclass(frozen=True)
class VectorTiling:
    """Rows and columns per tile, what they move and what they should take."""

    rows: int
    cols: int
    read_bytes: int
    write_bytes: int
    memory_cycles: int
    vector_cycles: int
    cycles: int


@dataclass(frozen=True)
class VectorShape:
    """What one tile of the chip computes."""

    function: VectorFunction
    rows: int
    cols: int
    inputs: int
    outputs: int
    constants: int
    dtype: DataType


def constant_elements(operator: Vector) -> int:
    """Parameters that stay on chip while the operator runs; a gather reads only the rows it needs."""
    return 0 if operator.function in (VectorFunction.GATHER, VectorFunction.OPTIMIZER) else operator.weights


def vector_shape(task: Task, chip: Chip) -> VectorShape:
    """The shape that one tile works on; element-wise work is cut into rows that fit any buffer."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    assert isinstance(task.operator, Vector)
    operator = share(task.operator, chip.tile_count, tile)
    assert isinstance(operator, Vector)
    return VectorShape(
        operator.function,
        operator.rows,
        operator.cols,
        operator.inputs,
        operator.outputs,
        constant_elements(operator),
        operator.precision,
    )


def choose_vector_tiling(chip: Chip, layout: Layout, shape: VectorShape) -> VectorTiling | None:
    """As many rows as the buffers hold; a single row that does not fit is cut when the function allows it."""
    tile, memory = chip.tile, chip.nearest
    assert isinstance(tile, NpuTile)
    size = shape.dtype.size
    if size(shape.constants) > layout.constants:
        return None
    cols = shape.cols
    room = min(layout.vector // shape.inputs, layout.results // shape.outputs)
    if size(cols) > room:
        if vector_cost(shape.function).by_row:
            return None
        cols = max(1, room * 8 // shape.dtype.bits)
    rows = min(shape.rows, max(1, room // size(cols)))
    if vector_cost(shape.function).by_row:
        rows = min(rows, ROW_LIMIT)
    tiles = -(-shape.rows // rows) * -(-shape.cols // cols)
    reads = size(shape.rows * shape.cols) * shape.inputs + size(shape.constants)
    writes = size(shape.rows * shape.cols) * shape.outputs
    rate = min(memory.total_bandwidth / chip.clock / chip.tile_count, tile.dma.bytes_per_cycle)
    port = round((reads + writes) / rate)
    vector = tiles * vector_cycles(tile.vector, shape.function, rows, cols)
    latency = 2 * chip.cycles(memory.latency)
    edge = round(size(rows * cols) * (shape.inputs + shape.outputs) / rate) + vector // tiles
    return VectorTiling(rows, cols, reads, writes, port, vector, max(port, vector) + edge + latency)


class VectorLowering:
    """Writes one operator: constants once, then tile by tile."""

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        self.context, self.task, self.shape, self.tiling = context, task, shape, tiling
        self.nest = Nest(context, task.depends)
        size = shape.dtype.size
        self.row = size(shape.cols)
        self.plane = self.row * shape.rows
        name = task.operator.name
        if shape.function == VectorFunction.GATHER and task.operator.weight_bytes > self.plane:
            self.sources = [context.parameters(task.operator)]  # the rows it takes stand for any of its table
        else:
            self.sources = [context.input_of(task.operator, self.plane)]
        self.sources += [context.memory.take(name, f"operand {n}", self.plane) for n in range(1, shape.inputs)]
        self.constants = context.parameters(task.operator) if shape.constants else 0
        self.target = context.output_of(task, self.plane * shape.outputs)

    def emit(self) -> None:
        """Write the task."""
        builder, rings, shape, size = self.context.builder, self.context.rings, self.shape, self.shape.dtype.size
        if shape.constants:
            width = size(shape.constants)
            self.nest.load(
                rings.constants, 1, width, width, affine(self.constants, (self.context.layer, width)), depends=False
            )
        for rows in self.nest.walk(shape.rows, self.tiling.rows):
            for cols in self.nest.walk(shape.cols, self.tiling.cols):
                where = [(rows.loop, rows.size * self.row), (cols.loop, size(cols.size))]
                offset = rows.start * self.row + size(cols.start)
                for index, base in enumerate(self.sources):
                    self.nest.load(
                        rings.vector,
                        rows.size,
                        size(cols.size),
                        self.row,
                        affine(base + offset, *where),
                        opens=index == 0,
                        closes=index == len(self.sources) - 1,
                        offset=index * size(rows.size * cols.size),
                    )
                masks = [rows.first, cols.first], [rows.last, cols.last]
                first = None if None in masks[0] else sum(m or 0 for m in masks[0])
                last = None if None in masks[1] else sum(m or 0 for m in masks[1])
                first_wait, first_levels = when(first if shape.constants else None, rings.constants.full_bit)
                last_post, last_levels = when(last if shape.constants else None, rings.constants.free_bit)
                builder.vector(
                    shape.function,
                    rows.size,
                    cols.size,
                    shape.dtype,
                    rings.vector,
                    rings.results,
                    second=rings.constants if shape.constants else None,
                    inputs=shape.inputs,
                    wait=rings.vector.full_bit | rings.results.free_bit,
                    release=rings.vector.free_bit,
                    post=rings.results.full_bit,
                    first_wait=first_wait,
                    first=first_levels,
                    last_post=last_post,
                    last=last_levels,
                )
                rings.vector.read()
                rings.results.written()
                for index in range(shape.outputs):
                    base = self.target + index * self.plane
                    self.nest.store(
                        rings.results,
                        rows.size,
                        size(cols.size),
                        self.row,
                        affine(base + offset, *where),
                        opens=index == 0,
                        closes=index == shape.outputs - 1,
                        offset=index * size(rows.size * cols.size),
                    )
        if shape.constants:
            rings.constants.read()


def too_small(chip: Chip, what: str) -> LoomError:
    """Make the error for work that fits no division of the tile's buffers."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    return LoomError(
        f"{chip.name}: tile.scratchpad.capacity ({tile.scratchpad.capacity} B) and tile.accumulator.capacity "
        f"({tile.accumulator.capacity} B) cannot hold two tiles of each operand of {what}; enlarge them"
    )
