"""The best placement of all, by constraint programming (CP-SAT of OR-Tools, the extra ``placement``).

The problem is that of `placement`, with nothing left out. How many units of an object lie in each level is an integer;
all of an object's units lie somewhere, none in a level that does not hold its kind, and what lies in a level, every
object filled up to where the next one may begin, is no more than its capacity. A tile has one port, so that levels take
turns, and the cost is the sum that the heuristic compares: what each object takes in a level, times the part of its
units that lie there.

The solver counts in integers. Costs are scaled so that all of them together are `PRECISION`, and what rounding may take
off is taken off the bound. It runs as one worker from a fixed seed, until it has proven that no placement costs less or
`EFFORT` of its own deterministic time is spent: the same answer on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.mapper.chip.memory import no_room
from siliconloom.mapper.chip.placement import Counts, Demand, Placement, assign_units, cost_of, fastest_first, grain_of

PRECISION = 2**40
"""Parts that the cost of everything, were all of it in the slowest level, is counted in."""
EFFORT = 4.0
"""Deterministic time of the solver, about seconds; the library's chips take less than a tenth of it."""


class Solved(Struct, frozen=True):
    """A placement, what it costs, and what none costs less than; they are equal where it is ``proven`` to be the best.

    Costs are equal but for rounding.
    """

    placement: Placement
    cost: float
    bound: float
    proven: bool


def is_available() -> bool:
    """Whether OR-Tools is installed."""
    return find_spec("ortools") is not None


def solve(chip: Chip, demands: Sequence[Demand], start: Placement | None = None, effort: float = EFFORT) -> Solved:
    """The placement whose transfers take the least time, or the best one that ``effort`` finds.

    Parameters
    ----------
    start
        A placement to begin with: what is found never costs more.

    Raises
    ------
    LoomError
        When there is no room for everything, when OR-Tools is not installed, and when nothing was found at all.
    """
    if not is_available():
        raise LoomError("exact placements need the package ortools: pip install 'siliconloom[placement]'")
    from ortools.sat.python import cp_model

    model, levels, grain = cp_model.CpModel(), list(chip.memory.values()), grain_of(chip)
    room = [level.total_capacity // size for level, size in zip(levels, grain, strict=True)]
    scale = PRECISION / max(sum(max(demand.cycles) for demand in demands), 1.0)
    begun = [start.shares(demand.item.key) if start else {} for demand in demands]
    costs, taken, counts = [], [list[cp_model.LinearExprT]() for _ in levels], list[dict[int, cp_model.IntVar]]()
    for demand, shares in zip(demands, begun, strict=True):
        item, own = demand.item, dict[int, cp_model.IntVar]()
        for number in fastest_first(chip):
            if item.held not in levels[number].holds:
                continue
            own[number] = count = model.new_int_var(0, item.units, f"{item.operator} {item.role} {number}")
            costs.append(round(demand.cycles[number] * scale / max(item.units, 1)) * count)
            each, odd = divmod(item.unit_bytes, grain[number])
            if odd == 0 or item.units == 1:
                taken[number].append((each + (odd > 0)) * count)
            else:  # units lie one behind the other, and the next object begins at a multiple
                filled = model.new_int_var(0, -(-item.size // grain[number]), "")
                model.add(grain[number] * filled >= item.unit_bytes * count)
                taken[number].append(filled)
            if start:
                model.add_hint(count, shares.get(list(chip.memory)[number], 0))
        model.add(sum(own.values()) == item.units)
        counts.append(own)
    for number, parts in enumerate(taken):
        model.add(sum(parts) <= room[number])
    model.minimize(sum(costs))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, 0
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise no_room(chip, sum(demand.item.size for demand in demands))
    lost = sum(demand.item.units for demand in demands) / 2 + 1
    bound = (solver.best_objective_bound - lost) / scale
    proven = status == cp_model.OPTIMAL
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        if start is None:
            raise LoomError(f"{chip.name}: no placement was found in the time that the solver has")
        return Solved(start, cost_of(chip, start), max(bound, 0.0), proven)
    found: Counts = [{level: solver.value(n) for level, n in own.items() if solver.value(n)} for own in counts]
    made = assign_units(chip, demands, found)
    if start is not None and cost_of(chip, start) <= cost_of(chip, made):
        made = start
    cost = cost_of(chip, made)
    return Solved(made, cost, min(max(bound, 0.0), cost), proven)


__all__ = ["EFFORT", "Solved", "is_available", "solve"]
