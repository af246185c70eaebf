"""``loom schema``."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="chip, system, gpu, network, communication or workload.")
    ] = "chip",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="File to write; - is standard output.")
    ] = "-",
) -> None:
    """Print the JSON Schema of a description, for editors."""
    from siliconloom.output import check_outputs, write_json
    from siliconloom.schemas import schema_of

    check_outputs({"-o": output})

    write_json(output, schema_of(kind))
