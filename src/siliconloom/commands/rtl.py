"""``loom rtl``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.options import Json, Machine, Set


def command(
    chip: Machine,
    folder: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; made when missing.")],
    sets: Set = None,
    reset: Annotated[
        str,
        typer.Option(
            "--reset", metavar="STYLE", help="sync: rst, active high; async_low: rst_n, asynchronous, active low."
        ),
    ] = "sync",
    json_file: Json = None,
) -> None:
    """Write the Verilog of a chip, with project files, constraints, benches and an FPGA top."""
    from siliconloom.arch import LoomError, load_chip, machine_kind
    from siliconloom.arch.document import parse_assignments
    from siliconloom.emit import check_reset, emit
    from siliconloom.link_parity import load_ring
    from siliconloom.output import check_outputs

    style = check_reset(reset)
    check_outputs({"--json": json_file}, (chip,))
    if json_file not in (None, "-") and Path(json_file).resolve().is_relative_to(folder.resolve()):
        raise LoomError(f"--json {json_file} lies in {folder}, which -o writes; name a file elsewhere")
    assignments = parse_assignments(sets or [])
    described = load_ring(chip, assignments) if machine_kind(chip) == "system" else load_chip(chip, assignments)
    emit(described, folder, json_file, reset=style)
