"""``loom cascade``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json

EXAMPLES = ("loom cascade attention-3-pass --set M=65536 --buffer 16MiB",)
"""Shown below the command's help."""


def command(
    cascade: Annotated[str, typer.Argument(metavar="CASCADE", help="Cascade: a YAML file or a library name.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="RANK=SIZE", help="Set a rank's extent: M=65536. Repeatable.")
    ] = None,
    buffer: Annotated[
        str | None, typer.Option("--buffer", metavar="SIZE", help="On-chip buffer (16MiB); any amount without it.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="RANK", help="Rank along which operands pass by.")
    ] = None,
    staged: Annotated[
        list[str] | None,
        typer.Option("--staged", metavar="TENSOR", help="Tensor that arrays hand on through the buffer. Repeatable."),
    ] = None,
    element: Annotated[
        int, typer.Option("--bytes", metavar="N", min=1, max=16, help="Bytes of an element of every tensor.")
    ] = 2,
    cores: Annotated[
        int | None,
        typer.Option("--cores", metavar="N", min=1, max=64, help="Schedule its products on so many cores, too."),
    ] = None,
    lanes: Annotated[
        int, typer.Option("--lanes", metavar="N", min=1, max=1 << 20, help="Multiply-adds of a core in a cycle.")
    ] = 16,
    bandwidth: Annotated[
        float, typer.Option("--bandwidth", metavar="N", min=1e-9, help="Bytes from or to memory in a cycle.")
    ] = 64.0,
    objective: Annotated[
        str, typer.Option("--objective", metavar="NAME", help="What the schedule minimises: time or traffic.")
    ] = "time",
    json_file: Json = None,
) -> None:
    """Derive the passes and least traffic of a cascade of Einsums.

    Live footprints of its tensors, too. A pass visits a rank once; what a later pass reads must live whole or go
    through memory. With --cores products run one after the other or as pipelines, whatever is best where what they hand
    on has --buffer.
    """
    from siliconloom.arch.document import parse_assignments
    from siliconloom.mapper.fusion.summary import schedule_summary
    from siliconloom.render.cascade import cascade_tables
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import console
    from siliconloom.workloads.cascades.described import load_cascade
    from siliconloom.workloads.cascades.summary import cascade_summary, parse_buffer

    check_outputs({"--json": json_file}, (cascade,))
    room = None if buffer is None else parse_buffer(buffer)
    found = load_cascade(cascade, parse_assignments(sets or []))
    result = cascade_summary(found, room, stream=stream, element_bytes=element, staged=staged or [])
    if cores is not None:
        result["schedule"] = schedule_summary(found, cores, lanes, room, bandwidth, element, objective)
    if json_file != "-":
        cascade_tables(result, console())
    if json_file is not None:
        write_json(json_file, result)
