"""``loom schema``."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = ("loom schema chip", "loom schema result -o result.schema.json")
"""Shown below the command's help."""


def command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="chip, system, gpu, network, communication, mapping, workload, cascade, result, plan, comparison, "
            "serving, verification, sweep or sweep-result.",
        ),
    ] = "chip",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="File to write; - is standard output.")
    ] = "-",
) -> None:
    """Print the JSON Schema of a description or a result."""
    from siliconloom.evaluate.schemas import schema_of
    from siliconloom.render.output import check_outputs, write_json

    check_outputs({"-o": output})

    write_json(output, schema_of(kind))
