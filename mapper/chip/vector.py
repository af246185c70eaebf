"""Lowering of element-wise and row-wise operators: load rows, compute, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import LoomError
from siliconloom.arch.timing import LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.arch.vector import ROW_LIMIT, VectorFunction, vector_cost
from siliconloom.mapper.chip.builder import LONGEST_ROW, SLOTS, affine
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.lowering import Context, Nest, when
from siliconloom.mapper.chip.tasks import Task
from siliconloom.sim.timing.units import access_cycles, fetch_cycles, moved_bytes, vector_cycles
from siliconloom.workloads import Operator, Vector


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
    """What one tile of the chip computes; ``passes`` is how many instructions work on each tile of it."""

    function: VectorFunction
    rows: int
    cols: int
    inputs: int
    outputs: int
    passes: int
    constants: int
    dtype: DataType


def constant_elements(operator: Vector) -> int:
    """Parameters that stay on chip while the operator runs; a gather reads only the rows it needs."""
    return 0 if operator.function in (VectorFunction.GATHER, VectorFunction.OPTIMIZER) else operator.weights


def vector_shape(part: Operator) -> VectorShape:
    """What a tile computes of an operator."""
    assert isinstance(part, Vector)
    return VectorShape(
        part.function,
        part.rows,
        part.cols,
        part.inputs,
        part.outputs,
        part.passes,
        constant_elements(part),
        part.precision,
    )


def choose_vector_tilings(chip: Chip, layouts: Sequence[Layout], shape: VectorShape) -> list[list[VectorTiling]]:
    """For each layout the two cheapest tiles, the best first: few pay for latencies less often, several overlap."""
    costs: dict[tuple[int, int], VectorTiling] = {}
    found = []
    for layout in layouts:
        sizes = _sizes(layout, shape)
        for size in sizes:
            if size not in costs:
                costs[size] = _cost(chip, shape, *size)
        found.append(sorted((costs[size] for size in sizes), key=lambda tiling: tiling.cycles)[:2])
    return found


def vector_needs(shape: VectorShape, rows: int, cols: int) -> dict[str, int]:
    """Bytes that tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`."""
    each = shape.dtype.size(rows * cols)
    return {
        "vector": shape.inputs * each,
        "results": shape.outputs * each,
        "constants": shape.dtype.size(shape.constants),
    }


def vector_tiling(chip: Chip, shape: VectorShape, rows: int, cols: int) -> VectorTiling:
    """A tiling of these sizes with what it should take."""
    return _cost(chip, shape, rows, cols)


def _sizes(layout: Layout, shape: VectorShape) -> list[tuple[int, int]]:
    """Rows and columns of tiles to try; a single row that does not fit is cut when the function allows it."""
    size, by_row = shape.dtype.size, vector_cost(shape.function).by_row
    if size(shape.constants) > layout.constants:
        return []
    cols = min(shape.cols, LONGEST_ROW)
    room = min(layout.vector // shape.inputs, layout.results // shape.outputs)
    if size(cols) > room:
        if by_row:
            return []
        cols = max(1, room * 8 // shape.dtype.bits)
    rows = min(shape.rows, max(1, room // size(cols)))
    if by_row:
        rows = min(rows, ROW_LIMIT)
    sizes = [(r, cols) for r in _halvings(rows)]
    return sizes if by_row else [*sizes, *((1, c) for c in _halvings(cols)[1:])]


def _halvings(total: int) -> list[int]:
    """A size and what its halves, quarters and so on round up to, down to a 64th."""
    return sorted({-(-total // (1 << n)) for n in range(7)}, reverse=True)


def _cost(chip: Chip, shape: VectorShape, rows: int, cols: int) -> VectorTiling:
    """What a tile size moves and takes: each unit's own cycles, and how the buffers' turn-around paces them."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    memory, size, unit = chip.nearest, shape.dtype.size, tile.vector
    read = written = port = vector = tiles = 0
    for tall, many in _parts(shape.rows, rows):
        for wide, count in _parts(shape.cols, cols):
            lines, width = (1, size(tall * wide)) if wide == shape.cols else (tall, size(wide))
            moved, held = moved_bytes(memory, lines, width), access_cycles(chip, memory, lines, width)
            tiles += many * count
            read += many * count * shape.inputs * moved
            written += many * count * shape.outputs * moved
            port += many * count * (shape.inputs + shape.outputs) * held
            vector += many * count * shape.passes * vector_cycles(unit, shape.function, tall, wide)
    one = port // (tiles * (shape.inputs + shape.outputs))
    load, compute, store = one * shape.inputs, vector // tiles, one * shape.outputs
    latency = chip.cycles(memory.latency)
    arrive = latency + QUEUE_POP + TRANSFER_START + LOAD_WRITE
    away = latency + QUEUE_POP + TRANSFER_START + STORE_WRITE
    fetch, _ = fetch_cycles(chip)
    issued = shape.inputs + shape.outputs + shape.passes
    sequencer = tiles * (issued * tile.sequencer.issue_cycles + tile.sequencer.loop_cycles)
    constants = 0
    if shape.constants:
        constants = access_cycles(chip, memory, 1, size(shape.constants))
        read += moved_bytes(memory, 1, size(shape.constants))
    waits = max(-(-tiles // SLOTS) - 1, 0)
    paces = (
        port + arrive + compute + away,
        load
        + arrive
        + max(vector, compute + waits * (load + arrive + compute + store))  # a store may go before a load
        + store
        + away,
        sequencer + arrive + compute + away,
    )
    return VectorTiling(rows, cols, read, written, port, vector, fetch + constants + max(paces))


def _parts(total: int, size: int) -> list[tuple[int, int]]:
    """Size and number of the full tiles along a dimension, and of the rest."""
    full, rest = divmod(total, size)
    return [(size, full)] + ([(rest, 1)] if rest else [])


class VectorLowering:
    """Writes one operator: constants once, then tile by tile."""

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        self.context, self.task, self.shape, self.tiling = context, task, shape, tiling
        self.nest = Nest(context, task.depends)
        size = shape.dtype.size
        self.row = size(shape.cols)
        self.plane = self.row * shape.rows
        name, whole = task.operator.name, task.operator
        assert isinstance(whole, Vector)
        operand = size(whole.rows * whole.cols)  # of the same size whatever part of it a tile has
        if shape.function == VectorFunction.GATHER and whole.weight_bytes > whole.output_bytes:
            self.sources = [context.parameters(whole)]  # the rows it takes stand for any of its table
        else:
            self.sources = [context.input_of(whole, operand)]
        self.sources += [context.memory.take(name, f"operand {n}", operand) for n in range(1, shape.inputs)]
        self.constants = context.parameters(task.operator) if shape.constants else 0
        self.target = context.output_of(task, self.plane * shape.outputs)

    def emit(self) -> None:
        """Write the task."""
        rings, shape, size = self.context.rings, self.shape, self.shape.dtype.size
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
                self._compute(rows.size, cols.size, (first_wait, first_levels), (last_post, last_levels))
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

    def _compute(self, rows: int, cols: int, first: tuple[int, int], last: tuple[int, int]) -> None:
        """One instruction for each pass; all but the first go on with what the one before left in the result.

        Of more than two operands the first is weighted alone, each other one added to the sum.
        """
        rings, shape = self.context.rings, self.shape
        summed = shape.passes > 1 and shape.inputs > 1
        for index in range(shape.passes):
            begins, ends = index == 0, index == shape.passes - 1
            self.context.builder.vector(
                shape.function,
                rows,
                cols,
                shape.dtype,
                rings.vector,
                rings.results,
                second=rings.constants if shape.constants else None,
                inputs=(1 if begins else 2) if summed else shape.inputs,
                wait=rings.vector.full_bit | rings.results.free_bit if begins else 0,
                release=rings.vector.free_bit if ends else 0,
                post=rings.results.full_bit if ends else 0,
                first_wait=first[0] if begins else 0,
                first=first[1] if begins else 0,
                last_post=last[0] if ends else 0,
                last=last[1] if ends else 0,
            )


def too_small(chip: Chip, what: str) -> LoomError:
    """Make the error for work that fits no division of the tile's buffers."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    return LoomError(
        f"{chip.name}: tile.scratchpad.capacity ({tile.scratchpad.capacity} B) and tile.accumulator.capacity "
        f"({tile.accumulator.capacity} B) cannot hold two tiles of each operand of {what}; enlarge them"
    )
