"""What is decided for every task: how tiles share it, how its part is tiled, and how the buffers are divided.

Estimates (`mapper.chip.gemm_cost`, `attention_cost`, `vector`) order what could be chosen. Where the best of a task is
not near its floor and another is not far behind, those few are lowered by themselves and simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch.datatype import Packing
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import NotSupported
from siliconloom.mapper.chip.attention_cost import AttentionTiling, choose_attention_tilings
from siliconloom.mapper.chip.bounds import Bound, least_bytes, operator_bound
from siliconloom.mapper.chip.divisions import divisions_of
from siliconloom.mapper.chip.gemm_cost import GemmMemories
from siliconloom.mapper.chip.layout import Layout, banks_of
from siliconloom.mapper.chip.objective import ESTIMATED, NEARLY, Objective
from siliconloom.mapper.chip.sharing import Share, shares
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling, choose_tilings
from siliconloom.mapper.chip.vector_cost import VectorTiling, choose_vector_tilings, too_small
from siliconloom.mapper.chip.vector_shape import vector_shape
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.roles import NOWHERE

Tiling = GemmTiling | AttentionTiling | VectorTiling

MOST_SHARES = 12
"""Ways to share an operator among the tiles that are costed, once one fits."""
MEASURED, FEW_MEASURED = 96, 960
"""Most candidates that are simulated before ways to divide the buffers are compared, shared out among all tasks; the
second where there are at most `FEW`."""
LEAST_KEPT = 3
"""Candidates of each kind that are looked at for a task, at least."""
LEAST_MEASURED = 8
"""What a task's share of these is at least."""
NEAR = 1.003
"""No other way to share an operator is costed when a candidate is this close to what no mapping beats."""
WORTH = 0.002
"""What all tasks together could still gain, of the whole workload's time, is not looked for."""
FINALISTS = 3
"""Most ways to divide the buffers for which the whole workload is simulated."""
CLOSE = 1.02
"""Only those whose operators together take at most this many times as long as the best."""
FEW = 3
"""So few executions of tasks have no neighbours like themselves on both sides: what one takes in a row says little."""
FEW_FINALISTS, FEW_CLOSE = 12, 1.25
"""The same two where there are at most `FEW`."""
HOPE, ATTENTION_HOPE, FEW_HOPE = 0.95, 0.8, 0.7
"""A candidate may take only this part of its estimate, beside others; attention's pipelines are hard to estimate, and
among few tasks there is time to look at more."""
DOUBTED = 3
"""So many candidates of a kind must take far longer than their estimates before others of the kind are taken to."""
LONG = 2**62


class Chosen(Struct, frozen=True):
    """What was decided for a task: each tile's part of it, how that is tiled, and what it costs.

    ``cost`` is in the objective's units, which are cycles where time counts; it is measured where the candidate was
    simulated, and else estimated.
    """

    tiling: Tiling
    share: Share
    cost: int
    in_cycles: bool = True

    @property
    def timed(self) -> Tiling:
        """The tiling with the cycles that are known of it."""
        return replace(self.tiling, cycles=self.cost) if self.in_cycles else self.tiling


class Effort(Struct):
    """What was looked at for a task, those of its kind together.

    Parameters
    ----------
    candidates, simulated
        Ways to compute it that were costed, and those of them that were lowered by themselves and run.
    seconds
        Wall time of that.
    """

    candidates: int = 0
    simulated: int = 0
    seconds: float = 0.0


class LocalEffort(Struct):
    """How a local search went.

    Parameters
    ----------
    tried, refused, kept
        Changes that were lowered, those of them that broke a rule, and those that were kept.
    first, last
        What the whole program cost before and in the end: cycles, joules, joule-seconds or bytes, as the objective has
        it; within a search in the units of its `objective.Objective`.
    seconds
        Wall time of that.
    seed
        Of its changes.
    """

    tried: int = 0
    refused: int = 0
    kept: int = 0
    first: float = 0
    last: float = 0
    seconds: float = 0.0
    seed: int = 0


class SearchEffort(Struct):
    """How a search went: the effort by task, and whether it was interrupted before it was through.

    ``local`` says what a local search made of what was found.
    """

    tasks: dict[str, Effort] = field(default_factory=dict)
    interrupted: bool = False
    local: LocalEffort | None = None


