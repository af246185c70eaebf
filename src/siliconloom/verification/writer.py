"""Segments of random programs: loop nests that stream operands of random sizes through rings."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.assembler import SECOND_OPERAND
from siliconloom.arch.datatype import CACHE_SCALED, DataType, Packing
from siliconloom.arch.floats import patterns_of
from siliconloom.arch.isa import Address, Unit
from siliconloom.arch.layout import (
    INDEX_BYTES,
    filled_values,
    line_values,
    padded,
    parameter_bytes,
    product_values,
    row_unit,
    row_values,
    sums_begin,
    sums_lines,
    sums_pitch,
    sums_split,
    window_of,
)
from siliconloom.arch.packing import has_groups, weight_bytes
from siliconloom.arch.scaled import keeps_scales, result_bytes
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import (
    FROM_SUMS,
    ROW_LIMIT,
    SCALAR_BYTES,
    VectorFunction,
    built_in,
    column_lines,
    vector_cost,
)
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.rings import SLOTS, Ring, affine
from siliconloom.verification.images import PROGRAM_BASE, RESULTS

MOST_ROWS = 12
"""Rows that one instruction gathers at most."""
MOST_LISTS = 3
"""Lists of indices that one segment gathers by, at most."""
EPSILONS = (0, 0, *patterns_of(np.array([1e-5, 0.25, 3.0]), DataType.BF16).tolist())
"""Patterns of what norms in floating point add to mean squares."""


def product_sizes(tile: NpuTile, m: int, n: int, k: int, narrow: int = 0) -> tuple[int, int, int, int, int]:
    """Bytes of both operands of a product, lines of its sums, rows and columns of what these are."""
    shape = (n, m) if tile.array.dataflow == "input_stationary" else (m, n)
    values, size = product_values(tile, m, n, k, narrow), tile.element_bytes
    return size * values.a, size * values.b, values.lines, *shape


@dataclass
class Writer:
    """Writes segments of a program: each a loop nest that streams operands through rings."""

    chip: Chip
    tile: NpuTile
    chance: random.Random
    segments: int = 3
    builder: ProgramBuilder = field(default_factory=ProgramBuilder)
    results: int = RESULTS
    lists: int = PROGRAM_BASE
    indices: list[tuple[int, int, int]] = field(default_factory=list)
    """Where indices lie, how many, and rows of the table that they are of; from ``lists`` on, which grows downwards."""
    parameters: list[tuple[int, int, int]] = field(default_factory=list)
    """Where parameters of columns lie, how many lines of each, and values of a line."""
    scalars: list[int] = field(default_factory=list)
    splits: random.Random = field(default_factory=random.Random)
    """Numbers of their own for how lines of sums are split: whoever has none draws the others as ever."""
    keeps: random.Random = field(default_factory=random.Random)
    """As ``splits``, for what results are kept in."""

    def __post_init__(self) -> None:
        tile = self.tile
        bank = tile.scratchpad.capacity // tile.scratchpad.banks
        names = ("weights", "moving", "first", "parameters", "out", "second", "indices")
        self.rings = {name: self.builder.ring(name, place * bank, bank // SLOTS) for place, name in enumerate(names)}
        self.slot = bank // SLOTS
        self.sums = self.builder.ring("sums", 0, sums_lines(tile) // SLOTS * sums_pitch(tile.array))
        self.fence = self.builder.semaphore("fence", 0, "dependency")

    @property
    def dtype(self) -> DataType:
        """What the tile computes in."""
        return self.tile.circuit_format

    @property
    def functions(self) -> list[VectorFunction]:
        """What the vector unit makes of operands in local memory."""
        return sorted(built_in(self.dtype) - FROM_SUMS)

    def row_bytes(self, cols: int) -> int:
        """Bytes from row to row of an operand of so many columns."""
        return self.tile.element_bytes * row_values(self.tile, cols, self.builder.narrow)

    def line(self, cols: int) -> int:
        """Values of a line of so many columns."""
        return line_values(cols, self.tile.vector.lanes, self.builder.narrow)

    def written(self, cols: int) -> int:
        """Bytes of a row of so many columns that the vector unit writes."""
        return self.tile.element_bytes * padded(cols, self.line(cols))

    def split(self, cols: int) -> tuple[int, int]:
        """How lines of sums of so many columns are split, and where in a line they begin."""
        array = self.tile.array
        split = self.splits.randint(0, int(sums_split(array, cols)))
        line, pitch = sums_begin(array, cols, split), sums_pitch(array)
        return split, line * self.splits.randrange(pitch // line)

    def kept(self, function: VectorFunction) -> Packing | None:
        """In which format of fewer bits the results of a function are kept, if in any."""
        formats = self.tile.array.cache
        if not formats or not function.spec.keeps or self.keeps.random() < 0.2:
            return None
        dtype = self.keeps.choice(formats)
        return Packing(dtype, 0, by_rows=dtype in CACHE_SCALED and not function.spec.transposes)

    def packing(self) -> Packing | None:
        """How a product's weights are packed, if they are."""
        array = self.tile.array
        if not self.tile.stationary_formats or self.chance.random() < 0.3:
            return None
        dtype = self.chance.choice(self.tile.stationary_formats)
        if not has_groups(array, dtype) or (dtype in array.cache and self.chance.random() < 0.5):
            return Packing(dtype, 0, by_rows=dtype in array.cache_scaled and self.keeps.random() < 0.5)
        powers = [1 << power for power in range(7) if 1 << power >= array.load_rows]
        return Packing(dtype, self.chance.choice(powers))

    @property
    def operand_room(self) -> int:
        """Bytes that one operand of a segment may take of memory."""
        return RESULTS - self.tile.dma.bytes_per_cycle

    @property
    def result_room(self) -> int:
        """Bytes that the results of one segment may take, besides the indices that lie behind all results."""
        return (PROGRAM_BASE - RESULTS) // self.segments - MOST_LISTS * self.aligned(MOST_ROWS * INDEX_BYTES)

    def size(self, limit: int) -> int:
        """A size up to ``limit``, the small and the round ones more often."""
        limit = max(limit, 1)
        choice = self.chance.choice([1, 2, self.tile.array.rows, self.tile.array.cols, self.chance.randint(1, limit)])
        return min(choice, limit)

    def operand(self, count: int) -> int:
        """Address of an operand of ``count`` bytes, a multiple of the bus."""
        bus = self.tile.dma.bytes_per_cycle
        return self.chance.randrange((RESULTS - count) // bus) * bus

    def result(self, count: int) -> int:
        """A fresh address for ``count`` bytes of results."""
        bus = self.tile.dma.bytes_per_cycle
        found = self.results
        self.results += -(-count // bus) * bus
        return found

    def gemm(self) -> None:
        """Tiles of a product, summed over k, requantised, stored."""
        array, rings, builder = self.tile.array, self.rings, self.builder
        rows, cols, lanes, size = array.rows, array.cols, self.tile.vector.lanes, self.tile.element_bytes
        while True:
            loops = [self.chance.choice([1, 1, 2, 3]) for _ in range(3)]
            m, n, k = self.size(3 * rows + 3), self.size(2 * cols + 1), self.size(3 * rows + 1)
            a_bytes, b_bytes, sums, out_rows, out_cols = product_sizes(self.tile, m, n, k, builder.narrow)
            packing = self.packing()
            if packing is not None:
                b_bytes = int(weight_bytes(array, packing, n, k, builder.narrow))
            pitch = 0
            if self.chance.random() < 0.3:
                by_input = array.dataflow == "input_stationary"
                wide, row, beats = k, self.row_bytes(k), n if by_input else m
                if array.dataflow == "output_stationary":  # A's transpose, whose last block is read whole
                    wide, row, beats = m, size * filled_values(m, rows, builder.narrow), k
                pitch = self.row_bytes(wide + self.chance.randint(1, 2 * rows))
                apart = (beats - 1) * pitch + row
                a_bytes, b_bytes = (a_bytes, apart) if by_input else (apart, b_bytes)
            out_blocks, out_row = -(-out_cols // lanes), self.row_bytes(out_cols)
            taken, out_bytes = column_lines(self.dtype) * self.written(out_cols), out_rows * out_row
            operands = (
                self.aligned(a_bytes) * loops[0] * loops[2],
                self.aligned(b_bytes) * loops[1] * loops[2],
                self.aligned(taken) * loops[1],
            )
            fits = max(a_bytes, b_bytes, taken, out_bytes) <= self.slot
            fits = fits and max(operands) <= self.operand_room
            fits = fits and self.aligned(out_bytes) * loops[0] * loops[1] <= self.result_room
            if fits and sums * sums_pitch(array) <= self.sums.slot_bytes:
                break
        a_base, b_base = self.operand(a_bytes * loops[0] * loops[2]), self.operand(b_bytes * loops[1] * loops[2])
        function = self.chance.choice([VectorFunction.REQUANTIZE, VectorFunction.SOFTMAX])
        known = function in built_in(self.dtype) and out_rows <= ROW_LIMIT
        function = function if known else VectorFunction.REQUANTIZE
        taken = parameter_bytes(self.tile, function, out_cols, builder.narrow)
        p_base = self.operand(self.aligned(taken) * loops[1])
        for number in range(loops[1]):
            where = p_base + self.aligned(taken) * number
            if function == VectorFunction.REQUANTIZE:
                self.parameters.append((where, out_blocks, self.line(out_cols)))
            else:
                self.scalars.append(where)
        masked = function == VectorFunction.SOFTMAX and self.chance.random() < 0.7
        out = self.result(self.aligned(out_bytes) * loops[0] * loops[1])
        split, begin = self.split(out_cols)
        first, second = rings["moving"], rings["weights"]
        sums_ring, parameters = self.sums, rings["parameters"]
        with builder.loop(loops[1]) as over_n:
            self.fetch(parameters, taken, affine(p_base, (over_n, self.aligned(taken))))
            with builder.loop(loops[0]) as over_m:
                with builder.loop(loops[2]) as over_k:
                    step = self.aligned(a_bytes)
                    self.fetch(first, a_bytes, affine(a_base, (over_m, step * loops[2]), (over_k, step)))
                    step = self.aligned(b_bytes)
                    self.fetch(second, b_bytes, affine(b_base, (over_n, step * loops[2]), (over_k, step)))
                    builder.matmul(
                        m,
                        n,
                        k,
                        self.dtype,
                        first,
                        second,
                        sums_ring,
                        wait=first.full_bit | second.full_bit,
                        release=first.free_bit | second.free_bit,
                        first_wait=sums_ring.free_bit,
                        first=over_k.mask,
                        last_post=sums_ring.full_bit,
                        last=over_k.mask,
                        pitch=pitch,
                        packing=packing,
                        c_offset=Address(base=begin),
                        split=split,
                    )
                    first.read()
                    second.read()
                sums_ring.written()
                builder.vector(
                    function,
                    out_rows,
                    out_cols,
                    self.dtype,
                    sums_ring,
                    rings["out"],
                    inputs=2 if masked else 1,
                    mask=Address(base=self.chance.choice([0, 1, out_cols])) if masked else None,
                    parameters=parameters,
                    wait=sums_ring.full_bit | rings["out"].free_bit,
                    first_wait=parameters.full_bit,
                    first=over_m.mask,
                    release=sums_ring.free_bit,
                    post=rings["out"].full_bit,
                    last_post=parameters.free_bit,
                    last=over_m.mask,
                    source_offset=begin,
                    split=split,
                )
                sums_ring.read()
                rings["out"].written()
                step = self.aligned(out_bytes)
                self.put(out_rows, self.written(out_cols), affine(out, (over_m, step), (over_n, step * loops[0])))
            parameters.read()

    def elementwise(self) -> None:
        """Blocks of an operand, or two, through the vector unit."""
        lanes, builder, rings = self.tile.vector.lanes, self.builder, self.rings
        function, element = self.chance.choice(self.functions), self.tile.element_bytes
        cost, second = vector_cost(function, self.dtype), SECOND_OPERAND.get(function, 0)
        transposes, unit, spec = function == VectorFunction.TRANSPOSE, row_unit(self.tile), function.spec
        narrow = builder.narrow
        counts = spec.chooses or spec.weighs or (spec.epsilon and not self.dtype.is_integer)
        kept = self.kept(function)
        while True:
            turns, inputs = self.chance.choice([1, 2, 4]), 1
            rows, width = self.size(10), self.size(3 * lanes + 1)
            if function == VectorFunction.ROPE:  # a last column alone is turned with whatever lies behind it
                width += width % 2
            if transposes and rows > unit:
                rows = row_values(self.tile, rows)
            if keeps_scales(kept):
                rows, width = min(rows, lanes) if transposes else rows, width + width % 2
            if spec.chooses:  # all of a row now and then
                inputs = self.chance.choice([1, 2, self.size(width + 2)])
            elif spec.weighs:
                inputs = self.chance.choice([1, 2, self.size(2 * lanes + 1)])
            elif spec.epsilon and not self.dtype.is_integer:
                inputs = self.chance.choice(EPSILONS)
            results_width = spec.result_cols(width, self.dtype)
            blocks = -(-width // lanes)
            size, taken = rows * self.row_bytes(width), parameter_bytes(self.tile, function, width, narrow)
            out_bytes = width * self.row_bytes(rows) if transposes else size
            first_bytes, second_bytes = size, second * size
            if spec.weighs:
                first_bytes, second_bytes = inputs * size, rows * self.row_bytes(inputs)
            elif spec.indexes:
                out_bytes = rows * self.row_bytes(results_width)
            fits = max(first_bytes, second_bytes, out_bytes, taken) <= self.slot
            operands = max(self.aligned(first_bytes), self.aligned(second_bytes)) * turns
            operands = max(operands, self.aligned(taken))
            stored = self.aligned(2 * out_bytes) * turns
            if fits and operands <= self.operand_room and stored <= self.result_room:
                break
        first, other, out, parameters = (rings[name] for name in ("first", "second", "out", "parameters"))
        if taken:
            place = self.operand(self.aligned(taken))
            if cost.setup:
                self.parameters.append((place, blocks, self.line(width)))
            elif cost.once[0] == SCALAR_BYTES:
                self.scalars.append(place)
            self.fetch(parameters, taken, affine(place))
        with builder.loop(turns) as loop:
            sources = [(first, first_bytes)] + ([(other, second_bytes)] if second_bytes else [])
            for ring, count in sources:
                step = self.aligned(count)
                self.fetch(ring, count, affine(self.operand(step * loop.count), (loop, step)))
            builder.vector(
                function,
                rows,
                width,
                self.dtype,
                first,
                out,
                second=other if second_bytes else None,
                inputs=inputs if counts else len(sources),
                parameters=parameters if taken else None,
                packing=kept,
                wait=sum(ring.full_bit for ring, _ in sources) | out.free_bit,
                post=out.full_bit,
                release=sum(ring.free_bit for ring, _ in sources),
                first_wait=parameters.full_bit if taken else 0,
                first=loop.mask,
                last_post=parameters.free_bit if taken else 0,
                last=loop.mask,
            )
            for ring, _ in sources:
                ring.read()
            out.written()
            step = self.aligned(2 * out_bytes)
            where = affine(self.result(step * loop.count), (loop, step))
            if kept is not None and keeps_scales(kept):
                self.put_scaled(kept, rows, width, where, transposes)
            elif kept is not None:
                self.put_kept(kept.dtype, *((width, rows) if transposes else (rows, width)), where, transposes)
            elif transposes and element * rows < self.row_bytes(rows):  # the rest of a row has never been written
                self.columns(width, element * rows, where)
            else:
                self.put(*((width, element * rows) if transposes else (rows, self.written(results_width))), where)
        if taken:
            parameters.read()

    def gather(self) -> None:
        """Rows of a table by index, copied and stored."""
        builder, rings, chance, bus = self.builder, self.rings, self.chance, self.tile.dma.bytes_per_cycle
        first, out, indices = rings["first"], rings["out"], rings["indices"]
        while True:
            turns = chance.randint(1, MOST_LISTS)
            rows, width = self.size(MOST_ROWS), chance.choice([bus, self.size(4 * bus), self.size(2 * bus)])
            local = self.aligned(width) if width > bus else window_of(bus, width)
            fits = max(rows * local, self.aligned(INDEX_BYTES * rows)) <= self.slot
            fits = fits and not width % self.tile.element_bytes and not rows * local % self.tile.element_bytes
            if fits and turns * self.aligned(rows * local) <= self.result_room:
                break
        table, pitch = chance.choice([1, 2, chance.randint(1, 40)]), self.aligned(width) + chance.choice([0, 0, bus])
        table = min(table, max((self.operand_room - bus) // pitch, 1))
        where = self.operand(table * pitch + bus)
        with builder.loop(turns) as loop:
            count = INDEX_BYTES * rows
            self.lists -= loop.count * self.aligned(count)
            for number in range(loop.count):
                self.indices.append((self.lists + number * self.aligned(count), rows, table))
            builder.load(indices, 1, count, count, affine(self.lists, (loop, self.aligned(count))))
            builder.gather(
                first,
                indices,
                rows,
                width,
                pitch,
                affine(where, (loop, chance.choice([0, 0, bus]) if loop.count == 2 else 0)),
                table,
                local_pitch=local,
                wait=indices.full_bit,
                release=indices.free_bit,
            )
            indices.read()
            builder.vector(
                VectorFunction.COPY,
                1,
                rows * local // self.tile.element_bytes,
                self.dtype,
                first,
                out,
                wait=first.full_bit | out.free_bit,
                release=first.free_bit,
                post=out.full_bit,
            )
            first.read()
            out.written()
            step = self.aligned(rows * local)
            target = affine(self.result(step * loop.count), (loop, step))
            builder.store(out, rows, width, local, target, local_pitch=local)

    def barrier(self) -> None:
        """Loads wait for everything that has been stored."""
        self.builder.barrier(Unit.STORE, post=1 << self.fence)
        self.builder.barrier(Unit.LOAD, wait=1 << self.fence)
        if self.chance.random() < 0.5:
            self.builder.barrier(self.chance.choice([Unit.VECTOR, Unit.MATMUL]))

    def aligned(self, count: int) -> int:
        bus = self.tile.dma.bytes_per_cycle
        return -(-count // bus) * bus

    def fetch(self, ring: Ring, count: int, address: Address) -> None:
        """Fill a slot in one of several ways that mean the same."""
        bus = self.tile.dma.bytes_per_cycle
        pieces = [d for d in (2, 3, 4) if count % d == 0 and ((count // d) % bus == 0 or bus % (count // d) == 0)]
        if pieces and self.chance.random() < 0.4:  # rows that adjoin, yet are told apart
            rows = self.chance.choice(pieces)
            width = count // rows
            # A pitch of its own would need an image of its own: rows repeat or skip operands instead.
            pitch = width if width % bus and bus % width else self.chance.choice([0, 1, 2]) * max(width, bus)
            if width < bus:
                pitch = self.chance.choice([0, 1, 3]) * width if self._inside(width) else width
            self.builder.load(ring, rows, width, pitch, address, local_pitch=width)
        elif count % 2 == 0 and (count // 2) % bus == 0 and self.chance.random() < 0.3:  # two loads for one slot
            half = count // 2
            self.builder.load(ring, 1, half, half, address, closes=False)
            rest = replace(address, base=address.base + half)
            self.builder.load(ring, 1, half, half, rest, opens=False, offset=half)
        else:
            self.builder.load(ring, 1, count, count, address)

    def _inside(self, width: int) -> bool:
        return width & (width - 1) == 0

    def put(self, rows: int, width: int, address: Address) -> None:
        """Empty a slot of the results ring: packed, or one byte a row; ``width`` bytes of each row were written."""
        ring, bus = self.rings["out"], self.tile.dma.bytes_per_cycle
        if width != self.row_bytes(width // self.tile.element_bytes):
            self.columns(rows, width, address)
        elif self.chance.random() < 0.2:
            self.builder.store(
                ring, rows, 1, self.chance.choice([1, 3, bus]) if rows * bus <= width else 1, address, local_pitch=width
            )
        elif rows > 1 and (width % bus == 0) and self.chance.random() < 0.5:
            self.builder.store(ring, rows, width, width, address, local_pitch=width)
        else:
            self.builder.store(ring, 1, rows * width, rows * width, address)

    def put_kept(self, dtype: DataType, rows: int, cols: int, address: Address, transposes: bool) -> None:
        """Empty a slot of results that are kept in a format of fewer bits, of which rows have so many columns."""
        size = dtype.bits // 8
        pitch = size * row_values(self.tile, cols, self.builder.narrow)
        self.columns(rows, size * (cols if transposes else padded(cols, self.line(cols))), address, pitch)

    def put_scaled(self, kept: Packing, rows: int, cols: int, address: Address, transposes: bool) -> None:
        """As `put_kept`, with scales behind the codes of each line; nothing else of what is transposed is written."""
        narrow = self.builder.narrow
        if not transposes:
            size = result_bytes(kept)
            width, pitch = size * padded(cols, self.line(cols)), size * row_values(self.tile, cols, narrow)
            self.columns(rows, width, address, pitch)
            return
        lines, pitch = cols // 2 if kept.dtype is DataType.INT4 else cols, 2 * row_values(self.tile, rows, narrow)
        self.columns(lines, rows, address, pitch, closes=False)
        self.columns(lines, rows, address, pitch, begin=self.line(rows), opens=False)

    def columns(
        self,
        rows: int,
        width: int,
        address: Address,
        pitch: int = 0,
        *,
        begin: int = 0,
        opens: bool = True,
        closes: bool = True,
    ) -> None:
        """Empty a slot of the results ring by columns, as what lies between its rows has never been written.

        ``begin`` is the first of them; it ``opens`` the slot and ``closes`` it.
        """
        bus, pitch = self.tile.dma.bytes_per_cycle, pitch or self.row_bytes(width // self.tile.element_bytes)
        whole = width < pitch and width <= bus and not (rows > 1 and pitch % window_of(bus, width))
        part = min(width if whole else width & -width, bus)
        for at in range(0, width, part):
            self.builder.store(
                self.rings["out"],
                rows,
                part,
                pitch,
                replace(address, base=address.base + begin + at),
                opens=opens and at == 0,
                closes=closes and at + part >= width,
                offset=begin + at,
                local_pitch=pitch,
            )


__all__ = ["EPSILONS", "MOST_LISTS", "MOST_ROWS", "Writer", "product_sizes"]
