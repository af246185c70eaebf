"""``loom plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from siliconloom.commands.completion import systems
from siliconloom.commands.options import Json, Set, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from siliconloom.arch.execution_trace import ExecutionTrace

EXAMPLES = ("loom plan dgx-h100 llama3-8b", "loom plan dgx-h100 llama3-8b --set workload.phase=training")
"""Shown below the command's help."""


def command(
    system: Annotated[
        str, typer.Argument(metavar="SYSTEM", help="System: a YAML file or a library name.", autocompletion=systems)
    ],
    model: Workload,
    sets: Set = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="A timeline for Perfetto; F.et: a Chakra execution trace."),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Find the fastest way to split a model over a system.

    --set plan.tensor=8 and so on fix parts of the plan, --set workload.phase is training, prefill or decode.
    --set run.steps=1000 times a whole training run with failures.
    """
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.timeline import Timeline
    from siliconloom.commands.execution_traces import check_step_outputs
    from siliconloom.evaluate.plan import plan_result, read_plan_input
    from siliconloom.render.output import write_json, write_text
    from siliconloom.render.plan import plan_tables
    from siliconloom.render.tables import Terminal, console

    check_step_outputs({"--trace": trace, "--report": report, "--json": json_file}, (system, model))
    if trace is not None:
        from siliconloom.render.kanata import refuse_kanata
        from siliconloom.render.trace import check_trace_name

        refuse_kanata(trace)
        check_trace_name(trace, {".et": "a Chakra trace"})
    assignments = parse_assignments(sets or [])
    cluster, graph, fixed, troubles, decoding = read_plan_input(system, model, assignments)
    in_ranks = trace is not None and trace.endswith(".et")
    ranks: list[Callable[[], ExecutionTrace]] = []
    drawn: list[Timeline] | None = None if (trace is None or in_ranks) and report is None else []
    watcher = Terminal(json_file != "-")
    result = plan_result(cluster, graph, fixed, troubles, decoding, watcher=watcher, timeline=drawn, traces=ranks)
    if trace is not None and in_ranks:
        from siliconloom.commands.execution_traces import write_trace_files

        write_trace_files(trace, ranks[0]())
    elif trace is not None and drawn:
        from siliconloom.render.trace import write_trace

        write_trace(trace, drawn[0])
    result["asked"]["overrides"] = dict(assignments)
    if report is not None:
        from siliconloom.evaluate.step_links import step_links
        from siliconloom.render.report_plan import plan_html

        messages, untold = step_links(system, assignments, ranks[0])
        write_text(report, plan_html(result, drawn[0] if drawn else None, messages, untold))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (trace, report, json_file):
        plan_tables(result, console())
