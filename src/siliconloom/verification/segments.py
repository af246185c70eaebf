"""A segment of random programs: a softmax whose columns come tile by tile, and what is made of its powers."""

from __future__ import annotations

import random
from typing import Protocol

from msgspec import Struct

from siliconloom.arch.isa import Address, Unit
from siliconloom.arch.layout import parameter_bytes, product_values, row_values, sums_lines, sums_pitch
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LOCAL_BITS
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.rings import SLOTS, Loop, Ring, affine

MOST_ROWS = 12


class SegmentWriter(Protocol):
    """What a writer of random programs has for its segments, see `verification.writer.Writer`."""

    tile: NpuTile
    chance: random.Random
    builder: ProgramBuilder
    rings: dict[str, Ring]
    sums: Ring
    slot: int
    parameters: list[tuple[int, int, int]]
    scalars: list[int]

    def split(self, cols: int) -> tuple[int, int]:
        """How lines of sums of so many columns are split, and where in a line they begin."""

    @property
    def operand_room(self) -> int: ...

    @property
    def result_room(self) -> int: ...

    def size(self, limit: int) -> int: ...

    def operand(self, count: int) -> int: ...

    def result(self, count: int) -> int: ...

    def aligned(self, count: int) -> int: ...

    def fetch(self, ring: Ring, count: int, address: Address) -> None: ...

    def put(self, rows: int, width: int, address: Address) -> None: ...

    def line(self, cols: int) -> int: ...

    def written(self, cols: int) -> int: ...


class CarriedSizes(Struct, frozen=True):
    """Tiles, rows, keys of a tile, depth of a score, columns of the result; bytes of operands, powers and results."""

    turns: int
    rows: int
    keys: int
    depth: int
    columns: int
    first: int
    second: int
    values: int
    powers: int
    result: int
    parameters: int


