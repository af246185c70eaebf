"""The candidates of one task: which of them are simulated, in which order, and what the others are taken to need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.chosen import Chosen, Effort, SearchEffort, Tiling
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.sharing import Share
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Gemm

LEAST_MEASURED = 8
"""Of the candidates that are simulated, what a task's share is at least."""
HOPE, ATTENTION_HOPE, FEW_HOPE = 0.95, 0.8, 0.7
"""A candidate may take only this part of its estimate, beside others; attention's pipelines are hard to estimate, and
among few tasks there is time to look at more."""
DOUBTED = 3
"""So many candidates of a kind must take far longer than their estimates before others of the kind are taken to."""
LONG = 2**62


Kind = tuple[int, int, int]
Real = NDArray[np.float64]


def kind_of(share: Share, tiling: Tiling) -> Kind:
    """What tells apart candidates whose instructions stand in another order or go to many more tiles.

    The tiles of a product's depth are one loop, or a loop and the rest behind it.
    """
    if isinstance(tiling, GemmTiling):
        part = share.operator
        rest = isinstance(part, Gemm) and part.k % tiling.k > 0
        turn = {"n_outer": 1, "m_kept": 2}.get(tiling.order, 0)
        return share.tiles.bit_length(), turn, 2 * rest + tiling.resident
    if isinstance(tiling, AttentionTiling):
        return share.tiles.bit_length(), tiling.keys, int(tiling.resident)
    return share.tiles.bit_length(), 0, 0


def sizes_of(chosen: Chosen) -> tuple[int, ...]:
    """What tells products' candidates apart whose tiles are computed in one order: share, sizes and estimate."""
    tiling = chosen.tiling
    assert isinstance(tiling, GemmTiling)
    return id(chosen.share), tiling.m, tiling.n, tiling.k, tiling.held, tiling.cycles


def busiest(tiling: Tiling, share: Share) -> int:
    """Cycles of the unit that has the most to do, of those whose work is exact: no execution takes fewer.

    How units go together is estimated.
    Transfers of a first tile may be cut less than estimates say. So may those of rows that stay, of attention, whose
    rows may be narrower than an access, and of weights in groups: memory does not count there.
    """
    work, part = max(tiling.vector_cycles, tiling.array_cycles), share.operator
    if isinstance(tiling, AttentionTiling) or (isinstance(tiling, GemmTiling) and tiling.order == "m_kept"):
        return work
    if isinstance(part, Gemm) and part.packing is not None and part.packing.group:
        return work
    return max(work, tiling.memory_cycles)


def candidate(tiling: Tiling, share: Share, objective: Objective) -> Chosen:
    """A way to compute a task, with what it should cost."""
    cost = int(objective.of_tiling(tiling, share.tiles))
    return Chosen(tiling, share, cost, cost - tiling.cycles if objective.name == "time" else None)


