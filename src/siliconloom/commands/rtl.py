"""``loom rtl``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.options import Json, Machine, Set

EXAMPLES = ("loom rtl npu-edge-int8 -o out/rtl", "loom rtl systolic-ws-8 -o out/array --set tile.array.rows=4")
"""Shown below the command's help."""


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
    flows: Annotated[
        list[str] | None,
        typer.Option(
            "--flow",
            metavar="NAME",
            help="Also write files for another tool: litex, vivado, librelane; several by commas or repeated.",
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Write the Verilog of a chip, with all that tools need.

    Project files, constraints, benches, a register map, a C driver and an FPGA top lie beside it.
    """
    from siliconloom.api.hardware import read_hardware
    from siliconloom.arch import Chip, LoomError
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.tile import NpuTile
    from siliconloom.render.emission import emission_lines, warn_of_fallback, warn_of_no_bench
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import console, under_way
    from siliconloom.rtl.folder import check_folder
    from siliconloom.rtl.integration.flows import check_flows
    from siliconloom.verification.chain import why_no_programs
    from siliconloom.verification.emission import check_reset, complete_rtl

    style, tools = check_reset(reset), check_flows(flows or [])
    check_outputs({"--json": json_file}, (chip,))
    if json_file not in (None, "-") and Path(json_file).resolve().is_relative_to(folder.resolve()):
        raise LoomError(f"--json {json_file} lies in {folder}, which -o writes; name a file elsewhere")
    assignments = parse_assignments(sets or [])
    described = read_hardware(chip, assignments)
    check_folder(folder, described.name)
    what = f"generating the Verilog of {described.name}"
    with under_way(json_file != "-", f"{what} ...") as say:
        bundle = complete_rtl(
            described, reset=style, flows=tools, told=lambda circuits: say(f"{what}, {circuits} circuits converted ...")
        )
    bundle.write(folder)
    if json_file is not None:
        write_json(json_file, bundle.sidecar)
    if json_file != "-":
        emission_lines(described.name, bundle.files, bundle.top, bundle.sidecar, folder, console())
    if isinstance(described, Chip) and isinstance(described.tile, NpuTile) and not bundle.sidecar["array_only"]:
        reason = why_no_programs(described.tile)
        if reason:
            warn_of_no_bench(described.name, reason)
    if bundle.sidecar["array_only"]:
        warn_of_fallback(described.name, bundle.sidecar["not_emitted"])
