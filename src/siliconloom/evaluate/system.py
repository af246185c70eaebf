"""Systems of one kind of our own chips: how they are read, and a step of a workload under their policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siliconloom.arch import Chip, NotSupported, load_group, load_system
from siliconloom.arch.document import Document
from siliconloom.arch.system import Policy, System
from siliconloom.evaluate.chips import chip_system_result
from siliconloom.evaluate.cluster import chip_alone, cluster_of
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import Graph


def load_machine(name: str | Document, overrides: list[tuple[str, str]]) -> tuple[System, Chip]:
    """A system and its chip, with overrides: those under ``chip.`` go to the chip."""
    own = [(path, value) for path, value in overrides if not path.startswith("chip.")]
    system = load_system(name, own)
    if len(system.chips) != 1:
        raise NotSupported("systems of different chips")
    inner = [(path.removeprefix("chip."), value) for path, value in overrides if path.startswith("chip.")]
    return system, effective(load_group(system.chips[0], inner))


def system_step(
    system: System | None, graph: Graph, *, chip: Chip, contexts: Sequence[int] = (), exact: bool = False
) -> dict[str, Any]:
    """One step of ``graph`` on a system by its policy, or on its chip alone, under the schema of `loom sim`.

    Parameters
    ----------
    system
        Equal chips, and what they do together.
    chip
        The chip, whatever the system's description names.
    contexts
        Tokens that each sequence attends to in decode, its own included; the workload's context for all by default.
    exact
        Run every event of the arrays instead of jumping what repeats; memory's commands are all run in any case.

    Raises
    ------
    LoomError
        When weights and cache do not fit, or cannot be shared evenly.
    NotSupported
        For models whose layers differ.
    """
    cluster = chip_alone(chip) if system is None else cluster_of(system, chip=chip)
    policy = Policy() if system is None else system.policy
    return chip_system_result(cluster, policy, graph, contexts=contexts, exact=exact)


__all__ = ["load_machine", "system_step"]
