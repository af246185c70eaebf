"""Questions to machines: what the commands of ``loom`` of the same names answer, as results in Python.

Every function asks the evaluator that its command asks, so one question has one answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from siliconloom.api.arguments import checked
from siliconloom.api.inputs import (
    Limits,
    Machine,
    Mapped,
    Sets,
    Trace,
    Workload,
    assignments,
    mapping_document,
    named_machine,
    named_workload,
    request_trace,
    service_level,
)
from siliconloom.api.result import Result
from siliconloom.arch import Document, LoomError
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.workloads import Graph


@checked
def simulate(
    machine: Machine,
    workload: Workload,
    sets: Sets | None = None,
    *,
    exact: bool = False,
    search: bool = False,
    search_time: float | None = None,
    seed: int | None = None,
    objective: str = "time",
    placement: str | None = None,
    mapping: Mapped | None = None,
    progress: bool = False,
) -> Result:
    """Map a workload to a chip, GPU or system and simulate a step of it: what ``loom sim`` answers.

    Parameters
    ----------
    machine, workload
        Library names, files, dictionaries, or descriptions that were read.
    sets
        Values to override, by key path: ``{"tile.array.rows": 32, "workload.phase": "decode"}``.
    exact
        Run every event instead of jumping what repeats; the result is the same.
    search, search_time, seed
        Simulate changes of the mapping: a fixed number of them, or as many as fit so many seconds; which ones.
    objective
        What a mapping minimises: ``time``, ``energy``, ``edp`` or ``traffic``.
    placement
        What lies in which of several memory levels: ``heuristic``, ``exact`` or ``best``.
    mapping
        A mapping to run, as a file that ``loom map -o`` writes, or a dictionary.
    progress
        Show a bar on standard error for what takes longer than two seconds.

    Returns
    -------
    A result of the schema ``siliconloom.result/2``; of one chip its ``source`` is the `Simulation`.

    Raises
    ------
    LoomError
        For bad descriptions, and work that does not fit.
    NotSupported
        For what a kind of machine does not do.

    Examples
    --------
    >>> import siliconloom as sl
    >>> step = sl.simulate("npu-edge-int8", "gpt2", {"workload.layers": 1, "workload.sequence": 64})
    >>> step.cycles >= step.bound.lower_bound_cycles
    True
    >>> step.operators.name.head(3).to_list()
    ['embedding.tokens', 'embedding.positions', 'embedding.add']
    """
    from siliconloom.arch.overrides import split_overrides
    from siliconloom.evaluate.machine import evaluate, read_machine, refuse_options
    from siliconloom.evaluate.objectives import budget_of, check_objective
    from siliconloom.workloads import load_workload

    check_objective(objective)
    budget = budget_of(search, search_time, seed)
    pairs = assignments(sets)
    machine_sets, workload_sets = split_overrides(pairs)
    graph = load_workload(named_workload(workload), workload_sets)
    described = read_machine(named_machine(machine), machine_sets)
    options = {"--mapping": mapping, "--placement": placement, "--objective": objective}
    refuse_options(described, graph, options, search=budget)
    done = evaluate(
        described,
        graph,
        pairs,
        exact=exact,
        search=budget,
        mapping=mapping_document(mapping),
        objective=objective,
        placement=placement,
        watcher=_watcher(progress),
    )
    return Result(done.result, done.simulation)


@checked
def plan(system: Machine, model: Workload, sets: Sets | None = None, *, progress: bool = False) -> Result:
    """Find the fastest way to split a model over a system: what ``loom plan`` answers.

    Parameters
    ----------
    system, model
        Library names, files, dictionaries, or descriptions that were read.
    sets
        Values to override, by key path; ``{"plan.tensor": 8}`` and so on fix parts of the plan.
    progress
        Show a bar on standard error for what takes longer than two seconds.

    Returns
    -------
    A result of the schema ``siliconloom.plan/1``; ``frame("alternatives")`` are the next best plans.

    Raises
    ------
    LoomError
        For bad descriptions, and models that do not fit.

    Examples
    --------
    >>> import siliconloom as sl
    >>> found = sl.plan("dgx-h100", "llama3-8b", {"workload.batch": 8})
    >>> found["plan"]["data"] * found["plan"]["tensor"] * found["plan"]["pipeline"]
    8
    """
    from siliconloom.evaluate.plan import plan_result, read_plan_input

    pairs = assignments(sets)
    asked = read_plan_input(named_machine(system, "system"), named_workload(model), pairs)
    found = plan_result(*asked, watcher=_watcher(progress))
    found["asked"]["overrides"] = dict(pairs)
    return Result(found)


@checked
def compare(
    machine: Machine,
    workload: Workload,
    gpus: Machine | Sequence[Machine],
    sets: Sets | None = None,
    *,
    tensor: int = 1,
    sustained: bool = False,
    stack: str = "none",
    prices: Mapping[str, float] | None = None,
    progress: bool = False,
) -> Result:
    """Put a workload on a chip or system and on GPUs side by side: what ``loom compare`` answers.

    Parameters
    ----------
    machine, workload
        Library names, files, dictionaries, or descriptions that were read.
    gpus
        A GPU, or several of them.
    sets
        Values to override, by key path, of the machine and the workload.
    tensor
        GPUs that share every operator.
    sustained
        GPUs in a run of seconds, under the power limit.
    stack
        Serving software on the GPUs: ``none``, ``tensorrt-llm``, ``vllm``, ``deepspeed-mii``.
    prices
        Dollars an hour, by the name of a machine.
    progress
        Show a bar on standard error for what takes longer than two seconds.

    Returns
    -------
    A result of the schema ``siliconloom.comparison``; its ``operators`` have a row for each operator and machine.

    Raises
    ------
    LoomError
        For bad descriptions, and models that do not fit.

    Examples
    --------
    >>> import siliconloom as sl
    >>> beside = sl.compare("npu-datacenter", "llama3-8b", ["h100", "a100"], {"workload.layers": 1})
    >>> [machine["name"] for machine in beside["machines"]]
    ['npu-datacenter', 'h100', 'a100']
    """
    from siliconloom.arch.gpu import load_gpu
    from siliconloom.arch.overrides import split_overrides
    from siliconloom.baselines.stacks import find_stack
    from siliconloom.evaluate.compare import compare_workload
    from siliconloom.workloads import load_workload

    if isinstance(tensor, bool) or not isinstance(tensor, int) or not 1 <= tensor <= 1024:
        raise LoomError(f"tensor: must be a whole number from 1 to 1024 (got {tensor!r})")
    pairs = assignments(sets)
    machine_sets, workload_sets = split_overrides(pairs)
    several = [gpus] if isinstance(gpus, str) or not isinstance(gpus, Sequence) else gpus
    theirs = [load_gpu(named_machine(gpu, "gpu")) for gpu in several]
    if not theirs:
        raise LoomError("gpus: name at least one")
    software = find_stack(stack)
    graph = load_workload(named_workload(workload), workload_sets)
    found = compare_workload(
        named_machine(machine),
        machine_sets,
        graph,
        theirs,
        tensor=tensor,
        sustained=sustained,
        stack=software,
        prices=[f"{name}={price}" for name, price in (prices or {}).items()],
        overrides=pairs,
        watcher=_watcher(progress),
    )
    return Result(found)


@checked
def verify(
    chip: Machine,
    workload: Workload | None = None,
    sets: Sets | None = None,
    *,
    seed: int = 0,
    simulator: str = "verilator",
    cases: int | None = None,
    programs: int | None = None,
    mapping: Mapped | None = None,
    liberty: str | PathLike[str] | None = None,
    waves: str | PathLike[str] | None = None,
    only: str | None = None,
    progress: bool = False,
) -> Result:
    """Build the RTL of a chip and run random work, or a workload's program, on it and on its models: ``loom verify``.

    A difference raises nothing: ``passed`` of the result tells, and its cases say where the first one is.

    Parameters
    ----------
    chip
        A chip, or a ring of chips.
    workload
        Run the program that `simulate` times, in place of random work.
    sets
        Values to override, by key path.
    seed
        Of random shapes, values and stalls.
    simulator
        ``verilator`` or ``icarus``.
    cases, programs
        How much random work; 8 of each unless given.
    mapping
        Of the workload.
    liberty
        A cell library: the design runs as a netlist of its cells.
    waves
        A file that ends in ``.fst`` or ``.vcd``, of a whole npu tile: all signals of the bench, with the simulator's
        timeline of the same programs among them; views of both for GTKWave and Surfer go to files beside it.
    only
        Name of the one program that a whole npu tile runs, of those that it would.
    progress
        Show a bar on standard error for what takes longer than two seconds.

    Returns
    -------
    A result whose ``source`` is the record of the verification.

    Raises
    ------
    LoomError
        When the simulator is missing or the description has no RTL.

    Examples
    --------
    >>> import siliconloom as sl
    >>> small = {"tile.array.rows": 2, "tile.array.cols": 2}
    >>> sl.verify("systolic-ws-8", sets=small, simulator="icarus", cases=1).passed
    True
    """
    from siliconloom.api.hardware import verified

    record = verified(
        named_machine(chip, "chip"),
        None if workload is None else named_workload(workload),
        assignments(sets),
        seed=seed,
        simulator=simulator,
        cases=cases,
        programs=programs,
        mapping=mapping_document(mapping),
        liberty=None if liberty is None else Path(liberty),
        waves=None if waves is None else Path(waves),
        only=only,
        watcher=_watcher(progress),
    )
    return Result(record.as_dict(), record)


@checked
def generate_rtl(
    chip: Machine,
    folder: str | PathLike[str] | None = None,
    sets: Sets | None = None,
    *,
    reset: str = "sync",
    flows: str | Sequence[str] = (),
) -> Result:
    """Generate the Verilog of a chip and all that goes with it: what ``loom rtl`` writes.

    Parameters
    ----------
    chip
        A chip, or a ring of chips.
    folder
        Where to write all files, in one step; nothing is written without it.
    sets
        Values to override, by key path.
    reset
        ``sync`` or ``async_low``.
    flows
        Other people's tools for which files are written, too: ``litex``, ``vivado``, ``librelane``.

    Returns
    -------
    The sidecar ``siliconloom.json``: ports, parameters, file lists; ``source.files`` is the text of every file.

    Raises
    ------
    LoomError
        When the description has no RTL, or the folder holds something else.

    Examples
    --------
    >>> import siliconloom as sl
    >>> made = sl.generate_rtl("systolic-ws-8", sets={"tile.array.rows": 4})
    >>> "module systolic_ws_8" in made.source.files["systolic_ws_8.v"]
    True
    """
    from siliconloom.api.hardware import read_hardware
    from siliconloom.rtl.folder import check_folder
    from siliconloom.rtl.integration.flows import check_flows
    from siliconloom.verification.emission import check_reset, complete_rtl

    style, tools = check_reset(reset), check_flows([flows] if isinstance(flows, str) else flows)
    described = read_hardware(named_machine(chip, "chip"), assignments(sets))
    target = None if folder is None else Path(fspath(folder))
    if target is not None:
        check_folder(target, described.name)
    bundle = complete_rtl(described, reset=style, flows=tools)
    if target is not None:
        bundle.write(target)
    return Result(bundle.sidecar, bundle)


@checked
def serve(
    system: Machine,
    model: Workload,
    trace: Trace,
    sets: Sets | None = None,
    *,
    slo: Limits | None = None,
    find: str | None = None,
    attain: float = 0.9,
    stack: str | None = None,
    profile: str | PathLike[str] | None = None,
    progress: bool = False,
) -> Result:
    """Serve a trace of requests by the replicas of a machine: what ``loom serve`` answers.

    Parameters
    ----------
    system, model
        Library names, files, dictionaries; the system may also be a description that was read.
    trace
        A library name, a file, ``"512x128"``, or columns under the names that files have: a data frame, or a dictionary
        of lists such as ``{"arrival_s": [0, 0.5], "prompt_tokens": [512, 300], "output_tokens": [64, 10]}``.
    sets
        Values to override, by key path: ``{"serve.rate": 4, "plan.tensor": 2}``.
    slo
        What requests should keep to: ``"ttft=2s,tpot=50ms"``, or ``{"ttft": 2, "tpot": 0.05}`` in seconds.
    find
        ``rate``, ``replicas`` or ``fleet``: the highest rate, the fewest replicas or a fleet's cheapest machines with
        which requests keep to ``slo``.
    attain
        Share of the requests that must keep to it.
    stack
        Software of the host: ``vllm`` (on GPUs, where nothing is said), ``tensorrt-llm``, ``none``, ...
    profile
        Steps of operators that were measured on this GPU: ``measured``, or a folder of tables.
    progress
        Show a bar on standard error for what takes longer than two seconds.

    Returns
    -------
    A result of the schema ``siliconloom.serving/1``; ``frame("requests")`` has a row for each request,
    ``frame("timeline")`` one for each span of the run.

    Raises
    ------
    LoomError
        For bad descriptions, keys that nothing reads, requests that do not fit, and limits that nothing keeps to.

    Examples
    --------
    >>> import siliconloom as sl
    >>> served = sl.serve("h100", "llama3-8b", "512x64", {"serve.requests": 20}, slo={"ttft": 2})
    >>> served.requests.output_tokens
    1280
    >>> len(served.frame("requests"))
    20
    """
    from siliconloom.evaluate.capacity import find_capacity
    from siliconloom.evaluate.fleets import prepare_named
    from siliconloom.evaluate.serving_run import serve as run_service

    pairs = assignments(sets)
    named = named_workload(model)
    if isinstance(named, Graph):
        raise LoomError("model: must be a name, a file or a dictionary: requests make steps of it, and a graph is one")
    objective = service_level(slo)
    measured = None if profile is None else fspath(profile)
    served = prepare_named(named_machine(system, "system"), named, request_trace(trace), pairs, stack, measured)
    watcher = _watcher(progress)
    kept: list[Any] = []
    if find is None:
        return Result(run_service(served, objective, pairs, watcher=watcher, kept=kept), kept[-1])
    found = find_capacity(served, find, objective, float(attain), pairs, watcher=watcher, kept=kept)
    return Result(found, kept[-1])


@checked
def sweep(
    description: str | PathLike[str] | Mapping[str, Any],
    results: str | PathLike[str] | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Result:
    """Evaluate the points of a sweep: what ``loom sweep`` answers.

    Parameters
    ----------
    description
        A file (``kind: sweep``), or the same as a dictionary.
    results
        SQLite file that keeps every point; what it has is not evaluated again. In memory if not given.
    scheduler
        Address of a Dask scheduler.
    workers
        Processes; this one alone if not given. A script that starts several begins with
        ``if __name__ == "__main__":``. A Dask cluster has its own.
    progress
        Show the points so far and the best ones on standard error.

    Returns
    -------
    A result of the schema ``siliconloom.sweep/1``; ``frame("points")`` has a row for each point.

    Raises
    ------
    LoomError
        For a bad description, a key that no schema has, and a file that is no results'; finished points are kept.

    Examples
    --------
    >>> import siliconloom as sl
    >>> asked = {"kind": "sweep", "machine": "npu-edge-int8", "workload": "gpt2", "objectives": ["time"]}
    >>> asked |= {"set": {"workload.layers": 1, "workload.sequence": 32}, "keys": {"tile.array.cols": [16, 32]}}
    >>> len(sl.sweep(asked).frame("points"))
    2
    """
    from siliconloom.sweeps.run import run_sweep

    described = Document.of(dict(description), "sweep") if isinstance(description, Mapping) else fspath(description)
    kept = None if results is None else fspath(results)
    own = 1 if workers is None and scheduler is None else workers
    if not progress:
        found = run_sweep(described, kept, scheduler=scheduler, workers=own)
        return Result(found.as_dict(), found)
    from siliconloom.render.sweep import LiveSweep

    with LiveSweep(True) as live:
        found = run_sweep(described, kept, scheduler=scheduler, workers=own, watcher=live)
    return Result(found.as_dict(), found)


def _watcher(progress: bool) -> Watcher:
    """Who is told how far an evaluation is."""
    if not progress:
        return NOBODY
    from siliconloom.render.tables import Terminal

    return Terminal(True)


__all__ = ["compare", "generate_rtl", "plan", "serve", "simulate", "sweep", "verify"]
