"""What is decided for every task: how tiles share it, how its part is tiled, and how the buffers are divided.

Estimates (`mapper.chip.gemm_cost`, `attention_cost`, `vector`) order what could be chosen. Where the best of a task is
not near its floor and another is not far behind, those few are lowered by themselves and simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from siliconloom.arch.datatype import Packing
from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.attention_cost import choose_attention_tilings
from siliconloom.mapper.chip.banked import channel_tiling
from siliconloom.mapper.chip.bounds import Bound, least_bytes, operator_bound
from siliconloom.mapper.chip.chosen import Choice, Chosen, Measure, Part, Rivals, SearchEffort, Tiling
from siliconloom.mapper.chip.divisions import Divisions, divisions_of
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.layout import Layout, Room, Undivided, banks_of
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.pool import LEAST_MEASURED, Pool
from siliconloom.mapper.chip.program import Drafted, MappedWorkload
from siliconloom.mapper.chip.sharing import shares
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import choose_tilings
from siliconloom.mapper.chip.vector_cost import choose_vector_tilings, too_small
from siliconloom.mapper.chip.vector_shape import vector_shape
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.roles import NOWHERE

MOST_SHARES = 16
"""Ways to share an operator among the tiles that are costed, once one fits."""
MEASURED, FEW_MEASURED = 96, 960
"""Most candidates that are simulated before ways to divide the buffers are compared, shared out among all tasks; the
second where there are at most `FEW`."""
LEAST_KEPT = 6
"""Candidates of each kind that are looked at for a task, at least."""
NEAR = 1.003
"""No other way to share an operator is costed when a candidate is this close to what no mapping beats."""
WORTH = 0.002
"""What all tasks together could still gain, of the whole workload's time, is not looked for."""
FINALISTS = 8
"""Most ways to divide the buffers for which the whole workload is simulated."""
CLOSE = 1.02
"""Only those whose operators together take at most this many times as long as the best."""
FEW = 3
"""So few executions of tasks have no neighbours like themselves on both sides: what one takes in a row says little."""
FEW_FINALISTS, FEW_CLOSE = 12, 1.25
"""The same two where there are at most `FEW`."""


def _packing(task: Task) -> Packing | None:
    return task.operator.packing if isinstance(task.operator, Gemm) else None


class Ranked(NamedTuple):
    """Divisions of the buffers with what is chosen under each, the best first; and what else there is for a task.

    ``again`` ranks them where bytes have a part of their price alone; what else there is goes by that from then on.
    """

    choices: list[Choice]
    rivals: Rivals
    again: Callable[[float], list[Choice]]


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
    known: Divisions | None = None,
) -> Ranked:
    """Every layout of the buffers in which all operators find room, with what is chosen under it; the best first.

    ``tiles`` has columns and depth of products' tiles, where these are
    decided already. How the search went is put down in ``searched``. With ``stay`` rows of products may stay in both
    slots of their ring; ``known`` are divisions of the buffers that were found before.

    Raises
    ------
    LoomError
        When there is none.
    """
    search = SearchEffort() if searched is None else searched
    tasks = [task for part in parts for task in part.tasks]
    bounds = [operator_bound(chip, task.operator, task.fused) for task in tasks]
    frugal = objective.name != "time"
    divisions = divisions_of(chip, tile, tasks, bounds, frugal=frugal, simulated=measure is not None, known=known)
    pools: dict[tuple[str, tuple[str, ...]], Pool] = {}
    alike: dict[_Shape, Pool] = {}
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

    def rivals(layout: Layout, name: str, levels: tuple[str, ...]) -> list[Chosen]:
        return pools[name, levels].rivals(divisions.index(layout))

    def ranked(of_price: float) -> list[Choice]:
        found = [
            (
                divisions[number],
                [
                    {
                        name: (pool := pools[name, levels]).chosen(pool.pick(number))
                        for name, levels in part.levels.items()
                    }
                    for part in parts
                ],
            )
            for number in _ranked(parts, pools, fitting, of_price)
        ]
        for (name, _), pool in pools.items():
            search.tasks[name] = pool.effort
        return found

    return Ranked(ranked(1.0), rivals, ranked)


