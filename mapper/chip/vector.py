"""Lowering of element-wise and row-wise operators: load rows, compute, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Address
from siliconloom.arch.layout import INDEX_BYTES, padded, row_values
from siliconloom.arch.timing import GATHER_START, LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.arch.vector import ROW_LIMIT, VectorFunction, vector_cost
from siliconloom.mapper.chip.builder import SLOTS, affine
from siliconloom.mapper.chip.cache_layout import CacheLayout
from siliconloom.mapper.chip.gemm_cost import row_bytes
from siliconloom.mapper.chip.layout import Layout, index_bytes, most_indices
from siliconloom.mapper.chip.lowering import Context, Nest, Walk, when
from siliconloom.mapper.chip.operands import Cached, expert_weights, operands
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.transfers import LONGEST_ROW, lowest, pieces
from siliconloom.sim.timing.units import access_cycles, fetch_cycles, moved_bytes, vector_cycles
from siliconloom.workloads import Attention, Operator, Vector


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
    """What one tile of the chip computes; ``passes`` is how many instructions work on each tile of it.

    ``constants`` are the bytes of its parameters, in the order in which the vector unit reads them. ``held`` are the
    columns of the rows that its first operand begins in, where it reads some of them only; ``cached`` is the cache that
    its results go into. ``counted`` is what the instruction's ``k`` is where that is no number of operands: elements of
    a row that are chosen, or rows that are weighted and added.
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
    cached: Cached | None = None
    counted: int = 1

    @property
    def tokens(self) -> int:
        """Rows of one sequence, where it fills a cache; else all."""
        return self.rows if self.cached is None else min(self.rows, self.cached.tokens)

    @property
    def sequences(self) -> int:
        """How many of these there are."""
        return -(-self.rows // self.tokens)

    def lead(self, block: int) -> int:
        """Rows of a sequence before its first whole block of keys."""
        if self.cached is None or not self.cached.keys:
            return 0
        return min(-self.cached.past % block, self.tokens)

    def heights(self, block: int, rows: int) -> list[tuple[int, int]]:
        """Rows of tiles, and how many tiles have so many."""
        lead, times = self.lead(block), self.sequences
        parts = [(lead, times)] if lead else []
        return parts + [(tall, times * count) for tall, count in _parts(self.tokens - lead, rows)]

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

    def divides(self, cols: int, block: int) -> bool:
        """Whether so many columns are whole heads, or parts of one that are wholes in the cache too."""
        assert self.cached is not None
        width = min(self.cached.width, self.cols)
        return cols % width == 0 or (cols < width and (self.cached.keys or cols % block == 0))

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
        return self.counted if spec.chooses or spec.weighs else 2 if self.chained else self.inputs

    def result(self, cols: int) -> int:
        """Columns of the result of so many."""
        return self.function.spec.result_cols(cols)

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
    constants = vector_cost(function).parameter_bytes(cols, tile.vector.lanes)
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
    )


