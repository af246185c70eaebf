"""``loom serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.completion import traces
from siliconloom.commands.options import Json, Machine, Set, Workload

EXAMPLES = (
    "loom serve dgx-a100 llama2-70b azure-conv --set serve.requests=500",
    "loom serve npu-edge gpt2 64x16 --set serve.requests=20",
    "loom serve h100 llama3-8b 512x64 --set serve.requests=40",
    "loom serve h100 llama3-8b 512x128 --set serve.requests=50 --report r.html",
    "loom serve rtx-pro-6000 llama3-8b azure-code --profile measured",
)
"""Shown below the command's help."""


def command(
    system: Machine,
    model: Workload,
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="Requests: a CSV or JSONL file, a library name, or PROMPTxANSWER in tokens.",
            autocompletion=traces,
        ),
    ],
    sets: Set = None,
    slo: Annotated[
        str | None,
        typer.Option("--slo", metavar="LIMITS", help="What requests should keep to: ttft=2s,tpot=50ms,e2e=1s."),
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            "--find", metavar="WHAT", help="Highest rate, fewest replicas, cheapest fleet that keeps to --slo."
        ),
    ] = None,
    attain: Annotated[
        float | None,
        typer.Option("--attain", metavar="SHARE", help="Share of requests that must keep to it (--find); 0.9."),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option("--stack", metavar="NAME", help="Software of the host: vllm (default on GPUs), none, ..."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="WHAT", help="Steps of measured operators: measured, or a folder of tables."),
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write every request's times as CSV.")
    ] = None,
    events: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Write requests and steps for Perfetto.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Serve requests: latency of every token, goodput, money.

    --set serve.rate=4 scales the trace, serve.arrivals, serve.batching, serve.max_sequences, serve.prefix_cache and so
    on say how requests come and are scheduled; --set plan.tensor and plan.data how chips make replicas.
    """
    from siliconloom.arch import LoomError
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.service_level import parse_level
    from siliconloom.evaluate.capacity import find_capacity
    from siliconloom.evaluate.fleets import prepare_named
    from siliconloom.evaluate.serving_run import serve
    from siliconloom.render.output import check_outputs, write_json, write_text
    from siliconloom.render.serving import serving_tables
    from siliconloom.render.tables import Terminal, console
    from siliconloom.sim.service.fleet import Fleet

    outputs: dict[str, str | Path | None] = {"--csv": csv, "--trace": events, "--report": report, "--json": json_file}
    check_outputs(outputs, (system, model, trace))
    if events is not None:
        from siliconloom.render.kanata import refuse_kanata
        from siliconloom.render.trace import check_trace_name

        refuse_kanata(events)
        check_trace_name(events)
    assignments = parse_assignments(sets or [])
    objective = None if slo is None else parse_level(slo)
    if attain is not None and find is None:
        raise LoomError("--attain: is of --find")
    served = prepare_named(system, model, trace, assignments, stack, profile)
    watcher = Terminal("-" not in outputs.values())
    kept: list[Fleet] = []
    if find is not None:
        result = find_capacity(
            served, find, objective, 0.9 if attain is None else attain, assignments, watcher=watcher, kept=kept
        )
    else:
        result = serve(served, objective, assignments, watcher=watcher, kept=kept)
    if csv is not None:
        from siliconloom.evaluate.served import requests_csv

        write_text(csv, requests_csv(kept[-1]))
    if events is not None:
        from siliconloom.evaluate.served import serving_timeline
        from siliconloom.render.trace import write_trace

        write_trace(events, serving_timeline(kept[-1], result))
    if report is not None:
        from siliconloom.render.report_serving import serving_html

        write_text(report, serving_html(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in outputs.values():
        serving_tables(result, console())
    if not result["complete"]:
        raise typer.Exit(130)
