"""One step of a workload on whatever machine a name describes: a chip, a GPU, or a system of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch import Chip, LoomError, NotSupported, load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.kinds import is_gpu, machine_kind
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.baselines.stacks import NO_STACK, Stack
from siliconloom.evaluate.chip import Simulation, simulate
from siliconloom.workloads import Graph, Phase

if TYPE_CHECKING:  # a run of one chip plans nothing, and makes no model of a system
    from siliconloom.arch.execution_trace import ExecutionTrace
    from siliconloom.arch.result import StepResult
    from siliconloom.arch.system import Policy, System
    from siliconloom.arch.timeline import Timeline
    from siliconloom.evaluate.objectives import Search
    from siliconloom.mapper.system.cluster import Cluster

Sets = Sequence[tuple[str, str]]
OF_PLANS = ("run.", "slow.", "decode.")
"""Overrides that ask what becomes of a plan's step: failures, stragglers, next tokens after prompts."""
DEGREES = ("tensor", "pipeline")
"""Keys of a plan that a system's policy has, too."""


class DescribedMachine(Struct, frozen=True):
    """A machine as it was described: one of our chips, a cluster of GPUs, or a system of our chips.

    Parameters
    ----------
    name
        As described.
    chip, cluster, system
        A chip, or a cluster of GPUs; a ``system`` of our chips has its ``chip``, and is a ``cluster`` to a plan.
    policy, plan
        How a system shares a model where nothing else is asked (``None``: as `arch.system.Policy` says by itself), and
        the keys of a plan that were given.
    stack
        Serving software on GPUs.
    """

    name: str
    chip: Chip | None = None
    cluster: Cluster | None = None
    system: System | None = None
    policy: Policy | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    stack: Stack = NO_STACK


class Evaluation(Struct, frozen=True):
    """What a machine takes for a workload.

    Parameters
    ----------
    result
        Under its versioned schema.
    simulation
        Of one of our chips: instruction by instruction.
    """

    result: dict[str, Any]
    simulation: Simulation | None = None

    @property
    def typed(self) -> StepResult:
        """The result, checked against its schema."""
        from siliconloom.arch.result import StepResult

        return StepResult.model_validate(self.result)


