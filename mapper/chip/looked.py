"""Tiles of products that are looked at for the divisions of a tile's buffers, with what they compute and move.

They are kept from one map to the next: chips that differ in clock and in their memory's pace alone look at the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import Count
from siliconloom.mapper.chip.gemm_layout import GemmLayout, GemmShape, gemm_layout_of
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.gemm_work import GridPlaces, M, TileColumns, TileWork, tile_work
from siliconloom.mapper.chip.layout import Layout, Room, Undivided
from siliconloom.mapper.chip.tile_sizes import FINE, candidates, with_sizes
from siliconloom.mapper.chip.transfers import LONGEST_ROW

PARTS, MOST_STAYING = 32, 4
"""Rows that stay are tried down to this part of all of them; of each division of the buffers the most that have room.
"""
PARTED, MOST_PARTED, MOST_SLOTS = 8, 4, 3
"""Where a part of the depth stays tiles have at most this part of it; so many of such sizes are tried, the smallest
ones, and so many sizes of slots, the largest ones, or a single one."""
MOST_LOOKED = 500_000
"""Tiles that are kept from one map to the next, such as those of a sweep's points, at some 100 bytes each; what was
asked for the longest ago goes first."""

Int = NDArray[np.int64]
SlotOf = Callable[[Int, Int, Int], Any]
"""Bytes of a slot as a function of sizes along m, n and k."""


class Fits(NamedTuple):
    """Which tiles fit where: the different answers, and the number of that of each place."""

    rows: NDArray[np.bool_]
    numbers: list[int]

    @classmethod
    def of(cls, every: Iterable[NDArray[np.bool_]]) -> Fits:
        """Of the answers of places, many of which have the same."""
        rows, known, numbers = list[NDArray[np.bool_]](), dict[bytes, int](), list[int]()
        for row in every:
            number = known.setdefault(row.tobytes(), len(rows))
            if number == len(rows):
                rows.append(row)
            numbers.append(number)
        return cls(np.array(rows), numbers)

    def among(self, some: NDArray[np.bool_]) -> Fits:
        """The same of some of the tiles."""
        return Fits.of(self.rows[number] & some for number in self.numbers)


class Looked(NamedTuple):
    """Tiles that are looked at, and what they compute and move.

    ``some`` are the places, in the grid of all sizes, of those that fit any layout; all that is said of tiles is of
    these. ``fits`` are by layout those that fit it, of these those of the product's ``whole`` depth and of ``parts`` of
    it. ``ways`` is of each layout what tells it apart from those that leave another choice: the number of what fits,
    and the bytes of a slot in which tiles of the second operand may take turns, where any do.
    """

    sizes: tuple[Int, Int, Int]
    some: Int
    fits: Fits
    whole: Fits
    parts: Fits
    ways: list[tuple[int, int]]
    work: TileColumns
    turning: Int
    """Bytes of those tiles of the second operand of which a product has several, 0 of others."""
    passing: Int
    """See `TileWork.passing`."""
    stays: Int | None = None
    """Columns of rows that stay, where that is a part of their depth."""

    @property
    def pairs(self) -> Fits:
        """By layout those tiles of the whole depth that may be taken in pairs of tiles of rows."""
        return self.whole.among(self.work.whole[M] < self.work.shape.m)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many sizes there are along m, n and k."""
        return tuple(map(len, self.sizes))

    def size(self, pick: int) -> tuple[int, int, int]:
        """Rows, columns and depth of a candidate."""
        rows, columns, depths = self.sizes
        first, deep = divmod(int(self.some[pick]), len(depths))
        tall, wide = divmod(first, len(columns))
        return int(rows[tall]), int(columns[wide]), int(depths[deep])

    def part(self, pick: int) -> int:
        """Columns of a candidate's rows that stay, where these are a part of their depth."""
        return 0 if self.stays is None else int(self.stays[pick])

    def ring(self, pick: int, values: int) -> int:
        """Bytes of a slot in which tiles of the second operand do take turns."""
        taken = int(self.turning[pick])
        return values if 0 < taken <= values else 0