class VectorLayout:
    """Rows of operands and results in memory, and their tiles in local memory; everything in bytes.

    A transposed matrix lies in blocks of as many columns as the array has, each of them whole: keys in the order in
    which the array takes them.
    """

    def __init__(self, tile: NpuTile, shape: VectorShape) -> None:
        self.tile, self.shape, self.lanes, self.block = tile, shape, tile.vector.lanes, tile.array.cols
        self.bus, self.most_indices, self.beside = tile.dma.bytes_per_cycle, most_indices(tile), index_bytes(tile)
        self.row = row_bytes(tile, shape.cols, shape.dtype.bits)
        self.table_row = shape.seconds * row_bytes(tile, row_values(tile, shape.cols), shape.dtype.bits)
        self.source_row = row_bytes(tile, shape.held, shape.dtype.bits) if shape.held else self.row
        self.line = shape.dtype.size(self.block)
        self.result_row = row_bytes(tile, shape.result(shape.cols), shape.dtype.bits)
        self.weight_row = row_bytes(tile, shape.counted, shape.dtype.bits)

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
        return self.needs(min(self.shape.tokens, self.block if self.shape.transposes else 1), self._narrowest(by_row))

    def _narrowest(self, by_row: bool) -> int:
        """Columns that a tile has at least."""
        cached = self.shape.cached
        if cached is None or cached.keys:
            return self.shape.cols if by_row else 1
        return min(cached.width, self.shape.cols) if cached.width % self.block else self.block

    def local(self, cols: int) -> int:
        """From row to row of a tile of ``cols`` columns; where rows are gathered each begins where a long one may."""
        size = self.shape.dtype.size
        row = size(row_values(self.tile, cols))
        return padded(row, lcm(size(self.lanes), self.bus)) if self.shape.gathers else row

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
        return heads if self.shape.cached.keys else heads * -(-width // self.block)

    def needs(self, rows: int, cols: int) -> dict[str, int]:
        """What tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`."""
        each = rows * self.local(cols)
        result = cols * self.local(rows) if self.shape.transposes else rows * self.local(self.shape.result(cols))
        needs = {"vector": self.shape.firsts * each, "results": self.shape.outputs * result}
        needs["constants"] = self.shape.constants
        if self.shape.gathers:
            needs["vector"] = max(needs["vector"], INDEX_BYTES * self.indexed(rows))
            needs["results"] += self.beside
        needs |= {"second": self.shape.seconds * each} if self.shape.seconds else {}
        needs |= {"second": rows * self.local(self.shape.counted)} if self.shape.weighs else {}
        return needs | ({"chained": each} if self.shape.chained else {})


def choose_vector_tilings(chip: Chip, layouts: Sequence[Layout], shape: VectorShape) -> list[list[VectorTiling]]:
    """For each layout the two cheapest tiles, the best first: few pay for latencies less often, several overlap."""
    costs: dict[tuple[int, int], VectorTiling] = {}
    found = []
    assert isinstance(chip.tile, NpuTile)
    for layout in layouts:
        sizes = _sizes(chip.tile, layout, shape)
        for size in sizes:
            if size not in costs:
                costs[size] = _cost(chip, shape, *size)
        found.append(sorted((costs[size] for size in sizes), key=lambda tiling: tiling.cycles)[:2])
    return found


def vector_tiling(chip: Chip, shape: VectorShape, rows: int, cols: int) -> VectorTiling:
    """A tiling of these sizes with what it should take."""
    return _cost(chip, shape, rows, cols)


def _sizes(tile: NpuTile, layout: Layout, shape: VectorShape) -> list[tuple[int, int]]:
    """Rows and columns of tiles to try; a single row that does not fit is cut when the function allows it."""
    made, by_row = VectorLayout(tile, shape), vector_cost(shape.function).by_row

    def fits(rows: int, cols: int) -> bool:
        return all(need <= getattr(layout, ring) for ring, need in made.needs(rows, cols).items())

    lanes, bus = made.lanes, tile.dma.bytes_per_cycle
    several = max(1, bus // lowest(made.row))  # so many rows begin where a long row of a transfer may
    rows = {min(shape.rows, -(-r // unit) * unit) for r in _halvings(shape.rows) for unit in (1, several)}
    if shape.transposes:
        rows = {min(shape.tokens, made.block)}
    fine = lanes if shape.table else min(lanes, MOST_FINE)  # a table lies line by line
    cols = {shape.cols} if by_row else {min(shape.cols, padded(c, fine)) for c in _halvings(shape.cols)}
    if shape.cached is not None:
        width = min(shape.cached.width, shape.cols)
        rows = {min(r, shape.tokens) for r in rows}
        cols = {heads * width for heads in _halvings(shape.heads)} | set(_halvings(width))
        cols |= {padded(part, made.block) for part in _halvings(width)}
        cols = {c for c in cols if c <= shape.cols and shape.divides(c, made.block) and made.stores(c) <= MOST_STORES}
    cols = {c for c in cols if shape.dtype.size(c) <= LONGEST_ROW}
    if by_row:
        rows = {min(r, ROW_LIMIT) for r in rows}
    if shape.gathers:
        rows = {min(r, most_indices(tile)) for r in rows}
        cols = {c for c in cols if c == shape.cols or not shape.dtype.size(c) % bus}
    if not cols:
        return []
    most, least = max(cols), min(rows)
    tall = [(r, most) for r in sorted(rows, reverse=True) if fits(r, most)]
    flat = [(least, c) for c in sorted(cols, reverse=True) if c < most and fits(least, c)]
    return tall[:MOST] + flat[:MOST]


MOST_FINE = 64
"""Columns that tiles are multiples of, where there are more lanes than that."""
MOST_STORES = 8
"""Transfers that store one tile of what goes into a cache: each is an instruction of its own."""
MOST = 12
"""Heights, and widths of single rows, that are costed for a layout."""


def _halvings(total: int) -> list[int]:
    """A size and what its halves, quarters and so on round up to, down to a single one."""
    return sorted({-(-total // (1 << n)) for n in range(total.bit_length() + 1)}, reverse=True)


def _cost(chip: Chip, shape: VectorShape, rows: int, cols: int) -> VectorTiling:
    """What a tile size moves and takes: each unit's own cycles, and how the buffers' turn-around paces them."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    memory, size, unit, made = chip.nearest, shape.dtype.size, tile.vector, VectorLayout(tile, shape)
    function = VectorFunction.COPY if shape.gathers else shape.function
    within = size(cols) if cols < shape.cols else 0
    places = (rows * made.row if rows < shape.rows else 0) | within
    source_places = (rows * made.source_row if rows < shape.rows else 0) | within
    cache = CacheLayout(tile, memory, shape.cached) if shape.cached is not None else None

    def transfer(lines: int, width: int, pitch: int, local: int, places: int) -> tuple[int, int]:
        made = pieces(tile.dma.bytes_per_cycle, lines, width, pitch, local, places)
        if not made:
            return 0, 0
        one = made[0].fields["m"], made[0].fields["n"]  # the pieces of an operand have one shape
        return len(made) * moved_bytes(memory, *one), len(made) * access_cycles(chip, memory, *one)

    read = written = port = vector = tiles = 0
    stores = shape.outputs
    for tall, many in shape.heights(made.block, rows):
        for wide, count in _parts(shape.cols, cols):
            times, local = many * count, made.local(wide)
            beside = shape.inputs if shape.weighs else 1
            apart = source_places | (local if shape.weighs else 0)
            operand = transfer(tall, size(wide), made.source_row, beside * local, apart)
            weights = (0, 0)
            if shape.weighs:
                at = rows * made.weight_row if rows < shape.rows else 0
                weights = transfer(tall, size(shape.counted), made.weight_row, made.local(shape.counted), at)
            second = made.second_row
            table = transfer(tall, made.second_width(wide), second, shape.seconds * local, source_places)
            others = shape.passes
            result = operand
            if shape.gathers:
                moved = tall, size(wide)
                operand = moved_bytes(memory, *moved), GATHER_START + access_cycles(chip, memory, *moved)
            if made.source_row != made.row:
                result = transfer(tall, size(wide), made.row, local, places)
            if cache is not None:
                stored = cache.rows(tall, *shape.heads_of(wide))
                moves = [transfer(r.rows, r.width, r.pitch, r.local_pitch, r.offset | r.local) for r in stored]
                result = sum(moved for moved, _ in moves), sum(held for _, held in moves)
                stores = max(stores, len(moves))
            elif shape.transposes:
                result = transfer(wide, size(tall), made.line, made.local(tall), wide * made.line)
            elif shape.weighs:
                result = transfer(tall, size(wide), made.row, local, places)
            elif shape.result(wide) != wide:
                narrow = shape.result(wide)
                at = rows * made.result_row if rows < shape.rows else 0
                result = transfer(tall, size(narrow), made.result_row, made.local(narrow), at)
            tiles += times
            read += times * (shape.firsts * operand[0] + (others * table[0] if shape.seconds else 0) + weights[0])
            written += times * shape.outputs * result[0]
            port += times * (
                shape.firsts * operand[1]
                + (others * table[1] if shape.seconds else 0)
                + weights[1]
                + shape.outputs * result[1]
            )
            columns = made.copied(wide) if shape.gathers else wide
            vector += times * shape.passes * vector_cycles(unit, function, tall, columns, shape.size)
    operands = shape.inputs + shape.table + shape.weighs
    one = port // (tiles * (operands + shape.outputs))
    load, compute, store = one * operands, vector // tiles, one * shape.outputs
    latency = chip.cycles(memory.latency)
    arrive = latency + QUEUE_POP + TRANSFER_START + LOAD_WRITE
    away = latency + QUEUE_POP + TRANSFER_START + STORE_WRITE
    fetch, _ = fetch_cycles(chip)
    issued = operands + stores + shape.passes
    sequencer = tiles * (issued * tile.sequencer.issue_cycles + tile.sequencer.loop_cycles)
    constants = 0
    if shape.constants:
        constants = access_cycles(chip, memory, 1, shape.constants)
        read += moved_bytes(memory, 1, shape.constants)
    if shape.gathers:
        for count, many in _parts(shape.rows, made.indexed(rows)):
            width = INDEX_BYTES * count
            read += many * moved_bytes(memory, 1, width)
            copied = vector_cycles(unit, function, 1, width)
            constants += many * (access_cycles(chip, memory, 1, width) + arrive + copied)
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
    return ([(size, full)] if full else []) + ([(rest, 1)] if rest else [])


class VectorLowering:
    """Writes one operator: parameters once, then tile by tile."""

    def __init__(self, context: Context, task: Task, shape: VectorShape, tiling: VectorTiling) -> None:
        self.context, self.task, self.shape, self.tiling = context, task, shape, tiling
        self.nest = Nest(context, task.depends)
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

        Operands beyond the second are added to what the instruction before left.
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
        self.nest.load(self.context.rings.second, rows.size, width, row, where, local_pitch=local)

    def _load_weights(self, rows: Walk) -> None:
        """Load the weights of some rows."""
        row, cols = self.layout.weight_row, self.shape.counted
        where = affine(self.weights + rows.start * row, (rows.loop, rows.size * row))
        local = self.layout.local(cols)
        self.nest.load(self.context.rings.second, rows.size, self.shape.dtype.size(cols), row, where, local_pitch=local)


def too_small(chip: Chip, what: str) -> LoomError:
    """Make the error for work that fits no division of the tile's buffers."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    return LoomError(
        f"{chip.name}: tile.scratchpad.capacity ({tile.scratchpad.capacity} B) and tile.accumulator.capacity "
        f"({tile.accumulator.capacity} B) cannot hold two tiles of each operand of {what}; enlarge them"
    )
