"""What the tiles of a product's operands and results move: bytes, and for how long that holds the memory port.

Which transfers a tile takes is the same however fast memory is; `Moved.cycles` says what they take on a chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.kernels import UNCOUNTED, kernel
from siliconloom.arch.memory import Memory
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.gemm_layout import GemmLayout, GemmShape
from siliconloom.mapper.chip.panels import PanelLayout
from siliconloom.mapper.chip.transfers import moved_rows
from siliconloom.sim.timing.units import decompressing_cycles, moved_bytes, passing_cycles, stored_bytes, striped_bytes

Int = NDArray[np.int64]
Parts = list[tuple[Int, Int]]
"""Sizes of tiles along a dimension, and how many there are of each."""
GRID = 3
"""Axes of a grid of sizes: m, n and k."""
_ONE = np.ones(1, np.int64)


class GemmMemories(Struct, frozen=True):
    """Memory levels of the moving operand A, of B, and of results and residual."""

    a: Memory
    b: Memory
    c: Memory


class _Operands(NamedTuple):
    """Transfers of both operands, results, parameters of columns, and parameters of functions."""

    a: _Transfers
    b: _Transfers
    c: _Transfers
    p: _Transfers
    extra: _Transfers


def operand_transfers(
    chip: Chip,
    memories: GemmMemories,
    shape: GemmShape,
    layout: GemmLayout,
    sizes: tuple[Int, Int, Int],
    tiles: tuple[Int, Int, Int],
) -> _Operands:
    """Where the tiles of each operand begin, of so many tiles of these sizes along m, n and k."""
    (m, n, k), (m_tiles, n_tiles, k_tiles), bits = sizes, tiles, shape.dtype.bits
    a_places: Any
    b_places: Any
    c_places: Any
    columns = np.maximum(n // (2 if shape.output_halved else 1), 1)
    c_tiles = -(-shape.stored_n // columns)
    if layout.blocks:
        line, within = layout.a_line(np.minimum(m, shape.m)), layout.a_line(min(shape.m, layout.rows))
        part = m < min(shape.m, layout.rows)  # of a block, whose lines are not all its own
        a_places = np.where(m_tiles > 1, np.where(part, layout.size(m), layout.a_pitch), 0)
        a_places = a_places | np.where(k_tiles > 1, np.where(part, within, line) * k, 0)
        a: _Transfers = _Blocks(chip, memories.a, layout, a_places, m)
    else:
        a_places = np.where(m_tiles > 1, m * layout.a_row, 0) | np.where(k_tiles > 1, layout.size(k), 0)
        a = _Transfers(chip, memories.a, bits, layout.a_row, layout.a_local, a_places, fills=np.ones_like)
    passing = layout.passing(m, columns)
    c_places = np.where(m_tiles > 1, m * layout.c_row, 0) | np.where(c_tiles > 1, layout.size(columns), 0)
    c_places = c_places | np.where(passing < columns, layout.size(passing), 0)
    if shape.packed:
        panels = PanelLayout.of(chip, layout)
        b_places = np.where(n_tiles > 1, panels.pitch(n), 0)
        b: _Transfers = _Panels(
            chip, memories.b, panels, lambda wide: b_places | np.where(k_tiles > 1, panels.tile(wide, k), 0)
        )
    else:
        b_places = np.where(n_tiles > 1, layout.size(n), 0) | np.where(k_tiles > 1, k * layout.b_row, 0)
        b = _Transfers(chip, memories.b, bits, layout.b_row, layout.b_local, b_places)
    p_places = np.where(c_tiles > 1, layout.columns(columns), 0)
    return _Operands(
        a,
        b,
        _Transfers(chip, memories.c, bits, layout.c_row, layout.c_local, c_places, fills=layout.c_fills),
        _Tiles(chip, memories.b, lambda _, wide: layout.columns(wide), lambda _: p_places),
        _Tiles(chip, memories.b, lambda _, size: size, np.zeros_like),
    )


class _Transfer(NamedTuple):
    """Transfers of one kind that a tile takes, ``where`` it takes any: bytes that they move.

    ``busiest`` are bytes that all ports of the memory could have moved meanwhile, where it has several; ``made`` cycles
    of what decompresses them.
    """

    moved: Int
    busiest: Int | None = None
    made: Int | None = None
    where: NDArray[np.bool_] | None = None

    def within(self, where: NDArray[np.bool_]) -> _Transfer:
        """Where it is the other, too."""
        return self._replace(where=where if self.where is None else self.where & where)

    @property
    def bytes(self) -> Int:
        return self.moved if self.where is None else np.where(self.where, self.moved, 0)


class Moved:
    """What moves one tile."""

    def __init__(self, transfers: Sequence[_Transfer]) -> None:
        self.transfers = transfers

    @property
    def bytes(self) -> Int:
        first, *others = (each.bytes for each in self.transfers)
        return sum(others, first)


class AllMoved:
    """What moves all tiles of an operand: of each kind of tile how many there are."""

    def __init__(self, parts: Sequence[tuple[Int, Moved]]) -> None:
        self.parts = parts
        self.bytes: Int = sum((many * each.bytes for many, each in parts), np.zeros((1, 1, 1), np.int64))


class PortCycles:
    """For how long tiles hold the memory port: of the transfers of all of them at once, as one row of numbers.

    ``every`` says what is asked for: tiles, or all tiles of an operand. A term of one is transfers of one kind of a
    tile, and how many such tiles there are.
    """

    def __init__(self, every: Iterable[Moved | AllMoved]) -> None:
        parts = [[(_ONE, each)] if isinstance(each, Moved) else each.parts for each in every]
        transfers, begins = list[tuple[_Transfer, tuple[int, ...]]](), dict[int, int]()
        end, asked, terms, numbers = 0, list[list[int]](), list[list[int]](), [_ONE]
        counted = 1
        for some in parts:
            first, grid = len(terms), (1,) * GRID
            for many, tile in some:
                counts = counted, many.shape
                if many is not _ONE:
                    numbers.append(many.ravel())
                    counted += many.size
                for each in tile.transfers:
                    shape = np.broadcast_shapes(*(values.shape for values in each[:4] if values is not None))
                    if id(each) not in begins:
                        begins[id(each)], end = end, end + prod(shape)
                        transfers.append((each, shape))
                    own = (0, ()) if many is _ONE else counts
                    terms.append([own[0], *_strides(own[1]), begins[id(each)], *_strides(shape)])
                    grid = tuple(map(max, grid, _sizes(shape), _sizes(own[1])))
            asked.append([first, len(terms), *grid])
        self._asked, self._terms = np.array(asked, np.int64), np.array(terms, np.int64).reshape(-1, 2 * GRID + 2)
        self._numbers = np.concatenate(numbers)
        self._room = max(prod(grid) for _, _, *grid in asked)

        def row(name: str, otherwise: int) -> Int | None:
            """What transfers have of this name, one behind the other; nothing where none of them has any."""
            every = [getattr(each, name) for each, _ in transfers]
            if all(values is None for values in every):
                return None
            shapes = (shape for _, shape in transfers)
            filled = (np.array(otherwise) if values is None else values for values in every)
            return np.concatenate(
                [
                    (each if each.shape == shape else np.broadcast_to(each, shape)).ravel()
                    for each, shape in zip(filled, shapes, strict=True)
                ]
            )

        moved = row("moved", 0)
        assert moved is not None
        self._moved, self._busiest, self._made, self._where = moved, row("busiest", 0), row("made", 0), row("where", 1)

    def at(self, chip: Chip, memories: Sequence[Memory], places: Int) -> Int:
        """Cycles of all that is asked for, each in a memory: a row of those at some places of the grid.

        ``places`` are their numbers along m, n and k.
        """
        different = {id(memory): memory for memory in memories}
        held = np.array([self._held(chip, memory) for memory in different.values()])
        which = np.array([list(different).index(id(memory)) for memory in memories], np.int64)
        found = np.empty((len(memories), places.shape[1]), np.int64)
        tables = _Asked(self._asked, which, self._terms, self._numbers)
        add_up(tables, held, np.empty(self._room, np.int64), places, found)
        return found

    def _held(self, chip: Chip, memory: Memory) -> Int:
        held: Int = np.asarray(passing_cycles(chip, memory, self._moved, self._busiest))
        if self._made is not None:
            held = np.maximum(held, self._made)
        if self._where is not None:
            held = held * self._where
        return held


class _Asked(NamedTuple):
    """What is asked of `PortCycles`."""

    rows: Any
    """First and last-but-one term of each, and how much of the grid it tells apart along m, n and k."""
    which: Any
    """Its memory."""
    terms: Any
    """Where the numbers of tiles begin, and how far apart they are along m, n and k; the same of cycles."""
    numbers: Any


@kernel(**UNCOUNTED)
def add_up(asked: _Asked, held: Any, room: Any, places: Any, found: Any) -> None:
    """Fill ``found`` with a row for all that is asked, at some places of the grid; ``room`` is for one on its own."""
    for row in range(asked.rows.shape[0]):
        first, end, tall, wide, deep = asked.rows[row]
        cycles = held[asked.which[row]]
        room[: tall * wide * deep] = 0
        for number in range(first, end):
            many, many_m, many_n, many_k, begin, m, n, k = asked.terms[number]
            at = 0
            for i in range(tall):
                for j in range(wide):
                    for h in range(deep):
                        count = asked.numbers[many + i * many_m + j * many_n + h * many_k]
                        room[at] += count * cycles[begin + i * m + j * n + h * k]
                        at += 1
        step_m, step_n, step_k = wide * deep * (tall > 1), deep * (wide > 1), 1 * (deep > 1)
        for place in range(places.shape[1]):
            at = places[0, place] * step_m + places[1, place] * step_n + places[2, place] * step_k
            found[row, place] = room[at]


def spread(values: Sequence[Any], places: Int) -> Int:
    """What each of some values is, which are broadcast over the grid, at some places of it: a row for each of them.

    ``places`` are their numbers along m, n and k.
    """
    every = [np.asarray(each) for each in values]
    begins = np.cumsum([0, *(each.size for each in every)]).tolist()
    terms = [[0, 0, 0, 0, begin, *_strides(each.shape)] for begin, each in zip(begins, every, strict=False)]
    rows = [[number, number + 1, *_sizes(each.shape)] for number, each in enumerate(every)]
    tables = _Asked(np.array(rows, np.int64), np.zeros(len(every), np.int64), np.array(terms, np.int64), _ONE)
    held = np.concatenate([each.ravel() for each in every]).astype(np.int64)[np.newaxis]
    found = np.empty((len(every), places.shape[1]), np.int64)
    add_up(tables, held, np.empty(max(each.size for each in every), np.int64), places, found)
    return found


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of values that are broadcast over the grid, how many there are along m, n and k."""
    return (*(1,) * (GRID - len(shape)), *shape)


