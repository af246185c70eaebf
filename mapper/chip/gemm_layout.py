"""A product as a tile of the chip computes it, and how its operands and results lie in rows and in local memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.layout import (
    bank_line,
    filled_values,
    in_lines,
    is_power,
    line_values,
    next_power,
    padded,
    product_values,
    row_values,
    sums_bytes,
    sums_pitch,
    sums_room,
    sums_split,
    window_of,
    written_values,
)
from siliconloom.arch.packing import begin_unit, may_be_narrow, weight_bytes
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import Count, VectorFunction, vector_cost
from siliconloom.mapper.chip.epilogue import EpiloguePass, column_bytes, epilogue, function_bytes
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.rings import SLOTS

LONG_ROW = 8
"""Beats of the DMA, or parts of them of a power of two, from which on a row is filled up to whole ones."""
SMALL = 128
"""Result tiles of rows that stay take at most this part of the accumulator, and of the scratchpad, where they may."""
HELD = 2
"""Their sums take at most this part of half of the accumulator, however many rows the array has: attention has a part,
too."""


class GemmShape(Struct, frozen=True):
    """What one tile of the chip computes: ``batch`` products C[m,n] = A[m,k] B[k,n] and their epilogue.

    ``functions`` are the vector unit's, in order; the first of them takes the sums. With ``output_halved`` that is a
    gated activation, which gives one result for two sums; ``residual`` says whether a tile of the results' shape is
    added from memory, and ``listed`` that the product stands by itself: its operands come from outside. ``step`` is 1
    where every row of the first operand is read, and else how many there are to one that is. With ``common`` all
    products have the same first operand. ``packing`` is that of the second operand, where its values are packed, and
    ``compression`` the bytes in main memory of one of its bytes, where they are compressed. ``block`` are the rows of a
    block of the first operand, where an array takes it in such: as many as the array has where it is zero.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: DataType
    weight: bool
    functions: tuple[VectorFunction, ...]
    output_halved: bool
    residual: bool
    listed: bool = False
    step: int = 1
    common: bool = False
    packing: Packing | None = None
    compression: float | None = None
    block: int = 0

    @property
    def stored_n(self) -> int:
        """Columns of the result that is stored."""
        return self.n // 2 if self.output_halved else self.n

    @property
    def most_m(self) -> int:
        """Rows of a tile, at most: where blocks have fewer rows than the array each is a product of its own."""
        return min(self.block or self.m, self.m)

    @property
    def passes(self) -> tuple[EpiloguePass, ...]:
        """Instructions of the vector unit on every result tile."""
        return epilogue(self.functions)

    @property
    def packed(self) -> bool:
        """The second operand lies in memory tile by tile, in the order in which the array takes it.

        So do parameters, and operands that come from outside. Where it is another operator's result it lies row by row.
        """
        return self.weight or self.listed

    @property
    def halves(self) -> int:
        """Of the sums, each of which begins with panels of its own: two where a gated activation follows."""
        return 2 if self.output_halved else 1

    def whole_n(self, array: SystolicArray, n: Count) -> Count:
        """Columns that the array computes of ``n``: halves that are gated begin with panels of their own."""
        if not self.output_halved:
            return n
        half: Any = n // 2
        return cast(Count, padded(half, array.cols) + half)


Asked = TypeVar("Asked", bound=Callable[..., Any])


def known_of_tiles(method: Asked) -> Asked:
    """Make a method remember what it says of single tiles, whose sizes are numbers and no arrays of them.

    A lowering asks the same of every tile that it writes out. The object has a dictionary ``known``.
    """
    name = method.__name__

    @wraps(method)
    def asked(self: Any, *sizes: Any) -> Any:
        for size in sizes:
            if type(size) is not int:
                return method(self, *sizes)
        key = name, sizes
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = method(self, *sizes)
        return found

    return cast(Asked, asked)


