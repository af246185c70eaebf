"""Arguments that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.completion import chips, machines, set_paths, workloads

Chip = Annotated[
    str, typer.Argument(metavar="CHIP", help="Chip description: a YAML file or a library name.", autocompletion=chips)
]
Machine = Annotated[
    str,
    typer.Argument(metavar="CHIP", help="Chip, system or GPU: a YAML file or a library name.", autocompletion=machines),
]
Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="Workload YAML, Hugging Face config.json, ONNX file, or a library name.",
        autocompletion=workloads,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override any value: tile.array.rows=32, workload.phase=decode. Repeatable.",
        autocompletion=set_paths,
    ),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
]
Csv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write the points as CSV.")]
Parquet = Annotated[
    str | None, typer.Option("--parquet", metavar="FILE", help="Write the points as Parquet (siliconloom[sweeps]).")
]
PageReport = Annotated[str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML page.")]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Simulate every way to share out the buffers, then changes of the best mapping, a fixed number of them, "
        "so that the result is the same each time.",
    ),
]
SearchTime = Annotated[
    float | None,
    typer.Option(
        "--search-time",
        metavar="SECONDS",
        help="Search so long: as many changes as fit. Implies --search; results differ with the machine's speed.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Which changes a search tries; 0 unless given.")]
Objective = Annotated[
    str, typer.Option("--objective", metavar="NAME", help="What a mapping minimises: time, energy, edp or traffic.")
]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement",
        metavar="NAME",
        help="What lies in which of several memory levels: heuristic, exact (constraint programming), or best, the "
        "faster of the two programs. By default heuristic; --search compares both if OR-Tools is installed.",
    ),
]