class _Known:
    """Tiles that were looked at for chips of the same tile and memory, whatever their clock and memory's pace."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, list[Looked]] = OrderedDict()
        self._tiles = 0
        self._lock = Lock()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._tiles = 0

    def recall(self, key: Hashable, find: Callable[[], list[Looked]]) -> list[Looked]:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = find()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self._tiles += _count(found)
            while self._tiles > MOST_LOOKED:
                self._tiles -= _count(self._kept.popitem(last=False)[1])
        return found


def _count(looked: list[Looked]) -> int:
    return sum(prod(each.shape) for each in looked)


_KNOWN = _Known()


def forget() -> None:
    """Keep none of them."""
    _KNOWN.clear()


def _moving_key(chip: Chip, memories: GemmMemories) -> Hashable:
    """All that `tile_work` reads of memories."""
    every = (memories.a, memories.b, memories.c, *chip.memory.values())
    return tuple((each.access_bytes, each.channels, each.stripe) for each in every)


def _sizes_to_try(
    tile: NpuTile, shape: GemmShape, tiles: tuple[int, int] | None, *, halves: bool = True
) -> tuple[Int, Int, Int]:
    """Sizes along m, n and k; those of columns and depth may be decided."""
    rows, columns, depths = candidates(tile, shape, halves=halves)
    if tiles is not None:
        columns, depths = (np.array([size], np.int64) for size in tiles)
    return rows, columns, depths


def _look_at_slots(
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    halves: bool,
) -> list[Looked]:
    """Tiles that lie in slots of any of the layouts."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    sizes = _trimmed(tile, layouts, shape, *_sizes_to_try(tile, shape, tiles, halves=halves))
    if not all(map(len, sizes)):
        return []
    m, n, k = np.ix_(*sizes)
    fits = _fits_of(layouts, shape, gemm_layout_of(tile, shape).needs(m, n, k))
    if not any(fit.any() for fit in fits):
        return []
    work = tile_work(chip, memories, shape, (m, n, k))
    return [_looked(sizes, shape, fits, layouts, work)]


def _looked(
    sizes: tuple[Int, Int, Int],
    shape: GemmShape,
    fits: Sequence[NDArray[np.bool_]],
    layouts: Sequence[Room],
    work: TileWork,
    held: Int | None = None,
    stays: Int | None = None,
) -> Looked:
    """What there is to say of tiles of all these sizes, some of which fit some of the layouts."""
    grid = tuple(map(len, sizes))
    fitting = [np.broadcast_to(fit, grid).ravel() for fit in fits]
    some = np.logical_or.reduce(fitting).nonzero()[0]
    places = GridPlaces(grid, some)
    whole = np.broadcast_to(places.of(np.ix_(*sizes)[2] == shape.k), len(some))
    turning = np.where(whole, 0, places.of(work.b_tile))
    made, turns = Fits.of(fit[some] for fit in fitting), not whole.all()
    ways = [(number, layout.values * turns) for number, layout in zip(made.numbers, layouts, strict=True)]
    parts = None if stays is None else np.broadcast_to(places.of(stays), len(some))
    passing = np.broadcast_to(places.of(work.passing), len(some))
    columns = work.at(places, held)
    return Looked(sizes, some, made, made.among(whole), made.among(~whole), ways, columns, turning, passing, parts)


