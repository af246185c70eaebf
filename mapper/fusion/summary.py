"""A schedule of a cascade's products as data: ``loom cascade --cores``."""

from __future__ import annotations

import math
from typing import Any, cast

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.mapper.fusion.schedule import CoreMachine, Objective, best_schedule
from siliconloom.mapper.fusion.tasks import task_graph
from siliconloom.workloads.cascades.einsum import Cascade

OBJECTIVES = ("time", "traffic")


def schedule_summary(
    cascade: Cascade, cores: int, lanes: int, buffer: float | None, bandwidth: float, element_bytes: int, objective: str
) -> dict[str, Any]:
    """The best schedule, and the best without pipelines; bytes of buffer are any number without ``buffer``."""
    if objective not in OBJECTIVES:
        near = nearest_name(objective, OBJECTIVES)
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"--objective of a cascade's schedule is time or traffic, not {objective}{hint}")
    graph = task_graph(cascade)
    machine = CoreMachine(cores, lanes, math.inf if buffer is None else buffer, bandwidth, element_bytes)
    found = best_schedule(graph, machine, objective=cast(Objective, objective))
    alone = best_schedule(graph, machine, modes=("sequential",), objective=cast(Objective, objective))
    return {
        "objective": objective,
        "cores": cores,
        "lanes": lanes,
        "bandwidth_bytes_per_cycle": bandwidth,
        "cycles": found.cycles,
        "moved_bytes": found.moved,
        "sequential_cycles": alone.cycles,
        "sequential_moved_bytes": alone.moved,
        "groups": [
            {
                "tasks": [task.name for task in graph.tasks[group.first : group.last]],
                "mode": group.mode,
                "rank": group.rank,
                "cores": list(group.cores),
                "cycles": group.cycles,
                "moved_bytes": group.moved,
                "kept": list(group.kept),
            }
            for group in found.groups
        ],
    }


__all__ = ["schedule_summary"]
