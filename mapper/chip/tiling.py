"""Choice of a GEMM's tiles: every candidate is costed, the cheapest that fits the buffers is taken.

The cost is that of `mapper.chip.gemm_cost`; among candidates of nearly equal time the one that moves the fewest bytes
wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from math import gcd, lcm
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.layout import is_power, next_power, sums_room
from siliconloom.arch.packing import may_be_narrow
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import Count
from siliconloom.mapper.chip.gemm_cost import (
    KEPT,
    ORDERS,
    GemmCosts,
    GemmMemories,
    GemmWork,
    Order,
    gemm_costs,
    gemm_work,
)
from siliconloom.mapper.chip.gemm_layout import GemmShape, gemm_layout_of
from siliconloom.mapper.chip.layout import LARGE, Layout
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.transfers import LONGEST_ROW, lowest

FINE = 8
"""Even divisions are also rounded up to multiples of this."""

PARTED = 16
"""Tiles of a part of the array are looked at where both slots of a whole one take more than this part of buffers."""

READ_AGAIN = 2
"""So few rows are nothing beside the columns that they meet, and need not stay."""
PARTS, MOST_STAYING = 32, 4
"""Rows that stay are tried down to this part of all of them; of each division of the buffers the most that have room.
"""

HALVES = 4
"""Sizes of so many grains and less may be whole ones and a half, as whole ones are of an array of half the size."""

MOST_LOOKED = 500_000
"""Tiles that are kept from one map to the next, such as those of a sweep's points, at some 100 bytes each; what was
asked for the longest ago goes first."""

Int = NDArray[np.int64]


class GemmTiling(Struct, frozen=True):
    """Tile sizes, the order of the outer loops, what it moves and what it should take.

    ``resident`` says that the operand of the outer loop stays in its buffer while the inner loop runs; two tiles of it
    do, one in each slot, where rows are taken in pairs of tiles. With the order `KEPT` ``m`` are the rows that stay in
    both slots, and ``resident`` says that columns do, too, while they pass. ``sequence`` are the numbers of the tiles
    of rows as they are computed, where that is not one after the other.
    """

    m: int
    n: int
    k: int
    order: Order
    resident: bool
    read_bytes: int
    write_bytes: int
    array_cycles: int
    memory_cycles: int
    vector_cycles: int
    cycles: int
    sequence: tuple[int, ...] = ()


def choose_tilings(
    chip: Chip,
    layouts: Sequence[Layout],
    shape: GemmShape,
    memories: GemmMemories | None = None,
    kept: int = 3,
    tiles: tuple[int, int] | None = None,
    objective: Objective = ESTIMATED,
    *,
    stay: bool = True,
) -> list[list[GemmTiling]]:
    """For each layout the cheapest tilings that fit it, the best first; candidates are costed once for all of them.

    ``kept`` of each kind, and the most frugal: either order of the outer loops, with and without an operand that stays.
    Operands and results lie in the nearest memory level unless ``memories`` says otherwise. ``tiles`` has columns and
    depth, where these are decided already; with ``stay`` rows may stay in both slots of their ring.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if memories is None:
        memories = GemmMemories(chip.nearest, chip.nearest, chip.nearest)
    if not layouts:
        return []
    every = tuple(layouts)
    made = _in_slots(chip, every, shape, memories, tiles, kept, objective)
    if not stay:
        return made
    more = _that_stay(chip, every, shape, memories, tiles, kept, objective)
    alike: dict[tuple[int, ...], list[GemmTiling]] = {}
    found = []
    for some, held in zip(made, more, strict=True):
        key = id(some), *map(id, held)
        if key not in alike:
            alike[key] = sorted([*some, *held], key=objective.of_tiling)
        found.append(alike[key])
    return found


