"""One step on a system of our own chips under a plan: its time, every operator of one chip's part, the energy of all.

The step is `mapper.system`'s, operators take what the chip simulator says, and every message goes over the links.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.system import Policy
from siliconloom.arch.timeline import Timeline
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.chip_part import ChipPart
from siliconloom.evaluate.hardware import hardware_summary
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.evaluate.step_timeline import step_timeline
from siliconloom.evaluate.steps import PlannedStep
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.shard import with_context
from siliconloom.sim.chip.energy import excluded, standing_power
from siliconloom.workloads import Collective, Graph, Phase


def chip_system_result(
    cluster: Cluster,
    policy: Policy,
    graph: Graph,
    fixed: Mapping[str, Any] | None = None,
    *,
    contexts: Sequence[int] = (),
    exact: bool = False,
    timeline: list[Timeline] | None = None,
) -> dict[str, Any]:
    """One step of ``graph`` under a plan.

    It is the step that `loom plan` has for the same plan, with every operator of one chip's part and the energy of all.

    Parameters
    ----------
    cluster, policy
        Chips of one kind and what joins them, and the degrees of a plan that gives none.
    fixed
        Keys of the plan that were given.
    contexts
        Tokens that each sequence attends to in decode, its own included, where memory computes; the workload's context
        for all by default. The result's context is their mean.
    exact
        Run every event of the chip's programs.
    timeline
        Where there is one, the step's is put there.

    Raises
    ------
    LoomError
        When the model does not fit, or cannot be shared evenly.
    """
    began = time.perf_counter()
    machine = cluster.machine
    if len(cluster.kinds) > 1 or not isinstance(machine, ChipMachine):
        raise NotSupported(f"one step on {cluster.name}, whose chips differ; loom plan has one")
    machine = _asked_machine(machine, graph, contexts, exact)
    cluster = replace(cluster, kinds=((machine, cluster.chips),))
    if contexts:
        graph = with_context(graph, round(sum(contexts) / len(contexts)))
    stored, graph = graph, machine.fitted(graph)
    steps = PlannedStep(cluster, policy, graph, fixed or {})
    part = ChipPart.of(machine, steps)
    if timeline is not None:
        timeline.append(step_timeline(steps, cluster, graph))
    plan, chip = steps.plan, part.chip
    shared = plan.data * plan.tensor * plan.context
    joules = {name: shared * value for name, value in part.energy.items()}
    standing = standing_power(machine.chip)
    joules |= {name: watts * steps.seconds * plan.chips for name, watts in standing.items()}
    joules |= steps.idle_joules(sum(standing.values()))
    peak = machine.peak(graph.precision) * plan.chips
    bound = part.bound
    each = bound.lower_bound_cycles / (plan.pipeline * chip.clock)
    arithmetic = max(steps.flops - 2 * shared * part.memory_macs, 0.0) / peak
    floor = arithmetic if plan.attention_chips else max(each, arithmetic)
    if steps.seconds < floor * (1 - 1e-9):
        raise AssertionError(f"a step of {steps.seconds} s is under its bound of {floor} s: a bug")
    cycles = round(steps.seconds * chip.clock)
    head = steps.head("system", cluster, graph, chip.clock)
    head["system"] |= part.laid_out
    return {
        **head,
        "chip_digest": machine.chip.digest,
        "energy_j": sum(joules.values()),
        "energy": joules,
        "energy_excludes": [
            *excluded(machine.chip),
            *(["attention that chips share"] if plan.context > 1 else []),
            *(["commands of the banks"] if part.uncounted else []),
        ],
        "power_w": sum(joules.values()) / steps.seconds,
        "traffic_bytes": {name: moved // plan.pipeline for name, moved in part.traffic.items()},
        "utilization": arithmetic / steps.seconds,
        "bound": {
            "lower_bound_s": floor,
            "lower_bound_cycles": round(floor * chip.clock),
            "name": bound.name if floor > arithmetic else "compute",
            "key": bound.key if floor > arithmetic else "tile.array",
            "achieved": floor / steps.seconds,
        },
        **({"windows": part.windows(cycles, plan.pipeline)} if part.row is not None else {}),
        "hardware": hardware_summary([row["hardware_why"] for row in part.rows if "hardware" in row]),
        "operators": part.rows + _messages(steps) + steps.others,
        "units": part.units(cycles, plan.pipeline),
        "memory": {"used_bytes": round(steps.memory_bytes), "capacity_bytes": round(machine.capacity)},
        "simulator": {"wall_s": time.perf_counter() - began},
        "notes": [*graph.notes, *_notes(machine, stored, graph, steps), *part.notes, *steps.notes],
    }


def _asked_machine(machine: ChipMachine, graph: Graph, contexts: Sequence[int], exact: bool) -> ChipMachine:
    if contexts and not isinstance(machine, PimMachine):
        raise NotSupported(f"sequences of unequal context on {machine.name}, whose memory does not compute")
    if graph.requests and isinstance(machine, PimMachine) and graph.phase is Phase.DECODE:
        raise NotSupported(f"requests of unequal lengths (workload.requests) on {machine.name}, whose memory computes")
    if contexts and len(contexts) != graph.batch:
        raise LoomError(f"contexts: one for each of the {graph.batch} sequences (got {len(contexts)})")
    if isinstance(machine, PimMachine):
        return dataclasses.replace(machine, exact=exact, contexts=tuple(contexts))
    return ChipMachine(machine.chip, exact)


def _messages(steps: PlannedStep) -> list[dict[str, Any]]:
    """Rows of the collectives, each with what it takes on the links by itself."""
    return [
        {
            "name": operator.name,
            "block": operator.block,
            "kind": operator.operation,
            "repeat": operator.repeat * steps.executions(operator.name),
            "seconds": steps.waits[operator.name] * operator.repeat * steps.executions(operator.name),
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
    notes += steps.idle_notes(sum(standing_power(machine.chip).values()))
    if steps.plan.context > 1:
        notes.append("energy, traffic and units: attention that chips share counts as standing power only")
    return notes


__all__ = ["chip_system_result"]
