"""``loom new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.completion import chips

EXAMPLES = ("loom new chip my-npu -o my-npu.yaml", "loom new chip my-array --from systolic-ws-32 -o my-array.yaml")
"""Shown below the command's help."""


def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to describe: chip.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: letters, digits, . _ -.")],
    base: Annotated[
        str,
        typer.Option("--from", metavar="CHIP", help="Chip to begin with: file or library name.", autocompletion=chips),
    ] = "npu-edge",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="File to write; - is standard output.")
    ] = "-",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a description to begin with, every key explained.

    Keys that the base does not have stand there as comments, with their defaults.
    """
    from siliconloom.arch.description import new_chip
    from siliconloom.arch.errors import LoomError, nearest_name
    from siliconloom.render.output import check_outputs, write_text

    if kind != "chip":
        near = nearest_name(kind, ("chip",))
        hint = f"; did you mean '{near}'?" if near else "; systems and workloads: see docs, and loom schema"
        raise LoomError(f"loom new: KIND must be chip (got '{kind}'){hint}")
    check_outputs({"-o": output}, (base,))
    if output != "-" and not force and Path(output).is_file():
        raise LoomError(f"{output}: is there already, and may have been edited; --force replaces it")
    write_text(output, new_chip(name, base))
    if output != "-":
        typer.echo(f"{output}: a chip like {base}; try loom sim {output} gpt2")
