"""``loom sim``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json, Machine, Set, Workload


def command(
    chip: Machine,
    workload: Workload,
    sets: Set = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Run every event instead of jumping what repeats; the result is the same.")
    ] = False,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="Write a timeline for Perfetto.")] = None,
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
    search: Annotated[
        bool, typer.Option("--search", help="Simulate every way to share out the buffers and take the fastest.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Map a workload to a chip, or a system of chips, and simulate it, cycle by cycle."""
    from siliconloom.arch import LoomError, load_chip, machine_kind
    from siliconloom.arch.document import parse_assignments
    from siliconloom.output import check_outputs, write_json, write_text
    from siliconloom.overrides import split_overrides
    from siliconloom.simulate import simulate
    from siliconloom.tables import console, progress_bar, simulation_tables
    from siliconloom.workloads import load_workload

    if window is not None and trace is None:
        raise LoomError("--window chooses what goes into a trace; add --trace FILE")
    check_outputs({"--trace": trace, "--report": report, "--csv": csv, "--json": json_file}, (chip, workload))
    assignments = parse_assignments(sets or [])
    chip_sets, workload_sets = split_overrides(assignments)
    graph = load_workload(workload, workload_sets)
    options = {"--trace": trace, "--report": report, "--window": window, "--csv": csv, "--search": search or None}
    unsupported = [name for name, value in options.items() if value]
    system = machine_kind(chip) != "chip"
    described = None if system else load_chip(chip, chip_sets)
    if described is None or described.tile.kind == "pim" or (described.pim is not None and graph.phase == "decode"):
        from siliconloom.systems.command import simulate_and_print

        simulate_and_print(
            chip if described is None else described, chip_sets, graph, unsupported, exact, json_file, assignments
        )
        return
    seen, wanted = None, 0
    if trace is not None:
        from siliconloom.trace import TRACE_LIMIT, parse_window, trace_text

        seen = None if window is None else parse_window(window, described)
        wanted = TRACE_LIMIT
    with progress_bar(json_file != "-", "simulating") as progress:
        simulation = simulate(
            described, graph, assignments, exact=exact, trace_limit=wanted, window=seen, progress=progress,
            search=search,
        )  # fmt: skip
    result = simulation.result()
    if trace is not None:
        write_text(trace, trace_text(simulation, seen))
    if report is not None:
        from siliconloom.report import report_html

        write_text(report, report_html(simulation, result))
    if csv is not None:
        from siliconloom.report import operators_csv

        write_text(csv, operators_csv(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (trace, report, csv, json_file):
        simulation_tables(result, console())
