"""Choice of a GEMM's tiles: every candidate is costed, the cheapest that fits the buffers is taken.

The cost is that of `mapper.chip.gemm_cost`, with the price of bytes; of equals the one that moves the fewest wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.gemm_cost import CYCLES, KEPT, ORDERS, READS, WRITES, Order, gemm_costs, pick_cheapest
from siliconloom.mapper.chip.gemm_layout import GemmShape, gemm_layout_of
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.gemm_work import GridPlaces, tile_work
from siliconloom.mapper.chip.layout import Room
from siliconloom.mapper.chip.looked import Fits, Looked, in_slots, that_stay, that_stay_in_part
from siliconloom.mapper.chip.objective import ESTIMATED, Objective

READ_AGAIN = 2
"""So few rows are nothing beside the columns that they meet, and need not stay."""

AGAIN = 1.3
"""Where time counts a part of the depth of rows may stay where tiles move more than so many times what there is."""

Int = NDArray[np.int64]


class GemmTiling(Struct, frozen=True):
    """Tile sizes, the order of the outer loops, what it moves and what it should take.

    ``resident`` says that the operand of the outer loop stays in its buffer while the inner loop runs; two tiles of it
    do, one in each slot, where rows are taken in pairs of tiles. With the order `KEPT` ``m`` are the rows that stay in
    both slots, and ``resident`` says that columns do, too, while they pass. ``sequence`` are the numbers of the tiles
    of rows as they are computed, where that is not one after the other. Of a result tile so many columns are
    ``passing`` the vector unit at a time, and all where that is 0; they follow from the sizes (`GemmLayout.passing`).
    Of the depth of rows that stay so much is ``held``, in whole tiles, and all where that is 0.
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
    passing: int = 0
    held: int = 0


