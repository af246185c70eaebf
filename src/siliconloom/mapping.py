"""What ``loom map`` shows: the tiling of every task beside its lower bound, and the Program."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch import load_chip
from siliconloom.arch.isa import WORD_BITS, disassemble
from siliconloom.arch.quantity import format_bytes
from siliconloom.mapper.attention_cost import AttentionTiling
from siliconloom.mapper.bounds import mean_bound
from siliconloom.mapper.plan import MappedTask, Plan, map_workload
from siliconloom.mapper.tiling import GemmTiling
from siliconloom.overrides import split_overrides
from siliconloom.placement import placement_rows, placement_table
from siliconloom.sim.engine import run
from siliconloom.sim.memory import effective
from siliconloom.tables import bold, table
from siliconloom.workloads import load_workload

SCHEMA = "siliconloom.mapping/1"


def load_plan(chip: str, workload: str, overrides: list[tuple[str, str]]) -> Plan:
    """Load chip and workload by file or library name and map one to the other."""
    chip_sets, workload_sets = split_overrides(overrides)
    machine = effective(load_chip(chip, chip_sets))
    graph = load_workload(workload, workload_sets)
    return map_workload(machine, graph, lambda program: run(program, machine).cycles, search=False)


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The mapping under its versioned schema."""
    return {
        "schema": SCHEMA,
        "chip": plan.chip.name,
        "chip_digest": plan.chip.digest,
        "workload": plan.graph.name,
        "phase": plan.graph.phase.value,
        "precision": plan.graph.precision.value,
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
        "layout": None if plan.layout is None else vars(plan.layout),
        "memory_bytes": plan.memory_bytes,
        "placement": placement_rows(plan),
        "tasks": [_task(plan, mapped) for mapped in plan.tasks],
        "notes": list(plan.notes),
    }


def _task(plan: Plan, mapped: MappedTask) -> dict[str, Any]:
    operator, tiling = mapped.task.operator, mapped.tiling
    bound = mean_bound(plan.chip, operator, plan.placement, mapped.task.fused)
    return {
        "name": operator.name,
        "kind": operator.kind,
        "repeat": mapped.repeat,
        "tiles": mapped.tiles,
        "shape": operator.shape,
        "fused": [v.name for v in mapped.task.fused],
        "tiling": None if tiling is None else vars(tiling),
        "bound": bound.as_dict(),
    }


def mapping_tables(plan: Plan, out: Console, *, program: bool = False) -> None:
    """Print the mapping."""
    chip, bound = plan.chip, plan.bound
    out.print(f"{bold(plan.graph.name)} ({plan.graph.phase.value}) on {bold(chip.name)}")
    for note in plan.notes:
        out.print(f"note: {note}", style="yellow")
    size = len(plan.program.instructions)
    out.print(f"  program      {size} instructions ({format_bytes(size * WORD_BITS // 8)}), for any number of tiles")
    out.print(
        f"  lower bound  {bound.lower_bound_cycles:,} cycles: compute {bound.compute_cycles:,}, memory "
        f"{bound.memory_cycles:,}, vector {bound.vector_cycles:,}"
    )
    if plan.layout is not None:
        out.print(
            f"  estimate     {plan.estimated_cycles:,} cycles ({bound.lower_bound_cycles / plan.estimated_cycles:.1%} "
            "of it the bound)"
        )
        slots = ", ".join(f"{name} {format_bytes(size)}" for name, size in vars(plan.layout).items() if size)
        out.print(f"  buffers      two slots each: {slots}", soft_wrap=True)
    out.print()
    rows = []
    for mapped in plan.tasks:
        own = mean_bound(chip, mapped.task.operator, plan.placement, mapped.task.fused)
        tiling = mapped.tiling
        fused = "".join(" +" + v.name.rsplit(".", 1)[-1] for v in mapped.task.fused)
        estimate = "-" if tiling is None else f"{mapped.estimated_cycles:,}"
        rows.append(
            (
                mapped.task.operator.name + fused,
                f"x{mapped.repeat}",
                _describe(mapped),
                estimate,
                f"{own.lower_bound_cycles:,}",
                own.name,
                "-" if tiling is None else format_bytes(tiling.read_bytes + tiling.write_bytes),
            )
        )
    columns = [
        ("task", "left"),
        ("times", "right"),
        ("tile", "left"),
        ("estimate", "right"),
        ("bound", "right"),
        ("by", "left"),
        ("traffic", "right"),
    ]
    out.print(table("tasks, cycles and bytes of one execution on one tile", columns, rows))
    if plan.placement is not None:
        out.print()
        out.print(placement_table(plan))
    if program:
        out.print()
        out.print(disassemble(plan.program), soft_wrap=True, markup=False)


def _describe(mapped: MappedTask) -> str:
    tiling = mapped.tiling
    if tiling is None:
        return "whole"
    if isinstance(tiling, GemmTiling):
        kept = ("B" if tiling.order == "n_outer" else "A") + " kept" if tiling.resident else "reloaded"
        return f"{tiling.m} x {tiling.n} x {tiling.k}, {tiling.order[0]} outer, {kept}"
    if isinstance(tiling, AttentionTiling):
        return f"{tiling.queries} queries x {tiling.heads} heads, {tiling.keys} keys"
    return f"{tiling.rows} x {tiling.cols}"
