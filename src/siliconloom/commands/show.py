"""``loom show``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Csv, Json, PageReport, Parquet

EXAMPLES = ("loom show array-sweep.sqlite", "loom show array-sweep.sqlite --report page.html --csv points.csv")
"""Shown below the command's help."""


def command(
    results: Annotated[str, typer.Argument(metavar="RESULTS", help="File of results, as loom sweep keeps it.")],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="SWEEP", help="Which sweep of the file; the last that ran by default."),
    ] = None,
    csv: Csv = None,
    parquet: Parquet = None,
    report: PageReport = None,
    json_file: Json = None,
) -> None:
    """Show a sweep's results: the front, and what each key does.

    Sensitivity too, and where a larger machine is worse.
    """
    from siliconloom.commands.swept import write_swept
    from siliconloom.render.output import check_outputs
    from siliconloom.render.tables import progress_bar
    from siliconloom.sweeps.shown import stored_result

    check_outputs({"--csv": csv, "--parquet": parquet, "--report": report, "--json": json_file}, (results,))
    if parquet is not None:
        from siliconloom.render.sweep_files import require_parquet

        require_parquet()
    with progress_bar(True, "reading the points"):
        found, _ = stored_result(results, name)
    write_swept(found, csv=csv, parquet=parquet, report=report, json_file=json_file)