class Carried:
    """Writes such segments into programs of a tile.

    An array that keeps its sums takes no powers as the softmax leaves them: there they are stored, and the sums of one
    more tile are divided by the totals.
    """

    def __init__(self, writer: SegmentWriter) -> None:
        self.writer, self.tile, builder = writer, writer.tile, writer.builder
        array, bank = self.tile.array, self.tile.scratchpad.capacity // self.tile.scratchpad.banks
        self.keeps, self.by_input = (array.dataflow != "output_stationary", array.dataflow == "input_stationary")
        self.lines = sums_lines(self.tile) // SLOTS // 2
        """Lines of a slot of sums for scores; above them lie the sums of products with powers."""
        self.powers = builder.ring("powers", 7 * bank, bank // SLOTS) if self.keeps else writer.rings["out"]
        self.context = builder.ring("context", self.lines * sums_pitch(array), writer.sums.slot_bytes)
        self.closed = 1 << builder.semaphore("closed", 0, "dependency")

    def write(self) -> None:
        """One segment: some tiles, then the quotients."""
        writer, builder, rings = self.writer, self.writer.builder, self.writer.rings
        sizes, narrow = self._sizes(), builder.narrow
        self.score_lines, self.context_lines = writer.split(sizes.keys), writer.split(sizes.columns)
        parameters = rings["parameters"]
        scalars = writer.aligned(parameter_bytes(self.tile, VectorFunction.SOFTMAX_ONLINE, 1, narrow))
        place = writer.operand(scalars)
        writer.scalars.append(place)
        writer.fetch(parameters, scalars, affine(place))
        with builder.loop(sizes.turns) as loop:
            self._scores(sizes, loop)
            self._powers(sizes, loop)
            if self.keeps:
                self._product(sizes, loop)
            else:
                step = writer.aligned(2 * sizes.powers)
                where = affine(writer.result(step * loop.count), (loop, step))
                writer.put(sizes.rows, writer.written(sizes.keys), where)
        parameters.read()
        sums, (split, begin) = self.context, self.context_lines
        if self.keeps:
            sums.written()
        else:
            sums, (split, begin) = writer.sums, self.score_lines
            self._scores(sizes, Loop(None, 1))
        blocks = -(-sizes.columns // self.tile.vector.lanes)
        place = writer.operand(writer.aligned(sizes.parameters))
        writer.parameters.append((place, blocks, writer.line(sizes.columns)))
        writer.fetch(parameters, sizes.parameters, affine(place))
        builder.vector(
            VectorFunction.REQUANTIZE_ROWS,
            sizes.rows,
            sizes.columns,
            self.tile.circuit_format,
            sums,
            rings["out"],
            parameters=parameters,
            powers=self.powers,
            wait=sums.full_bit | rings["out"].free_bit | parameters.full_bit,
            release=sums.free_bit,
            post=rings["out"].full_bit | parameters.free_bit | self.closed,
            source_offset=begin,
            split=split,
        )
        sums.read()
        parameters.read()
        rings["out"].written()
        # products of other segments take all of a slot
        builder.barrier(Unit.MATMUL, wait=self.closed)
        writer.put(sizes.rows, writer.written(sizes.columns), affine(writer.result(writer.aligned(2 * sizes.result))))

    def _shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a product whose sums have these."""
        return (columns, rows) if self.by_input else (rows, columns)

    def _sizes(self) -> CarriedSizes:
        writer, tile, chance = self.writer, self.tile, self.writer.chance
        array, size, narrow = tile.array, tile.element_bytes, writer.builder.narrow
        while True:
            turns, rows = chance.choice([1, 2, 2, 3, 4]), writer.size(MOST_ROWS)
            keys, depth, wide = (
                writer.size(2 * array.rows + 1),
                writer.size(array.rows + 2),
                writer.size(2 * array.cols),
            )
            scores = product_values(tile, *self._shape(rows, keys), depth, narrow)
            products = product_values(tile, *self._shape(rows, wide), keys, narrow) if self.keeps else scores
            columns = wide if self.keeps else keys
            made = CarriedSizes(
                turns,
                rows,
                keys,
                depth,
                columns,
                size * scores.a,
                size * scores.b,
                size * (products.a if self.by_input else products.b),
                size * rows * row_values(tile, keys, narrow),
                size * rows * row_values(tile, columns, narrow),
                parameter_bytes(tile, VectorFunction.REQUANTIZE_ROWS, columns, narrow),
            )
            parts = (made.first, made.second, made.values, made.powers, made.result, made.parameters)
            stored = writer.aligned(2 * made.powers) * turns + writer.aligned(2 * made.result)
            fits = max(parts) <= writer.slot and stored <= writer.result_room
            fits = fits and turns * writer.aligned(max(parts)) <= writer.operand_room
            if fits and max(scores.lines, products.lines) <= self.lines:
                return made

    def _fetch(self, ring: Ring, size: int, loop: Loop) -> None:
        """An operand of each turn."""
        step = self.writer.aligned(size)
        self.writer.fetch(ring, size, affine(self.writer.operand(step * loop.count), (loop, step)))

    def _scores(self, sizes: CarriedSizes, loop: Loop) -> None:
        writer, sums = self.writer, self.writer.sums
        first, second = writer.rings["moving"], writer.rings["weights"]
        self._fetch(first, sizes.first, loop)
        self._fetch(second, sizes.second, loop)
        writer.builder.matmul(
            *self._shape(sizes.rows, sizes.keys),
            sizes.depth,
            self.tile.circuit_format,
            first,
            second,
            sums,
            wait=first.full_bit | second.full_bit,
            release=first.free_bit | second.free_bit,
            first_wait=sums.free_bit,
            last_post=sums.full_bit,
            c_offset=Address(base=self.score_lines[1]),
            split=self.score_lines[0],
        )
        first.read()
        second.read()
        sums.written()

    def _powers(self, sizes: CarriedSizes, loop: Loop) -> None:
        writer, sums, parameters = self.writer, self.writer.sums, self.writer.rings["parameters"]
        seen = writer.chance.choice([None, -1, 0, sizes.keys // 2, sizes.turns * sizes.keys - sizes.rows])
        mask = None if seen is None else affine(seen % (1 << LOCAL_BITS), (loop, -sizes.keys))
        writer.builder.vector(
            VectorFunction.SOFTMAX_ONLINE,
            sizes.rows,
            sizes.keys,
            self.tile.circuit_format,
            sums,
            self.powers,
            parameters=parameters,
            inputs=1 if mask is None else 2,
            mask=mask,
            wait=sums.full_bit | self.powers.free_bit,
            release=sums.free_bit,
            post=self.powers.full_bit,
            first_wait=parameters.full_bit,
            first=loop.mask,
            last_post=parameters.free_bit,
            last=loop.mask,
            overwrite=loop.mask,
            source_offset=self.score_lines[1],
            split=self.score_lines[0],
        )
        sums.read()
        self.powers.written()

    def _product(self, sizes: CarriedSizes, loop: Loop) -> None:
        values, context = self.writer.rings["moving" if self.by_input else "weights"], self.context
        self._fetch(values, sizes.values, loop)
        self.writer.builder.matmul(
            *self._shape(sizes.rows, sizes.columns),
            sizes.keys,
            self.tile.circuit_format,
            *((values, self.powers) if self.by_input else (self.powers, values)),
            context,
            wait=self.powers.full_bit | values.full_bit,
            release=self.powers.free_bit | values.free_bit,
            first_wait=context.free_bit,
            first=loop.mask,
            last_post=context.full_bit,
            last=loop.mask,
            rescale=True,
            c_offset=Address(base=self.context_lines[1]),
            split=self.context_lines[0],
        )
        self.powers.read()
        values.read()


__all__ = ["Carried"]