def choose_tilings(
    chip: Chip,
    layouts: Sequence[Room],
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
    depth, where these are decided already; with ``stay`` rows may stay in both slots of their ring, and halves of folds
    are tried: both take more instructions.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if memories is None:
        memories = GemmMemories(chip.nearest, chip.nearest, chip.nearest)
    if not layouts:
        return []
    every, worth = tuple(layouts), dict[int, float]()
    made = _in_slots(chip, every, shape, memories, tiles, kept, objective, worth, halves=stay)
    if not stay:
        return made
    first = min((each[0] for each in made if each), key=lambda tiling: worth[id(tiling)], default=None)
    in_part = objective.name != "time" or (first is not None and _reads_again(tile, shape, first))
    more = _that_stay(chip, every, shape, memories, tiles, kept, objective, worth, in_part=in_part)
    alike: dict[tuple[int, ...], list[GemmTiling]] = {}
    found = []
    for some, held in zip(made, more, strict=True):
        key = id(some), *map(id, held)
        if key not in alike:
            alike[key] = sorted([*some, *held], key=lambda tiling: worth[id(tiling)])
        found.append(alike[key])
    return found


def _reads_again(tile: NpuTile, shape: GemmShape, tiling: GemmTiling) -> bool:
    """Whether a good part of what tiles move is what was moved before."""
    layout = gemm_layout_of(tile, shape)
    rows = shape.m * layout.size(shape.k + (1 + shape.residual) * shape.stored_n)
    once = shape.batch * (rows + layout.b_size(shape.k * shape.n))
    return tiling.read_bytes + tiling.write_bytes > AGAIN * int(once)


def _that_stay(
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    kept: int,
    objective: Objective,
    worth: dict[int, float],
    *,
    in_part: bool,
) -> list[list[GemmTiling]]:
    """As `choose_tilings`, of rows that stay in both slots, with ``in_part`` also a part of their depth."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    found = [list[GemmTiling]() for _ in layouts]
    if gemm_layout_of(tile, shape).blocks or shape.m <= READ_AGAIN:
        return found
    made: dict[tuple[int, ...], GemmTiling] = {}
    every = that_stay(chip, layouts, shape, memories, tiles)
    if in_part:
        few = objective.name == "time"
        every = [*every, *that_stay_in_part(chip, layouts, shape, memories, tiles, few=few)]
    for looked in every:
        alike: dict[tuple[int, int], list[GemmTiling]] = {}
        rings = sorted({values for _, values in looked.ways})
        costs_of = gemm_costs(chip, memories, looked.work, KEPT, rings)
        tables = {
            values: _Table(costs[KEPT[0]], looked, objective, kept)
            for values, costs in zip(rings, costs_of, strict=True)
        }
        for number, way in enumerate(looked.ways):
            if way not in alike:
                alike[way], table = [], tables[way[1]]
                for pick in dict.fromkeys(table.best("fits", way[0])):
                    size = looked.size(pick)
                    part = looked.part(pick)
                    ring = *size, looked.ring(pick, way[1]) if way[1] else 0, part
                    if ring not in made:
                        passing = int(looked.passing[pick])
                        tiling = _costed(size, KEPT[0], size[2] == shape.k, table.costs(pick), passing, part)
                        made[ring], worth[id(tiling)] = tiling, float(table.taken[pick])
                    alike[way].append(made[ring])
            found[number] += alike[way]
    return found


def _in_slots(
    chip: Chip,
    layouts: tuple[Room, ...],
    shape: GemmShape,
    memories: GemmMemories,
    tiles: tuple[int, int] | None,
    kept: int,
    objective: Objective,
    worth: dict[int, float],
    *,
    halves: bool,
) -> list[list[GemmTiling]]:
    """As `choose_tilings`, of tiles that lie in slots; what each is taken to cost is put down in ``worth``."""
    found = in_slots(chip, layouts, shape, memories, tiles, halves=halves)
    if not found:
        return [[] for _ in layouts]
    (looked,) = found
    # pairs of tiles spare bytes and, as nothing is loaded for the next pair meanwhile, no time
    orders = ORDERS[:2] if objective.name == "time" else ORDERS
    rings = sorted({values for _, values in looked.ways})
    tables_of = {
        values: {order: _Table(of_order, looked, objective, kept) for order, of_order in costs.items()}
        for values, costs in zip(rings, gemm_costs(chip, memories, looked.work, orders, rings), strict=True)
    }
    kinds: list[tuple[str, Fits, tuple[Order, ...], bool]]
    kinds = [("whole", looked.whole, orders[:2], False), ("parts", looked.parts, orders[:2], True)]
    if orders[2:]:
        kinds.append(("pairs", looked.pairs, orders[2:], False))
    made: dict[tuple[Order, int, int], GemmTiling] = {}
    alike: dict[tuple[int, int], list[GemmTiling]] = {}
    """What is found where the same tiles fit, which is so of many layouts."""
    for layout, way in enumerate(looked.ways):
        if way in alike:
            continue
        picks = dict[tuple[Order, int], None]()
        for kind, fits, some, turns in kinds:
            tables = tables_of[way[1] if turns else rings[0]]
            for order in some:
                if order in tables:
                    best = tables[order].best(kind, fits.numbers[layout])
                    picks |= dict.fromkeys((order, pick) for pick in best)
        tilings = []
        for order, pick in picks:
            # a ring of values makes no difference to tiles that take no turns in it: one tiling for both
            ring = order, pick, looked.ring(pick, way[1]) if way[1] else 0
            if ring not in made:
                size, table = looked.size(pick), tables_of[way[1]][order]
                tiling = _costed(size, order, size[2] == shape.k, table.costs(pick), int(looked.passing[pick]))
                made[ring], worth[id(tiling)] = tiling, float(table.taken[pick])
            tilings.append(made[ring])
        alike[way] = sorted(tilings, key=lambda tiling: worth[id(tiling)])
    return [alike[way] for way in looked.ways]


def gemm_tiling(
    chip: Chip,
    shape: GemmShape,
    memories: GemmMemories,
    sizes: tuple[int, int, int],
    order: Order,
    resident: bool,
    values: int,
    stays: int = 0,
) -> GemmTiling:
    """A tiling of these sizes (m, n, k) with what it should take; that of an operand that stays where k is whole.

    ``values`` are bytes of a slot in which tiles of the second operand take turns, where they fit it; of rows that
    stay so much of the depth ``stays``, or all.
    """
    m, n, k = np.ix_(*(np.array([size], np.int64) for size in sizes))
    held = None
    assert isinstance(chip.tile, NpuTile)
    laid = gemm_layout_of(chip.tile, shape)
    if order in KEPT:
        held, m = m, laid.result_rows(m, n, k)
    work = tile_work(chip, memories, shape, (m, n, k), np.array([[[stays]]], np.int64) if stays else None)
    (costs,) = gemm_costs(
        chip, memories, work.at(GridPlaces((1, 1, 1), np.zeros(1, np.int64)), held), (order,), (values,)
    )
    passing = int(np.ravel(work.passing)[0])
    return _costed(sizes, order, resident, costs[order][:, 0].tolist(), passing, stays)


def _costed(
    sizes: tuple[int, int, int], order: Order, resident: bool, costs: Sequence[int], passing: int, held: int = 0
) -> GemmTiling:
    """A tiling with its costs, in the order of the rows that `gemm_costs` has."""
    read, write, array, memory, vector, cycles = costs
    return GemmTiling(*sizes, order, resident, read, write, array, memory, vector, cycles, passing=passing, held=held)


class _Table:
    """Costs of candidates in one order of the loops, as `gemm_costs` has them, and the best of them."""

    def __init__(self, costs: Int, looked: Looked, objective: Objective, kept: int) -> None:
        self._costs, self._looked, self._kept = costs, looked, kept
        self._moved, self.taken = objective.of_all(costs[CYCLES], costs[READS], costs[WRITES])
        """Bytes that candidates move, and what they are taken to cost."""
        self._priced = objective.name == "time" and objective.per_byte > 0
        self._best = dict[str, list[list[int]]]()

    def best(self, kind: str, number: int) -> list[int]:
        """The few that cost least, of a number of the `Fits` of this name; of equals first the one of fewest bytes.

        Where bytes have a price the one of the fewest cycles, too.
        """
        if kind not in self._best:
            rows = getattr(self._looked, kind).rows
            found = np.empty((len(rows), self._kept + 2), np.int64)
            pick_cheapest(rows, self.taken, self._moved, self._costs[CYCLES], found)
            last = None if self._priced else -1
            self._best[kind] = [[pick for pick in picks[:last] if pick >= 0] for picks in found.tolist()]
        return self._best[kind][number]

    def costs(self, pick: int) -> list[int]:
        """Of a candidate, in the order of the rows that `gemm_costs` has."""
        found: list[int] = self._costs[:, pick].tolist()
        return found


__all__ = ["GemmTiling", "choose_tilings", "gemm_tiling"]