class _Looked(NamedTuple):
    """Tiles that are looked at, and what they compute and move.

    ``fits`` says of each layout which of them fit it, and ``ways`` what tells layouts apart that leave the same choice:
    which do, and the bytes of a slot in which tiles of the second operand may take turns, where any do. ``held`` are
    rows that stay, by the sizes along m.
    """

    sizes: tuple[Int, Int, Int]
    whole: NDArray[np.bool_]
    fits: list[NDArray[np.bool_]]
    ways: list[tuple[bytes, int]]
    work: GemmWork
    turning: Int
    """Bytes of those tiles of the second operand of which a product has several, 0 of others."""
    held: Int | None = None

    def size(self, pick: int) -> tuple[int, int, int]:
        """Rows, columns and depth of a candidate."""
        m, n, k = (int(each[at]) for each, at in zip(self.sizes, np.unravel_index(pick, self.whole.shape), strict=True))
        return m, n, k

    def ring(self, pick: int, values: int) -> int:
        """Bytes of a slot in which tiles of the second operand do take turns."""
        taken = int(self.turning[pick])
        return values if 0 < taken <= values else 0


class _Known:
    """Tiles that were looked at for chips of the same tile and memory, whatever their clock and memory's pace."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, list[_Looked]] = OrderedDict()
        self._tiles = 0
        self._lock = Lock()

    def recall(self, key: Hashable, find: Callable[[], list[_Looked]]) -> list[_Looked]:
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


def _count(looked: list[_Looked]) -> int:
    return sum(each.whole.size for each in looked)


_KNOWN = _Known()


def _moving_key(chip: Chip, memories: GemmMemories) -> Hashable:
    """All that `gemm_work` reads of memories."""
    every = (memories.a, memories.b, memories.c, *chip.memory.values())
    return tuple((each.access_bytes, each.channels, each.stripe) for each in every)


def _sizes_to_try(tile: NpuTile, shape: GemmShape, tiles: tuple[int, int] | None) -> tuple[Int, Int, Int]:
    """Sizes along m, n and k; those of columns and depth may be decided."""
    rows, columns, depths = candidates(tile, shape)
    if tiles is not None:
        columns, depths = (np.array([size], np.int64) for size in tiles)
    return rows, columns, depths


def _look_at_slots(
    chip: Chip, layouts: tuple[Layout, ...], shape: GemmShape, memories: GemmMemories, tiles: tuple[int, int] | None
) -> list[_Looked]:
    """Tiles that lie in slots of any of the layouts."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    sizes = _trimmed(tile, layouts, shape, *_sizes_to_try(tile, shape, tiles))
    if not all(map(len, sizes)):
        return []
    m, n, k = np.ix_(*sizes)
    whole = np.broadcast_to(k == shape.k, (len(sizes[0]), len(sizes[1]), len(sizes[2])))
    fits = _fits_of(layouts, shape, gemm_layout_of(tile, shape).needs(m, n, k))
    if not any(fit.any() for fit in fits):
        return []
    fits = [np.broadcast_to(fit, whole.shape) for fit in fits]
    ways = [(fit.tobytes(), layout.values) for fit, layout in zip(fits, layouts, strict=True)]
    work = gemm_work(chip, memories, shape, (m, n, k))
    return [_Looked(sizes, whole, fits, ways, work, _turning(work, whole))]


def _turning(work: GemmWork, whole: NDArray[np.bool_]) -> Int:
    """Bytes of tiles of the second operand of which a product has several, 0 of others."""
    return np.where(whole, 0, work.b_tile).ravel()


