"""One step on a system of our own chips under a plan: its time, every operator of one chip's part, the energy of all.

The step is `mapper.system`'s, operators take what the chip simulator says, and every message goes over the links.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.system import Policy
from siliconloom.evaluate.chip import Simulation, binding_key
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.steps import PlannedStep
from siliconloom.mapper.chip.bounds import graph_bound
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.sim.chip.energy import COMPONENTS, EXCLUDED, standing_power
from siliconloom.workloads import Collective, Graph, Phase
from siliconloom.workloads.subgraph import without_messages

ADDED = ("seconds", "cycles", "overlap_cycles", "macs", "bound_cycles", "read_bytes", "write_bytes", "energy_j")
"""What an operator's executions add up."""


def chip_system_result(
    cluster: Cluster, policy: Policy, graph: Graph, fixed: Mapping[str, Any] | None = None, *, exact: bool = False
) -> dict[str, Any]:
    """One step of ``graph`` under a plan.

    It is the step that `loom plan` has for the same plan, with every operator of one chip's part and the energy of all.

    Parameters
    ----------
    cluster, policy
        Chips of one kind and what joins them, and the degrees of a plan that gives none.
    fixed
        Keys of the plan that were given.
    exact
        Run every event of the chip's programs.

    Raises
    ------
    LoomError
        When the model does not fit, or cannot be shared evenly.
    """
    began = time.perf_counter()
    machine = cluster.machine
    if len(cluster.kinds) > 1 or not isinstance(machine, ChipMachine):
        raise NotSupported(f"one step on {cluster.name}, whose chips differ; loom plan has one")
    machine = ChipMachine(machine.chip, exact)
    cluster = replace(cluster, kinds=((machine, cluster.chips),))
    stored, graph = graph, machine.fitted(graph)
    steps = PlannedStep(cluster, policy, graph, fixed or {})
    plan, times = steps.plan, steps.microbatches
    done = machine.simulation(steps.part)
    chip = done.chip
    repeats = {operator.name: operator.repeat * times for operator in steps.part.operators()}
    rows = _operators(done, repeats)
    shared = plan.data * plan.tensor * plan.context
    joules = {name: shared * sum(row["energy"][name] for row in rows) for name in COMPONENTS}
    joules |= {name: watts * steps.seconds * plan.chips for name, watts in standing_power(chip).items()}
    peak = machine.peak(graph.precision) * plan.chips
    bound = graph_bound(chip, without_messages(steps.part))
    each = bound.lower_bound_cycles * times / (plan.pipeline * chip.clock)
    arithmetic = steps.flops / peak
    floor = arithmetic if plan.attention_chips else max(each, arithmetic)
    if steps.seconds < floor * (1 - 1e-9):
        raise AssertionError(f"a step of {steps.seconds} s is under its bound of {floor} s: a bug")
    cycles = round(steps.seconds * chip.clock)
    busy = {name: sum(row["busy_cycles"].get(name, 0) for row in rows) // plan.pipeline for name in ("array", "vector")}
    moved = sum(row["read_bytes"] + row["write_bytes"] for row in rows) // plan.pipeline
    return {
        **steps.head("system", cluster, graph, chip.clock),
        "chip_digest": machine.chip.digest,
        "energy_j": sum(joules.values()),
        "energy": joules,
        "energy_excludes": [*EXCLUDED, *(["attention that chips share"] if plan.context > 1 else [])],
        "power_w": sum(joules.values()) / steps.seconds,
        "traffic_bytes": {next(iter(chip.memory)): moved} if chip.memory else {},
        "utilization": steps.flops / steps.seconds / peak,
        "bound": {
            "lower_bound_s": floor,
            "lower_bound_cycles": round(floor * chip.clock),
            "name": bound.name if floor > arithmetic else "compute",
            "key": binding_key(chip, bound) if floor > arithmetic else "tile.array",
            "achieved": floor / steps.seconds,
        },
        "operators": rows + _messages(steps) + steps.others,
        "units": {
            name: {"busy_cycles": count, "utilization": count / cycles if cycles else 0.0}
            for name, count in busy.items()
        },
        "memory": {"used_bytes": round(steps.memory_bytes), "capacity_bytes": round(machine.capacity)},
        "simulator": {"wall_s": time.perf_counter() - began},
        "notes": [*graph.notes, *_notes(machine, stored, graph, steps)],
    }


def _operators(done: Simulation, repeats: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of the chip's result, which has every operator once, for as many executions as the step has."""
    rows = []
    for row, mapped in zip(done.result()["operators"], done.plan.tasks, strict=True):
        times = repeats[mapped.task.owner]
        row |= {name: row[name] * times for name in ADDED}
        row |= {
            "repeat": times,
            "energy": {name: joules * times for name, joules in row["energy"].items()},
            "busy_cycles": {name: busy * times for name, busy in row["busy_cycles"].items()},
            "seconds": (row["cycles"] - row["overlap_cycles"]) / done.chip.clock,
        }
        rows.append({name: value for name, value in row.items() if name not in ("start_cycle", "end_cycle")})
    return rows


def _messages(steps: PlannedStep) -> list[dict[str, Any]]:
    """Rows of the collectives, each with what it takes on the links by itself."""
    return [
        {
            "name": operator.name,
            "block": operator.block,
            "kind": operator.operation,
            "repeat": operator.repeat * steps.microbatches,
            "seconds": steps.waits[operator.name] * operator.repeat * steps.microbatches,
            "macs": 0,
            "bound": "links",
            "shape": operator.shape,
        }
        for operator in steps.part.operators()
        if isinstance(operator, Collective)
    ]


def _notes(machine: ChipMachine, stored: Graph, graph: Graph, steps: PlannedStep) -> list[str]:
    notes = ["operators are one chip's, of all layers; energy is all chips'", *machine.notes]
    if stored.precision is not graph.precision:
        notes.insert(
            0, f"{graph.name} is stored as {stored.precision.value}; it is computed in {graph.precision.value}"
        )
    if steps.plan.pipeline > 1:
        notes.append(f"the batch goes through {steps.plan.pipeline} stages in {steps.microbatches} parts")
    if steps.plan.chips < steps.of_chips:
        notes.append(
            f"{steps.plan.chips} of {steps.of_chips} chips work; --set plan.data=... or plan.tensor=... take more"
        )
    if steps.plan.context > 1:
        notes.append("energy, traffic and units: attention that chips share counts as standing power only")
    if graph.phase is Phase.TRAINING:
        notes.append("energy: gradients left over and the optimizer count as standing power only")
    return notes


def refuse_memory_policies(policy: Policy, name: str) -> None:
    """Refuse what a description's policy asks of memory that does not compute.

    Raises
    ------
    LoomError
        With the key.
    """
    for key, value in (("attention", "pim"), ("weights", "pim"), ("interleave", "always")):
        if getattr(policy, key) == value:
            needs = "a chip with pim.dual_row_buffer: true" if key == "interleave" else "a chip with pim"
            raise LoomError(f"policy.{key}: {value} needs {needs}; {name} has no pim")


__all__ = ["chip_system_result", "refuse_memory_policies"]
