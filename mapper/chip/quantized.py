"""Lowers int8 tensor operations to a Program whose every byte counts: the layouts are those that the RTL reads.

`mapper.chip.mapping` lowers whole models for timing, with parameters and tiles placed but not filled. Here each
operation streams its operands from main memory through rings, tile by tile, and stores its result; a barrier between
operations makes results visible. Weights lie in memory in the order in which the array takes them, keys as transposed
blocks of as many positions as the array has columns, values as blocks of columns; `weight_image` and `Cache` say how.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import Address, Program, Unit
from siliconloom.arch.layout import packed, padded, panel_rows, stationary_values
from siliconloom.arch.vector import VectorFunction, vector_cost
from siliconloom.mapper.chip.builder import SLOTS, Loop, ProgramBuilder, Ring, affine

Int8 = NDArray[np.int8]
RINGS = ("weights", "moving", "probabilities", "first", "second", "parameters", "out", "copy")
"""Rings of a program, one scratchpad bank or more each: their users of each side differ."""


@dataclass(frozen=True)
class Tensor:
    """A matrix of int8 in main memory: ``rows`` x ``cols``, a row every ``pitch`` bytes from ``base`` on."""

    base: int
    rows: int
    cols: int
    pitch: int

    def columns(self, first: int, count: int) -> Tensor:
        """Columns ``first`` to ``first + count``."""
        return replace(self, base=self.base + first, cols=count)


@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer, of at most ``positions`` tokens.

    ``keys``: per head and block of C positions, ``head_dim`` lines of C bytes, one a position. ``values``: per head and
    block of C columns of a head, ``positions`` lines of C bytes. C is the array's columns.
    """

    keys: int
    values: int
    heads: int
    head_dim: int
    positions: int

    @property
    def key_bytes(self) -> int:
        """Keys of one head."""
        return self.head_dim * self.positions

    def value_bytes(self, side: int) -> int:
        """Values of one head, on an array of ``side`` columns."""
        return padded(self.head_dim, side) * self.positions


def weight_image(weights: Int8, tile: NpuTile, tiles: tuple[int, int]) -> NDArray[np.uint8]:
    """Weights (k x n) as they lie in memory: tiles of ``tiles`` = (k, n), n outermost, each in the array's order."""
    k_tile, n_tile = tiles
    pieces = []
    for n in range(0, weights.shape[1], n_tile):
        for k in range(0, weights.shape[0], k_tile):
            pieces.append(packed(tile.array, weights[k : k + k_tile, n : n + n_tile]))
    return np.concatenate(pieces).view(np.uint8)


