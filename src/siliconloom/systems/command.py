"""``loom sim`` on a system of chips, on a chip whose memory computes, and on a bare PIM tile."""

from __future__ import annotations

from siliconloom.arch import Chip, NotSupported, load_system
from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.arch.kinds import is_gpu
from siliconloom.arch.system import System
from siliconloom.output import write_json
from siliconloom.pim_simulation import pim_tables, simulate_pim
from siliconloom.simulate import asked
from siliconloom.systems import alone, load_machine, simulate_system
from siliconloom.systems.gpus import alone_gpu, gpu_system_result, gpu_system_tables, joined
from siliconloom.systems.report import system_result, system_tables
from siliconloom.tables import console
from siliconloom.workloads import Graph, Phase

POLICIES = {"plan.tensor": "policy.tensor", "plan.pipeline": "policy.pipeline"}
"""Keys of a plan that inference on a system knows as policies, with every operator's time."""


def simulate_and_print(
    machine: str | Chip,
    sets: list[tuple[str, str]],
    graph: Graph,
    unsupported: list[str],
    exact: bool,
    json_file: str | None,
    overrides: list[tuple[str, str]],
) -> None:
    """Simulate ``graph`` and print or write the result.

    Parameters
    ----------
    machine, sets
        A system's name and its overrides, or a chip.
    graph
        What to do.
    unsupported
        Options that were given and mean nothing here.
    exact, json_file
        As the command has them.
    overrides
        All that ``--set`` changed, for the result to say.

    Raises
    ------
    NotSupported
        When options were given that mean nothing here.
    """
    if unsupported:
        where = "a system" if isinstance(machine, str) else "a chip whose memory computes"
        raise NotSupported(f"{' and '.join(unsupported)} for {where}")
    if isinstance(machine, str) and any(path.startswith("plan.") for path, _ in sets):
        keys = {path for path, _ in sets if path.startswith("plan.")}
        if graph.phase is Phase.TRAINING or keys - set(POLICIES):
            _planned(machine, sets, graph, json_file, overrides)
            return
        sets = [(POLICIES.get(path, path), value) for path, value in sets]
    gpus = gpu_system(machine, sets) if isinstance(machine, str) else None
    if gpus is not None:
        if exact:
            raise NotSupported("--exact for GPUs: their times are predicted")
        result = gpu_system_result(*gpus, graph)
        result["asked"] = asked(graph, overrides)
        if json_file is not None:
            write_json(json_file, result)
        if json_file != "-":
            gpu_system_tables(result, console())
        return
    bare = isinstance(machine, Chip) and machine.tile.kind == "pim"
    if isinstance(machine, Chip) and bare:
        result = simulate_pim(machine, graph)
    else:
        system, chip = load_machine(machine, sets) if isinstance(machine, str) else (alone(machine), machine)
        result = system_result(simulate_system(system, graph, chip=chip, exact=exact))
    result["asked"] = asked(graph, overrides)
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        (pim_tables if bare else system_tables)(result, console())


def _planned(
    name: str, sets: list[tuple[str, str]], graph: Graph, json_file: str | None, overrides: list[tuple[str, str]]
) -> None:
    """A step under the plan that ``plan.`` gives; what it leaves open is searched."""
    from siliconloom.planning.command import plan_result, plan_tables, read_cluster

    cluster, fixed = read_cluster(name, sets)
    result = plan_result(cluster, graph, fixed, quiet=json_file == "-")
    result["asked"] = asked(graph, overrides)
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        plan_tables(result, console())


def gpu_system(name: str, sets: list[tuple[str, str]]) -> tuple[System, Gpu] | None:
    """A GPU, or a system of them; overrides under ``chip.`` go to a system's GPU."""
    if is_gpu(name):
        gpu = load_gpu(name, sets)
        return alone_gpu(gpu), gpu
    system = load_system(name, [(path, value) for path, value in sets if not path.startswith("chip.")])
    if not any(is_gpu(group.chip) for group in system.chips):
        return None
    if any(path == "link.latency" for path, _ in sets):
        raise NotSupported("link.latency of a system of GPUs: what NCCL takes to start was measured, links included")
    inner = [(path.removeprefix("chip."), value) for path, value in sets if path.startswith("chip.")]
    return system, joined(system, inner)
