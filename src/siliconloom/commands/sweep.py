"""``loom sweep``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Csv, Json, PageReport, Parquet

EXAMPLES = (
    "loom sweep examples/array-sweep.yaml --json -",
    "loom sweep examples/npu-search.yaml --report search.html",
    "loom sweep big.yaml --scheduler tcp://head:8786",
)
"""Shown below the command's help."""


def command(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Description of the sweep: a YAML file (kind: sweep).")],
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="SQLite file that keeps every point; what it has is not evaluated again. By default the sweep's name "
            "with .sqlite, in this folder.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ADDRESS", help="Evaluate on the Dask cluster at tcp://HOST:PORT."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Local processes; as many as cores by default.")
    ] = None,
    csv: Csv = None,
    parquet: Parquet = None,
    report: PageReport = None,
    json_file: Json = None,
) -> None:
    """Evaluate the points of a sweep and show the best ones.

    Every point is kept as it ends: interrupted, the same command goes on where it was.
    """
    import sys
    from pathlib import Path

    from siliconloom.render.output import check_outputs
    from siliconloom.render.sweep import LiveSweep
    from siliconloom.sweeps.run import SweepInterrupted, run_sweep

    kept = results or f"{Path(sweep).stem}.sqlite"
    written = {"--csv": csv, "--parquet": parquet, "--report": report, "--json": json_file}
    check_outputs({"--results": kept, **written}, (sweep,))
    if parquet is not None:
        from siliconloom.render.sweep_files import require_parquet

        require_parquet()
    try:
        with LiveSweep(json_file != "-") as live:
            found = run_sweep(sweep, kept, scheduler=scheduler, workers=workers, watcher=live)
    except SweepInterrupted as stopped:
        print(f"loom: {stopped}", file=sys.stderr)
        raise
    from siliconloom.commands.swept import write_swept

    write_swept(found, csv=csv, parquet=parquet, report=report, json_file=json_file)
    if found.counts.failed == found.counts.distinct:
        print(f"loom: no point has an answer; the first: {found.points[0].why}", file=sys.stderr)
        raise typer.Exit(1)
