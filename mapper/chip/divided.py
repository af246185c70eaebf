"""Buffers that are divided anew for single tasks: what the others need is theirs meanwhile.

A program has one division of the buffers, in which every operator finds room. Of products that leaves one less than it
could use: banks that only attention has a use for, say. So a task may have a division of its own (`Chosen.divided`).
Before it and behind it is a fence (`arch.phases`), where every unit waits until all of them are done: the slots of all
rings are free then, whoever has them next. That costs what loads ahead and neighbours' overlap save, and the fence's
barriers. So it is tried where estimates say that it gains more, and taken where whole programs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import IN_TURN
from siliconloom.mapper.chip.bounds import least_traffic, operator_bound
from siliconloom.mapper.chip.choice import best_in, choose_layouts, moved_bytes
from siliconloom.mapper.chip.chosen import Choice, Chosen, Part, SearchEffort
from siliconloom.mapper.chip.divisions import least_of
from siliconloom.mapper.chip.gemm_layout import gemm_layout_of
from siliconloom.mapper.chip.layout import SHARES, NotDivided, Undivided, banks_of, layouts
from siliconloom.mapper.chip.objective import NEARLY, Objective
from siliconloom.mapper.chip.program import Drafted
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Attention, Gemm, Graph

WORTH = 0.005
"""A task must be estimated to save this part of the whole time by a division of its own."""
GAINS = 1.001
"""The whole program must take so many times as long without, or"""
SPARES = 0.98
"""move no more than this part of the bytes in as much time."""
MUCH = 1.02
"""So many times what a draft costs is more than loads ahead are taken to save."""
CLOSE = 1.03
"""None is tried that is estimated to cost so many times as much as the best."""
FIRST, TRIED = 2, 5
"""Divisions of a task that whole programs are simulated with: the best by estimates and the frugal one; more of them
where neither gains, or the estimate is so many times the task's bound."""
ENOUGH = 1.03

Place = tuple[int, int]
"""A task: the number of its part, and its own in that."""


def divide_anew(
    chip: Chip,
    graph: Graph,
    parts: Sequence[Part],
    made: Drafted,
    lower: Callable[[Choice], Drafted],
    objective: Objective,
    searched: SearchEffort,
) -> Drafted:
    """A draft in which tasks have buffers divided for themselves, where that costs less; or the one that was ``made``.

    Parameters
    ----------
    chip, graph, parts, made
        What is mapped, how it is cut, and the draft of everything that is decided.
    lower
        The draft of a choice.
    objective
        What a program costs.
    searched
        Whether the search was interrupted is put down there; the best draft of what was run is taken then.
    """
    best, cost = made, objective.measure
    try:
        first = least = cost(made.program)
        for at, ways, enough in _promising(chip, graph, parts, made.mapping.choice, first, objective):
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
                if is_better(parts, draft, best, objective, least):
                    best, least = draft, min(least, cost(draft.program))
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        searched.interrupted = True
    return best if best is made else lower(_folded(parts, best.mapping.choice))


def _folded(parts: Sequence[Part], choice: Choice) -> Choice:
    """The same where a single task has a division of its own, that of all others: of the program."""
    layout, tiled = choice
    if len(parts) > 1 or len(parts[0].tasks) > 1:
        return choice
    ((name, chosen),) = tiled[0].items()
    return chosen.divided or layout, [{name: replace(chosen, divided=None)}]


def is_better(
    parts: Sequence[Part], one: Drafted, other: Drafted, objective: Objective, least: int | None = None
) -> bool:
    """Whether a draft costs less than another, or as much as the ``least`` that any did and moves fewer bytes."""
    cost, before = objective.measure(one.program), objective.measure(other.program)
    moves, moved = (moved_bytes(parts, each.mapping.choice) for each in (one, other))
    spares = moves <= SPARES * moved and cost <= objective.whole_slack * (before if least is None else least)
    return spares or max(GAINS, NEARLY if moves > moved else 0) * cost < before


def _words(chip: Chip) -> int:
    assert isinstance(chip.tile, NpuTile)
    return chip.tile.sequencer.program_words


def _promising(
    chip: Chip, graph: Graph, parts: Sequence[Part], choice: Choice, least: int, objective: Objective
) -> Iterator[tuple[Place, list[Chosen], float]]:
    """Tasks, those that save the most by estimates first; divisions of each; and a cost that is near its bound."""
    found, moved = list[tuple[float, Place, list[Chosen], float]](), moved_bytes(parts, choice)
    for number, (part, tiled) in enumerate(zip(parts, choice[1], strict=True)):
        for place, task in enumerate(part.tasks):
            now = tiled[task.operator.name]
            if not isinstance(task.operator, Gemm | Attention):
                continue
            floor = objective.of(operator_bound(chip, task.operator, task.fused).lower_bound_cycles, 0)
            wanted, spared = WORTH * least / part.count, (1 - SPARES) * moved / part.count
            bytes_now = now.bytes_moved
            fewest = least_traffic(chip, task.operator, task.fused) if isinstance(task.operator, Gemm) else bytes_now
            if now.cost - floor <= wanted and bytes_now - fewest <= spared:
                continue
            ways = ways_alone(chip, graph, part, place, objective)
            gains = now.cost - min((each.cost for each in ways), default=now.cost)
            spares = bytes_now - min((each.bytes_moved for each in ways), default=bytes_now)
            if gains > wanted or spares > spared:
                found.append((-gains * part.count, (number, place), ways, ENOUGH * floor))
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
        room = {ring: max(least.get(ring, 0), needs.get(ring, 0)) for ring in sorted({*least, *needs})}
        fitting = layouts(tile, [room["constants"]], room, SHARES[:1])
        if fitting and banks_of(tile, fitting[0]) <= tile.scratchpad.banks:
            found.append(replace(chosen, divided=fitting[0]))
    return found


def _attentions(chip: Chip, tile: NpuTile, graph: Graph, part: Part, task: Task, objective: Objective) -> list[Chosen]:
    """Attention in any division that is tried for it alone, the best first."""
    name = task.operator.name
    alone = Part(part.first, part.count, (task,), {name: part.levels[name]})
    try:
        choices, _ = choose_layouts(chip, tile, graph, [alone], None, objective=objective)
    except LoomError:
        return []
    return _few([replace(made[name], divided=layout) for layout, (made,) in choices])


def _few(every: Sequence[Chosen]) -> list[Chosen]:
    """Of candidates in order: the best, of those that cost as much the one that moves the fewest bytes, and others."""
    if not every:
        return []
    near = [each for each in every if each.cost <= NEARLY * every[0].cost]
    frugal = min(near, key=lambda each: each.bytes_moved)
    options = dict[tuple[object, ...], Chosen]()
    for chosen in (every[0], frugal, *(each for each in every[1:] if each.cost <= CLOSE * every[0].cost)):
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
    return MUCH * objective.measure(one.program) < objective.measure(other.program)


__all__ = ["divide_anew", "gains_much", "is_better", "taking", "ways_alone"]
