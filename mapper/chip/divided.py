"""Buffers that are divided anew for single tasks: what the others need is theirs meanwhile.

A program has one division of the buffers, in which every operator finds room. Of products that leaves one less than it
could use: banks that only attention has a use for, say. So a task may have a division of its own (`Chosen.divided`).
Before it and behind it is a fence (`arch.phases`), where every unit waits until all of them are done: the slots of all
rings are free then, whoever has them next. That costs what loads ahead and neighbours' overlap save, and the fence's
barriers. So it is tried where estimates say that it gains more, and taken where whole programs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import IN_TURN
from siliconloom.mapper.chip.bounds import least_traffic, operator_bound
from siliconloom.mapper.chip.choice import best_in, choose_layouts, cost_of, moved_bytes
from siliconloom.mapper.chip.chosen import Choice, Chosen, Part, SearchEffort
from siliconloom.mapper.chip.divisions import least_of
from siliconloom.mapper.chip.gemm_layout import gemm_layout_of
from siliconloom.mapper.chip.layout import SHARES, Layout, NotDivided, Undivided, banks_of, layouts
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.program import Drafted
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Attention, Gemm, Graph

WORTH = 0.002
"""A task must be estimated to save this part of the whole time by a division of its own."""
GAINS = 1.001
"""The whole program must take so many times as long without, or"""
SPARES = 0.98
"""move no more than this part of the bytes in as much time."""
MUCH = 1.02
"""So many times what a draft costs is more than loads ahead are taken to save."""
CLOSE, OTHERS_CLOSE = 1.03, 1.1
"""None is tried that is estimated to cost so many times as much as the best; the best of another order of loops."""
FIRST, TRIED = 2, 5
"""Divisions of a task that whole programs are simulated with: the best by estimates and the frugal one; more of them
where neither gains, or the estimate is so many times the task's bound."""
ENOUGH = 1.03
FENCED = 0.001
"""What a division of a task's own is taken to cost of the whole time, where another start is looked for."""
HOPE = 1.02
"""Another start that costs so many times as much as the best is not gone on from."""

Place = tuple[int, int]
"""A task: the number of its part, and its own in that."""


def divide_anew(
    chip: Chip,
    graph: Graph,
    parts: Sequence[Part],
    made: Drafted,
    choices: Sequence[Choice],
    lower: Callable[[Choice], Drafted],
    objective: Objective,
    searched: SearchEffort,
) -> Drafted:
    """A draft in which tasks have buffers divided for themselves, where that costs less; or the one that was ``made``.

    Parameters
    ----------
    chip, graph, parts, made
        What is mapped, how it is cut, and the draft of everything that is decided.
    choices
        Divisions for all tasks and what is chosen under each: one that is not the best for all may be the best for
        those that have none of their own.
    lower
        The draft of a choice.
    objective
        What a program costs.
    searched
        Whether the search was interrupted is put down there; the best draft of what was run is taken then.
    """
    best = made
    try:
        first = cost_of(objective, made)
        alone = _Alone(chip, graph, parts, objective)
        best = _one_by_one(chip, parts, made, alone, lower, objective, first)
        start = _start(parts, made.mapping.choice, choices, alone, first)
        if start is not None:
            draft = lower(start)
            hopeful = cost_of(objective, draft) < HOPE * cost_of(objective, best)
            if hopeful and len(draft.program.instructions) <= _words(chip):
                draft = _one_by_one(chip, parts, draft, alone, lower, objective, first)
                if is_better(draft, best, objective):
                    best = draft
    except NotDivided:  # the other start: what is found without it stays
        pass
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        searched.interrupted = True
    return best if best is made else lower(_folded(parts, best.mapping.choice))


def _one_by_one(
    chip: Chip,
    parts: Sequence[Part],
    made: Drafted,
    alone: _Alone,
    lower: Callable[[Choice], Drafted],
    objective: Objective,
    first: int,
) -> Drafted:
    """A draft in which one task after the other has a division of its own, where that costs less."""
    best = made
    for at, ways, enough in _promising(parts, made.mapping.choice, first, alone):
        before = best
        for number, chosen in enumerate(ways):
            if number >= FIRST and best is not before and ways[0].cost <= enough:
                break
            try:
                draft = lower(taking(parts, best.mapping.choice, at, chosen))
            except NotDivided:
                continue
            if len(draft.program.instructions) > _words(chip):
                continue
            if is_better(draft, best, objective):
                best = draft
    return best


