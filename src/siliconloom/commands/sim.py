"""``loom sim``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from siliconloom.commands.options import Json, Machine, Objective, Placement, Search, SearchTime, Seed, Set, Workload

if TYPE_CHECKING:
    from siliconloom.arch.timeline import Timeline
    from siliconloom.evaluate.chip import Simulation
    from siliconloom.mapper.chip.budget import Budget


EXAMPLES = (
    "loom sim npu-edge gpt2",
    "loom sim npu-edge gpt2 --set tile.array.rows=32 --json result.json",
    "loom sim npu-datacenter llama3-8b --set workload.phase=decode",
    "loom sim npu-edge gpt2 --trace run.kanata --window 1ms:1.1ms",
    "loom sim dgx-h100 llama3-8b --set plan.tensor=4",
)
"""Shown below the command's help."""


def command(
    chip: Machine,
    workload: Workload,
    sets: Set = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Run every event instead of jumping what repeats; the result is the same.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a timeline for Perfetto, to F.kanata the pipeline for Konata, to F.et a Chakra trace.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window", metavar="FROM:TO", help="Trace every event between two cycles or times (1ms:1.2ms), no jumps."
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write the per-operator table as CSV.")
    ] = None,
    search: Search = False,
    search_time: SearchTime = None,
    seed: Seed = None,
    objective: Objective = "time",
    placement: Placement = None,
    mapping: Annotated[
        str | None, typer.Option("--mapping", metavar="FILE", help="Run this mapping, as loom map -o writes it.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Simulate a workload on a chip, system or GPU, cycle by cycle.

    The workload is mapped first. Chips are simulated by their instructions, GPUs are predicted.
    """
    from siliconloom.arch import LoomError
    from siliconloom.arch.document import Document, parse_assignments
    from siliconloom.arch.overrides import split_overrides
    from siliconloom.arch.progress import NOBODY, Watcher
    from siliconloom.commands.execution_traces import check_step_outputs, chip_page, step_page, write_step_trace
    from siliconloom.evaluate.machine import evaluate, only_memory, read_machine, refuse_options, runs_instructions
    from siliconloom.render.output import write_json, write_text
    from siliconloom.render.trace import check_trace_name
    from siliconloom.workloads import load_workload

    if objective != "time":
        from siliconloom.evaluate.objectives import check_objective

        check_objective(objective)
    length: Budget | bool = False
    if search or search_time is not None or seed is not None:
        from siliconloom.evaluate.objectives import budget_of

        length = budget_of(search, search_time, seed)
    if window is not None and trace is None:
        raise LoomError("--window chooses what goes into a trace; add --trace FILE")
    inputs = (chip, workload, *((mapping,) if mapping else ()))
    check_step_outputs({"--trace": trace, "--report": report, "--csv": csv, "--json": json_file}, inputs)
    check_trace_name(trace, {".kanata": "for Konata", ".et": "a Chakra trace of a system"})
    assignments = parse_assignments(sets or [])
    chip_sets, workload_sets = split_overrides(assignments)
    graph = load_workload(workload, workload_sets)
    machine = read_machine(chip, chip_sets)
    ranks, trace = (trace, None) if trace is not None and trace.endswith(".et") else (None, trace)
    options: dict[str, object] = {"--trace": trace if only_memory(machine) else None, "--window": window, "--csv": csv}
    options |= {"--mapping": mapping, "--placement": placement, "--objective": objective}
    refuse_options(machine, graph, options, search=length)
    seen, wanted = None, 0
    drawn: list[Timeline] | None = None
    if not runs_instructions(machine, graph):
        drawn = _to_draw(trace, report)
    elif trace is not None and machine.chip is not None:
        from siliconloom.evaluate.timeline import TRACE_LIMIT, parse_window

        seen = None if window is None else parse_window(window, machine.chip)
        wanted = TRACE_LIMIT
    watcher: Watcher = NOBODY
    if json_file != "-":
        from siliconloom.render.tables import Terminal

        watcher = Terminal(True)
    done = evaluate(
        machine,
        graph,
        assignments,
        exact=exact,
        search=length,
        trace_limit=wanted,
        window=seen,
        mapping=None if mapping is None else Document.load(mapping),
        objective=objective,
        placement=placement,
        timeline=drawn,
        watcher=watcher,
    )
    result, simulation = done.result, done.simulation
    write_step_trace(ranks, machine, graph)
    if trace is not None:
        _write_trace(trace, simulation, seen, drawn)
    if report is not None:
        page = step_page(result, chip, assignments, machine, graph, drawn) if simulation is None else chip_page(done)
        write_text(report, page)
    if csv is not None:
        from siliconloom.render.report import operators_csv

        write_text(csv, operators_csv(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (trace, report, csv, json_file):
        from siliconloom.render.step import step_tables
        from siliconloom.render.tables import console

        step_tables(result, console())


def _to_draw(trace: str | None, report: str | None) -> list[Timeline] | None:
    """Where the timeline of a step goes that is no program's, if anybody asks for it."""
    if trace is None and report is None:
        return None
    if trace is not None:
        from siliconloom.render.kanata import refuse_kanata

        refuse_kanata(trace)
    return []


def _write_trace(
    file: str, simulation: Simulation | None, window: tuple[int, int] | None, drawn: list[Timeline] | None
) -> None:
    """Write what ran when, in the format that the file's name asks for."""
    from siliconloom.evaluate.timeline import instruction_stream, timeline_of
    from siliconloom.render.kanata import is_kanata, kanata_text
    from siliconloom.render.output import write_text
    from siliconloom.render.trace import write_trace

    if simulation is None:
        for timeline in drawn or ():
            write_trace(file, timeline)
    elif is_kanata(file):
        write_text(file, kanata_text(instruction_stream(simulation)))
    else:
        write_trace(file, timeline_of(simulation, window))
