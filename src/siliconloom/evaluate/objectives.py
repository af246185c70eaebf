"""Mappings that minimise something other than time: energy, energy times time, or traffic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, NotSupported, require_name
from siliconloom.arch.isa import Program
from siliconloom.arch.technology import MEMORY_BYTE, TECHNOLOGIES
from siliconloom.evaluate.decisions import remembered
from siliconloom.evaluate.placement import check_placement, chosen_placement, map_placed
from siliconloom.mapper.chip.banked import array_alone
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.chosen import INTERRUPTED
from siliconloom.mapper.chip.local_search import improved
from siliconloom.mapper.chip.mapping import SEARCHED, fit_precision, map_workload
from siliconloom.mapper.chip.objective import OBJECTIVES, Objective, in_time
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.sim.chip.energy import energy, standing_power
from siliconloom.sim.chip.engine import Run, Stopwatch, run
from siliconloom.sim.chip.levels import READ, WRITE
from siliconloom.workloads import Graph

Search = bool | Budget
"""Whether a mapping is looked for at length, and how long; ``True`` is a `Budget` with its defaults."""
PICO = 1e12
ROUNDS = 4
"""Most prices of time that are tried for the product of energy and time; two are enough most of the time."""
TIE = 1000
"""Where bytes count, cycles decide between equals: one costs a thousandth of what memory could move in it."""


def budget_of(search: bool, seconds: float | None = None, seed: int | None = None) -> Search:
    """What the options of a search ask for; seconds imply one.

    Raises
    ------
    LoomError
        For seconds that are no time, and for a seed of no search.
    """
    if seconds is not None and not 0 < seconds < float("inf"):
        raise LoomError(f"--search-time: a number of seconds above 0 (got {seconds:g})")
    if seed is not None and not search and seconds is None:
        raise LoomError("--seed is of a search; add --search")
    if seed is not None and seed < 0:
        raise LoomError(f"--seed: a whole number from 0 on (got {seed})")
    return Budget(seconds=seconds, seed=seed or 0) if search or seconds is not None else False


def check_objective(name: str) -> str:
    """The name of an objective, or `LoomError`."""
    return require_name("--objective", name, OBJECTIVES)


def map_for(
    objective: str,
    chip: Chip,
    graph: Graph,
    *,
    search: Search = False,
    placement: str | None = None,
    channel: bool = True,
) -> MappedWorkload:
    """Map a workload so that an objective, one of `OBJECTIVES`, is as small as can be found.

    Parameters
    ----------
    search
        Simulate every way to share out the buffers, and then changes of the best mapping, as many as a `Budget` says.
    placement
        One of `evaluate.placement.PLACEMENTS` on a chip with several memory levels.
    channel
        As `map_workload` takes it.

    Raises
    ------
    LoomError
        For another objective.
    NotSupported
        For other objectives than time on chips with several memory levels, or none.
    """
    check_objective(objective)
    if placement is not None:
        check_placement(placement, chip)
    if objective != "time" and len(chip.memory) != 1:
        levels = f"{len(chip.memory)} memory levels" if chip.memory else "no memory"
        raise NotSupported(f"--objective {objective} on {chip.name}, which has {levels}")
    who = chosen_placement(placement, chip, search=bool(search))
    budget = search if isinstance(search, Budget) else Budget()

    def find() -> MappedWorkload:
        found, weighed, others = _searched(objective, chip, graph, who, search=bool(search), channel=channel)
        return _changed(objective, found, improved(found, weighed, budget, others)) if search else found

    if search and budget.seconds is not None:  # what is found in a time is another thing each time
        return find()
    asked = f"trials {budget.trials} seed {budget.seed}" if search else ""
    return remembered(chip, graph, find, objective, asked) if channel else find()


class _Searched(NamedTuple):
    """The best mapping without changes of it, what those are weighed by, and other mappings to begin with."""

    best: MappedWorkload
    weighed: Objective
    others: Sequence[MappedWorkload] = ()


def _searched(objective: str, chip: Chip, graph: Graph, placement: str, *, search: bool, channel: bool) -> _Searched:
    if objective == "time":
        return _fastest(chip, graph, placement, search=search, channel=channel)
    fitted, _ = fit_precision(chip, graph)
    fastest = map_workload(chip, graph, Stopwatch(chip), search=search, channel=False)
    fastest = replace(fastest, notes=(*fastest.notes, *array_alone(chip, fitted, SEARCHED)))
    wanted = least_traffic(chip) if objective == "traffic" else least_energy(chip, fitted)
    if was_interrupted(fastest):
        return _Searched(replace(fastest, objective=objective), wanted)
    if objective == "edp":
        best = _least_product(chip, graph, fitted, fastest, search=search)
        return _Searched(best, least_energy(chip, fitted, _product(chip, fitted, best)[1]), [fastest])
    found = map_workload(chip, graph, objective=wanted, search=search)
    best = min(found, fastest, key=lambda plan: wanted.measure(plan.program))
    return _Searched(_said(replace(best, objective=objective), found), wanted, [found, fastest])


def was_interrupted(plan: MappedWorkload) -> bool:
    """Whether the search of a mapping ended before it was through."""
    return plan.searched is not None and plan.searched.interrupted


def _said(best: MappedWorkload, last: MappedWorkload) -> MappedWorkload:
    """The best mapping, with the note of the ``last`` one where its search was interrupted."""
    if not was_interrupted(last) or was_interrupted(best):
        return best
    return replace(best, notes=(*best.notes, INTERRUPTED), searched=last.searched)


def _fastest(chip: Chip, graph: Graph, placement: str, *, search: bool, channel: bool) -> _Searched:
    """The fastest mapping; a ``search`` also looks among those that other objectives prefer, as estimates err."""
    if len(chip.memory) > 1:
        return _Searched(map_placed(placement, chip, graph, search=search, channel=channel), in_time(Stopwatch(chip)))
    clock = Stopwatch(chip)
    best, weighed = map_workload(chip, graph, clock, search=search, channel=channel), in_time(clock)
    if not search or was_interrupted(best) or len(chip.memory) != 1:
        return _Searched(best, weighed)
    fitted, _ = fit_precision(chip, graph)
    # a little time is worth bytes until here; from here on it counts alone
    quick = map_workload(chip, graph, clock, search=False, channel=channel)
    best, every = min(best, quick, key=lambda plan: clock(plan.program)), [best, quick]
    if was_interrupted(quick):
        return _Searched(_said(best, quick), weighed)
    wanted = least_traffic(chip), least_energy(chip, fitted)
    for objective, length in itertools.product(wanted, (False, True)):  # of whom either may be the faster one
        other = map_workload(chip, graph, objective=objective, search=length)
        best = min(best, other, key=lambda plan: clock(plan.program))
        if was_interrupted(other):
            return _Searched(_said(replace(best, objective="time"), other), weighed)
        every.append(other)
    return _Searched(replace(best, objective="time"), weighed, every)


def least_traffic(chip: Chip) -> Objective:
    """Bytes that main memory moves, in thousandths; of equals the fastest."""
    beat = chip.path_bandwidth(chip.nearest) / chip.clock

    def measure(program: Program) -> int:
        done = run(program, chip)
        return round(TIE * moved(done) + beat * done.cycles)

    return Objective("traffic", measure, beat, float(TIE))


def least_energy(chip: Chip, graph: Graph, price: float = 0.0) -> Objective:
    """Energy in picojoules, with ``price`` more for a second, in watts.

    What is estimated of a candidate that is not run is time at the chip's standing power, and traffic of main memory
    and of the scratchpad that it passes; products cost the same in all of them.
    """
    technology, tile = TECHNOLOGIES[chip.technology], chip.tile
    watts = sum(standing_power(chip).values()) + price
    memory = chip.nearest
    per_byte = MEMORY_BYTE[memory.kind] if memory.energy is None else memory.energy
    per_byte += technology.sram_byte(tile.scratchpad.capacity // tile.scratchpad.banks)  # type: ignore[union-attr]
    joules = joules_of(chip, graph)

    def measure(program: Program) -> int:
        done = run(program, chip)
        return round(PICO * (joules(program, done) + price * done.cycles / chip.clock))

    return Objective("edp" if price else "energy", measure, PICO * watts / chip.clock, PICO * per_byte)


def joules_of(chip: Chip, graph: Graph) -> Callable[[Program, Run], float]:
    """What a run takes, with what the chip takes for standing there."""
    watts = sum(standing_power(chip).values())

    def joules(program: Program, done: Run) -> float:
        total = watts * done.cycles / chip.clock
        for number, name in enumerate(program.operators):
            dtype = graph.dataflow[name].precision if name in graph.dataflow else graph.precision
            total += sum(energy(chip, dtype, done.counters[number], done.traffic[number]).values())
        return total

    return joules


def moved(done: Run) -> int:
    """Bytes of main memory that a run has read and written."""
    return int(done.traffic[:, :, [READ, WRITE]].sum())


def _product(chip: Chip, fitted: Graph, plan: MappedWorkload) -> tuple[float, float]:
    """The product of energy and time, in joule-seconds, and energy over time, in watts."""
    done = run(plan.program, chip)
    spent, seconds = joules_of(chip, fitted)(plan.program, done), done.cycles / chip.clock
    return spent * seconds, spent / seconds


def _changed(objective: str, found: MappedWorkload, changed: MappedWorkload) -> MappedWorkload:
    """What a local search came to, or what it began with where that is less: a sum stands for the product of two."""
    if changed.searched is None or changed.searched.local is None:
        return changed
    local, first, last = changed.searched.local, figure(objective, found), figure(objective, changed)
    if last > first:
        changed, last = replace(found, notes=changed.notes, searched=changed.searched), first
        local = replace(local, kept=0)
    local = replace(local, first=first, last=last)
    gain = 1 - last / first if first else 0.0
    note = f"local search: {local.tried:,} changes of the mapping simulated (seed {local.seed}), {local.kept:,} kept: "
    note += f"{gain:.2%} less {objective}"
    assert changed.searched is not None
    return replace(changed, notes=(*changed.notes, note), searched=replace(changed.searched, local=local))


def figure(objective: str, plan: MappedWorkload) -> float:
    """What an objective counts of a mapping: cycles, joules, joule-seconds, or bytes of main memory's traffic."""
    done = run(plan.program, plan.chip)
    if objective == "time":
        return done.cycles
    if objective == "traffic":
        return moved(done)
    joules = joules_of(plan.chip, plan.graph)(plan.program, done)
    return joules if objective == "energy" else joules * done.cycles / plan.chip.clock


def _least_product(chip: Chip, graph: Graph, fitted: Graph, fastest: MappedWorkload, *, search: bool) -> MappedWorkload:
    """The least product of energy and time: no more than those of the fastest mapping and of the most frugal one.

    Where it is the least, energy over time is the price of time at which the sum of both is the least, too: the price
    is that of the best mapping so far, until none is better.
    """
    product = partial(_product, chip, fitted)
    frugal = map_workload(chip, graph, objective=least_energy(chip, fitted), search=search)
    best = min(fastest, frugal, key=lambda plan: product(plan)[0])
    least, price = product(best)
    if was_interrupted(frugal):
        return _said(replace(best, objective="edp"), frugal)
    for _ in range(ROUNDS):
        other = map_workload(chip, graph, objective=least_energy(chip, fitted, price), search=search)
        found, price = product(other)
        if found < least:
            best, least = other, found
        elif not was_interrupted(other):
            break
        if was_interrupted(other):
            return _said(replace(best, objective="edp"), other)
    return replace(best, objective="edp")