class Pool:
    """Candidates of a task, by number; those under each layout; and what the simulated ones take."""

    def __init__(
        self,
        floor: int,
        measure: Callable[[Layout, Chosen], int] | None,
        layouts: Sequence[Layout],
        most: int,
        objective: Objective,
        search: SearchEffort,
        exact: bool = True,
    ) -> None:
        self.floor, self.measure, self.layouts, self.exact = floor, measure, layouts, exact
        self.objective, self.search, self.effort = objective, search, Effort()
        self.all: list[Chosen] = []
        self.layout: list[Layout] = []
        self.under: list[list[int]] = [[] for _ in layouts]
        self.best: dict[int, int] = {}
        """By layout, the least estimate under it."""
        self.known: dict[int, int] = {}
        self.count, self.worth = 0, 0.0
        """Executions of the task, and cycles of each that are worth a simulation."""
        self.most = most
        """Most simulations before ways to divide the buffers are compared; twice as many in all."""
        self.ratios: dict[Kind, float] = {}
        """Of each kind, whose estimates err alike: simulated over estimated cycles, the least that was seen."""
        self.doubted: dict[Kind, list[float]] = {}
        """The same of kinds of which only some were simulated that take longer than any estimate is hoped to be off."""
        self.least = self.worst = 1.0
        """The least that was seen of any kind, and the most."""
        self.kinds: list[Kind] = []
        self.floors: list[int] = []
        """What no run of a candidate is under: the work of its busiest unit, where that is ``exact``."""
        self.alike: dict[tuple[int, ...], list[int]] = {}
        """Candidates of one estimate whose tiles are computed in one order, of one tile of rows: `sizes_of`."""
        self._of_price = 1.0
        self._columns: _Columns | None = None
        """The candidates as arrays, once all are known."""
        self._worths: Real | None = None
        """`worth_of` all candidates, until the next simulation; so are those that were asked for."""
        self._picks: dict[int, int] = {}
        self._picked: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._chosen: dict[int, Chosen] = {}

    def add(self, share: Share, tilings: Sequence[Sequence[Tiling]]) -> None:
        """Make candidates known: those under each layout, of which many have the same ones."""
        self._columns = None
        same: dict[int, tuple[list[int], int]] = {}
        numbers: dict[int, int] = {}
        for layout, some in enumerate(tilings):
            if not some:
                continue
            known = same.get(id(some))
            if known is None:
                for tiling in some:
                    if id(tiling) not in numbers:
                        numbers[id(tiling)] = self._add(layout, share, tiling)
                made = [numbers[id(tiling)] for tiling in some]
                known = same[id(some)] = made, min([self.all[number].cost for number in made])
            self.under[layout] = self.under[layout] + known[0] if self.under[layout] else known[0]
            self.best[layout] = min(known[1], self.best.get(layout, LONG))

    def _add(self, layout: int, share: Share, tiling: Tiling) -> int:
        """Make a candidate known that was under no layout before; returns its number."""
        number, chosen = len(self.all), candidate(tiling, share, self.objective)
        self.all.append(chosen)
        self.effort.candidates += 1
        self.layout.append(self.layouts[layout])
        least = busiest(tiling, share) if self.exact else 0
        self.floors.append(max(self.floor, int(self.objective.of(least, chosen.bytes_moved))))
        self.kinds.append(kind_of(share, tiling))
        if self._has_twin(number):
            self.alike.setdefault(sizes_of(chosen), []).append(number)
        return number

    def value(self, number: int) -> float:
        """Cycles, as far as they are known; of what will not be simulated any more a cautious guess."""
        known = self.known.get(number)
        if known is not None:
            return known
        ratio = self.ratios.get(self.kinds[number], self.least) if len(self.known) < 2 * self.most else self.worst
        return max(self.all[number].cost * ratio, self.floors[number])

    @property
    def of_price(self) -> float:
        """What part of the price of its bytes a candidate is taken to cost (`worth_of`)."""
        return self._of_price

    @of_price.setter
    def of_price(self, part: float) -> None:
        if part != self._of_price:
            self._of_price = part
            self._forget()

    def worth_of(self, number: int) -> float:
        """As `value`, with a part of the price alone; that of none is cycles."""
        return self.value(number) - (1 - self.of_price) * (self.all[number].priced or 0)

    def worths(self) -> Real:
        """`worth_of` all candidates, by their numbers."""
        if self._worths is None:
            columns, known = self.as_columns(), list(self.known)
            if len(known) < 2 * self.most:
                ratios = np.array([self.ratios.get(kind, self.least) for kind in columns.kinds])[columns.kind]
            else:
                ratios = np.full(len(self.all), self.worst)
            values = np.maximum(columns.cost * ratios, columns.floor)
            values[known] = list(self.known.values())
            self._worths = values - (1 - self.of_price) * columns.priced
        return self._worths

    def as_columns(self) -> _Columns:
        """The candidates as arrays."""
        if self._columns is None:
            self._columns = _Columns.of(self)
        return self._columns

    def _forget(self) -> None:
        """What was worked out of what is known of candidates."""
        self._worths = self._picked = None
        self._picks.clear()
        self._chosen.clear()

    def simulated(self, number: int) -> bool:
        """Simulate a candidate, unless the search was interrupted or now is."""
        if self.search.interrupted:
            return False
        began = time.perf_counter()
        try:
            self.simulate(number)
        except CompilationInterrupted:
            raise
        except KeyboardInterrupt:
            self.search.interrupted = True
        self.effort.seconds += time.perf_counter() - began
        return not self.search.interrupted

    def simulate(self, number: int) -> int:
        """Find out what a candidate takes, and those that are alike: of them the one without barriers is run."""
        assert self.measure is not None
        self._forget()
        alike = self.alike[sizes_of(self.all[number])] if self._has_twin(number) else [number]
        number = min(alike, key=self._waits)
        cost = self.measure(self.layout[number], self.all[number])
        self.effort.simulated += 1
        for each in alike:
            self.known[each] = cost
            self._learn(each, cost / max(self.all[each].cost, 1))
        return cost

    def _learn(self, number: int, ratio: float) -> None:
        """Correct the estimates of a candidate's kind; one that is far too low speaks for itself until others are."""
        kind = self.kinds[number]
        self.least, self.worst = min(self.least, ratio), max(self.worst, ratio)
        if self.most > LEAST_MEASURED and kind not in self.ratios and ratio * FEW_HOPE > 1:
            doubted = self.doubted.setdefault(kind, [])
            doubted.append(ratio)
            if len(doubted) < DOUBTED:
                return
            ratio = min(doubted)
        self.ratios[kind] = min(self.ratios.get(kind, ratio), ratio)

    def _waits(self, number: int) -> bool:
        """Whether the vector unit meets a barrier for parameters that stay while rows pass."""
        tiling = self.all[number].tiling
        return isinstance(tiling, GemmTiling) and tiling.order == "n_outer"

    def thrift(self, number: int) -> tuple[int, bool, int]:
        """What of candidates that cost the same comes first: by bytes moved, and by barriers that are met."""
        return self.all[number].bytes_moved, self._waits(number), number

    def _has_twin(self, number: int) -> bool:
        """Whether either order of the outer loops is the same order of tiles, and transfers set the pace of both."""
        tiling, part = self.all[number].tiling, self.all[number].share.operator
        if not isinstance(tiling, GemmTiling) or not isinstance(part, Gemm) or tiling.resident:
            return False
        if tiling.order == "m_kept":  # rows are loaded once, whatever columns pass
            return False
        return tiling.m >= part.m and tiling.memory_cycles >= tiling.array_cycles

    def explore(self) -> None:
        """Simulate the most promising ones, while one could be faster than what was found.

        Once one order of loops has had its half of all simulations others have their turn, as what is known of them
        speaks for what fits other layouts.
        """
        if self.measure is None or len(self.all) < 2:
            return
        if min(chosen.cost for chosen in self.all) - self.floor <= self.worth:
            return
        outlook, best = Outlook(self), LONG
        while len(self.known) < self.most and best - self.floor > self.worth:
            number = outlook.next(best - self.worth)
            if number is None or not self.simulated(number):
                break
            best = min(self.known[number], best)

    def pick(self, layout: int) -> int:
        """Of those under a layout the one that costs the least, and of equals that which moves the fewest bytes."""
        return self._pick(self.as_columns().way[layout])

    def _pick(self, way: int) -> int:
        """`pick` of the layouts with the same candidates, by the number that `_Columns.way` has."""
        found = self._picks.get(way)
        if found is None:
            frugal = self.as_columns().frugal[way]
            found = self._picks[way] = int(frugal[self.worths()[frugal].argmin()])
        return found

    def picks(self, layouts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`pick` under each of some layouts; known as long as the same ones are asked for and nothing is learned."""
        if self._picked is None or self._picked[0] is not layouts:
            ways, places = np.unique(np.array(self.as_columns().way, np.int64)[layouts], return_inverse=True)
            self._picked = layouts, np.array([self._pick(way) for way in ways.tolist()], np.int64)[places]
        return self._picked[1]

    def rivals(self, layout: int) -> list[Chosen]:
        """The candidates under a layout: the best of each kind, then the others, both in order of cycles.

        Of those that are alike the first.
        """
        under = set(self.under[layout])
        for alike in self.alike.values():
            under.difference_update(sorted(under.intersection(alike), key=self._waits)[1:])
        worths = self.worths()
        order = sorted((worths[number], number) for number in under)
        firsts = {self.kinds[number]: number for _, number in reversed(order)}
        order.sort(key=lambda entry: entry[1] not in firsts.values())
        return [self.chosen(number) for _, number in order]

    def unsure(self, number: int) -> bool:
        """Whether a candidate is to be simulated before it is taken."""
        if self.measure is None or number in self.known or len(self.all) < 2 or len(self.known) >= 2 * self.most:
            return False
        if self.search.interrupted:
            return False
        value = self.value(number)
        # of a kind of which none was run it is not known either how much more it could take
        least = self.hoped(number, value) if self.kinds[number] in self.ratios else self.hope(number) * value
        return value - max(least, self.floor) > self.worth

    def hoped(self, number: int, value: float) -> float:
        """The least that a candidate of this `value` could take: a part of that, and no less than its busiest unit."""
        return max(self.hope(number) * value, self.floors[number])

    def hope(self, number: int) -> float:
        """How much of its estimate a candidate could take."""
        if self.most > LEAST_MEASURED:
            return FEW_HOPE
        return ATTENTION_HOPE if isinstance(self.all[number].tiling, AttentionTiling) else HOPE

    def chosen(self, number: int) -> Chosen:
        """A candidate with what it takes."""
        found = self._chosen.get(number)
        if found is None:
            priced = self.all[number].priced
            left = priced if priced is None else int(self.of_price * priced)
            found = replace(self.all[number], cost=int(self.worths()[number]), priced=left)
            self._chosen[number] = found
        return found


class _Columns(NamedTuple):
    """The candidates of a pool by their numbers: what each costs, the price of its bytes, its floor, its kind."""

    cost: Real
    priced: Real
    floor: Real
    kind: NDArray[np.int64]
    kinds: list[Kind]
    way: list[int]
    """By layout, the number of its candidates among those that differ."""
    frugal: list[NDArray[np.int64]]
    """Those candidates, the ones that move the fewest bytes first, of equals those that meet no barrier."""

    @classmethod
    def of(cls, pool: Pool) -> _Columns:
        every = pool.all
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(pool.kinds))}
        turn = {number: turn for turn, number in enumerate(sorted(range(len(every)), key=pool.thrift))}
        ways: dict[tuple[int, ...], int] = {}
        lists = {id(some): some for some in pool.under}  # many layouts have the same one
        numbers = {key: ways.setdefault(tuple(some), len(ways)) for key, some in lists.items()}
        way = [numbers[id(some)] for some in pool.under]
        return cls(
            np.array([chosen.cost for chosen in every], np.float64),
            np.array([chosen.priced or 0 for chosen in every], np.float64),
            np.array(pool.floors, np.float64),
            np.array([kinds[kind] for kind in pool.kinds], np.int64),
            list(kinds),
            way,
            [np.array(sorted(some, key=turn.__getitem__), np.int64) for some in ways],
        )


class Outlook:
    """What each candidate of a pool could still take, as arrays of all of them: hundreds may be run, of thousands."""

    def __init__(self, pool: Pool) -> None:
        columns = pool.as_columns()
        self.pool, self.kinds, self.kind = pool, columns.kinds, columns.kind
        self.cost, self.floor = columns.cost, columns.floor
        orders = list(dict.fromkeys(kind[:2] for kind in self.kinds))
        self.order = np.array([orders.index(kind[:2]) for kind in self.kinds])[self.kind]
        """By candidate, its number of tiles and order of loops."""
        self.hope = np.array([pool.hope(number) for number in range(len(pool.all))])

    def next(self, limit: float) -> int | None:
        """The candidate to simulate next: of those that are not known and could take less than a limit, the best.

        Those of an order of loops that had its half of all simulations come after all others.
        """
        pool = self.pool
        ratios = np.array([pool.ratios.get(kind, pool.least) for kind in self.kinds])
        values = np.maximum(self.cost * ratios[self.kind], self.floor)
        known = list(pool.known)
        had = np.bincount(self.order[known], minlength=len(self.order))
        near = np.maximum(self.hope * values, self.floor) < limit
        near[known] = False
        (numbers,) = near.nonzero()
        if not len(numbers):
            return None
        over = 2 * had[self.order[numbers]] >= pool.most
        if not over.all():
            numbers = numbers[~over]
        return int(numbers[values[numbers].argmin()])


__all__ = ["LEAST_MEASURED", "LONG", "Pool", "busiest", "candidate"]