class LayerWriter:
    """Collects operations of a layer into one program.

    Raises
    ------
    NotSupported
        For arrays that are not weight stationary and square, which the operands' layouts need.
    LoomError
        When an operation's smallest tile does not fit the scratchpad.
    """

    def __init__(self, chip: Chip) -> None:
        tile = chip.tile
        if not isinstance(tile, NpuTile) or tile.array.dataflow != "weight_stationary":
            raise NotSupported("values of a layer on anything but a weight-stationary npu tile")
        if tile.array.rows != tile.array.cols or tile.vector.lanes != tile.array.cols:
            raise NotSupported("values of a layer on an array that is not square, or has other lanes than columns")
        self.chip, self.tile, self.builder = chip, tile, ProgramBuilder(tile.dma.bytes_per_cycle)
        bank = tile.scratchpad.capacity // tile.scratchpad.banks
        each = tile.scratchpad.banks // len(RINGS)
        if each < 1:
            raise LoomError(f"{chip.name}: tile.scratchpad.banks must be at least {len(RINGS)} for a layer's rings")
        self.slot = each * bank // SLOTS
        self.rings = {name: self.builder.ring(name, place * each * bank, self.slot) for place, name in enumerate(RINGS)}
        self.sums = self.builder.ring("sums", 0, tile.accumulator.capacity // SLOTS)
        self.fence = 1 << self.builder.semaphore("fence", 0, "dependency")
        self.side = tile.array.cols

    def finish(self) -> Program:
        """Close the program."""
        return self.builder.finish(("layer",))

    @contextmanager
    def operation(self) -> Iterator[None]:
        """What is stored inside can be loaded after it."""
        yield
        self.builder.barrier(Unit.STORE, post=self.fence)
        self.builder.barrier(Unit.LOAD, wait=self.fence)

    # Operations ----------------------------------------------------------------------------------------------------

    def gemm_tiles(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Tile sizes (m, n, k) that divide the product and fit the rings, the largest k first, then n, then m."""
        side = self.side
        lines = self.sums.slot_bytes // (4 * side)
        for k_tile in divisors(k, side):
            for n_tile in divisors(n, side):
                if self._tile_bytes(k_tile, n_tile) > self.slot or 8 * padded(n_tile, side) > self.slot:
                    continue
                for m_tile in divisors(m, 1):
                    if (
                        m_tile * max(padded(k_tile, side), padded(n_tile, side)) <= self.slot
                        and m_tile * -(-n_tile // side) <= lines
                    ):
                        return m_tile, n_tile, k_tile
        raise LoomError(f"{self.chip.name}: no tile of a {m} x {n} x {k} product fits tile.scratchpad.capacity")

    def gemm(self, a: Tensor, weights: int, parameters: int, out: Tensor) -> None:
        """``out`` = requantised ``a`` x weights; the weights lie as `weight_image` with `gemm_tiles`."""
        m, n, k = a.rows, out.cols, a.cols
        m_tile, n_tile, k_tile = self.gemm_tiles(m, n, k)
        builder, rings, side = self.builder, self.rings, self.side
        blocks = -(-n_tile // side)
        tile_bytes = self._tile_bytes(k_tile, n_tile)
        parameter_bytes = 8 * side * blocks
        with self.operation(), builder.loop(n // n_tile) as over_n:
            self._load(rings["parameters"], parameter_bytes, affine(parameters, (over_n, parameter_bytes)))
            with builder.loop(m // m_tile) as over_m:
                with builder.loop(k // k_tile) as over_k:
                    where = affine(a.base, (over_m, m_tile * a.pitch), (over_k, k_tile))
                    self._rows(rings["moving"], m_tile, k_tile, a.pitch, where, padded(k_tile, side))
                    where = affine(weights, (over_n, tile_bytes * (k // k_tile)), (over_k, tile_bytes))
                    self._load(rings["weights"], tile_bytes, where)
                    self._matmul(m_tile, n_tile, k_tile, rings["moving"], over_k)
                self.sums.written()
                self._requantize(m_tile, n_tile, over_m)
                where = affine(out.base, (over_m, m_tile * out.pitch), (over_n, n_tile))
                self._store(m_tile, n_tile, out.pitch, where, blocks * side)
            rings["parameters"].read()

    def elementwise(
        self,
        function: VectorFunction,
        a: Tensor,
        out: Tensor,
        *,
        b: Tensor | None = None,
        parameters: int | None = None,
        parameter_bytes: int = 0,
        b_cols: int | None = None,
    ) -> None:
        """``out`` = function(``a``, ``b``) row by row; parameters, if any, are for whole rows."""
        builder, rings, side = self.builder, self.rings, self.side
        width = padded(a.cols, side)
        b_width = padded(b_cols if b_cols is not None else a.cols, side)
        rows = next((r for r in divisors(a.rows, 1) if r * max(width, b_width if b else 0) <= self.slot), None)
        if rows is None or parameter_bytes > self.slot:
            raise LoomError(f"{self.chip.name}: a row of {a.cols} elements does not fit tile.scratchpad.capacity")
        with self.operation():
            if parameters is not None:
                self._load(rings["parameters"], parameter_bytes, affine(parameters))
            with builder.loop(a.rows // rows) as loop:
                self._rows(rings["first"], rows, a.cols, a.pitch, affine(a.base, (loop, rows * a.pitch)), width)
                used = rings["first"].full_bit
                frees = rings["first"].free_bit
                if b is not None:
                    where = affine(b.base, (loop, rows * b.pitch))
                    self._rows(rings["second"], rows, b.cols, b.pitch, where, b_width)
                    used, frees = used | rings["second"].full_bit, frees | rings["second"].free_bit
                has = parameters is not None
                builder.vector(
                    function,
                    rows,
                    a.cols,
                    DataType.INT8,
                    rings["first"],
                    rings["out"],
                    second=rings["second"] if b is not None else None,
                    inputs=1 if b is None else 2,
                    parameters=rings["parameters"] if has else None,
                    wait=used | rings["out"].free_bit,
                    release=frees,
                    post=rings["out"].full_bit,
                    first_wait=rings["parameters"].full_bit if has else 0,
                    first=loop.mask,
                    last_post=rings["parameters"].free_bit if has else 0,
                    last=loop.mask,
                )
                rings["first"].read()
                if b is not None:
                    rings["second"].read()
                rings["out"].written()
                self._store(rows, out.cols, out.pitch, affine(out.base, (loop, rows * out.pitch)), width)
            if parameters is not None:
                rings["parameters"].read()

    def append(self, keys: Tensor, values: Tensor, cache: Cache, position: int) -> None:
        """Put the keys and values of new tokens into the cache, from ``position`` on.

        Several tokens begin at a multiple of the array's columns, as a prompt does.
        """
        builder, rings, side = self.builder, self.rings, self.side
        tokens, dim = keys.rows, cache.head_dim
        if tokens > 1 and position % side:
            raise NotSupported(f"appending {tokens} tokens at position {position}, no multiple of {side}")
        blocks, values_bytes = -(-tokens // side), cache.value_bytes(side)
        with self.operation(), builder.loop(cache.heads) as head:
            self._rows(rings["first"], tokens, dim, keys.pitch, affine(keys.base, (head, dim)), padded(dim, side))
            builder.vector(
                VectorFunction.TRANSPOSE,
                tokens,
                dim,
                DataType.INT8,
                rings["first"],
                rings["out"],
                wait=rings["first"].full_bit | rings["out"].free_bit,
                release=rings["first"].free_bit,
                post=rings["out"].full_bit,
            )
            rings["first"].read()
            rings["out"].written()
            for block in range(blocks):
                place = position + block * side
                where = cache.keys + (place // side) * dim * side + place % side
                builder.store(
                    rings["out"],
                    dim,
                    min(side, tokens - block * side),
                    side,
                    affine(where, (head, cache.key_bytes)),
                    opens=block == 0,
                    closes=block == blocks - 1,
                    offset=block * side,
                    local_pitch=blocks * side,
                )
            copy = rings["copy"]
            for part in range(0, dim, side):
                width = min(side, dim - part)
                self._rows(copy, tokens, width, values.pitch, affine(values.base + part, (head, dim)), side)
                where = cache.values + part * cache.positions + position * side
                builder.store(copy, tokens, width, side, affine(where, (head, values_bytes)), local_pitch=side)

    def attention(
        self, queries: Tensor, cache: Cache, length: int, softmax: int, requantize: int, out: Tensor, *, past: int
    ) -> None:
        """``out`` = softmax(queries x keys) x values per head over the first ``length`` positions of the cache.

        Query row r sees positions up to ``past`` + r. Groups of query heads share a head of the cache.
        """
        builder, rings, side = self.builder, self.rings, self.side
        dim, tokens = cache.head_dim, queries.rows
        group = queries.cols // dim // cache.heads
        key_blocks, dim_blocks = -(-length // side), -(-dim // side)
        key_bytes = key_blocks * dim * side
        lines = panel_rows(self.tile.array, length)
        # A panel of values that begins where the DMA may not write a long row is moved line by line.
        whole = dim_blocks == 1 or lines * side % self.tile.dma.bytes_per_cycle == 0
        masked = tokens > 1
        if tokens * max(key_blocks, dim_blocks) * 4 * side > self.sums.slot_bytes:
            raise LoomError(
                f"{self.chip.name}: the scores of {tokens} tokens over {length} positions do not fit half of "
                "tile.accumulator.capacity"
            )
        with self.operation(), builder.loop(cache.heads) as head, builder.loop(group) as member:
            where = affine(queries.base, (head, group * dim), (member, dim))
            self._rows(rings["moving"], tokens, dim, queries.pitch, where, padded(dim, side))
            self._load(rings["weights"], key_bytes, affine(cache.keys, (head, cache.key_bytes)))
            scalars = vector_cost(VectorFunction.SOFTMAX).parameter_bytes(length, side)
            self._load(rings["parameters"], scalars, affine(softmax))
            self._matmul(tokens, length, dim, rings["moving"], Loop(None, 1))
            self.sums.written()
            probabilities = rings["probabilities"]
            builder.vector(
                VectorFunction.SOFTMAX,
                tokens,
                length,
                DataType.INT8,
                self.sums,
                probabilities,
                parameters=rings["parameters"],
                inputs=2 if masked else 1,
                wait=self.sums.full_bit | probabilities.free_bit,
                release=self.sums.free_bit,
                post=probabilities.full_bit,
                first_wait=rings["parameters"].full_bit,
                last_post=rings["parameters"].free_bit,
                mask=Address(base=past) if masked else None,
            )
            self.sums.read()
            rings["parameters"].read()
            probabilities.written()
            for part in range(dim_blocks):
                where = affine(cache.values + part * side * cache.positions, (head, cache.value_bytes(side)))
                builder.load(
                    rings["weights"],
                    *((1, lines * side, lines * side) if whole else (lines, side, side)),
                    where,
                    opens=part == 0,
                    closes=part == dim_blocks - 1,
                    offset=part * lines * side,
                    local_pitch=None if whole else side,
                    joins=whole,
                )
            self._load(rings["parameters"], 8 * side * dim_blocks, affine(requantize))
            self._matmul(tokens, dim, length, probabilities, Loop(None, 1))
            self.sums.written()
            self._requantize(tokens, dim, Loop(None, 1))
            rings["parameters"].read()
            where = affine(out.base, (head, group * dim), (member, dim))
            self._store(tokens, dim, out.pitch, where, dim_blocks * side)

    def _tile_bytes(self, k: int, n: int) -> int:
        """Bytes of a tile of `weight_image`."""
        return stationary_values(self.tile.array, n, k)

    # Steps ---------------------------------------------------------------------------------------------------------

    def _load(self, ring: Ring, count: int, address: Address) -> None:
        if count > self.slot:
            raise LoomError(f"{self.chip.name}: {count} bytes do not fit a slot of {self.slot} (tile.scratchpad)")
        self.builder.load(ring, 1, count, count, address)

    def _rows(self, ring: Ring, rows: int, width: int, pitch: int, address: Address, local_pitch: int) -> None:
        """Fill a slot with rows."""
        self.builder.load(ring, rows, width, pitch, address, local_pitch=local_pitch)

    def _matmul(self, m: int, n: int, k: int, a: Ring, over_k: Loop) -> None:
        weights, sums = self.rings["weights"], self.sums
        self.builder.matmul(
            m,
            n,
            k,
            DataType.INT8,
            a,
            weights,
            sums,
            wait=a.full_bit | weights.full_bit,
            release=a.free_bit | weights.free_bit,
            first_wait=sums.free_bit,
            first=over_k.mask,
            last_post=sums.full_bit,
            last=over_k.mask,
        )
        a.read()
        weights.read()

    def _requantize(self, rows: int, cols: int, over: Loop) -> None:
        sums, out, parameters = self.sums, self.rings["out"], self.rings["parameters"]
        self.builder.vector(
            VectorFunction.REQUANTIZE,
            rows,
            cols,
            DataType.INT8,
            sums,
            out,
            parameters=parameters,
            wait=sums.full_bit | out.free_bit,
            first_wait=parameters.full_bit,
            first=over.mask,
            release=sums.free_bit,
            post=out.full_bit,
            last_post=parameters.free_bit,
            last=over.mask,
        )
        sums.read()
        out.written()

    def _store(self, rows: int, width: int, pitch: int, address: Address, local_pitch: int) -> None:
        self.builder.store(self.rings["out"], rows, width, pitch, address, local_pitch=local_pitch)


def divisors(value: int, unit: int) -> list[int]:
    """Parts of ``value`` that divide it into equal ones and are multiples of ``unit``, the largest first."""
    found = [value] + [d for d in range(value - 1, 0, -1) if value % d == 0 and d % unit == 0]
    return found