def _look_at_staying(
    chip: Chip, layouts: tuple[Layout, ...], shape: GemmShape, memories: GemmMemories, tiles: tuple[int, int] | None
) -> list[_Looked]:
    """Rows that stay in both slots: of them as many as are tried, of one depth or the whole."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    laid, found = gemm_layout_of(tile, shape), list[_Looked]()
    rows, columns, depths = _sizes_to_try(tile, shape, tiles)
    parts = (-(-shape.m // (parts * FINE)) * FINE for parts in range(2, PARTS + 1))
    rows = _with(rows, [size for size in parts if size < shape.m])
    widest = _widest(layouts)
    for some in (depths[depths == shape.k], depths[(depths < shape.k) & laid.may_stay(depths)]):
        # of columns of the whole depth sums of some rows have room, of those of a part sums of all that stay
        fits_any = (
            _fits(widest, shape, laid.kept_needs(rows, columns[:1], some[:1])) if len(some) else np.array([False])
        )
        if not fits_any.any():
            continue
        tall = rows[fits_any]
        taken = laid.kept_slot(tall, columns[:1], some[:1])
        ends = {int(np.count_nonzero(taken <= layout.moving)) for layout in layouts}
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
        whole = np.broadcast_to(k == shape.k, (len(axes[0]), len(axes[1]), len(axes[2])))
        fits = [fit[np.ix_(*used)] for fit in fits]
        ways = [(fit.tobytes(), 0 if whole.all() else layout.values) for fit, layout in zip(fits, layouts, strict=True)]
        work = gemm_work(chip, memories, shape, (laid.result_rows(m, n, k), n, k))
        found.append(_Looked(axes, whole, fits, ways, work, _turning(work, whole), m))
    return found


def _that_stay(
    chip: Chip,
    layouts: tuple[Layout, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    kept: int,
    objective: Objective,
) -> list[list[GemmTiling]]:
    """As `choose_tilings`, of rows that stay in both slots."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    found = [list[GemmTiling]() for _ in layouts]
    if gemm_layout_of(tile, shape).blocks or shape.m <= READ_AGAIN:
        return found
    key = "stay", tile, layouts, shape, tiles, _moving_key(chip, memories)
    made: dict[tuple[int, int, int, int], GemmTiling] = {}
    for looked in _KNOWN.recall(key, lambda: _look_at_staying(chip, layouts, shape, memories, tiles)):
        alike: dict[tuple[bytes, int], list[GemmTiling]] = {}
        # estimates leave out what columns gain that take turns in a ring of values; runs do not
        (costed,) = gemm_costs(chip, memories, looked.work, KEPT, held=looked.held)
        table = _Table(costed[KEPT[0]], looked.whole.shape, objective)
        for number, (fit, way) in enumerate(zip(looked.fits, looked.ways, strict=True)):
            if way not in alike:
                alike[way] = []
                among = np.flatnonzero(fit)
                for pick in dict.fromkeys(table.best(among, kept)) if len(among) else ():
                    size = looked.size(pick)
                    ring = *size, looked.ring(pick, way[1])
                    if ring not in made:
                        made[ring] = _costed(size, KEPT[0], size[2] == shape.k, table.costs(pick))
                    alike[way].append(made[ring])
            found[number] += alike[way]
    return found


