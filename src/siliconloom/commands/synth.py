"""``loom synth``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.options import Chip, Json, Set

EXAMPLES = (
    "loom synth systolic-ws-8 --seeds 0",
    "loom synth npu-edge-int8 --module array",
    "loom synth systolic-ws-8 --liberty cells.lib --power",
)
"""Shown below the command's help."""


def command(
    chip: Chip,
    sets: Set = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="ecp5 (the default) or generic.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, max=100, help="Placements for Fmax, about a minute each; 0: cells only.")
    ] = 2,
    liberty: Annotated[
        Path | None, typer.Option("--liberty", metavar="FILE", help="Cell library to map to, for the area.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="FPGA", help="The FPGA to fit: ecp5-12, ecp5-25, ecp5-45 or ecp5-85."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("--module", metavar="MODULE", help="One module of the design alone, such as array.")
    ] = None,
    power: Annotated[
        bool, typer.Option("--power", help="Of a bare array: run its netlist, and what a product takes in those cells.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Synthesize a chip's RTL: cells, and clock on an FPGA.

    Yosys counts the cells, nextpnr places them for the frequency. With --part it is said what the FPGA has of each.
    """
    from siliconloom.arch import CheckFailed, load_chip
    from siliconloom.arch.document import parse_assignments
    from siliconloom.evaluate.synth import check_request
    from siliconloom.evaluate.synth import synth as run_synthesis
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.synthesis import synthesis_tables
    from siliconloom.render.tables import Terminal, console
    from siliconloom.verification.power import check_power, power_of

    chosen = check_request(target, liberty, part)
    check_outputs({"--json": json_file}, (chip, liberty))
    described = load_chip(chip, parse_assignments(sets or []))
    if power:
        check_power(described, liberty, module)
    watcher = Terminal(json_file != "-")
    result = run_synthesis(
        described, target=chosen, liberty=liberty, seeds=seeds, module=module, part=part, watcher=watcher
    )
    result["power"] = power_of(described, liberty, watcher) if power and liberty is not None else None
    if json_file != "-":
        synthesis_tables(result, console())
    if json_file is not None:
        write_json(json_file, result)
    broken = [bound["name"] for bound in result["bounds"] if not bound["holds"]]
    if broken:
        raise CheckFailed(f"{described.name}: fewer {' and '.join(broken)} than the array needs, see the bounds")
