"""``loom figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KINDS = ("roofline", "operators", "energy", "latency", "timeline")
SUFFIXES = (".svg", ".png", ".pdf")

EXAMPLES = ("loom figure result.json -o roofline.svg", "loom figure result.json -o energy.pdf --kind energy")
"""Shown below the command's help."""


def command(
    result: Annotated[
        str, typer.Argument(metavar="RESULT", help="What --json of loom sim, loom compare or loom serve wrote.")
    ],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="File to write: .svg, .png or .pdf.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="roofline, operators, energy; of a service latency, timeline. Where nothing is said the roofline of a "
            "chip, latency of a service, operators of others.",
        ),
    ] = None,
) -> None:
    """Draw a figure for a paper from a result that was kept."""
    from siliconloom.api.frames import require_extra
    from siliconloom.arch.errors import LoomError, require_name
    from siliconloom.arch.files import write_file
    from siliconloom.arch.kept_result import read_result
    from siliconloom.render.output import check_outputs

    if output == "-" or Path(output).suffix.lower() not in SUFFIXES:
        raise LoomError(f"-o {output}: must be a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if kind is not None:
        require_name("--kind", kind, KINDS)
    check_outputs({"-o": output}, (result,))
    found = read_result(result)
    require_extra(("matplotlib",), "plots", "a figure")
    from siliconloom.render.plots import figure_bytes

    if kind is None:
        kind = "roofline" if found.get("peak_macs") and found["memory"].get("levels") else "operators"
        kind = "latency" if found.get("kind") == "serving" else kind
    write_file(output, figure_bytes(found, kind, Path(output).suffix.lower().removeprefix(".")))