def _plan(given: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
    """The keys of a plan that were given; raises `LoomError` for others."""
    if not given:
        return {}
    from siliconloom.mapper.system.plan import parse_plan

    return parse_plan([(path.removeprefix("plan."), value) for path, value in given])


def _refuse_shared(name: str, plan: Mapping[str, Any]) -> None:
    """Raise `LoomError` where a plan asks one chip for anything but what it does anyway."""
    from siliconloom.mapper.system.plan import Plan

    default = Plan()
    for key, value in plan.items():
        if value != getattr(default, key, None) or key == "microbatch":  # a chip takes the whole batch at once
            raise LoomError(f"plan.{key}: {name} is one chip; a plan is of a system (loom list)")


def read_machine(name: str | Document, sets: Sets) -> DescribedMachine:
    """A machine as described, or by file or library name, with overrides; those under ``plan.`` are a system's.

    Raises
    ------
    LoomError
        For bad descriptions and overrides.
    NotSupported
        For a plan of one chip, and for systems of different chips.
    """
    for path, value in sets:
        if path.startswith(OF_PLANS):
            raise LoomError(f"--set {path}={value}: is of a plan's run, not of one step; loom plan has it")
    given = [(path, value) for path, value in sets if path.startswith("plan.")]
    rest = [(path, value) for path, value in sets if not path.startswith("plan.")]
    plan = _plan(given)
    if machine_kind(name) == "chip":
        if plan:
            _refuse_shared(str(name), plan)
        chip = load_chip(name, rest)
        return DescribedMachine(chip.name, chip=chip)
    from siliconloom.arch.gpu_system import refuse_unread
    from siliconloom.arch.system import load_system

    if is_gpu(name):
        from siliconloom.arch.gpu import load_gpu, refuse_idle
        from siliconloom.evaluate.gpus import gpus_of

        refuse_idle(rest, {"link": "one GPU is asked, and nothing crosses its links"})
        gpu = load_gpu(name, rest)
        return DescribedMachine(gpu.name, cluster=gpus_of(gpu), plan=plan)
    system = load_system(name, [(path, value) for path, value in rest if not path.startswith("chip.")])
    refuse_unread(system, rest)
    if any(is_gpu(group.chip) for group in system.chips):
        from siliconloom.evaluate.cluster import cluster_of

        if len(system.chips) != 1:
            raise NotSupported("systems of different chips")
        inner = [(path.removeprefix("chip."), value) for path, value in rest if path.startswith("chip.")]
        return DescribedMachine(system.name, cluster=cluster_of(system, inner), policy=system.policy, plan=plan)
    return _our_system(name, rest, plan)


def _our_system(name: str | Document, sets: Sets, plan: Mapping[str, Any]) -> DescribedMachine:
    from siliconloom.evaluate.cluster import cluster_of
    from siliconloom.evaluate.system import load_machine

    asked = [(f"policy.{key}", str(plan[key])) for key in DEGREES if key in plan]
    system, chip = load_machine(name, [*sets, *asked])
    inner = [(path.removeprefix("chip."), value) for path, value in sets if path.startswith("chip.")]
    cluster = cluster_of(load_machine(name, list(sets))[0], inner)  # whose digest does not depend on the plan
    return DescribedMachine(system.name, chip=chip, cluster=cluster, system=system, policy=system.policy, plan=plan)


def runs_instructions(machine: DescribedMachine, graph: Graph) -> bool:
    """Whether a program of one chip's tiles is what is timed; else a plan's step, or kernels."""
    return machine.chip is not None and machine.system is None and not computes_in_memory(machine, graph)


def only_memory(machine: DescribedMachine) -> bool:
    """Whether a bare PIM tile does the work, of whose macros nobody knows when they run."""
    return machine.chip is not None and machine.chip.tile.kind == "pim" and machine.system is None


def computes_in_memory(machine: DescribedMachine, graph: Graph) -> bool:
    """Whether memory does a part of the work: a bare PIM tile, or a chip that has such memory, in decode."""
    chip = machine.chip
    if chip is None:
        return False
    return chip.tile.kind == "pim" or (chip.pim is not None and graph.phase is Phase.DECODE)


def refuse_options(
    machine: DescribedMachine, graph: Graph, options: Mapping[str, object], *, search: Search = False
) -> None:
    """Raise where what is asked of a step contradicts itself, or is of chips only and the machine is none.

    Parameters
    ----------
    options
        Values by the names of the command line's options (``--mapping``, ``--objective``, ...); false: not asked.
    search
        As `evaluate` takes it.
    """
    given = {**options, "--search": bool(search)}
    if given.get("--objective") == "time":
        given["--objective"] = None
    if given.get("--mapping") is not None and (search or given.get("--objective")):
        raise LoomError("--search and --objective look for a mapping, and --mapping gives one")
    if given.get("--mapping") is not None and given.get("--placement") is not None:
        raise LoomError("--placement is of the search of a mapping, and --mapping gives one")
    chip = machine.chip
    unsupported = [name for name, value in given.items() if value]
    if unsupported and not runs_instructions(machine, graph):
        alone = chip is not None and machine.system is None
        where = "a chip whose memory computes" if alone else "a system" if chip is not None else "GPUs"
        raise NotSupported(f"{' and '.join(unsupported)} for {where}")


def evaluate(
    machine: DescribedMachine,
    graph: Graph,
    overrides: Sets = (),
    *,
    exact: bool = False,
    search: Search = False,
    trace_limit: int = 0,
    window: tuple[int, int] | None = None,
    mapping: Document | None = None,
    objective: str = "time",
    placement: str | None = None,
    figures: bool = False,
    timeline: list[Timeline] | None = None,
    watcher: Watcher = NOBODY,
) -> Evaluation:
    """Time one step of ``graph`` on ``machine``.

    Parameters
    ----------
    overrides
        All that was changed by hand, for the result to say.
    exact, search, trace_limit, window, mapping, objective, placement
        Of one of our chips, see `evaluate.chip.simulate`; ``exact`` also of a system of them.
    figures
        Figures are all that is wanted, and not what of them is hardware.
    timeline
        Of GPUs, and of systems: where there is one, the step's is put there.

    Raises
    ------
    LoomError
        For work that does not fit.
    NotSupported
        For what a kind of machine does not do.
    """
    if runs_instructions(machine, graph):
        assert machine.chip is not None
        with watcher.share("searching" if search else "mapping and simulating") as progress:
            if search:
                from siliconloom.mapper.chip.budget import Budget

                search = replace(search if isinstance(search, Budget) else Budget(), advance=progress)
            simulation = simulate(
                machine.chip,
                graph,
                list(overrides),
                exact=exact,
                trace_limit=trace_limit,
                window=window,
                progress=progress,
                search=search,
                mapping=mapping,
                objective=objective,
                placement=placement,
            )
        made = Evaluation(simulation.result(figures=figures), simulation)
    else:
        made = Evaluation(_of_others(machine, graph, overrides, exact, timeline))
    made.result["asked"] |= {"machine": machine.name, "overrides": dict(overrides)}
    return made


def traced_step(machine: DescribedMachine, graph: Graph) -> ExecutionTrace:
    """The step that `evaluate` has, as an execution trace of every rank.

    Raises
    ------
    NotSupported
        For one chip, for what no plan could cut, and for plans that are more than operators one after the other.
    """
    if machine.cluster is None:
        raise NotSupported(f"an execution trace of {machine.name}, one chip: it has ranks' messages, of a system")
    from siliconloom.evaluate.steps import PlannedStep
    from siliconloom.evaluate.traced_step import step_trace

    step = PlannedStep(machine.cluster, _policy(machine), graph, machine.plan)
    if step.planner is None:
        raise NotSupported(f"an execution trace of {graph.name}: it has no layers that a plan could cut")
    return step_trace(step.planner, step.plan, graph.name)


def _of_others(
    machine: DescribedMachine, graph: Graph, overrides: Sets, exact: bool, timeline: list[Timeline] | None
) -> dict[str, Any]:
    """The result of what is no chip whose tiles alone do the work."""
    chip = machine.chip
    if chip is None:
        assert machine.cluster is not None
        if exact:
            raise NotSupported("--exact for GPUs: their times are predicted")
        from siliconloom.evaluate.gpus import gpu_system_result

        return gpu_system_result(
            machine.cluster, _policy(machine), graph, machine.plan, stack=machine.stack, timeline=timeline
        )
    if only_memory(machine):
        from siliconloom.evaluate.pim_tile import simulate_pim

        return simulate_pim(chip, graph)
    return _planned(machine, graph, overrides, exact, timeline)


def _planned(
    machine: DescribedMachine, graph: Graph, overrides: Sets, exact: bool, timeline: list[Timeline] | None
) -> dict[str, Any]:
    """A step of a system of our chips, or of one chip whose memory computes: the step of its plan."""
    from siliconloom.evaluate.chips import chip_system_result
    from siliconloom.evaluate.cluster import chip_alone
    from siliconloom.evaluate.pim_machine import check_policy, refuse_idle_policies

    chip, policy = machine.chip, _policy(machine)
    assert chip is not None
    refuse_idle_policies([chip], policy, [graph.phase], overrides)
    check_policy(policy, chip)
    return chip_system_result(
        machine.cluster or chip_alone(chip), policy, graph, machine.plan, exact=exact, timeline=timeline
    )


def _policy(machine: DescribedMachine) -> Policy:
    from siliconloom.arch.system import Policy

    return Policy() if machine.policy is None else machine.policy


__all__ = [
    "DescribedMachine",
    "Evaluation",
    "computes_in_memory",
    "evaluate",
    "read_machine",
    "only_memory",
    "refuse_options",
    "runs_instructions",
    "traced_step",
]
