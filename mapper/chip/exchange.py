"""The comparison of whole programs: of a few choices, and with single tasks exchanged for rivals.

What operators take one after the other does not say what they take together, as neighbours overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product, zip_longest

from msgspec import Struct, field

from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.mapper.chip.choice import CLOSE, FEW, FINALISTS, WORTH, cost_of, executions, moved_bytes, ways_of
from siliconloom.mapper.chip.chosen import Choice, Chosen, Part, Rivals, SearchEffort
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.pool import LONG
from siliconloom.mapper.chip.program import Drafted

OVERLAP = 0.007
"""Among more than few tasks rivals are tried where operators that overlap save at least this part of the time."""
TRIED, FEW_TRIED = 40000, 20000
"""Most instructions of whole workloads that are simulated with rivals of single tasks; among few tasks."""
PAIRED = 16
"""Among few tasks: rivals of each of two neighbours that are tried together, the fastest pairs first."""


def best_first(
    parts: Sequence[Part],
    choices: Sequence[tuple[int, Choice]],
    ordinary: int,
    rivals: Rivals,
    lowered: Lower,
    objective: Objective,
    searched: SearchEffort,
    words: int,
) -> list[Drafted]:
    """Of choices, each with the sum of its operators' costs, the one whose whole program costs the least, then others.

    ``ordinary`` of them share the trials of `_compare`; every other one has as many more.
    Once the search is interrupted the best one of what was run is taken.
    """
    if len(choices) == len(parts) == len(parts[0].tasks) == 1 or searched.interrupted:
        return [lowered(choices[0][1])]
    runs: list[tuple[int, int, Drafted]] = []
    try:
        _compare(parts, choices, ordinary, rivals, lowered, objective, runs, words)
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        searched.interrupted = True
    if not runs:
        return [lowered(choices[0][1])]
    first = _cheapest(parts, runs, words)
    return [first, *(draft for _, _, draft in sorted(runs, key=lambda run: run[:2]) if draft is not first)]


def _compare(
    parts: Sequence[Part],
    choices: Sequence[tuple[int, Choice]],
    ordinary: int,
    rivals: Rivals,
    lowered: Lower,
    objective: Objective,
    runs: list[tuple[int, int, Drafted]],
    words: int,
) -> None:
    """Put whole programs down in ``runs``: cost, number of the choice, draft.

    Operators overlap with their neighbours. Beyond `FINALISTS` none is looked at that would have to gain twice as much
    by that as the first one does, but for the first of another way (`ways_of`).
    Where the overlap is a good part of the time, rivals of single tasks are tried, too: the one that is the fastest by
    itself need not be the fastest between its neighbours. Nor is this done to any that would have to gain twice as much
    by it as the one before did, unless tasks are few, or pipelines were cut short for a program to fit its memory: a
    rival of fewer instructions gives these back.
    """
    timed, cost = lowered, partial(cost_of, objective)
    first = timed(choices[0][1])
    runs.append((cost(first), 0, first))
    overlap = abs(choices[0][0] - runs[0][0])
    few, met = executions(parts) <= FEW, ways_of(choices[0][1])
    for number, (total, choice) in enumerate(choices[1:], 1):
        unlike = not ways_of(choice) <= met
        hopeful = total - 2 * overlap < min(run[0] for run in runs) * (1 - WORTH)
        if number < FINALISTS or unlike or hopeful:
            met |= ways_of(choice)
            other = timed(choice)
            runs.append((cost(other), number, other))
    runs.sort(key=lambda run: run[:2])
    if few or overlap >= OVERLAP * runs[0][0]:
        budget = (FEW_TRIED if few else TRIED) // len(first.program.instructions)
        trials, sharing = _Trials(parts, rivals, timed, cost, overlap, words), len(runs) - len(choices) + ordinary
        gained = LONG
        for place, (least, number, made) in enumerate(runs):
            hopeless = least - 2 * gained >= min(run[0] for run in runs) and not few
            if hopeless and not made.short:
                continue
            trials.left = budget * (place + 1) // sharing - trials.spent
            best, changed = trials.exchange(made, least, pairs=few)
            runs[place], gained = (best, number, changed), least - best


def _cheapest(parts: Sequence[Part], runs: Sequence[tuple[int, int, Drafted]], words: int) -> Drafted:
    """The whole program that costs the least, and of equals the one that moves the fewest bytes.

    Of those that are no longer than so many ``words``, where there are any.
    """
    runs = [run for run in runs if not _is_long(run[2], words)] or runs
    return min(runs, key=lambda run: (run[0], moved_bytes(parts, run[2].mapping.choice), run[1]))[2]


def _is_long(made: Drafted, words: int) -> bool:
    return len(made.program.instructions) > words


Lower = Callable[..., Drafted]
"""Lowers a `Choice`, where tasks are `known` for its time only."""
Place = tuple[int, str]
"""A task: the number of its part, and its name."""


def _waits(chosen: Chosen) -> int:
    """Of what an execution costs, how much neighbours could hide: cycles in which its busiest unit waits.

    Of costs that are no cycles that is all; of others the price of bytes is none of it. Here every unit counts by its
    estimate, as this says where it pays to try a rival; a floor that no execution goes below is `pool.busiest`.
    """
    tiling = chosen.tiling
    busy = max(tiling.memory_cycles, tiling.vector_cycles, tiling.array_cycles) if chosen.priced is not None else 0
    return max(chosen.cost - (chosen.priced or 0) - busy, 0)


class _Trials(Struct):
    """Whole workloads in which rivals of tasks take their place.

    What tasks take does not depend on where their buffers lie, so that nothing is tried again under another layout.
    """

    parts: Sequence[Part]
    rivals: Rivals
    lower: Callable[[Choice], Drafted]
    cost: Callable[[Drafted], int]
    overlap: int
    words: int
    left: int = 0
    spent: int = 0
    seen: set[tuple[object, ...]] = field(default_factory=set)

    def exchange(self, best: Drafted, least: int, *, pairs: bool) -> tuple[int, Drafted]:
        """The cost and the draft after tasks were exchanged for rivals where that makes the whole faster.

        One by one, the best rival of every task first, of those that wait the longest, which others' work could fill;
        with ``pairs`` then neighbours together, as what one does in the other's shade depends on both.
        """
        layout, made = best.mapping.choice
        tasks = [(part, name) for part, tiled in enumerate(self.parts) for name in tiled.levels]
        self._is_new(made)
        waits = {(part, name): self.parts[part].count * _waits(made[part][name]) for part, name in tasks}
        some = [task for task in tasks if pairs or waits[task] > WORTH * least]
        some.sort(key=lambda at: -waits[at])
        each = [[(task, rival) for rival in self._rivals(layout, task)] for task in some]
        for task, rival in (way for ways in zip_longest(*each) for way in ways if way is not None):
            best, least = self._try(best, least, {task: rival})
        for first, second in pairwise(tasks) if pairs else ():
            both = product(self._rivals(layout, first)[:PAIRED], self._rivals(layout, second)[:PAIRED])
            counts = self.parts[first[0]].count, self.parts[second[0]].count
            for one, other in sorted(both, key=lambda two: counts[0] * two[0].cost + counts[1] * two[1].cost):
                best, least = self._try(best, least, {first: one, second: other})
        return least, best

    def _rivals(self, layout: Layout, task: Place) -> list[Chosen]:
        return self.rivals(layout, task[1], self.parts[task[0]].levels[task[1]])

    def _try(self, best: Drafted, least: int, changes: dict[Place, Chosen]) -> tuple[Drafted, int]:
        """The better one of a draft and the same with changes.

        Two of them must not lose more than overlaps hide; one of which all but its busiest unit's work were hidden.
        """
        layout, made = best.mapping.choice
        loses = sum(
            self.parts[p].count
            * (new.cost - made[p][name].cost - (_waits(new) if new.priced is not None and len(changes) == 1 else 0))
            for (p, name), new in changes.items()
        )
        if loses > self.overlap or self.left <= 0:
            return best, least
        changed = [dict(tiled) for tiled in made]
        for (part, name), rival in changes.items():
            changed[part][name] = rival
        if not self._is_new(changed):
            return best, least
        self.left -= 1
        self.spent += 1
        other = self.lower((layout, changed))
        taken = self.cost(other)
        if _is_long(other, self.words) and not _is_long(best, self.words):
            return best, least
        fits = _is_long(best, self.words) and not _is_long(other, self.words)  # which is worth some
        return (other, taken) if taken < (CLOSE * least if fits else least) else (best, least)

    def _is_new(self, made: Sequence[dict[str, Chosen]]) -> bool:
        key = tuple(part for tiled in made for each in tiled.values() for part in (id(each.share), id(each.tiling)))
        new = key not in self.seen
        self.seen.add(key)
        return new


__all__ = ["best_first"]
