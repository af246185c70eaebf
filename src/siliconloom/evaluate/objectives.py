"""Mappings that minimise something other than time: energy, energy times time, or traffic."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.arch.isa import Program
from siliconloom.arch.technology import MEMORY_BYTE, TECHNOLOGIES
from siliconloom.evaluate.placement import check_placement, chosen_placement, map_placed
from siliconloom.mapper.chip.mapping import INTERRUPTED, fit_precision, map_workload
from siliconloom.mapper.chip.objective import OBJECTIVES, Objective
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.sim.chip.energy import energy, standing_power
from siliconloom.sim.chip.engine import Run, Stopwatch, run
from siliconloom.sim.chip.levels import READ, WRITE
from siliconloom.workloads import Graph

PICO = 1e12
ROUNDS = 4
"""Most prices of time that are tried for the product of energy and time; two are enough most of the time."""
TIE = 1000
"""Where bytes count, cycles decide between equals: one costs a thousandth of what memory could move in it."""


def check_objective(name: str) -> str:
    """The name of an objective, or `LoomError`."""
    if name not in OBJECTIVES:
        near = nearest_name(name, OBJECTIVES)
        hint = f"; did you mean {near}?" if near else ""
        raise LoomError(f"--objective: one of {', '.join(OBJECTIVES)} (got '{name}'){hint}")
    return name


def map_for(
    objective: str, chip: Chip, graph: Graph, *, search: bool = False, placement: str | None = None
) -> MappedWorkload:
    """Map a workload so that an objective, one of `OBJECTIVES`, is as small as can be found.

    ``placement`` is one of `evaluate.placement.PLACEMENTS` on a chip with several memory levels.

    Raises
    ------
    LoomError
        For another objective.
    NotSupported
        For other objectives than time on chips with several memory levels, or none.
    """
    check_objective(objective)
    if objective == "time":
        return _fastest(chip, graph, chosen_placement(placement, chip, search=search), search=search)
    if placement is not None:
        check_placement(placement, chip)
    if len(chip.memory) != 1:
        levels = f"{len(chip.memory)} memory levels" if chip.memory else "no memory"
        raise NotSupported(f"--objective {objective} on {chip.name}, which has {levels}")
    fitted, _ = fit_precision(chip, graph)
    fastest = map_workload(chip, graph, Stopwatch(chip), search=search)
    if was_interrupted(fastest):
        return replace(fastest, objective=objective)
    if objective == "edp":
        return _least_product(chip, graph, fitted, fastest, search=search)
    wanted = least_traffic(chip) if objective == "traffic" else least_energy(chip, fitted)
    found = map_workload(chip, graph, objective=wanted, search=search)
    best = min(found, fastest, key=lambda plan: wanted.measure(plan.program))
    return _said(replace(best, objective=objective), found)


def was_interrupted(plan: MappedWorkload) -> bool:
    """Whether the search of a mapping ended before it was through."""
    return plan.searched is not None and plan.searched.interrupted


def _said(best: MappedWorkload, last: MappedWorkload) -> MappedWorkload:
    """The best mapping, with the note of the ``last`` one where its search was interrupted."""
    if not was_interrupted(last) or was_interrupted(best):
        return best
    return replace(best, notes=(*best.notes, INTERRUPTED), searched=last.searched)


def _fastest(chip: Chip, graph: Graph, placement: str, *, search: bool) -> MappedWorkload:
    """The fastest mapping; a ``search`` also looks among those that move few bytes, whose estimates err otherwise."""
    if len(chip.memory) > 1:
        return map_placed(placement, chip, graph, search=search)
    clock = Stopwatch(chip)
    found = map_workload(chip, graph, clock, search=search)
    if not search or was_interrupted(found) or len(chip.memory) != 1:
        return found
    other = map_workload(chip, graph, objective=least_traffic(chip), search=True)
    best = min(found, other, key=lambda plan: clock(plan.program))
    return _said(replace(best, objective="time"), other)


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


def _least_product(chip: Chip, graph: Graph, fitted: Graph, fastest: MappedWorkload, *, search: bool) -> MappedWorkload:
    """The least product of energy and time: no more than those of the fastest mapping and of the most frugal one.

    Where it is the least, energy over time is the price of time at which the sum of both is the least, too: the price
    is that of the best mapping so far, until none is better.
    """
    joules = joules_of(chip, fitted)

    def product(plan: MappedWorkload) -> tuple[float, float]:
        done = run(plan.program, chip)
        spent, seconds = joules(plan.program, done), done.cycles / chip.clock
        return spent * seconds, spent / seconds

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
