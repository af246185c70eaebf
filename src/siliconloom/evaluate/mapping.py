"""What ``loom map`` shows: the tiling of every task beside its lower bound, and the Program."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from siliconloom.arch import load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Unit
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.evaluate.chip import excess, mapped_to, narrowest, simulate
from siliconloom.evaluate.objectives import Search, map_for
from siliconloom.evaluate.placement import placed_summary, placement_rows
from siliconloom.mapper.chip.banked import array_alone
from siliconloom.mapper.chip.bounds import mean_bound
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.chosen import Effort
from siliconloom.mapper.chip.composition import composed_cycles
from siliconloom.mapper.chip.described import refuse_joined
from siliconloom.mapper.chip.mapping import fit_precision
from siliconloom.mapper.chip.program import MappedTask, MappedWorkload
from siliconloom.mapper.chip.sharing import CUT_DIMENSIONS
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.mapper.chip.written import ahead_of
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import Graph, load_workload

SCHEMA = "siliconloom.mapping/1"
BOUND = 0.9
"""A unit that works this part of a task's time, or more, is what it waits for."""


def load_plan(
    chip: str | Document,
    workload: str | Document | Graph,
    overrides: list[tuple[str, str]],
    mapping: Document | None = None,
    objective: str = "time",
    *,
    search: Search = False,
    placement: str | None = None,
    alone: str = "",
    watcher: Watcher = NOBODY,
) -> tuple[MappedWorkload, bool]:
    """Load chip and workload by file or library name, and map one to the other as `evaluate.chip.simulate` does.

    Parameters
    ----------
    objective
        One of `mapper.chip.objective.OBJECTIVES`, where no ``mapping`` is given.
    search
        Lower the whole workload for every way to share out the buffers, and simulate changes of the best mapping.
    placement
        As `evaluate.chip.simulate` takes it.
    alone
        What is not built for attention in a channel, if it is asked for: the array computes attention.
    watcher
        Is told how far the search is.

    Returns
    -------
    The mapping, and whether it is of tiles that work side by side as one.
    """
    if search:
        with watcher.share("searching") as advance:
            budget = replace(search if isinstance(search, Budget) else Budget(), advance=advance)
            return _load_plan(chip, workload, overrides, mapping, objective, budget, placement, alone)
    return _load_plan(chip, workload, overrides, mapping, objective, search, placement, alone)


def _load_plan(
    chip: str | Document,
    workload: str | Document | Graph,
    overrides: list[tuple[str, str]],
    mapping: Document | None,
    objective: str,
    search: Search,
    placement: str | None,
    alone: str,
) -> tuple[MappedWorkload, bool]:
    chip_sets, workload_sets = split_overrides(overrides)
    machine, graph = load_chip(chip, chip_sets), load_workload(workload, workload_sets)
    if machine.tiles_join:
        done = simulate(machine, graph, mapping=mapping, search=search, objective=objective, placement=placement)
        return done.plan, done.joined
    machine = effective(machine)
    if mapping is not None:
        refuse_joined(mapping, machine)
        return mapped_to(machine, graph, mapping), False
    told = array_alone(machine, fit_precision(machine, graph)[0], alone) if alone and not search else ()
    plan = map_for(objective, machine, graph, search=search, placement=placement, channel=not told)
    return replace(plan, notes=(*plan.notes, *told)), False


def plan_summary(plan: MappedWorkload) -> dict[str, Any]:
    """The mapping under its versioned schema; what every task takes is what the simulator says."""
    outcome = run(plan.program, plan.chip)
    bound = plan.bound.lower_bound_cycles
    return {
        "schema": SCHEMA,
        "chip": plan.chip.name,
        "chip_digest": plan.chip.digest,
        "workload": plan.graph.name,
        "phase": plan.graph.phase.value,
        "precision": plan.graph.formats,
        "objective": plan.objective,
        "remembered": plan.searched is not None and plan.searched.remembered,
        "interrupted": plan.searched is not None and plan.searched.interrupted,
        "local_search": None if plan.searched is None or plan.searched.local is None else asdict(plan.searched.local),
        "cycles": outcome.cycles,
        "lower_bound": bound,
        "gap": _gap(outcome.cycles, bound),
        "estimated_cycles": composed_cycles(plan, Stopwatch(plan.chip)),
        "bound": {
            "compute_cycles": plan.bound.compute_cycles,
            "memory_cycles": plan.bound.memory_cycles,
            "level_cycles": plan.bound.level_cycles,
            "vector_cycles": plan.bound.vector_cycles,
            "lower_bound_cycles": plan.bound.lower_bound_cycles,
            "name": plan.bound.name,
        },
        "program": {"instructions": len(plan.program.instructions), "bytes": len(plan.program.encode())},
        "layout": None if plan.layout is None else asdict(plan.layout),
        "memory_bytes": plan.memory_bytes,
        "placement": placement_rows(plan),
        "placed": placed_summary(plan),
        "tasks": [
            _task(plan, mapped, int(outcome.own[n]), int(outcome.operator_busy[n, Unit.PIM]))
            for n, mapped in enumerate(plan.tasks)
        ],
        "notes": [*plan.graph.notes, *plan.notes, *filter(None, [excess(plan.chip, plan.program)])],
    }


