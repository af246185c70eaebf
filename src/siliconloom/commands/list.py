"""``loom list``."""

from __future__ import annotations

import textwrap

import typer

from siliconloom.commands.options import Json

EXAMPLES = ("loom list", "loom list --json -")
"""Shown below the command's help."""
WIDTH = 80
"""Columns of a line: names go on in the next one, two columns further in."""


def command(json_file: Json = None) -> None:
    """List the library: chips, systems, GPUs, workloads, more."""
    from siliconloom.arch.names import chip_names, gpu_names, network_names, system_names
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.workloads.cascades.names import cascade_names
    from siliconloom.workloads.names import workload_names

    check_outputs({"--json": json_file})
    found = {
        "chips": chip_names(),
        "systems": system_names(),
        "networks": network_names(),
        "gpus": gpu_names(),
        "workloads": workload_names(),
        "cascades": cascade_names(),
    }
    if json_file is not None:
        write_json(json_file, {"schema": "siliconloom.library/1", **found})
        return
    for kind, names in found.items():
        lines = textwrap.wrap(f"{kind}: {', '.join(names)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        typer.echo("\n".join(lines))