def _look_at_staying(
    chip: Chip, layouts: tuple[Room, ...], shape: GemmShape, memories: GemmMemories, tiles: tuple[int, int] | None
) -> list[Looked]:
    """Rows that stay in both slots: of them as many as are tried, of one depth or the whole."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    laid, found = gemm_layout_of(tile, shape), list[Looked]()
    rows, columns, depths = _sizes_to_try(tile, shape, tiles)
    parts = (-(-shape.m // (parts * FINE)) * FINE for parts in range(2, PARTS + 1))
    rows = with_sizes(rows, [size for size in parts if size < shape.m])
    widest = _widest(layouts)
    for some in (depths[depths == shape.k], depths[(depths < shape.k) & laid.may_stay(depths)]):
        # of columns of the whole depth sums of some rows have room, of those of a part sums of all that stay
        few = columns[:1], some[np.newaxis]
        fits_any = np.atleast_2d(_fits(widest, shape, laid.kept_needs(rows[:, np.newaxis], *few))).any(axis=1)
        if not len(some) or not fits_any.any():
            continue
        tall = rows[fits_any]
        # blocks of some depths fill lines of banks, those of others do not
        taken = np.broadcast_to(laid.kept_slot(tall[:, np.newaxis], *few), (len(tall), len(some))).min(axis=1)
        ends = {int(np.count_nonzero(taken <= layout.moving)) for layout in layouts}
        if isinstance(layouts[0], Undivided):  # the fewest rows of every number of parts
            tall = tall[: max(ends)]
            tall = tall[np.unique(-(-shape.m // tall), return_index=True)[1]][::-1]
        else:
            tall = tall[sorted({place for end in ends for place in range(max(end - MOST_STAYING, 0), end)})]
        axes = tall, columns, some
        needs = laid.kept_needs(*np.ix_(*axes))
        fits = [np.broadcast_to(fit, tuple(map(len, axes))) for fit in _fits_of(layouts, shape, needs)]
        fitting = np.logical_or.reduce(fits)
        if not fitting.any():
            continue
        used = [fitting.any(axis=tuple({0, 1, 2} - {axis})) for axis in range(3)]
        axes = tall[used[0]], columns[used[1]], some[used[2]]
        m, n, k = np.ix_(*axes)
        fits = [fit[np.ix_(*used)] for fit in fits]
        work = tile_work(chip, memories, shape, (laid.result_rows(m, n, k), n, k))
        found.append(_looked(axes, shape, fits, layouts, work, m))
    return found


def _look_at_staying_in_part(
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    few: bool,
) -> list[Looked]:
    """Rows of which as much of the depth stays as there is room for, where all of it has none."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    laid, found = gemm_layout_of(tile, shape), list[Looked]()
    rows, columns, depths = _sizes_to_try(tile, shape, tiles)
    depths = depths[(PARTED * depths <= shape.k) & laid.may_stay(depths)][:MOST_PARTED]
    for slot_of in _slots_that_stay(layouts, laid, few) if len(depths) else ():

        def fitting(rows: Int, columns: Int, slot_of: SlotOf = slot_of) -> tuple[Int, Any, list[NDArray[np.bool_]]]:
            """How many columns stay, whether more do not, and where that fits each layout."""
            m, n, k = np.ix_(rows, columns, depths)
            slot = slot_of(m, n, k)
            stays = np.asarray(laid.most_held(m, k, slot))
            parted = (stays > 0) & (laid.kept_slot(m, n[:, :1], k) > slot)
            fits = _fits_of(layouts, shape, laid.kept_needs(m, n, k, np.maximum(stays, k)))
            return stays, parted, [np.broadcast_to(fit, (len(rows), len(columns), len(depths))) for fit in fits]

        _, _, fits = fitting(rows, columns[:1])
        tall = rows[np.logical_or.reduce(fits).any(axis=(1, 2))]  # no more rows fit beside more columns
        if not len(tall):
            continue
        stays, parted, fits = fitting(tall, columns)
        fits = [fit & parted for fit in fits]
        some = np.logical_or.reduce(fits).any(axis=(1, 2))
        if some.any():
            m, n, k = np.ix_(tall[some], columns, depths)
            stays = np.broadcast_to(stays, fits[0].shape)[some]
            work = tile_work(chip, memories, shape, (m, n, k), stays)
            axes = tall[some], columns, depths
            found.append(_looked(axes, shape, [fit[some] for fit in fits], layouts, work, m, stays))
    return found


