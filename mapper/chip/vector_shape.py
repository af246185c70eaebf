"""What a tile computes of an element-wise or row-wise operator, and where its operands lie."""

from __future__ import annotations

from math import lcm

import numpy as np
from msgspec import Struct

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import patterns_of
from siliconloom.arch.layout import INDEX_BYTES, padded, parameter_bytes, row_values, window_of, written_values
from siliconloom.arch.scaled import group_rows
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction, vector_cost
from siliconloom.mapper.chip.gemm_layout import row_bytes
from siliconloom.mapper.chip.layout import index_bytes, most_indices
from siliconloom.mapper.chip.operands import Cached, Turned
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Operator, Vector
from siliconloom.workloads.recurrence import Recurrence


class RecurrentShape(Struct, frozen=True):
    """What a `Recurrence` has beside its operands.

    Parameters
    ----------
    run
        Rows of a sequence.
    state_rows
        Rows of what each goes on from.
    given
        Rows of parameters: as many as hold them.
    beside
        Elements of each row that all of its columns share.
    together
        Rows of a sequence stand in one tile: nothing is kept from one to the next.
    """

    run: int
    state_rows: int
    given: int
    beside: int
    together: bool

    def states_of(self, rows: int) -> int:
        """Rows of the states of so many rows, of whole sequences or of a part of one."""
        return max(rows // self.run, 1) * self.state_rows

    def heights(self, total: int, rows: int) -> list[tuple[int, int]]:
        """Rows of tiles, and how many tiles have so many, of ``total`` rows in all."""
        if not self.state_rows or rows >= self.run:
            return tile_counts(total, rows)
        return [(tall, total // self.run * count) for tall, count in tile_counts(self.run, rows)]

    def takes(self, rows: int) -> bool:
        """Whether a tile may have so many rows: whole sequences, or where a state is kept parts of one."""
        if not (self.state_rows or self.together):
            return True
        return rows % self.run == 0 or (self.state_rows > 0 and rows < self.run)

    def candidates(self, total: int, rows: set[int]) -> set[int]:
        """Rows that tiles may have, of those that others have: whole sequences, or where a state is kept parts."""
        if not (self.state_rows or self.together):
            return rows
        sequences = total // self.run
        several = {self.run * -(-sequences // (1 << n)) for n in range(sequences.bit_length() + 1)}
        parts = {-(-self.run // (1 << n)) for n in range(self.run.bit_length() + 1)} if self.state_rows else set()
        return several | parts


class VectorShape(Struct, frozen=True):
    """What one tile of the chip computes; ``passes`` is how many instructions work on each tile of it.

    ``constants`` are the bytes of its parameters, in the order in which its instructions read them. ``held`` are the
    columns of the rows that its first operand begins in, where it reads some of them only; ``cached`` is the cache that
    its results go into. ``counted`` is what the instruction's ``k`` is where that is no number of operands: elements of
    a row that are chosen, or rows that are weighted and added. ``epsilon``: see `workloads.Vector`.
    """

    function: VectorFunction
    rows: int
    cols: int
    inputs: int
    outputs: int
    passes: int
    constants: int
    dtype: DataType
    held: int = 0
    cached: Cached | Turned | None = None
    counted: int = 1
    epsilon: float = 0.0
    recurrent: RecurrentShape | None = None

    @property
    def tokens(self) -> int:
        """Rows of one sequence, where it fills a cache; else all."""
        return self.rows if self.cached is None else min(self.rows, self.cached.tokens)

    @property
    def sequences(self) -> int:
        """How many of these there are."""
        return -(-self.rows // self.tokens)

    def lead(self, run: int) -> int:
        """Rows of a sequence before its first whole block of keys, or group of values with scales."""
        if self.cached is None:
            return 0
        return min(-self.cached.past % run, self.tokens)

    def heights(self, run: int, rows: int) -> list[tuple[int, int]]:
        """Rows of tiles, and how many tiles have so many."""
        if self.recurrent is not None:
            return self.recurrent.heights(self.rows, rows)
        lead, times = self.lead(run), self.sequences
        parts = [(lead, times)] if lead else []
        return parts + [(tall, times * count) for tall, count in tile_counts(self.tokens - lead, rows)]

    @property
    def heads(self) -> int:
        """Heads that it fills the cache of."""
        assert self.cached is not None
        return -(-self.cols // self.cached.width)

    def heads_of(self, cols: int) -> tuple[int, int]:
        """Heads of a tile of so many columns, and columns of each."""
        assert self.cached is not None
        width = min(self.cached.width, self.cols)
        return max(cols // width, 1), min(cols, width)

    def divides(self, cols: int, block: int, group: int) -> bool:
        """Whether so many columns are whole heads, or parts of one that are wholes in the cache too.

        So many as a ``block`` has share a scale, and a ``group`` a header, where there are some.
        """
        assert self.cached is not None
        width = min(self.cached.width, self.cols)
        if self.cached.scaled:
            if cols < width:
                whole = not self.cached.transposed or width <= group
                return cols % block == 0 and (whole or cols % group == 0)
            return cols == width or (cols % width == 0 and width % block == 0)
        return cols % width == 0 or (cols < width and (self.cached.transposed or cols % block == 0))

    @property
    def kept(self) -> DataType:
        """The format of results."""
        return self.dtype if self.cached is None else self.cached.kept

    @property
    def seconds(self) -> int:
        """Bytes that the vector unit reads as its second operand, for each of its first: of a matrix, or of a table."""
        second = self.function.spec.second
        return second if self.inputs == 1 else min(second, 1)

    @property
    def table(self) -> bool:
        """The second operand is no result of another operator."""
        return self.inputs == 1 and self.seconds > 0

    @property
    def firsts(self) -> int:
        """Operands that lie where it reads its first one; the others come one by one, where it reads its second."""
        return self.inputs - (self.passes if self.seconds and not self.table else 0)

    @property
    def chained(self) -> bool:
        """What is computed of the first operands is the first operand of what comes next."""
        return self.seconds > 0 and self.passes > 1

    @property
    def transposes(self) -> bool:
        return self.function.spec.transposes

    @property
    def weighs(self) -> bool:
        """Operands lie row by row beside one another, and their weights where it reads its second one."""
        return self.function.spec.weighs

    @property
    def size(self) -> int:
        """The ``k`` of its instructions."""
        spec = self.function.spec
        if self.epsilon and not self.dtype.is_integer:
            return int(patterns_of(np.array([self.epsilon]), DataType.BF16)[0])
        return self.counted if spec.chooses or spec.weighs or spec.each else 2 if self.chained else self.inputs

    def result(self, cols: int) -> int:
        """Columns of the result of so many."""
        return self.function.spec.result_cols(cols, self.dtype)

    @property
    def gathers(self) -> bool:
        """The load unit finds its rows by index, and the vector unit copies them."""
        return self.function == VectorFunction.GATHER


def vector_shape(tile: NpuTile, part: Operator, task: Task) -> VectorShape:
    """What a tile computes of an operator, of the task that this is a part of."""
    assert isinstance(part, Vector)
    function, cols = part.function, part.cols
    if task.cached is not None and cols > task.cached.width:  # whole heads
        cols = padded(cols, task.cached.width)
    # a sum of several has scalars for each pair
    constants = part.passes * parameter_bytes(tile, function, cols, narrow=1)
    return VectorShape(
        function,
        part.rows,
        cols,
        part.inputs,
        part.outputs,
        part.passes,
        constants,
        part.precision,
        task.held_by(part),
        task.cached,
        part.counted,
        part.epsilon,
        _recurrent(part),
    )


def _recurrent(part: Vector) -> RecurrentShape | None:
    if not isinstance(part, Recurrence):
        return None
    given = -(-part.weights // part.cols)
    together = part.function.spec.recurs and not part.state_rows
    return RecurrentShape(part.run, part.state_rows, given, part.beside, together)


class VectorLayout:
    """Rows of operands and results in memory, and their tiles in local memory; everything in bytes.

    A transposed matrix lies in blocks of as many columns as the array has, each of them whole: keys in the order in
    which the array takes them. What an array that keeps its sums multiplies lies in blocks of as many as it has rows.
    """

    def __init__(self, tile: NpuTile, shape: VectorShape) -> None:
        self.tile, self.shape, self.lanes = tile, shape, tile.vector.lanes
        self.block = tile.array.cols if shape.cached is None else shape.cached.block(tile.array)
        self.run = 1 if shape.cached is None else shape.cached.run(tile.array)
        self.group = group_rows(tile.array)
        self.bus, self.most_indices, self.beside = tile.dma.bytes_per_cycle, most_indices(tile), index_bytes(tile)
        self.row = row_bytes(tile, shape.cols, shape.dtype.bits)
        self.table_row = shape.seconds * row_bytes(tile, row_values(tile, shape.cols, narrow=1), shape.dtype.bits)
        self.source_row = row_bytes(tile, shape.held, shape.dtype.bits) if shape.held else self.row
        self.source_row *= shape.cached.step if shape.cached is not None else 1
        self.line = shape.dtype.size(self.block)
        self.result_row = row_bytes(tile, shape.result(shape.cols), shape.dtype.bits)
        self.weight_row = row_bytes(tile, shape.counted, shape.dtype.bits)
        beside = shape.recurrent.beside if shape.recurrent is not None else 0
        self.beside_row = row_bytes(tile, beside, shape.dtype.bits) if beside else 0

    @property
    def second_row(self) -> int:
        """From row to row of what the vector unit reads as its second operand."""
        return self.table_row if self.shape.table else self.source_row

    def second_width(self, cols: int) -> int:
        """Bytes of a row of it in a tile of ``cols`` columns; a table's rows are whole lines of the vector unit."""
        return self.shape.seconds * (self.local(cols) if self.shape.table else self.shape.dtype.size(cols))

    @property
    def plane(self) -> int:
        """One operand, or one result."""
        if self.shape.transposes:
            return -(-self.shape.rows // self.block) * self.shape.cols * self.line
        return self.shape.rows * self.result_row

    def least(self) -> dict[str, int]:
        """What the smallest tiles take."""
        by_row = vector_cost(self.shape.function).by_row
        if self.shape.recurrent is not None:  # each row of its state takes a line, however narrow a tile is
            own, narrow = self.shape.recurrent, min(self.shape.cols, self.lanes)
            return self.needs(own.run if own.together else 1, narrow)
        rows = max(self.run, self.block if self.shape.transposes else 1)
        return self.needs(min(self.shape.tokens, rows), self._narrowest(by_row))

    def _narrowest(self, by_row: bool) -> int:
        """Columns that a tile has at least."""
        cached = self.shape.cached
        if cached is None or (cached.transposed and not cached.scaled):
            return self.shape.cols if by_row else 1
        return min(cached.width, self.shape.cols) if cached.width % self.block else self.block

    def local(self, cols: int) -> int:
        """From row to row of a tile of ``cols`` columns; where rows are gathered each begins where a transfer's may."""
        size, gathers = self.shape.dtype.size, self.shape.gathers
        row = size(row_values(self.tile, cols, narrow=not gathers))
        return padded(row, lcm(size(self.lanes), window_of(self.bus, size(cols)))) if gathers else row

    def all_of_row(self, cols: int) -> bool:
        """Whether a tile of so many columns has all there are of the rows that its operands begin in."""
        return cols == self.shape.cols and not self.shape.held and not self.shape.weighs

    def stores_fill(self, cols: int) -> bool:
        """Whether results may be stored with what fills their rows up: zeros, as the vector unit writes whole lines."""
        wide, size = self.shape.result(cols), self.shape.dtype.size
        whole = cols == self.shape.cols and not self.shape.gathers and self.shape.cached is None
        return whole and size(written_values(self.tile, wide)) == self.local(wide)

    def copied(self, cols: int) -> int:
        """Columns that the vector unit copies of gathered rows of ``cols``: all from row to row."""
        return self.local(cols) * 8 // self.shape.dtype.bits

    def indexed(self, rows: int) -> int:
        """Rows whose indices are loaded at a time, where tiles have ``rows``: whole tiles, if can be whole beats."""
        if self.shape.rows <= self.most_indices:
            return self.shape.rows
        whole = lcm(rows, max(self.bus // INDEX_BYTES, 1))
        unit = whole if whole <= self.most_indices else rows
        return unit * max(self.most_indices // unit, 1)

    def stores(self, cols: int) -> int:
        """Transfers that store a tile of ``cols`` columns of keys or values: one for each head, and panel of it."""
        assert self.shape.cached is not None
        heads, width = self.shape.heads_of(cols)
        if self.shape.cached.scaled:
            parts = -(-width // (self.group if self.shape.cached.transposed else self.block))
            once = self.shape.tokens == 1 and not self.shape.cached.transposed
            return 2 * heads * (1 if once else parts)
        return heads if self.shape.cached.transposed else heads * -(-width // self.block)

    def needs(self, rows: int, cols: int) -> dict[str, int]:
        """What tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`."""
        each = rows * self.local(cols)
        result = cols * self.local(rows) if self.shape.transposes else rows * self.local(self.shape.result(cols))
        bits = self.shape.dtype.bits if self.shape.cached is None else self.shape.cached.result_bits
        result = result * bits // self.shape.dtype.bits
        needs = {"vector": self.shape.firsts * each, "results": self.shape.outputs * result}
        needs["constants"] = self.shape.constants
        if self.shape.gathers:
            needs["vector"] = max(needs["vector"], INDEX_BYTES * self.indexed(rows))
            needs["results"] += self.beside
        needs |= {"second": self.shape.seconds * each} if self.shape.seconds else {}
        needs |= {"second": rows * self.local(self.shape.counted)} if self.shape.weighs else {}
        if self.shape.recurrent is not None:
            needs |= self._further(rows, cols, needs["results"])
        return needs | ({"chained": each} if self.shape.chained else {})

    def _further(self, rows: int, cols: int, results: int) -> dict[str, int]:
        """What states, parameters and operands that columns share add to a tile's needs."""
        own = self.shape.recurrent
        assert own is not None
        states = own.states_of(rows) * self.local(cols)
        second = states + own.given * self.local(cols) + (rows * self.local(own.beside) if own.beside else 0)
        return {"results": results + states} | ({"second": second} if second else {})


def tile_counts(total: int, size: int) -> list[tuple[int, int]]:
    """Size and number of the full tiles along a dimension, and of the rest."""
    full, rest = divmod(total, size)
    return ([(size, full)] if full else []) + ([(rest, 1)] if rest else [])