def _ranked(
    parts: Sequence[Part], pools: Mapping[tuple[str, tuple[str, ...]], Pool], fitting: Sequence[int], of_price: float
) -> list[int]:
    """The layouts by their numbers, the one first under which all tasks cost the least together, as `Pool.pick` has."""
    for pool in pools.values():
        pool.of_price = of_price
    every = [(part.count, pools[task]) for part in parts for task in part.levels.items()]
    different = {id(pool): pool for _, pool in every}
    numbers = np.array(fitting, np.int64)
    while True:  # what decides is simulated before it decides
        worths = {key: pool.worths()[pool.picks(numbers)] for key, pool in different.items()}
        totals = np.zeros(len(fitting))
        for count, pool in every:
            totals += count * worths[id(pool)]
        order = totals.argsort(kind="stable").tolist()
        unsure = {
            (id(pool), pick): (pool, pick)
            for place in order[:FINALISTS]
            if totals[place] <= CLOSE * totals[order[0]]
            for _, pool in every
            if pool.unsure(pick := pool.pick(fitting[place]))
        }
        if not unsure:
            return [fitting[place] for place in order]
        for pool, pick in unsure.values():
            if not pool.simulated(pick):
                break


def best_in(
    chip: Chip, division: Undivided, task: Task, bound: Bound, levels: tuple[str, ...], objective: Objective
) -> list[Chosen]:
    """Candidates for a product that has all buffers to itself, by their estimates, the best first."""
    pool = _pool(chip, [division], task, bound, levels, None, LEAST_MEASURED, None, objective, SearchEffort(), True)
    return sorted((pool.all[number] for number in pool.under[0]), key=lambda chosen: chosen.cost)


def executions(parts: Sequence[Part]) -> int:
    """How often any task is executed."""
    return sum(part.count * len(part.tasks) for part in parts)


def finalists(parts: Sequence[Part], choices: Sequence[Choice], rivals: Rivals) -> tuple[list[tuple[int, Choice]], int]:
    """The first few that are nearly as good as the best one, with what their operators take one after the other.

    Those that differ in the buffers' sizes only are one; among few tasks also in what else there would be room for.
    Beyond those few one more of a way that none of them has: see `ways_of`. Returns how many there are without those
    that are there for their way alone, too.
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
    ordinary = len(found)
    if not few:  # beside those, whose place it does not take, the first of a way that all are without, for this alone
        met = {way for _, other in found for way in ways_of(other)}
        for choice in choices:
            total = _total(parts, choice)
            if total <= close * found[0][0] and not ways_of(choice) <= met:
                found.append((total, choice))
                met |= ways_of(choice)
    return found, ordinary


def ways_of(choice: Choice) -> set[tuple[str, bool]]:
    """What decides how loads of neighbours meet: whether values have a ring, and whether rows of any product stay."""
    stays = any(getattr(each.tiling, "order", "") == "m_kept" for made in choice[1] for each in made.values())
    return {("values", choice[0].values > 0), ("rows", stays)}


def moved_bytes(parts: Sequence[Part], choice: Choice) -> int:
    """Bytes of main memory's traffic of all tasks."""
    return sum(
        part.count * each.bytes_moved for part, made in zip(parts, choice[1], strict=True) for each in made.values()
    )


def cost_of(objective: Objective, made: Drafted | MappedWorkload) -> int:
    """What a whole program costs, with the price of what it moves."""
    assert made.mapping is not None
    moved = moved_bytes(made.mapping.parts, made.mapping.choice) if objective.per_byte else 0
    return objective.of_program(made.program, moved)


def _differ(parts: Sequence[Part], one: Choice, other: Choice) -> bool:
    """Whether choices differ in more than a few of all executions, so that neighbours may meet otherwise."""
    unlike = sum(
        part.count * (mine[name] != its[name])
        for part, mine, its in zip(parts, one[1], other[1], strict=True)
        for name in part.levels
    )
    return unlike > FEW


def estimated(parts: Sequence[Part], choice: Choice) -> int:
    """Cycles of all tasks one after the other, where time counts."""
    return _total(parts, choice) - sum(
        part.count * (chosen.priced or 0)
        for part, made in zip(parts, choice[1], strict=True)
        for chosen in made.values()
    )


def _total(parts: Sequence[Part], choice: Choice) -> int:
    return sum(
        part.count * chosen.cost for part, made in zip(parts, choice[1], strict=True) for chosen in made.values()
    )