class Part(Struct, frozen=True):
    """Repetitions of a block in which every object stays in its memory level.

    ``levels`` names, per operator, the levels that its tiling is chosen for: those of operands and results of a
    product; for others the one it spends the most time with.
    """

    first: int
    count: int
    tasks: tuple[Task, ...]
    levels: dict[str, tuple[str, ...]]


Choice = tuple[Layout, list[dict[str, Chosen]]]
"""Division of the buffers, and what is chosen for every task in each part."""
Rivals = Callable[[Layout, str, tuple[str, ...]], list["Chosen"]]
"""For a task, by name and `Part.levels`: its candidates under a layout, the best of each kind first."""
Measure = Callable[[Task, tuple[str, ...], Layout, Chosen], int]
"""Cycles of one execution of a task by itself, its objects in the levels that `Part.levels` lists."""


def _packing(task: Task) -> Packing | None:
    return task.operator.packing if isinstance(task.operator, Gemm) else None


def choose_layouts(
    chip: Chip,
    tile: NpuTile,
    graph: Graph,
    parts: Sequence[Part],
    measure: Measure | None,
    tiles: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    objective: Objective = ESTIMATED,
    searched: SearchEffort | None = None,
    stay: bool = True,
) -> tuple[list[Choice], Rivals]:
    """Every layout of the buffers in which all operators find room, with what is chosen under it; the best first.

    Beside them: what else there is for a task. ``tiles`` has columns and depth of products' tiles, where these are
    decided already. How the search went is put down in ``searched``. With ``stay`` rows of products may stay in both
    slots of their ring.

    Raises
    ------
    LoomError
        When there is none.
    """
    search = SearchEffort() if searched is None else searched
    tasks = [task for part in parts for task in part.tasks]
    bounds = [operator_bound(chip, task.operator, task.fused) for task in tasks]
    divisions = divisions_of(chip, tile, tasks, bounds, frugal=objective.name != "time", simulated=measure is not None)
    pools: dict[tuple[str, tuple[str, ...]], _Pool] = {}
    alike: dict[_Shape, _Pool] = {}
    shapes = [
        (part, task, (nameless(task), part.levels[task.operator.name], tiles.get(task.operator.name)))
        for part in parts
        for task in part.tasks
    ]
    simulated = FEW_MEASURED if executions(parts) <= FEW else MEASURED
    most = max(simulated // len({shape for _, _, shape in shapes}), LEAST_MEASURED)
    for (part, task, shape), bound in zip(shapes, bounds, strict=True):
        if shape not in alike:
            alike[shape] = _pool(
                chip, divisions, task, bound, shape[1], measure, most, shape[2], objective, search, stay
            )
        alike[shape].count += part.count
        pools[task.operator.name, shape[1]] = alike[shape]
    fitting = [number for number in range(len(divisions)) if all(pool.under[number] for pool in alike.values())]
    # no tile runs a program whose rings share banks: where there is another it is not looked at
    banked = [number for number in fitting if banks_of(tile, divisions[number]) <= tile.scratchpad.banks]
    fitting = banked or fitting
    if not fitting:
        blocked = [name for (name, _), pool in pools.items() if not any(pool.under)]
        group = max((packing.group for _, task, _ in shapes if (packing := _packing(task))), default=0)
        raise too_small(chip, f"operator {blocked[0]}" if blocked else "any operator", group)
    whole = sum(pool.count * min(chosen.cost for chosen in pool.all) for pool in alike.values())
    for pool in alike.values():
        pool.worth = WORTH * whole / len(alike) / pool.count
        pool.explore()
    while True:  # what decides is simulated before it decides
        choices = []
        for number in fitting:
            picks = [
                {name: (pool := pools[name, levels], pool.pick(number)) for name, levels in part.levels.items()}
                for part in parts
            ]
            total = sum(
                part.count * pool.value(pick)
                for part, made in zip(parts, picks, strict=True)
                for pool, pick in made.values()
            )
            choices.append((total, number, picks))
        choices.sort(key=lambda choice: choice[:2])
        unsure = {
            (id(pool), pick): (pool, pick)
            for total, _, picks in choices[:FINALISTS]
            if total <= CLOSE * choices[0][0]
            for made in picks
            for pool, pick in made.values()
            if pool.unsure(pick)
        }
        if not unsure:
            break
        for pool, pick in unsure.values():
            if not pool.simulated(pick):
                break
    for (name, _), pool in pools.items():
        search.tasks[name] = pool.effort

    def rivals(layout: Layout, name: str, levels: tuple[str, ...]) -> list[Chosen]:
        return pools[name, levels].rivals(divisions.index(layout))

    return [
        (divisions[number], [{name: pool.chosen(pick) for name, (pool, pick) in made.items()} for made in picks])
        for _, number, picks in choices
    ], rivals


def executions(parts: Sequence[Part]) -> int:
    """How often any task is executed."""
    return sum(part.count * len(part.tasks) for part in parts)


def finalists(parts: Sequence[Part], choices: Sequence[Choice], rivals: Rivals) -> list[tuple[int, Choice]]:
    """The first few that are nearly as good as the best one, with what their operators take one after the other.

    Those that differ in the buffers' sizes only are one; among few tasks also in what else there would be room for.
    Beyond those few one more of a way that none of them has: see `ways_of`. And one that takes hardly longer and moves
    the fewest bytes.
    """
    found: list[tuple[int, Choice]] = []
    few = executions(parts) <= FEW
    most, close = (FEW_FINALISTS, FEW_CLOSE) if few else (FINALISTS, CLOSE)
    seen: set[object] = set()
    for choice in choices:
        total = _total(parts, choice)
        if found and total > close * found[0][0]:
            break
        # where loads take turns in other rings neighbours meet otherwise
        if len(found) >= most and (few or ways_of(choice) <= {way for _, other in found for way in ways_of(other)}):
            continue
        if few:
            key: object = tuple(
                (each.share, each.tiling)
                for p in parts
                for n, l in p.levels.items()
                for each in rivals(choice[0], n, l)
            )
            if key not in seen:
                seen.add(key)
                found.append((total, choice))
        elif all(_differ(parts, choice, other) for _, other in found):
            found.append((total, choice))
    near = [choice for choice in choices if _total(parts, choice) <= NEARLY * found[0][0]]
    frugal = min(near, key=lambda choice: moved_bytes(parts, choice))
    if moved_bytes(parts, frugal) < min(moved_bytes(parts, other) for _, other in found):
        found.append((_total(parts, frugal), frugal))
    return found


def ways_of(choice: Choice) -> set[tuple[str, bool]]:
    """What decides how loads of neighbours meet: whether values have a ring, and whether rows of any product stay."""
    stays = any(getattr(each.tiling, "order", "") == "m_kept" for made in choice[1] for each in made.values())
    return {("values", choice[0].values > 0), ("rows", stays)}


def moved_bytes(parts: Sequence[Part], choice: Choice) -> int:
    """Bytes of main memory's traffic of all tasks."""
    return sum(
        part.count * each.share.tiles * (each.tiling.read_bytes + each.tiling.write_bytes)
        for part, made in zip(parts, choice[1], strict=True)
        for each in made.values()
    )


def _differ(parts: Sequence[Part], one: Choice, other: Choice) -> bool:
    """Whether choices differ in more than a few of all executions, so that neighbours may meet otherwise."""
    unlike = sum(
        part.count * (mine[name] != its[name])
        for part, mine, its in zip(parts, one[1], other[1], strict=True)
        for name in part.levels
    )
    return unlike > FEW


def _total(parts: Sequence[Part], choice: Choice) -> int:
    return sum(
        part.count * chosen.cost for part, made in zip(parts, choice[1], strict=True) for chosen in made.values()
    )


Kind = tuple[int, int, int]
_Shape = tuple[Task, tuple[str, ...], tuple[int, int] | None]
"""What a task computes, on which memory levels, and columns and depth of its tiles where these are decided."""


def _kind(share: Share, tiling: Tiling) -> Kind:
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


def _sizes(chosen: Chosen) -> tuple[int, ...]:
    """What tells products' candidates apart whose tiles are computed in one order: share, sizes and estimate."""
    tiling = chosen.tiling
    assert isinstance(tiling, GemmTiling)
    return id(chosen.share), tiling.m, tiling.n, tiling.k, tiling.cycles


def busiest(tiling: Tiling, share: Share) -> int:
    """Cycles of the unit that has the most to do, of those whose work is exact: how units go together is estimated.

    Transfers of a first tile may be cut less than estimates say. So may those of rows that stay, of attention, whose
    rows may be narrower than an access, and of weights in groups: memory does not count there.
    """
    array = 0 if isinstance(tiling, VectorTiling) else tiling.array_cycles
    work, part = max(tiling.vector_cycles, array), share.operator
    if isinstance(tiling, AttentionTiling) or (isinstance(tiling, GemmTiling) and tiling.order == "m_kept"):
        return work
    if isinstance(part, Gemm) and part.packing is not None and part.packing.group:
        return work
    return max(work, tiling.memory_cycles)


def nameless(task: Task) -> Task:
    """What a task computes, whatever it is called."""
    every = (task.operator, *task.fused)
    operator, *fused = (replace(each, name="", block="", repeat=1, place=NOWHERE) for each in every)
    vectors = tuple(each for each in fused if isinstance(each, Vector))
    cached = task.cached
    if cached is not None:
        cached = cached.of(name="", block="", repeat=1, place=NOWHERE)
    return Task(operator, vectors, task.depends, held=task.held, step=task.step, cached=cached)


class _Pool:
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
        """Candidates of one estimate whose tiles are computed in one order, as there is one tile of rows: `_sizes`."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._same: list[int] = []
        """By layout, the first one with the same candidates, once all are known."""
        self._picks: dict[int, int] = {}
        """`pick` by layout, until the next simulation."""

    def add(self, layout: int, share: Share, tiling: Tiling) -> None:
        """Make a candidate known under a layout."""
        key = id(share), id(tiling)
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            cost = int(self.objective.of_tiling(tiling, share.tiles))
            self.all.append(Chosen(tiling, share, cost, self.objective.name == "time"))
            self.effort.candidates += 1
            self.layout.append(self.layouts[layout])
            least = busiest(tiling, share) if self.exact else 0
            self.floors.append(max(self.floor, int(self.objective.of(least, self._moved(number)))))
            self.kinds.append(_kind(share, tiling))
            if self._has_twin(number):
                self.alike.setdefault(_sizes(self.all[number]), []).append(number)
        self.under[layout].append(number)
        self.best[layout] = min(self.all[number].cost, self.best.get(layout, LONG))

    def value(self, number: int) -> float:
        """Cycles, as far as they are known; of what will not be simulated any more a cautious guess."""
        known = self.known.get(number)
        if known is not None:
            return known
        ratio = self.ratios.get(self.kinds[number], self.least) if len(self.known) < 2 * self.most else self.worst
        return max(self.all[number].cost * ratio, self.floors[number])

    def simulated(self, number: int) -> bool:
        """Simulate a candidate, unless the search was interrupted or now is."""
        if self.search.interrupted:
            return False
        began = time.perf_counter()
        try:
            self.simulate(number)
        except KeyboardInterrupt:
            self.search.interrupted = True
        self.effort.seconds += time.perf_counter() - began
        return not self.search.interrupted

    def simulate(self, number: int) -> int:
        """Find out what a candidate takes, and those that are alike: of them the one without barriers is run."""
        assert self.measure is not None
        self._picks.clear()
        alike = self.alike[_sizes(self.all[number])] if self._has_twin(number) else [number]
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
        outlook, best = _Outlook(self), LONG
        while len(self.known) < self.most and best - self.floor > self.worth:
            number = outlook.next(best - self.worth)
            if number is None or not self.simulated(number):
                break
            best = min(self.known[number], best)

    def pick(self, layout: int) -> int:
        """Of those under a layout that are nearly the fastest, the one that moves the fewest bytes."""
        if len(self._same) != len(self.under):  # many layouts have room for the same candidates
            firsts: dict[tuple[int, ...], int] = {}
            self._same = [firsts.setdefault(tuple(some), number) for number, some in enumerate(self.under)]
        layout = self._same[layout]
        if layout not in self._picks:
            values = {number: self.value(number) for number in self.under[layout]}
            limit = self.objective.slack * min(values.values())
            near = ((self._moved(n), value, self._waits(n), n) for n, value in values.items() if value <= limit)
            self._picks[layout] = min(near)[3]
        return self._picks[layout]

    def rivals(self, layout: int) -> list[Chosen]:
        """The candidates under a layout: the best of each kind, then the others, both in order of cycles.

        Of those that are alike the first.
        """
        under = set(self.under[layout])
        for alike in self.alike.values():
            under.difference_update(sorted(under.intersection(alike), key=self._waits)[1:])
        order = sorted((self.value(number), number) for number in under)
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
        return replace(self.all[number], cost=int(self.value(number)))

    def _moved(self, number: int) -> int:
        chosen = self.all[number]
        return chosen.share.tiles * (chosen.tiling.read_bytes + chosen.tiling.write_bytes)


class _Outlook:
    """What each candidate of a pool could still take, as arrays of all of them: hundreds may be run, of thousands."""

    def __init__(self, pool: _Pool) -> None:
        self.pool = pool
        self.kinds = list(dict.fromkeys(pool.kinds))
        orders = list(dict.fromkeys(kind[:2] for kind in self.kinds))
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        self.kind = np.array([numbers[kind] for kind in pool.kinds])
        self.order = np.array([orders.index(kind[:2]) for kind in self.kinds])[self.kind]
        """By candidate, its number of tiles and order of loops."""
        self.cost = np.array([chosen.cost for chosen in pool.all], float)
        self.floor = np.array(pool.floors, float)
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


def _pool(
    chip: Chip,
    candidates: Sequence[Layout],
    task: Task,
    bound: Bound,
    levels: tuple[str, ...],
    measure: Measure | None,
    most: int,
    tiles: tuple[int, int] | None,
    objective: Objective,
    search: SearchEffort,
    stay: bool,
) -> _Pool:
    """Candidates for a task under each layout, its objects in the levels that `Part.levels` lists.

    Shares are tried from the one that could be the fastest on, while one could still be faster than what was found.
    """
    began = time.perf_counter()
    floor = int(objective.of(bound.lower_bound_cycles, least_bytes(chip, bound)))
    measured = None if measure is None else partial(measure, task, levels)
    # of other tasks than products all objects are costed in one level, wherever they are; and where few tasks are
    # compared with all their rivals, what is known of these counts
    exact = most <= MEASURED and (len(chip.memory) == 1 or isinstance(task.operator, Gemm))
    pool = _Pool(floor, measured, candidates, most, objective, search, exact)
    kept = max(most // LEAST_MEASURED, LEAST_KEPT)
    for number, (least, share) in enumerate(shares(chip, task.operator, task.fused, candidates)):
        best = list(pool.best.values())
        near = NEAR * objective.of(least, 0) >= max(best, default=0)
        if best and len(best) == len(candidates) and (near or number >= MOST_SHARES):
            break
        working = chip if share.tiles == chip.tile_count else chip.model_copy(update={"tile_count": share.tiles})
        found = _tilings(working, candidates, task, share.operator, levels, kept, tiles, objective, stay)
        for layout, tilings in enumerate(found):
            for tiling in tilings:
                pool.add(layout, share, tiling)
    pool.effort.seconds += time.perf_counter() - began
    return pool


def _tilings(
    chip: Chip,
    candidates: Sequence[Layout],
    task: Task,
    part: Operator,
    levels: tuple[str, ...],
    kept: int,
    tiles: tuple[int, int] | None,
    objective: Objective,
    stay: bool,
) -> Sequence[Sequence[Tiling]]:
    """Candidates of a part under each layout."""
    if isinstance(part, Gemm):
        a, b, c = (chip.memory[name] for name in levels)
        memories = GemmMemories(a, b, c) if len(chip.memory) > 1 else None
        return choose_tilings(chip, candidates, gemm_shape(part, task), memories, kept, tiles, objective, stay=stay)
    chip = chip.seen_from(levels[0])
    if isinstance(part, Attention):
        return choose_attention_tilings(chip, candidates, part, task.held_by(part), objective)
    if isinstance(part, Vector):
        assert isinstance(chip.tile, NpuTile)
        return choose_vector_tilings(chip, candidates, vector_shape(chip.tile, part, task), objective)
    raise NotSupported(f"operators of kind {part.kind}")


__all__ = [
    "FEW",
    "LONG",
    "WORTH",
    "Choice",
    "Chosen",
    "Effort",
    "LocalEffort",
    "Measure",
    "Part",
    "Rivals",
    "SearchEffort",
    "Tiling",
    "choose_layouts",
    "executions",
    "finalists",
    "moved_bytes",
    "nameless",
    "ways_of",
]