def _slots_that_stay(layouts: tuple[Room, ...], laid: GemmLayout, few: bool) -> list[SlotOf]:
    """Bytes of a slot of rows that stay in part, as functions of sizes: of layouts, or beside what tiles need else."""
    only = layouts[0]
    if isinstance(only, Undivided):
        return [
            lambda m, n, k: only.moving_beside({r: s for r, s in laid.kept_needs(m, n, k).items() if r != "moving"})
        ]
    slots = sorted({layout.moving for layout in layouts}, reverse=True)[: 1 if few else MOST_SLOTS]
    return [partial(_same, slot) for slot in slots]


def _same(slot: int, *_: Int) -> int:
    return slot


def _trimmed(tile: NpuTile, layouts: Sequence[Room], shape: GemmShape, m: Int, n: Int, k: Int) -> tuple[Int, Int, Int]:
    """The sizes without those that fit no layout even with the least of the other two."""
    widest, needs = _widest(layouts), gemm_layout_of(tile, shape).needs
    return (
        m[_fits(widest, shape, needs(m, n[:1], k[:1]))],
        n[_fits(widest, shape, needs(m[:1], n, k[:1]))],
        k[_fits(widest, shape, needs(m[:1], n[:1], k))],
    )


def _widest(layouts: Sequence[Room]) -> Room:
    """Of each ring the largest slot that any of the layouts has: what does not fit these fits none."""
    if isinstance(layouts[0], Undivided):
        return layouts[0]
    return Layout(*(max(getattr(layout, each) for layout in layouts) for each in Layout.__struct_fields__))


def _fits_of(layouts: Sequence[Room], shape: GemmShape, needs: Mapping[str, Count]) -> list[NDArray[np.bool_]]:
    """`_fits` of each layout; those whose rings are as large in all that is needed have one answer."""
    found: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    made = []
    for layout in layouts:
        rooms = () if isinstance(layout, Undivided) else tuple(getattr(layout, ring) for ring in needs)
        if rooms not in found:
            found[rooms] = _fits(layout, shape, needs)
        made.append(found[rooms])
    return made


def _fits(layout: Room, shape: GemmShape, needs: Mapping[str, Count]) -> NDArray[np.bool_]:
    """Where what tiles need of a slot of each ring is there."""
    if isinstance(layout, Undivided):
        room = layout.fits(needs)
        return np.asarray(room & (needs["weights"] <= LONGEST_ROW) if shape.packed else room, np.bool_)
    fits: Any = True
    for ring, need in needs.items():
        room = getattr(layout, ring)
        if ring == "weights" and shape.packed:  # such a tile is one row of a transfer
            room = min(room, LONGEST_ROW)
        fits = fits & (need <= room)
    return np.asarray(fits, np.bool_)


def in_slots(
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    *,
    halves: bool = True,
) -> list[Looked]:
    """Tiles that lie in slots of any of the layouts: all of them, or nothing where none fits.

    ``tiles`` has columns and depth, where these are decided already; ``halves`` is as `candidates` takes it.
    """
    look = partial(_look_at_slots, halves=halves)
    return _recall(f"slots {halves}", look, chip, layouts, shape, memories, tiles)


def that_stay(
    chip: Chip, layouts: tuple[Room, ...], shape: GemmShape, memories: GemmMemories, tiles: tuple[int, int] | None
) -> list[Looked]:
    """Rows that stay in both slots: of them as many as are tried, of one depth or the whole."""
    return _recall("stay", _look_at_staying, chip, layouts, shape, memories, tiles)


def that_stay_in_part(
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    *,
    few: bool,
) -> list[Looked]:
    """Rows of which a part of the depth stays, as much as there is room for; ``few`` are in slots of one size."""
    look = partial(_look_at_staying_in_part, few=few)
    return _recall(f"parts stay {few}", look, chip, layouts, shape, memories, tiles)


def _recall(
    kind: str,
    look: Callable[..., list[Looked]],
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
) -> list[Looked]:
    key = kind, chip.tile, layouts, shape, tiles, _moving_key(chip, memories)
    return _KNOWN.recall(key, lambda: look(chip, layouts, shape, memories, tiles))


__all__ = ["PARTS", "Looked", "forget", "in_slots", "that_stay", "that_stay_in_part"]
