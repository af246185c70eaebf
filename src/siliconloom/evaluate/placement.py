"""Where objects lie on a chip with several memory levels: who decides it, and what ``loom map`` shows of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.exact_placement import Solved, is_available, solve
from siliconloom.mapper.chip.mapping import first_demands, fit_precision, map_workload
from siliconloom.mapper.chip.placement import Placement, PlacementChoice, Tried, cost_of, place
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Graph

PLACEMENTS = ("heuristic", "exact", "best")
"""Who decides: the greedy rule, constraint programming, or the simulator between their programs."""


def check_placement(name: str, chip: Chip) -> str:
    """The name of a placement that can be asked of a chip, or `LoomError`."""
    if name not in PLACEMENTS:
        near = nearest_name(name, PLACEMENTS)
        hint = f"; did you mean {near}?" if near else ""
        raise LoomError(f"--placement: one of {', '.join(PLACEMENTS)} (got '{name}'){hint}")
    if len(chip.memory) < 2:
        has = "one memory level" if chip.memory else "no memory"
        raise LoomError(f"--placement: {chip.name} has {has}: nothing is placed")
    return name


def chosen_placement(name: str | None, chip: Chip, *, search: bool) -> str:
    """What decides: as asked, else the heuristic; a ``search`` compares both, where a solver is installed."""
    if name is not None:
        return check_placement(name, chip)
    return "best" if search and len(chip.memory) > 1 and is_available() else "heuristic"


def map_placed(way: str, chip: Chip, graph: Graph, *, search: bool = False, channel: bool = True) -> MappedWorkload:
    """Map a workload to a chip with several memory levels, placed by one of `PLACEMENTS`.

    With ``best`` the programs of both placements are simulated and the faster one is taken, the heuristic's where they
    are equal. A program that is longer than the program memory loses against one that is not.

    Raises
    ------
    LoomError
        When there is no room, and when OR-Tools is not installed where it is asked for.
    """
    clock = Stopwatch(chip)
    if way == "heuristic" or not isinstance(chip.tile, NpuTile):
        return map_workload(chip, graph, clock, search=search, channel=channel)
    fitted, _ = fit_precision(chip, graph)
    wanted = first_demands(chip, fitted)
    greedy: Placement | None
    try:
        greedy = place(chip, wanted)
    except LoomError:  # the greedy rule may find no room where there is some
        greedy = None
    solved = solve(chip, wanted, greedy)
    tried = dict[str, Tried]()
    plans = dict[str, MappedWorkload]()
    ways: list[tuple[str, Placement | None]] = [("heuristic", greedy), ("exact", solved.placement)]
    for name, placement in ways:
        if placement is None:
            continue
        cycles = None
        if way in (name, "best"):
            known = plans.get("heuristic") if placement == greedy else None
            plans[name] = known or map_workload(chip, graph, clock, placement, search=search, channel=channel)
            cycles = clock(plans[name].program)
        tried[name] = _tried(name, chip, placement, cycles, solved)
        made = plans.get(name)
        if made is not None and made.searched is not None and made.searched.interrupted:
            break
    words = chip.tile.sequencer.program_words

    def is_long(name: str) -> bool:
        return len(plans[name].program.instructions) > words

    by = min(plans, key=lambda name: (is_long(name), tried[name].cycles, name != "heuristic"))
    return replace(plans[by], placed=PlacementChoice(by, tuple(tried.values())))


def _tried(name: str, chip: Chip, placement: Placement, cycles: int | None, solved: Solved) -> Tried:
    if name == "exact":
        return Tried(name, solved.cost, cycles, solved.bound, solved.proven)
    return Tried(name, cost_of(chip, placement), cycles)


def placed_summary(plan: MappedWorkload) -> dict[str, Any] | None:
    """Who placed the objects, and for each placement that was looked at what it costs and takes.

    Nothing where there is one memory level at most.
    """
    if plan.placement is None:
        return None
    placed = plan.placed
    if placed is None:
        by = "heuristic" if plan.searched is not None else "mapping"
        placed = PlacementChoice(by, (Tried(by, cost_of(plan.chip, plan.placement)),))
    bound = next((tried.bound for tried in placed.tried if tried.bound is not None), None)
    tried = {each.by: {"cost_cycles": each.cost, "cycles": each.cycles} for each in placed.tried}
    cost = tried[placed.by]["cost_cycles"]
    assert cost is not None
    proven, gap = any(each.proven for each in placed.tried), cost / bound - 1 if bound else None
    return {"by": placed.by, "tried": tried, "bound_cycles": bound, "proven": proven, "gap": gap}


def placement_rows(plan: MappedWorkload) -> list[dict[str, Any]]:
    """One row per object in main memory, the largest first; none where there is one level at most."""
    if plan.placement is None:
        return []
    rows = []
    for demand in plan.placement.demands:
        item = demand.item
        rows.append(
            {
                "operator": item.operator,
                "role": item.role,
                "bytes": item.size,
                "units": item.units,
                "moved_bytes": demand.moved,
                "levels": [
                    {
                        "level": h.level,
                        "first": h.first,
                        "units": h.count,
                        "bytes": h.count * item.unit_bytes,
                        "address": h.address,
                    }
                    for h in plan.placement.homes[item.key]
                ],
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])