def _gap(cycles: float, bound: int) -> float | None:
    """By what part of a lower bound more is taken; nothing where the bound is none."""
    return cycles / bound - 1 if bound else None


def _binding(plan: MappedWorkload, mapped: MappedTask, channel: float) -> dict[str, Any] | None:
    """What a task waits for: the unit that works most of its time, by the mapper's estimate.

    A channel beside the tile works for ``channel`` of it, as it was simulated.
    """
    tiling = mapped.tiling
    if tiling is None:
        return None
    memory = plan.chip.nearest if plan.placement is None else None
    port = "memory" if memory is None else narrowest(plan.chip, next(iter(plan.chip.memory)), memory)[0]
    busy = {port: tiling.memory_cycles, "tile.vector.lanes": tiling.vector_cycles}
    if not isinstance(tiling, VectorTiling):
        busy["tile.array"] = tiling.array_cycles
    shares = {key: min(cycles / tiling.cycles, 1.0) for key, cycles in busy.items()}
    if channel:
        shares["tile.pim"] = min(channel, 1.0)
    key = max(shares, key=lambda each: shares[each])
    others = ", ".join(f"{each} {share:.0%}" for each, share in shares.items() if each != key)
    if shares[key] >= BOUND:
        words = f"{key} works {shares[key]:.0%} of the time ({others})"
    else:
        words = f"latency: no unit works all the time, {key} {shares[key]:.0%} of it ({others})"
    return {"key": key, "busy": shares[key], "latency": shares[key] < BOUND, "words": words}


def _loads(plan: MappedWorkload, mapped: MappedTask) -> dict[str, Any]:
    """How weights of a task are loaded, and into which buffers.

    ``ahead``: their rings, and the tasks before whose loads that wait the first tile is loaded. ``chunk``: bytes of the
    longest transfer, 0 where a tile is one. ``layout``: the division of the buffers that is the task's alone.
    """
    name = mapped.task.operator.name
    if plan.mapping is None:
        return {"ahead": {}, "chunk": 0, "layout": None}
    parts = zip(plan.mapping.parts, plan.mapping.choice[1], strict=True)
    part, chosen = next((part, made[name]) for part, made in parts if name in made)
    divided = None if chosen.divided is None else asdict(chosen.divided)
    return {"ahead": ahead_of(part, mapped.task, chosen), "chunk": chosen.chunk, "layout": divided}


def _task(plan: MappedWorkload, mapped: MappedTask, taken: int, channel: int) -> dict[str, Any]:
    """A task; ``taken`` are the cycles of all its executions, and ``channel`` those for which a channel worked."""
    operator, tiling = mapped.task.operator, mapped.tiling
    bound = mean_bound(plan.chip, operator, plan.placement, mapped.task.fused)
    cycles = taken / mapped.repeat
    effort = Effort() if plan.searched is None else plan.searched.tasks.get(operator.name, Effort())
    return {
        "name": operator.name,
        "kind": operator.kind,
        "repeat": mapped.repeat,
        "tiles": mapped.tiles,
        "cut": {name: parts for name, parts in zip(CUT_DIMENSIONS[operator.kind], mapped.cut, strict=True) if name},
        "shape": operator.shape,
        "fused": [v.name for v in mapped.task.fused],
        "tiling": None if tiling is None else {name: value for name, value in asdict(tiling).items() if value != ()},
        **_loads(plan, mapped),
        "cycles": cycles,
        "lower_bound": bound.lower_bound_cycles,
        "gap": _gap(cycles, bound.lower_bound_cycles),
        "binding": _binding(plan, mapped, channel / max(taken, 1)),
        "estimated_cycles": None if tiling is None else mapped.estimated_cycles,
        "bound": bound.as_dict(),
        "candidates": effort.candidates,
        "simulated": effort.simulated,
        "search_s": effort.seconds,
    }
