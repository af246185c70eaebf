"""``loom collective``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from siliconloom.commands.completion import systems
from siliconloom.commands.options import Json, Set

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from siliconloom.arch.progress import Watch
    from siliconloom.arch.timeline import Timeline

EXAMPLES = (
    "loom collective dgx-h100 all_reduce '64 MiB'",
    "loom collective ring all_gather '1 MiB' --chips 16 --trace c.json",
    "loom collective torus-2d all_reduce '64 MiB' --report c.html",
)
"""Shown below the command's help."""


def command(
    system: Annotated[
        str,
        typer.Argument(metavar="SYSTEM", help="System or bare network: file or library name.", autocompletion=systems),
    ],
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OP",
            help="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or send_receive; or a YAML file: a "
            "communication program; or NAME.et: a Chakra execution trace, a file NAME.0.et for each rank.",
        ),
    ],
    size: Annotated[
        str,
        typer.Argument(
            metavar="BYTES",
            help="Of a chip's whole buffer: 67108864 or '64 MiB'; of all_to_all also a CSV file of bytes from each to "
            "each. Of 0 nothing is sent, in 0 s. A program, or a trace, has its own.",
        ),
    ] = "",
    chips: Annotated[int | None, typer.Option("--chips", min=1, max=2**20, help="Chips that take part.")] = None,
    sets: Set = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Keep a queue of events even where the order is known; same result.")
    ] = False,
    flows: Annotated[
        bool, typer.Option("--flows", help="Max-min fair flows instead of messages in queues: thousands of chips.")
    ] = False,
    predicted: Annotated[
        bool, typer.Option("--predicted", help="The model of NCCL, also where NCCL was measured on just these GPUs.")
    ] = False,
    groups: Annotated[
        str | None,
        typer.Option("--groups", metavar="FILE", help="Ranks of a trace's groups; else NAME.json beside it."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write a timeline for Perfetto: messages, or a program's operators."
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run a collective over a system's links, a program, or a trace.

    Message by message; a program has several collectives, and work between them, and so has an execution trace.
    """
    from siliconloom.arch import LoomError
    from siliconloom.arch.document import parse_assignments
    from siliconloom.evaluate.chakra_files import is_execution_trace
    from siliconloom.evaluate.collective import collective_result, load_any, parse_size
    from siliconloom.evaluate.communication import communication_result, is_program
    from siliconloom.render.network import collective_tables, communication_tables, execution_trace_tables
    from siliconloom.render.output import check_outputs
    from siliconloom.render.watching import watched

    check_outputs({"--trace": trace, "--report": report, "--json": json_file}, (system, operation, size, groups))
    drawn: list[Timeline] | None = None if trace is None else []
    if trace is not None:
        from siliconloom.render.kanata import refuse_kanata
        from siliconloom.render.trace import check_trace_name

        refuse_kanata(trace)
        check_trace_name(trace)
    overrides = parse_assignments(sets or [])
    if is_execution_trace(operation):
        if size:
            raise LoomError(f"BYTES: an execution trace has its own (got '{size}')")
        asked = {"chips": chips, "predicted": predicted, "flows": flows}
        with watched(json_file != "-", "messages") as watch:
            result = _traced(system, overrides, operation, groups, asked, exact, watch, drawn)
        tables = execution_trace_tables
    elif groups is not None:
        raise LoomError(f"--groups: is of an execution trace, NAME.et (got '{operation}')")
    elif is_program(operation):
        if size:
            raise LoomError(f"BYTES: a program has its own (got '{size}')")
        described, count = load_any(system, overrides, chips)
        with watched(json_file != "-", "messages") as watch:
            result = communication_result(
                described, operation, count, exact=exact, flows=flows, watch=watch, timeline=drawn
            )
        tables = communication_tables
    else:
        parsed = parse_size(size)
        if chips is None and not isinstance(parsed, float):
            chips = len(parsed)
        described, count = load_any(system, overrides, chips)
        with watched(json_file != "-", "messages") as watch:
            options = {"exact": exact, "flows": flows, "predicted": predicted}
            result = collective_result(described, operation, parsed, count, **options, watch=watch, timeline=drawn)
        tables = collective_tables
    _write(result, tables, trace, report, json_file, drawn)


def _traced(
    system: str,
    sets: list[tuple[str, str]],
    name: str,
    groups: str | None,
    asked: dict[str, Any],
    exact: bool,
    watch: Watch,
    drawn: list[Timeline] | None,
) -> dict[str, Any]:
    """Run an execution trace."""
    from siliconloom.arch import LoomError
    from siliconloom.evaluate.chakra_files import read_trace
    from siliconloom.evaluate.collective import load_any
    from siliconloom.evaluate.traced import execution_trace_result, refuse_flows

    refuse_flows(asked["flows"])
    if asked["predicted"]:
        raise LoomError("--predicted: is of one collective; a trace's messages are simulated")
    read = read_trace(name, groups)
    count = len(read.ranks)
    if asked["chips"] not in (None, count):
        raise LoomError(f"--chips: the trace has {count} ranks (got {asked['chips']})")
    described, _ = load_any(system, sets, count)
    return execution_trace_result(described, read, exact=exact, watch=watch, timeline=drawn)


def _write(
    result: dict[str, Any],
    tables: Callable[[dict[str, Any], Console], None],
    trace: str | None,
    report: str | None,
    json_file: str | None,
    drawn: list[Timeline] | None,
) -> None:
    """Write what was asked for, and the tables where standard output is free for them."""
    from siliconloom.render.output import write_json, write_text
    from siliconloom.render.tables import console

    if trace is not None and drawn:
        from siliconloom.render.trace import write_trace

        write_trace(trace, drawn[0])
    if report is not None:
        from siliconloom.render.report_network import network_html

        write_text(report, network_html(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (trace, report, json_file):
        tables(result, console())
