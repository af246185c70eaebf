"""``loom measure``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.options import Json

EXAMPLES = ("loom measure -o baseline.csv.gz --quick", "loom measure --shapes llama3-8b --dtype bf16")
"""Shown below the command's help."""


def command(
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Baseline file to write: .csv or .csv.gz.")
    ] = "baseline.csv.gz",
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shapes", metavar="SHAPES", help="llama3-8b, llama3-70b or a CSV of operations. Repeatable."),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="LIST", help="Precisions of a model's operations, comma-separated.")
    ] = "bf16,fp8",
    quick: Annotated[bool, typer.Option("--quick", help="A few shapes, in short bursts.")] = False,
    burst: Annotated[
        bool, typer.Option("--burst", help="All shapes in bursts at full clock, not held for 0.3 s each.")
    ] = False,
    limit: Annotated[
        float | None,
        typer.Option("--limit", metavar="SECONDS", min=1, help="Begin nothing after that; keep what was timed."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Time this machine's GPU for a baseline; needs PyTorch."""
    from siliconloom.evaluate.measuring import measure_gpu
    from siliconloom.render.measurement import measurement_tables
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import Terminal, console

    check_outputs({"-o": output, "--json": json_file}, shapes or [])
    asked = shapes or ["llama3-8b", "llama3-70b"]
    result, _ = measure_gpu(
        Path(output),
        asked,
        dtype,
        quick=quick,
        burst=burst,
        limit_seconds=math.inf if limit is None else limit,
        watcher=Terminal(json_file != "-"),
    )
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        measurement_tables(result, console())