def _strides(shape: tuple[int, ...]) -> list[int]:
    """How far apart values of a shape are that are broadcast over the grid, along m, n and k."""
    _, wide, deep = sizes = _sizes(shape)
    return [step if size > 1 else 0 for size, step in zip(sizes, (wide * deep, deep, 1), strict=True)]


class _Transfers:
    """Transfers of the tiles of one operand that lies row by row.

    ``pitch`` is from row to row in memory, ``local`` gives that of a tile's columns in local memory; tiles begin at
    multiples of ``places``. ``fills`` says of how many columns rows are moved with what fills them up, where that
    makes them adjoin.
    """

    def __init__(
        self,
        chip: Chip,
        memory: Memory,
        bits: int,
        pitch: int,
        local: Callable[[Int], Int],
        places: Int,
        *,
        fills: Callable[[Int], Any] = np.zeros_like,
    ) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.fills = fills
        self.dma, self.memory, self.bits = chip.tile.dma, memory, bits
        self.pitch, self.local, self.places = pitch, local, places
        self._known: dict[tuple[int, int], tuple[Int, Int, Moved]] = {}
        """What was asked of which sizes: by their places in Python's memory, so they are kept, too."""

    def instructions(self, rows: Int, cols: Int) -> Int:
        """Instructions that move one tile: several where it is cut."""
        width, local, bus = -(-cols * self.bits // 8), self.local(cols), self.dma.bytes_per_cycle
        made = moved_rows(bus, rows, width, np.asarray(self.pitch), local, self.places, fills=self.fills(cols))
        return made.transfers + np.zeros_like(rows * cols)

    def total(self, row_parts: Parts, col_parts: Parts) -> AllMoved:
        """Of all tiles."""
        return AllMoved(
            [
                (many * count, self.one(tall, wide))
                for tall, many in row_parts
                for wide, count in col_parts
                if many.any() and count.any()
            ]
        )

    def one(self, rows: Int, cols: Int) -> Moved:
        """Of one tile: the whole ones are asked for twice."""
        known = self._known.get((id(rows), id(cols)))
        if known is None:
            known = self._known[id(rows), id(cols)] = rows, cols, Moved(self._both(rows, cols))
        return known[2]

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        width, fills = -(-cols * self.bits // 8), self.fills(cols)
        return self._moved(rows, width, np.asarray(self.pitch), self.local(cols), self.places, fills)

    def _moved(self, rows: Int, width: Int, pitch: Int, local: Int, places: Int, fills: Any = False) -> list[_Transfer]:
        """Rows that adjoin are one row, as the builder makes them."""
        made = moved_rows(self.dma.bytes_per_cycle, rows, width, pitch, local, places, fills=fills)
        found = [self._priced(made.rows, made.width)]
        if made.rest_rows.any():
            found.append(self._priced(made.rest_rows, made.rest).within(made.rest_rows > 0))
        return found

    def _priced(self, rows: Int, width: Int) -> _Transfer:
        moved: Int = np.asarray(moved_bytes(self.memory, rows, width))
        return _Transfer(
            moved, None if self.memory.channels == 1 else np.asarray(striped_bytes(self.memory, rows, width))
        )


class _Tiles(_Transfers):
    """Transfers of the tiles of one operand that lies tile by tile.

    ``size`` gives the bytes of one of so many rows and columns, ``begins`` what those of so many columns begin at
    multiples of.
    """

    def __init__(
        self, chip: Chip, memory: Memory, size: Callable[[Int, Int], Int], begins: Callable[[Int], Int]
    ) -> None:
        super().__init__(chip, memory, 8, 0, lambda cols: cols, np.zeros(1, np.int64))
        self.size, self.begins = size, begins

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        width = self.size(rows, cols)
        return self._moved(np.ones_like(width), width, width, width, self.begins(cols))


class _Blocks(_Transfers):
    """Transfers of the tiles of a first operand in blocks of rows, each transposed, of ``many`` rows but for the last.

    Of the last tile, too, sizes are asked for by a table of their own.
    """

    def __init__(self, chip: Chip, memory: Memory, layout: GemmLayout, places: Int, many: Int) -> None:
        super().__init__(chip, memory, layout.shape.dtype.bits, layout.a_pitch, lambda width: width, places)
        self.layout, self.within = layout, layout.a_line(min(layout.shape.m, layout.rows))
        self.many = many

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        """Whole blocks, and the lines of another one: all of that one, or those of a part of the array's rows."""
        layout = self.layout
        whole, rest = rows // layout.rows, rows % layout.rows
        width = np.asarray(layout.a_block(cols))
        moved = self._moved(np.maximum(whole, 1), width, np.asarray(self.pitch), width, self.places)
        found = [each.within(whole > 0) for each in moved]
        if not np.any(rest):
            return found
        local = layout.a_line(rest)
        # lines of a block that is read as a whole adjoin: of the last one, too, where a tile begins with it
        ends = rows is not self.many and rest == layout.shape.m % layout.rows
        part = (whole == 0) & (rest < layout.shape.m) & np.logical_not(ends)
        wide, pitch = np.where(part, layout.size(rest), local), np.where(part, self.within, local)
        # behind whole blocks, in main memory as in local memory
        places = self.places | np.where(whole > 0, whole * (width | self.pitch), 0)
        more = self._moved(np.maximum(cols, 1), np.maximum(wide, 1), pitch, local, places)
        return [*found, *(each.within((rest > 0) & (cols > 0)) for each in more)]


class _Panels(_Tiles):
    """Transfers of the tiles of parameters, whose last panels may lie in narrower rows."""

    def __init__(self, chip: Chip, memory: Memory, panels: PanelLayout, begins: Callable[[Int], Int]) -> None:
        super().__init__(chip, memory, lambda deep, wide: panels.tile(wide, deep), begins)
        self.panels = panels

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        ratio = self.panels.layout.shape.compression
        if ratio is not None:
            local = np.asarray(self.panels.layout.b_tile(cols, rows))
            whole = np.ones_like(local)
            made: Int = np.asarray(decompressing_cycles(self.dma, whole, local))
            return [self._priced(*stored_bytes(self.memory, whole, local, ratio))._replace(made=made)]
        if not self.panels.ends:
            return super()._both(rows, cols)
        whole, others = self.panels.spread(cols, rows)
        found = [
            each.within(whole > 0) for each in self._moved(np.ones_like(whole), whole, whole, whole, self.begins(cols))
        ]
        for lines, width, local in others:
            more = self._moved(np.maximum(lines, 1), width, width, local, width | local)
            found += [each.within(lines > 0) for each in more]
        return found


__all__ = ["AllMoved", "GemmMemories", "Moved", "Parts", "PortCycles", "operand_transfers", "spread"]
