"""What ``loom map`` shows: the tiling of every task beside its lower bound, and the Program."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from siliconloom.arch import load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.overrides import split_overrides
from siliconloom.evaluate.chip import excess, mapped_to, simulate
from siliconloom.evaluate.placement import placement_rows
from siliconloom.mapper.chip.bounds import mean_bound
from siliconloom.mapper.chip.described import refuse_joined
from siliconloom.mapper.chip.program import MappedTask, MappedWorkload
from siliconloom.mapper.chip.sharing import CUT_DIMENSIONS
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload

SCHEMA = "siliconloom.mapping/1"


def load_plan(
    chip: str, workload: str, overrides: list[tuple[str, str]], mapping: Document | None = None
) -> tuple[MappedWorkload, bool]:
    """Load chip and workload by file or library name, and map one to the other as `evaluate.chip.simulate` does.

    Returns
    -------
    The mapping, and whether it is of tiles that work side by side as one.
    """
    chip_sets, workload_sets = split_overrides(overrides)
    machine, graph = load_chip(chip, chip_sets), load_workload(workload, workload_sets)
    if machine.tiles_join:
        done = simulate(machine, graph, mapping=mapping)
        return done.plan, done.joined
    if mapping is not None:
        refuse_joined(mapping, machine)
    machine = effective(machine)
    return mapped_to(machine, graph, Stopwatch(machine), mapping), False


def plan_summary(plan: MappedWorkload) -> dict[str, Any]:
    """The mapping under its versioned schema."""
    return {
        "schema": SCHEMA,
        "chip": plan.chip.name,
        "chip_digest": plan.chip.digest,
        "workload": plan.graph.name,
        "phase": plan.graph.phase.value,
        "precision": plan.graph.formats,
        "estimated_cycles": plan.estimated_cycles,
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
        "tasks": [_task(plan, mapped) for mapped in plan.tasks],
        "notes": [*plan.graph.notes, *plan.notes, *filter(None, [excess(plan.chip, plan.program)])],
    }


def _task(plan: MappedWorkload, mapped: MappedTask) -> dict[str, Any]:
    operator, tiling = mapped.task.operator, mapped.tiling
    bound = mean_bound(plan.chip, operator, plan.placement, mapped.task.fused)
    return {
        "name": operator.name,
        "kind": operator.kind,
        "repeat": mapped.repeat,
        "tiles": mapped.tiles,
        "cut": {name: parts for name, parts in zip(CUT_DIMENSIONS[operator.kind], mapped.cut, strict=True) if name},
        "shape": operator.shape,
        "fused": [v.name for v in mapped.task.fused],
        "tiling": None if tiling is None else {name: value for name, value in asdict(tiling).items() if value != ()},
        "estimated_cycles": mapped.estimated_cycles,
        "bound": bound.as_dict(),
    }
