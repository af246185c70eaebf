"""``loom figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

KINDS = ("roofline", "operators", "energy", "latency", "timeline", "plans", "pareto", "parallel", "tornado")
SUFFIXES = (".svg", ".png", ".pdf")
SQLITE = b"SQLite format 3\0"
"""How a sweep's file of results begins."""

EXAMPLES = (
    "loom figure result.json -o roofline.svg",
    "loom figure result.json --pdf energy.pdf --kind energy",
    "loom figure array-sweep.sqlite -o front.svg --kind pareto",
)
"""Shown below the command's help."""


def command(
    result: Annotated[
        str,
        typer.Argument(
            metavar="RESULT",
            help="What --json of loom sim, compare, serve, plan, sweep or show wrote, or a sweep's file of results "
            "(.sqlite; its last sweep).",
        ),
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="File to write: .svg, .png or .pdf.")
    ] = None,
    svg: Annotated[str | None, typer.Option("--svg", metavar="FILE", help="File to write as SVG.")] = None,
    png: Annotated[str | None, typer.Option("--png", metavar="FILE", help="File to write as PNG.")] = None,
    pdf: Annotated[str | None, typer.Option("--pdf", metavar="FILE", help="File to write as PDF.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="Of a step roofline (our chips), operators, energy; of a comparison operators, energy; of a service "
            "latency, timeline; of a plan plans; of a sweep pareto (two objectives), parallel, tornado. Where nothing "
            "is said the first of these that the result has.",
        ),
    ] = None,
) -> None:
    """Draw a figure for a paper from a result that was kept."""
    from siliconloom.api.frames import require_extra
    from siliconloom.arch.errors import LoomError, require_name
    from siliconloom.arch.files import write_file
    from siliconloom.render.output import check_outputs

    if output is not None and (output == "-" or Path(output).suffix.lower() not in SUFFIXES):
        raise LoomError(f"-o {output}: must be a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    asked = {"--svg": svg, "--png": png, "--pdf": pdf}
    for option, file in asked.items():
        if file == "-":
            raise LoomError(f"{option} -: must be a file")
    if output is None and not any(asked.values()):
        raise LoomError("no file to write: give -o FILE, --svg FILE, --png FILE or --pdf FILE")
    if kind is not None:
        require_name("--kind", kind, KINDS)
    check_outputs({"-o": output, **asked}, (result,))
    found = _read(result)
    require_extra(("matplotlib",), "plots", "a figure")
    from siliconloom.render.plots import figure_bytes

    files = [(Path(output).suffix.lower().removeprefix("."), output)] if output is not None else []
    files += [(option.removeprefix("--"), file) for option, file in asked.items() if file is not None]
    drawn = [(file, figure_bytes(found, kind or _first_kind(found), suffix)) for suffix, file in files]
    for file, content in drawn:
        write_file(file, content)


def _read(path: str) -> dict[str, Any]:
    """A kept result, or the last sweep of a file of results."""
    from siliconloom.arch.kept_result import read_result

    if not _is_of_sweep(path):
        return read_result(path)
    from siliconloom.sweeps.shown import stored_result

    return stored_result(path)[0].as_dict()


def _is_of_sweep(path: str) -> bool:
    """Whether a file is a database, as a sweep's file of results is."""
    try:
        if not Path(path).is_file():
            return False
        with open(path, "rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except (OSError, ValueError):
        return False


def _first_kind(found: dict[str, Any]) -> str:
    """What is drawn where nothing is said."""
    if "points" in found:
        return "pareto" if len(found["asked"]["objectives"]) > 1 else "tornado" if found["effects"] else "parallel"
    if found.get("kind") == "serving":
        return "latency"
    if "alternatives" in found:
        return "plans"
    return "roofline" if found.get("peak_macs") and found["memory"].get("levels") else "operators"