class GemmLayout:
    """Rows of a product's operands and results in memory, and their tiles in local memory; everything in bytes.

    Rows of activations are filled up to whole lines of the array, short ones to the next power of two, so that rows
    that adjoin in memory do in the scratchpad. An array that keeps its sums takes them in ``blocks`` of ``rows`` each,
    transposed, the last one perhaps in narrow lines (`arch.layout.line_values`): of as many as it has itself, or of a
    smaller power of two. Each of such is a product of its own then, and as good as that of a smaller array.
    """

    def __init__(self, tile: NpuTile, shape: GemmShape) -> None:
        tile = oriented(tile)
        self.tile, self.array, self.lanes, self.shape = tile, tile.array, tile.vector.lanes, shape
        self.blocks, self.beat = tile.array.dataflow == "output_stationary", tile.dma.bytes_per_cycle
        bits = shape.dtype.bits
        self.rows = shape.block or tile.array.rows
        """Of a block."""
        self.narrow = may_be_narrow(tile.array, shape.packing)
        """Whether the last panel of a second operand that lies tile by tile may be narrow."""
        self.b_bits = bits if shape.packing is None else shape.packing.dtype.bits
        self.a_row, self.b_row, self.c_row = (
            row_bytes(tile, elements, bits) for elements in (shape.k, shape.n, shape.stored_n)
        )
        self.a_row *= shape.step
        passes = shape.passes
        self.known: dict[Hashable, Any] = {}
        """What was asked of single tiles (`known_of_tiles`)."""
        self.column_bytes, self.function_bytes = column_bytes(passes, self.tile), function_bytes(passes, self.tile)

    def size(self, elements: Count) -> Count:
        """Bytes of so many operands."""
        return -(-elements * self.shape.dtype.bits // 8)

    def a_block(self, k: Count) -> Count:
        """A block of ``k`` columns of rows that are transposed, in local memory."""
        return self.size(k * self.rows)

    @property
    def a_pitch(self) -> int:
        """From block to block of rows that are transposed, in main memory."""
        return self._block_rows.pitch

    def a_line(self, m: Count) -> Count:
        """From column to column of a block of ``m`` rows that are transposed."""
        return self.size(line_values(m, self.rows))

    def a_plane(self, m: int) -> int:
        """All ``m`` rows of one product's first operand."""
        if not self.blocks:
            return m * self.a_row
        return self._block_rows.plane(m)

    @property
    def _block_rows(self) -> BlockRows:
        return BlockRows(self.tile, self.shape.k, self.shape.dtype.bits, self.rows)

    @known_of_tiles
    def a_local(self, k: Count) -> Count:
        """From row to row of a moving tile of ``k`` columns."""
        return self.size(row_values(self.tile, k, narrow=1))

    @known_of_tiles
    def b_tile(self, n: Any, k: Any) -> Any:
        """A tile of the second operand as the array takes it."""
        shape = self.shape
        half = n // shape.halves
        if shape.packing is not None and not self.narrow:
            return shape.halves * weight_bytes(self.array, shape.packing, half, k)
        last = self._b_panels(half, k)
        if shape.halves == 1:
            return last
        if self.shares:
            return shape.halves * (last + self.gap(half, k))
        return self._b_panels(padded(half, self.array.cols), k) + last

    def b_size(self, values: Count) -> Count:
        """Bytes of so many values of the second operand, which may have a format of its own."""
        return -(-values * self.b_bits // 8)

    def _b_panels(self, n: Any, k: Any) -> Any:
        """Panels of so many columns, the last of which may be narrow."""
        packing = self.shape.packing
        if packing is not None and packing.group:
            return weight_bytes(self.array, packing, n, k, narrow=1)
        return self.b_size(product_values(self.tile, 1, n, k, narrow=1).b)

    def turns(self, n: int, k: int, values: int) -> bool:
        """Whether tiles of the second operand take turns in two rings; slots of the other one have ``values`` bytes.

        They do where one product has several and they fit it: four of them may be on the way then, and not two.
        """
        return k < self.shape.k and int(self.b_tile(n, k)) <= values

    def gap(self, half: Any, k: Any) -> Any:
        """Bytes behind a half that ends with a narrow panel: the next one begins where the array reads whole lines."""
        taken = self._b_panels(half, k)
        packing, beat = self.shape.packing, 1 if self.blocks else self.array.load_rows
        unit: Any = beat * self.b_size(self.array.cols)
        if packing is not None and packing.group:
            unit = begin_unit(self.array, packing)
        return (half > self.array.cols) * (-taken % unit)

    @property
    def shares(self) -> bool:
        """Whether lines of sums may be split, and with them both halves of a tile end with narrow panels."""
        return is_power(self.array.cols)

    def b_local(self, n: Count) -> Count:
        """From row to row of a tile of ``n`` columns of a second operand that lies row by row."""
        return padded(self.size(n), self.beat)

    @known_of_tiles
    def c_local(self, cols: Count) -> Count:
        """From row to row of a result tile of ``cols`` columns."""
        return self.size(row_values(self.tile, cols, narrow=1))

    @known_of_tiles
    def c_fills(self, cols: Count) -> Any:
        """Whether a result tile of so many columns may be stored with what fills its rows up.

        They are all there are, and the vector unit, whose lines end with zeros, has written all of a row.
        """
        return (cols == self.shape.stored_n) & (self.size(written_values(self.tile, cols)) == self.c_local(cols))

    @known_of_tiles
    def columns(self, cols: Count) -> Count:
        """What requantises ``cols`` columns of results."""
        return self.column_bytes // self.lanes * padded_lines(cols, self.lanes)

    @known_of_tiles
    def functions_at(self, cols: Count) -> Count:
        """Where the parameters of functions begin behind those of so many columns: in a line of the vector unit."""
        unit, bus = self.tile.parameter_line, self.beat
        if self.function_bytes and is_power(bus):
            unit = max(unit, window_of(bus, self.function_bytes))
        return padded(self.columns(cols), unit) if self.function_bytes else self.columns(cols)

    @known_of_tiles
    def scales(self, cols: int) -> int:
        """Room for what requantises ``cols`` columns, whatever tiles of panels they are cut into."""
        taken = self.column_bytes // self.lanes * _most_lines(cols, self.lanes, self.array.cols)
        # those of the next product, or layer, begin where a transfer may
        return padded(taken, window_of(self.beat, taken)) if taken and is_power(self.beat) else taken

    @known_of_tiles
    def scales_at(self, start: int, tile: int) -> int:
        """Where what requantises the tile that begins at column ``start`` lies; tiles have ``tile`` columns each."""
        return start // tile * int(self.columns(tile))

    @known_of_tiles
    def apart(self, cols: Count) -> Any:
        """Whether halves of so many columns are products of their own: both of their last panels are narrow."""
        rest = cols % self.array.cols
        narrow = (rest > 0) & (line_values(rest, self.array.cols) < self.array.cols)
        return narrow & (self.shape.halves > 1 and self.shares)

    @known_of_tiles
    def split(self, cols: Count) -> Count:
        """How lines of sums of so many columns are split."""
        return sums_split(self.array, cols)

    @known_of_tiles
    def sums(self, rows: Count, cols: Count) -> Count:
        """Local addresses of sums: all of a tile's, or those of a half, which begins with a whole line."""
        taken = sums_bytes(self.array, cols, rows, self.split(cols))
        return padded(taken, sums_pitch(self.array)) if self.shape.halves > 1 else taken

    def line_of_sums(self, rows: int) -> tuple[int, int]:
        """Bytes that sums of so many rows take of one panel, and how many columns that has."""
        return rows * sums_pitch(self.array), self.array.cols

    def line_of_parameters(self, function: VectorFunction) -> tuple[int, int]:
        """Bytes of a function's parameters for a line of columns, and how many of these there are in one."""
        lines = vector_cost(function, self.tile.parameter_format).column_lines
        return lines * self.tile.parameter_line, self.lanes

    def needs(self, m: Count, n: Count, k: Count) -> dict[str, Count]:
        """What tiles of these sizes take of a slot of each ring, by the rings' names in `Layout`."""
        shape = self.shape
        cols = n // shape.halves
        values = product_values(self.tile, m, cols, k, narrow=1)
        result = m * self.c_local(self.passing(m, cols))
        needs = {
            "weights": self.b_tile(n, k)
            if shape.packed
            else np.maximum(self.size(shape.halves * values.b), k * self.b_local(n)),
            "moving": self.size(values.a) if self.blocks else self.moved(m, k),
            "partial": shape.halves * self.sums(m, cols),
            "results": result,
            "constants": self.functions_at(cols) + self.function_bytes,
        }
        targets = {each.target for each in shape.passes} - {"results"}
        return needs | ({"second": result} if shape.residual else {}) | dict.fromkeys(sorted(targets), result)

    @known_of_tiles
    def passing(self, rows: Any, cols: Any) -> Any:
        """Columns of a result tile of such sizes that pass the vector unit, and are stored, at a time.

        All of them; where these would take much of the scratchpad half of them, a quarter and so on, in whole lines of
        array and lanes, and whole beats of the DMA. What the last tile has left over must be so, too, or fill more than
        half of a line of parameters, as short ones are narrow.
        """
        every = cols + 0 * rows
        found = self._columns_that_pass(rows, cols)
        return found if isinstance(every, np.ndarray) and every.ndim else int(found[0])

    def _columns_that_pass(self, rows: Any, cols: Any) -> Any:
        """As `passing`, of numbers an array of one."""
        every = cols + 0 * rows
        unit, found = max(self.array.cols, self.lanes, self.beat * 8 // self.shape.dtype.bits), np.atleast_1d(every)
        scratchpad = self.tile.scratchpad
        limit = max(scratchpad.capacity // scratchpad.banks // SLOTS, scratchpad.capacity // SMALL)
        over = self.shape.stored_n % cols
        while all(map(is_power, (self.array.cols, self.lanes, self.beat))):
            rest = over % np.maximum(found // 2, 1)
            again = (rows * self.c_local(found) > limit) & (found % (2 * unit) == 0)
            again = again & ((rest == 0) | (2 * rest > self.lanes))
            if not np.any(again):
                break
            found = np.where(again, found // 2, found)
        return found

    @known_of_tiles
    def result_rows(self, rows: Any, n: Any, k: Any) -> Any:
        """Rows of a result tile where ``rows`` of the first operand stay in both slots of their ring (``m_kept``).

        All of them where columns come in tiles of a part of the depth, so that these are loaded once; of the whole
        depth they stay, too, while halves of the rows, of these and so on pass, so that a result tile is no large part
        of accumulator and scratchpad.
        """
        half, taken = n // self.shape.halves, np.asarray(rows)
        # a row's sums and results: of a tile at most so many rows, the whole tiles of which rows are multiples
        line, most = self.c_local(half), self.tile.scratchpad.capacity // SMALL
        sums = self.shape.halves * self.sums(1, half) * np.ones_like(line)
        limit = np.minimum(most // line, sums_room(self.tile) // SMALL // sums)
        limit = np.maximum(limit, self.array.rows)
        limit = np.minimum(limit, np.maximum(sums_room(self.tile) // (SLOTS * HELD) // sums, 1))
        while np.any(again := (taken > limit) & (taken % 2 == 0) & (k >= self.shape.k)):
            taken = np.where(again, taken // 2, taken)
        return taken if taken.ndim else int(taken)

    @known_of_tiles
    def kept_blocks(self, rows: Any, n: Any, k: Any) -> tuple[Any, Any, Any]:
        """Blocks that ``rows`` of the first operand lie in while they stay: rows, columns and bytes of each.

        A block is what one product takes. It is loaded while the array reads others, and no line of a bank is read
        while a part of it is written, so blocks begin with such lines.
        """
        tall = self.result_rows(rows, n, k)
        deep = np.minimum(k, self.shape.k) if isinstance(k, np.ndarray) else min(k, self.shape.k)
        return tall, deep, self._in_banks(self.moved(tall, deep))

    def _in_banks(self, size: Any) -> Any:
        """Bytes filled up to whole lines of a bank, as slots are."""
        return padded(size, next_power(bank_line(self.tile)))

    def moved(self, m: Any, k: Any) -> Any:
        """Bytes in which the array reads a moving tile of ``m`` rows and ``k`` columns: its last block of rows whole.

        Where the array's rows are no power of two that block may end behind the tile.
        """
        local, read = self.a_local(k), self.size(filled_values(k, self.array.rows))
        return m * local + np.maximum(read - local, 0)

    def kept_needs(self, rows: Any, n: Any, k: Any, held: Any = 0) -> dict[str, Count]:
        """As `needs` where ``rows`` of the first operand stay, which take both slots of their ring together.

        Of them so many columns are ``held``, in whole tiles of the depth, or all where that is 0. The others pass in
        two slots behind those that are.
        """
        blocks = self.kept_blocks(rows, n, k)
        whole = self._slot_of(rows, *blocks)
        part = -(-self.held_bytes(rows, k, held) // 2) + blocks[2]
        return self.needs(blocks[0], n, k) | {"moving": np.where(np.asarray(held) > 0, part, whole)}

    def kept_slot(self, rows: Any, n: Any, k: Any) -> Any:
        """Of `kept_needs` the bytes of a slot of the operand that stays."""
        return self._slot_of(rows, *self.kept_blocks(rows, n, k))

    def held_bytes(self, rows: Any, k: Any, held: Any) -> Any:
        """What ``held`` columns of ``rows`` take that stay, in blocks of ``k`` columns each."""
        return held // k * self._in_banks(self.moved(rows, k))

    def most_held(self, rows: Any, k: Any, slot: Any) -> Any:
        """The most columns of ``rows`` that two slots of so many bytes hold, beside those that pass."""
        block = self._in_banks(self.moved(rows, k))
        return np.clip(SLOTS * slot // block - SLOTS, 0, (self.shape.k - 1) // k) * k

    def _slot_of(self, rows: Any, tall: Any, deep: Any, block: Any) -> Any:
        """Half of what ``rows`` take that lie in blocks of ``tall`` and ``deep``."""
        above, before = (rows - 1) // tall, (self.shape.k - 1) // deep
        last = self._in_banks(self.moved(rows - above * tall, self.shape.k - before * deep))
        return -(-(((above + 1) * (before + 1) - 1) * block + last) // 2)

    def may_stay(self, k: Any) -> Any:
        """Whether rows may stay in both slots while columns come in tiles of this depth.

        These are whole folds, an equal part of one, or all of it.
        """
        rows = self.array.rows
        return (not self.blocks) & ((k >= self.shape.k) | (k % rows == 0) | (rows % k == 0))

    def needs_in(self, order: str, m: int, n: int, k: int, held: int = 0) -> dict[str, int]:
        """What a tiling takes of a slot of each ring, whatever the order of its outer loops."""
        needs = self.kept_needs(m, n, k, held) if order == "m_kept" else self.needs(m, n, k)
        return {ring: int(need) for ring, need in needs.items()}


@lru_cache(maxsize=512)
def gemm_layout_of(tile: NpuTile, shape: GemmShape) -> GemmLayout:
    """A product's layout, which is made once."""
    return GemmLayout(tile, shape)


def padded_lines(cols: Count, lanes: int) -> Count:
    """Values of the lines of so many columns, which are narrow where they are less than a line."""
    line = line_values(cols, lanes)
    return -(-cols // line) * line


@lru_cache(maxsize=256)
def _most_lines(cols: int, lanes: int, panel: int) -> int:
    """Values of the lines of all columns, in tiles of as many as take the most of those that a product may have."""
    parts, half = [panel >> part for part in range(panel.bit_length())], panel // 2 if panel % 2 == 0 else panel
    size = np.array([each for each in (cols, *parts, *range(half, cols, half)) if each <= cols], np.int64)
    rest = cols % size
    return int((cols // size * padded_lines(size, lanes) + (rest > 0) * padded_lines(np.maximum(rest, 1), lanes)).max())


def row_bytes(tile: NpuTile, elements: int, bits: int) -> int:
    """Bytes from row to row of a matrix of activations in main memory.

    Rows are filled up as they are in local memory; long ones also to whole beats of the DMA, so that parts of them
    begin where they must, and shorter ones to as large a part of a beat as adds no more than to long ones.
    """
    return int(in_beats(-(-row_values(tile, elements, narrow=1) * bits // 8), tile.dma.bytes_per_cycle))


def in_beats(size: Any, bus: int) -> Any:
    """``size`` bytes filled up to whole beats of the DMA, or to as large parts of one as add no more than an eighth.

    What follows can begin there: parts are powers of two, so of other buses only whole beats are.
    """
    if not is_power(bus):
        return (
            np.where(size >= LONG_ROW * bus, padded(size, bus), size)
            if isinstance(size, np.ndarray)
            else (padded(size, bus) if size >= LONG_ROW * bus else size)
        )
    eighth = size // LONG_ROW
    if isinstance(size, np.ndarray):
        part = np.int64(1) << np.maximum(np.frexp(np.minimum(eighth, bus).astype(np.float64))[1] - 1, 0)
        return -(-size // part) * part
    return padded(size, min(1 << max(int(eighth).bit_length() - 1, 0), bus))


class BlockRows:
    """Rows in main memory that are transposed, in blocks of ``rows`` each; everything in bytes.

    A block begins where a transfer may, so that a tile of one of them does, however wide the DMA is. The circuit reads
    blocks of local memory back to back, so a tile of several is one transfer where nothing lies between them.
    """

    def __init__(self, tile: NpuTile, columns: int, bits: int, rows: int = 0) -> None:
        self.tile, self.rows, self.columns, self.bits = tile, rows or tile.array.rows, columns, bits

    def _block(self, rows: int) -> int:
        taken, bus = -(-line_values(rows, self.rows) * self.columns * self.bits // 8), self.tile.dma.bytes_per_cycle
        return padded(taken, window_of(bus, taken)) if is_power(bus) else taken

    @property
    def pitch(self) -> int:
        """From block to block."""
        return self._block(self.rows)

    def plane(self, rows: int) -> int:
        """So many rows; of the last block narrow lines where it has few."""
        whole, rest = divmod(rows, self.rows)
        return whole * self.pitch + (self._block(rest) if rest else 0)

    def read(self, plane: NDArray[np.uint8], rows: int, element: np.dtype[Any]) -> NDArray[Any]:
        """The first rows of a plane, row by row."""
        found = list[NDArray[Any]]()
        for start in range(0, rows, self.rows):
            held = min(self.rows, rows - start)
            line = line_values(held, self.rows)
            block = plane[start // self.rows * self.pitch :][: line * self.columns * element.itemsize]
            found.append(block.view(element).reshape(self.columns, line)[:, :held].T)
        return np.concatenate(found)

    def written(self, operand: NDArray[Any]) -> NDArray[np.uint8]:
        """The opposite of `read`: rows (m x columns) as they lie in memory, what lies between them zero."""
        made = np.zeros(self.plane(len(operand)), np.uint8)
        for start in range(0, len(operand), self.rows):
            block = operand[start : start + self.rows]
            lines = in_lines(np.ascontiguousarray(block.T), self.rows, narrow=1).view(np.uint8).reshape(-1)
            made[start // self.rows * self.pitch :][: len(lines)] = lines
        return made


def smaller_blocks(array: SystolicArray) -> list[int]:
    """Rows of blocks that are smaller than those of an array that keeps its sums, the larger first; none of others."""
    if array.dataflow != "output_stationary":
        return []
    return [1 << power for power in reversed(range((array.rows - 1).bit_length()))]


__all__ = [
    "BlockRows",
    "GemmLayout",
    "GemmShape",
    "in_beats",
    "known_of_tiles",
    "padded_lines",
    "row_bytes",
    "smaller_blocks",
]