_Shape = tuple[Task, tuple[str, ...], tuple[int, int] | None]
"""What a task computes, on which memory levels, and columns and depth of its tiles where these are decided."""


def nameless(task: Task) -> Task:
    """What a task computes, whatever it is called."""
    every = (task.operator, *task.fused)
    operator, *fused = (replace(each, name="", block="", repeat=1, place=NOWHERE) for each in every)
    vectors = tuple(each for each in fused if isinstance(each, Vector))
    cached = task.cached
    if cached is not None:
        cached = cached.of(name="", block="", repeat=1, place=NOWHERE)
    return Task(operator, vectors, task.depends, held=task.held, step=task.step, cached=cached, block=task.block)


def _pool(
    chip: Chip,
    candidates: Sequence[Room],
    task: Task,
    bound: Bound,
    levels: tuple[str, ...],
    measure: Measure | None,
    most: int,
    tiles: tuple[int, int] | None,
    objective: Objective,
    search: SearchEffort,
    stay: bool,
) -> Pool:
    """Candidates for a task under each layout, its objects in the levels that `Part.levels` lists.

    Shares are tried from the one that could be the fastest on, while one could still be faster than what was found.
    """
    began = time.perf_counter()
    fewest = least_bytes(chip, bound)
    floor = int(objective.of(bound.lower_bound_cycles, fewest))
    measured = None if measure is None else partial(measure, task, levels)
    # of other tasks than products all objects are costed in one level, wherever they are; and where few tasks are
    # compared with all their rivals, what is known of these counts
    exact = most <= MEASURED and (len(chip.memory) == 1 or isinstance(task.operator, Gemm))
    pool = Pool(floor, measured, cast(Sequence[Layout], candidates), most, objective, search, exact)
    kept = max(most // LEAST_MEASURED, LEAST_KEPT)
    looked_at = [0] * chip.tile_count.bit_length()
    for least, share in shares(chip, task.operator, task.fused, candidates):
        best = list(pool.best.values())
        if best and len(best) == len(candidates):
            if NEAR * objective.of(least, fewest) >= max(best):
                break
            # the first few on all tiles, on half of them, on a quarter and so on: what a smaller chip looks at, too
            octaves = range((chip.tile_count // share.tiles).bit_length())
            if all(looked_at[each] >= MOST_SHARES for each in octaves):
                continue
        for each in range((chip.tile_count // share.tiles).bit_length()):
            looked_at[each] += 1
        working = chip if share.tiles == chip.tile_count else chip.model_copy(update={"tile_count": share.tiles})
        pool.add(share, _tilings(working, candidates, task, share.operator, levels, kept, tiles, objective, stay))
    pool.effort.seconds += time.perf_counter() - began
    return pool


def _tilings(
    chip: Chip,
    candidates: Sequence[Room],
    task: Task,
    part: Operator,
    levels: tuple[str, ...],
    kept: int,
    tiles: tuple[int, int] | None,
    objective: Objective,
    stay: bool,
) -> Sequence[Sequence[Tiling]]:
    """Candidates of a part under each layout."""
    if (tiling := channel_tiling(chip, task)) is not None:
        return [[tiling] for _ in candidates]
    if isinstance(part, Gemm):
        a, b, c = (chip.memory[name] for name in levels)
        memories = GemmMemories(a, b, c) if len(chip.memory) > 1 else None
        return choose_tilings(chip, candidates, gemm_shape(part, task), memories, kept, tiles, objective, stay=stay)
    chip = chip.seen_from(levels[0])
    if isinstance(part, Attention):
        return choose_attention_tilings(chip, cast(Sequence[Layout], candidates), part, task.held_by(part), objective)
    if isinstance(part, Vector):
        assert isinstance(chip.tile, NpuTile)
        return choose_vector_tilings(
            chip, cast(Sequence[Layout], candidates), vector_shape(chip.tile, part, task), objective
        )
    raise NotSupported(f"operators of kind {part.kind}")


__all__ = [
    "CLOSE",
    "FEW",
    "WORTH",
    "best_in",
    "cost_of",
    "estimated",
    "choose_layouts",
    "executions",
    "finalists",
    "moved_bytes",
    "nameless",
    "ways_of",
]
