"""``loom dram``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.options import Json, Set

EXAMPLES = ("loom dram hbm2 examples/requests.csv", "loom dram ddr4 examples/requests.csv --commands commands.csv")
"""Shown below the command's help."""


def command(
    memory: Annotated[str, typer.Argument(metavar="MEMORY", help="Memory description: a YAML file or a library name.")],
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="CSV of requests: cycle,op,address; op is R or W.")],
    sets: Set = None,
    commands: Annotated[
        str | None, typer.Option("--commands", metavar="FILE", help="Write every DRAM command as CSV.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Run every command; the result is the same.")] = False,
    json_file: Json = None,
) -> None:
    """Replay requests on a DRAM: when each is done."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.dram import load_dram
    from siliconloom.evaluate.dram import commands_csv, dram_result
    from siliconloom.render.dram import dram_tables
    from siliconloom.render.output import check_outputs, write_json, write_text
    from siliconloom.render.tables import console

    check_outputs({"--commands": commands, "--json": json_file}, (memory, trace))
    described = load_dram(memory, parse_assignments(sets or []))
    result, found = dram_result(described, trace, commands=commands is not None, exact=exact)
    if commands is not None:
        write_text(commands, commands_csv(found))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (commands, json_file):
        dram_tables(described, result, console())