def _in_slots(
    chip: Chip,
    layouts: tuple[Layout, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    kept: int,
    objective: Objective,
) -> list[list[GemmTiling]]:
    """As `choose_tilings`, of tiles that lie in slots."""
    key = "slots", chip.tile, layouts, shape, tiles, _moving_key(chip, memories)
    found = _KNOWN.recall(key, lambda: _look_at_slots(chip, layouts, shape, memories, tiles))
    if not found:
        return [[] for _ in layouts]
    (looked,) = found
    whole = looked.whole
    # pairs of tiles spare bytes and, as nothing is loaded for the next pair meanwhile, no time
    orders = ORDERS[:2] if objective.name == "time" else ORDERS
    pairs = whole & np.broadcast_to(looked.work.m < shape.m, whole.shape)
    rings = sorted({layout.values for layout in layouts})
    tables_of = {
        values: {order: _Table(of_order, whole.shape, objective) for order, of_order in costs.items()}
        for values, costs in zip(rings, gemm_costs(chip, memories, looked.work, orders, rings), strict=True)
    }
    made: dict[tuple[Order, int, int], GemmTiling] = {}
    alike: dict[tuple[bytes, int], list[GemmTiling]] = {}
    """What is found where the same tiles fit, which is so of many layouts."""
    for fit, way in zip(looked.fits, looked.ways, strict=True):
        if way in alike:
            continue
        tables = tables_of[way[1]]
        picks = dict.fromkeys(
            (order, pick)
            for kind, some in (
                (np.flatnonzero(fit & whole), orders[:2]),
                (np.flatnonzero(fit & ~whole), orders[:2]),
                (np.flatnonzero(fit & pairs), orders[2:]),
            )
            for order in some
            if order in tables
            for pick in (tables[order].best(kind, kept) if len(kind) else ())
        )
        tilings = []
        for order, pick in picks:
            # a ring of values makes no difference to tiles that take no turns in it: one tiling for both
            ring = order, pick, looked.ring(pick, way[1])
            if ring not in made:
                size = looked.size(pick)
                made[ring] = _costed(size, order, size[2] == shape.k, tables[order].costs(pick))
            tilings.append(made[ring])
        alike[way] = sorted(tilings, key=objective.of_tiling)
    return [alike[way] for way in looked.ways]


def gemm_tiling(
    chip: Chip,
    shape: GemmShape,
    memories: GemmMemories,
    sizes: tuple[int, int, int],
    order: Order,
    resident: bool,
    values: int,
) -> GemmTiling:
    """A tiling of these sizes (m, n, k) with what it should take; that of an operand that stays where k is whole.

    ``values`` are bytes of a slot in which tiles of the second operand take turns, where they fit it.
    """
    m, n, k = np.ix_(*(np.array([size], np.int64) for size in sizes))
    held = None
    if order in KEPT:
        assert isinstance(chip.tile, NpuTile)
        held, m = m, gemm_layout_of(chip.tile, shape).result_rows(m, n, k)
    work = gemm_work(chip, memories, shape, (m, n, k))
    (costs,) = gemm_costs(chip, memories, work, (order,), (values,), held)
    return _costed(sizes, order, resident, [int(np.ravel(values)[0]) for values in astuple(costs[order])])


def _costed(sizes: tuple[int, int, int], order: Order, resident: bool, costs: Sequence[int]) -> GemmTiling:
    """A tiling with its costs in the order of the fields of `GemmCosts`."""
    read, write, array, memory, vector, cycles = costs
    return GemmTiling(*sizes, order, resident, read, write, array, memory, vector, cycles)


class _Table:
    """Costs of candidates in one order of the loops, each as one row of numbers."""

    def __init__(self, costs: GemmCosts, shape: tuple[int, ...], objective: Objective) -> None:
        self.columns = [np.broadcast_to(each, shape).ravel() for each in astuple(costs)]
        reads, writes, *_, self.cycles = self.columns
        self.moved = reads + writes
        self.taken, self.slack = objective.of(self.cycles, self.moved), objective.slack

    def best(self, among: Int, kept: int) -> list[int]:
        """The few that cost least; before them, of those that nearly do the one that moves the fewest bytes."""
        taken = self.taken[among]
        near = among[taken <= self.slack * taken.min()]
        moved = self.moved[near]
        least = near[moved == moved.min()]
        few = among if len(among) <= kept else among[taken.argpartition(kept - 1)[:kept]]
        return [int(least[self.cycles[least].argmin()]), *few.tolist()]

    def costs(self, pick: int) -> list[int]:
        """Of a candidate, in the order of the fields of `GemmCosts`."""
        return [int(each[pick]) for each in self.columns]


def _trimmed(
    tile: NpuTile, layouts: Sequence[Layout], shape: GemmShape, m: Int, n: Int, k: Int
) -> tuple[Int, Int, Int]:
    """The sizes without those that fit no layout even with the least of the other two."""
    widest, needs = _widest(layouts), gemm_layout_of(tile, shape).needs
    return (
        m[_fits(widest, shape, needs(m, n[:1], k[:1]))],
        n[_fits(widest, shape, needs(m[:1], n, k[:1]))],
        k[_fits(widest, shape, needs(m[:1], n[:1], k))],
    )


def _widest(layouts: Sequence[Layout]) -> Layout:
    """Of each ring the largest slot that any of the layouts has: what does not fit these fits none."""
    return Layout(*(max(getattr(layout, each) for layout in layouts) for each in Layout.__struct_fields__))


def _fits_of(layouts: Sequence[Layout], shape: GemmShape, needs: Mapping[str, Count]) -> list[NDArray[np.bool_]]:
    """`_fits` of each layout; those whose rings are as large in all that is needed have one answer."""
    found: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    made = []
    for layout in layouts:
        rooms = tuple(getattr(layout, ring) for ring in needs)
        if rooms not in found:
            found[rooms] = _fits(layout, shape, needs)
        made.append(found[rooms])
    return made


def _fits(layout: Layout, shape: GemmShape, needs: Mapping[str, Count]) -> NDArray[np.bool_]:
    """Where what tiles need of a slot of each ring is there."""
    fits: Any = True
    for ring, need in needs.items():
        room = getattr(layout, ring)
        if ring == "weights" and shape.packed:  # such a tile is one row of a transfer
            room = min(room, LONGEST_ROW)
        fits = fits & (need <= room)
    return np.asarray(fits, np.bool_)


def grains(tile: NpuTile, shape: GemmShape) -> tuple[int, int, int]:
    """What tiles of m, n and k are multiples of, where they are not the whole dimension: panels and folds are whole.

    So are groups of packed weights, and turns of a pattern of zeros; folds are whole of what an array does not skip.

    Those of n are of results' columns, where a gated activation halves them.
    """
    array = oriented(tile).array
    if array.dataflow == "output_stationary":
        return shape.block or array.rows, array.cols, 1
    group = shape.packing.group if shape.packing and shape.packing.group else 1
    if shape.packing is not None and (sparse := shape.packing.sparsity) is not None:
        turn, most = sparse.of * sparse.block, sparse.kept * sparse.block
        skips = array.sparsity is not None and array.sparsity.skips
        return 1, array.cols, turn * array.rows // gcd(array.rows, most) if skips else lcm(array.rows, turn)
    return 1, array.cols, lcm(array.rows, group)


def is_part(tile: NpuTile, shape: GemmShape, key: str, size: int) -> bool:
    """Whether a tile may use so much of a grain of m, n or k only: half of it, a quarter and so on; or halves of it.

    Those of n are of results' columns, as `grains` are. Of columns where their panels may be narrow; of depth whole
    beats, and groups of packed weights.
    """
    array, grain = oriented(tile).array, dict(zip("mnk", grains(tile, shape), strict=True))[key]
    if size > grain and grain % 2 == 0 and size % (grain // 2) == 0:
        size = grain // 2
    if grain % size or not is_power(grain // size):
        return False
    if key == "k" and shape.packing is not None and shape.packing.sparsity is not None:
        return False
    if key == "n":
        return shape.packed and may_be_narrow(array, shape.packing) and is_power(grain)
    return key == "m" or size % max(array.load_rows, shape.packing.group if shape.packing else 1) == 0


@lru_cache(maxsize=1 << 12)
def candidates(tile: NpuTile, shape: GemmShape, *, parts: bool = True) -> tuple[Int, Int, Int]:
    """Sizes of tiles to try along m, n and k; with ``parts`` also those that use a part of the array only."""
    m, n, k = grains(tile, shape)
    bus, layout, bits = tile.dma.bytes_per_cycle, gemm_layout_of(tile, shape), shape.dtype.bits
    beat = max(bus * 8 // bits, 1)
    rows = max(1, *(bus // lowest(row) for row in (layout.a_row, layout.c_row)))
    columns = _sizes(shape.stored_n, n, beat)
    low, slim, shallow = _partial(tile, shape, (m, n, k)) if parts else ([], [], [])
    tall = _with(_sizes(shape.m, m, rows), _between(low, m, shape.m))
    return (
        tall[tall <= shape.most_m],
        shape.halves * _with(columns, _between(slim, n, shape.stored_n)),
        _with(_sizes(shape.k, k, beat), _between(shallow, k, shape.k)),
    )


def _between(parts: list[int], grain: int, total: int) -> list[int]:
    """Parts of a grain, and where half of it is one of them the first sizes that are whole ones and a half."""
    if 2 * max(parts, default=0) != grain:
        return parts
    return [*parts, *(size for size in range(grain + grain // 2, HALVES * grain, grain) if size < total)]


def _with(sizes: Int, others: list[int]) -> Int:
    return np.array(sorted({*sizes.tolist(), *others}), np.int64) if others else sizes


def _partial(tile: NpuTile, shape: GemmShape, whole: tuple[int, int, int]) -> tuple[list[int], list[int], list[int]]:
    """Rows, columns, and depths of tiles that use a part of the array: half of its lines, a quarter and so on.

    They are looked at where a tile for ``whole`` lines takes a good part of the buffers: a larger array would leave
    less room for all else otherwise, while half of it is as good as the smaller one. Panels that have no halves of a
    power of two stay whole.
    """
    layout, (m, n, k) = gemm_layout_of(tile, shape), whole
    low, shallow = set[int](), set[int]()
    columns, beat = n, oriented(tile).array.load_rows
    if layout.blocks:
        low |= set(_low(tile, shape, m))
    beat = 2 * max(beat, shape.packing.group if shape.packing else 1)
    if shape.packing is not None and shape.packing.sparsity is not None:
        beat = 2 * k  # turns of a pattern stay whole
    slim = _slim(tile, shape, n)
    while True:
        needs = layout.needs(m, shape.halves * columns, k)
        largest = max(int(need) for ring, need in needs.items() if ring not in ("partial", "constants"))
        if SLOTS * PARTED * largest <= tile.scratchpad.capacity or (
            m % 2 and k % beat and columns == min(slim, default=columns)
        ):
            return sorted(low), slim, sorted(shallow)
        if m % 2 == 0:
            m //= 2
            low |= {m} if m < shape.m else set()
        columns = max((size for size in slim if size < columns), default=columns)
        if k % beat == 0:
            k //= 2
            shallow |= {k} if k < shape.k else set()


def _slim(tile: NpuTile, shape: GemmShape, panel: int) -> list[int]:
    """Parts of a panel's columns, down to those of which tiles of the whole depth take little of the buffers.

    Of few panels one is a good part of the product: half of it is a tile to look at then, too. Where sums of as many
    rows as the array has do not fit, half of a panel leaves room for twice the rows, and a quarter for four times.
    """
    layout, found, columns = gemm_layout_of(tile, shape), list[int](), panel
    if not shape.packed or not layout.narrow or not is_power(panel):
        return found
    rows, room = min(tile.array.rows, shape.m), sums_room(tile)
    few = min(panel, next_power(shape.stored_n)) // 2 if shape.stored_n <= HALVES * panel else columns
    while columns > 1 and (
        columns > few
        or SLOTS * shape.halves * layout.sums(rows, columns) >= room
        or SLOTS * LARGE * layout.b_tile(shape.halves * columns, shape.k) > tile.scratchpad.capacity
    ):
        columns //= 2
        found += [columns] if columns < shape.stored_n else []
    return found


def _low(tile: NpuTile, shape: GemmShape, block: int) -> list[int]:
    """Parts of a block's rows, as `_slim` of a panel's columns.

    They are looked at where a block of the whole depth takes much of the scratchpad, or the accumulator has no room for
    all columns' sums of one.
    """
    layout, found, rows, room = gemm_layout_of(tile, shape), list[int](), block, sums_room(tile)
    while rows % 2 == 0 and (
        SLOTS * shape.halves * layout.sums(rows, shape.stored_n) >= room
        or SLOTS * LARGE * layout.needs(rows, shape.halves, shape.k)["moving"] > tile.scratchpad.capacity
    ):
        rows //= 2
        found += [rows] if rows < shape.m else []
    return found


def _sizes(total: int, grain: int, beat: int) -> Int:
    """Candidate tile sizes along a dimension: powers of two and even divisions, in multiples of ``grain``.

    Those that are also multiples of ``beat`` begin where a long row of a transfer may.
    """
    sizes = {total}
    for size in {grain, lcm(grain, beat)}:
        while size < total:
            sizes.add(size)
            size *= 2
    for parts in range(2, 17):
        even = -(-total // parts)
        sizes |= {min(total, -(-even // each) * each) for each in (grain, lcm(grain, FINE), lcm(grain, beat))}
    return np.array(sorted(sizes), np.int64)