class _Alone:
    """Of each product and attention what it costs at least, and in divisions of its own, once it is asked for."""

    def __init__(self, chip: Chip, graph: Graph, parts: Sequence[Part], objective: Objective) -> None:
        self._asked, self._ways = (chip, graph, parts, objective), dict[Place, list[Chosen]]()
        self.fewest = dict[Place, int]()
        """Bytes that a product moves at least."""
        self.floors = dict[Place, float]()
        for number, part in enumerate(parts):
            for place, task in enumerate(part.tasks):
                if isinstance(task.operator, Gemm | Attention):
                    at, fewest = (number, place), 0
                    if isinstance(task.operator, Gemm):
                        fewest = self.fewest[at] = least_traffic(chip, task.operator, task.fused)
                    bound = operator_bound(chip, task.operator, task.fused)
                    self.floors[at] = objective.of(bound.lower_bound_cycles, fewest)

    def ways(self, at: Place) -> list[Chosen]:
        """The best by estimates, that of these which moves the fewest bytes, others; or nothing."""
        if at not in self._ways:
            chip, graph, parts, objective = self._asked
            self._ways[at] = ways_alone(chip, graph, parts[at[0]], at[1], objective)
        return self._ways[at]


def _start(parts: Sequence[Part], made: Choice, choices: Sequence[Choice], alone: _Alone, least: int) -> Choice | None:
    """The choice that costs the least where tasks that gain by a division of their own have one, with these.

    Nothing where that is the one that was ``made``, or costs no less by `FENCED`.
    """
    names = {at: parts[at[0]].tasks[at[1]].operator.name for at in alone.floors}
    highest = {at: max(choice[1][at[0]][name].cost for choice in choices) for at, name in names.items()}
    wanted = {at: FENCED * least / parts[at[0]].count for at in names}
    ways = {at: alone.ways(at)[:1] for at in names if highest[at] - alone.floors[at] > wanted[at]}

    def joint(choice: Choice) -> float:
        total = 0.0
        for part, tiled in zip(parts, choice[1], strict=True):
            total += part.count * sum(each.cost for each in tiled.values())
        for at, some in ways.items():
            cost = choice[1][at[0]][names[at]].cost
            total -= sum(parts[at[0]].count * max(cost - way.cost - wanted[at], 0) for way in some)
        return total

    best = min(choices, key=joint)
    if best[0] == made[0] or joint(best) > (1 - FENCED) * joint(made):
        return None
    for at, some in ways.items():
        for way in some:
            if best[1][at[0]][names[at]].cost - way.cost > wanted[at]:
                best = taking(parts, best, at, way)
    return best


def _folded(parts: Sequence[Part], choice: Choice) -> Choice:
    """The same where a single task has a division of its own, that of all others: of the program."""
    layout, tiled = choice
    if len(parts) > 1 or len(parts[0].tasks) > 1:
        return choice
    ((name, chosen),) = tiled[0].items()
    return chosen.divided or layout, [{name: replace(chosen, divided=None)}]


def is_better(one: Drafted, other: Drafted, objective: Objective) -> bool:
    """Whether a draft costs less than another, or no more and moves fewer bytes."""
    cost, before = cost_of(objective, one), cost_of(objective, other)
    moves, moved = (moved_bytes(each.mapping.parts, each.mapping.choice) for each in (one, other))
    return GAINS * cost < before or (moves <= SPARES * moved and cost <= before)


def _words(chip: Chip) -> int:
    assert isinstance(chip.tile, NpuTile)
    return chip.tile.sequencer.program_words


def _promising(
    parts: Sequence[Part], choice: Choice, least: int, alone: _Alone
) -> Iterator[tuple[Place, list[Chosen], float]]:
    """Tasks, those that save the most by estimates first; divisions of each; and a cost that is near its bound."""
    found, moved = list[tuple[float, Place, list[Chosen], float]](), moved_bytes(parts, choice)
    for at, floor in alone.floors.items():
        count = parts[at[0]].count
        now = choice[1][at[0]][parts[at[0]].tasks[at[1]].operator.name]
        wanted, spared = WORTH * least / count, (1 - SPARES) * moved / count
        bytes_now = now.bytes_moved
        if now.divided is not None or (
            now.cost - floor <= wanted and bytes_now - alone.fewest.get(at, bytes_now) <= spared
        ):
            continue
        ways = alone.ways(at)
        gains = now.cost - min((each.cost for each in ways), default=now.cost)
        spares = bytes_now - min((each.bytes_moved for each in ways), default=bytes_now)
        if gains > wanted or spares > spared:
            found.append((-gains * count, at, ways, ENOUGH * floor))
    found.sort(key=lambda each: each[:2])
    for _, at, ways, enough in found:
        yield at, ways, enough


def ways_alone(chip: Chip, graph: Graph, part: Part, place: int, objective: Objective) -> list[Chosen]:
    """A task with divisions of its own: the best by estimates, that of these which moves the fewest bytes, others."""
    task = part.tasks[place]
    assert isinstance(chip.tile, NpuTile)
    if isinstance(task.operator, Gemm):
        return _products(chip, chip.tile, task, part.levels[task.operator.name], objective)
    return _attentions(chip, chip.tile, graph, part, task, objective)


def _products(chip: Chip, tile: NpuTile, task: Task, levels: tuple[str, ...], objective: Objective) -> list[Chosen]:
    """A product in divisions that just fit its best tiles, these first."""
    least = least_of([task], chip, tile)
    bound = operator_bound(chip, task.operator, task.fused)
    division = Undivided(tile, tuple(sorted(least.items())))
    found = list[Chosen]()
    for chosen in _few(best_in(chip, division, task, bound, levels, objective)):
        product, t = chosen.share.operator, chosen.tiling
        assert isinstance(product, Gemm)
        assert isinstance(t, GemmTiling)
        needs = gemm_layout_of(tile, gemm_shape(product, task)).needs_in(t.order, t.m, t.n, t.k, t.held)
        room = tuple((ring, max(least.get(ring, 0), needs.get(ring, 0))) for ring in sorted({*least, *needs}))
        fitting = _just_fitting(tile, room)
        if fitting is not None:
            found.append(replace(chosen, divided=fitting))
    return found


@lru_cache(maxsize=1 << 12)
def _just_fitting(tile: NpuTile, room: tuple[tuple[str, int], ...]) -> Layout | None:
    """The division whose slots have so much room, by ring, and share out the rest; nothing where there is none."""
    needs = dict(room)
    fitting = layouts(tile, [needs["constants"]], needs, SHARES[:1])
    return fitting[0] if fitting and banks_of(tile, fitting[0]) <= tile.scratchpad.banks else None


def _attentions(chip: Chip, tile: NpuTile, graph: Graph, part: Part, task: Task, objective: Objective) -> list[Chosen]:
    """Attention in any division that is tried for it alone, the best first."""
    name = task.operator.name
    alone = Part(part.first, part.count, (task,), {name: part.levels[name]})
    try:
        choices = choose_layouts(chip, tile, graph, [alone], None, objective=objective).choices
    except LoomError:
        return []
    return _few([replace(made[name], divided=layout) for layout, (made,) in choices])


def _few(every: Sequence[Chosen]) -> list[Chosen]:
    """Of candidates in order: the best, of those close to it the one that moves the fewest bytes, and others.

    First the best of each order of loops, as estimates of one err alike, with rows that stay whole or in part.
    """
    if not every:
        return []
    frugal = min((each for each in every if each.cost <= CLOSE * every[0].cost), key=lambda each: each.bytes_moved)
    options, kinds = dict[tuple[object, ...], Chosen](), dict[tuple[object, ...], Chosen]()
    for each in every:
        if each.cost <= OTHERS_CLOSE * every[0].cost:
            kinds.setdefault((getattr(each.tiling, "order", ""), getattr(each.tiling, "held", 0) > 0), each)
    near = [each for each in every[1:] if each.cost <= CLOSE * every[0].cost]
    for chosen in (every[0], frugal, *kinds.values(), *near):
        options.setdefault((chosen.tiling, chosen.share), chosen)
    return list(options.values())[:TRIED]


def taking(parts: Sequence[Part], choice: Choice, at: Place, chosen: Chosen) -> Choice:
    """The same with one task otherwise; nothing goes ahead over what is divided anew."""
    number, place = at
    layout, tiled = choice[0], [dict(each) for each in choice[1]]
    tasks = parts[number].tasks
    tiled[number][tasks[place].operator.name] = replace(chosen, divided=None) if chosen.divided == layout else chosen
    for later, task in enumerate(tasks[place:]):
        own = tiled[number][task.operator.name]
        if max(own.ahead.weights, own.ahead.values) >= later:
            tiled[number][task.operator.name] = replace(own, ahead=IN_TURN)
    return layout, tiled


def gains_much(one: Drafted, other: Drafted, objective: Objective) -> bool:
    """Whether a draft costs so much less than another that loads ahead will not make up for it."""
    return MUCH * cost_of(objective, one) < cost_of(objective, other)


__all__ = ["divide_anew", "gains_much", "is_better", "taking", "ways_alone"]
