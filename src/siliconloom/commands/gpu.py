"""``loom gpu``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.completion import gpus
from siliconloom.commands.options import Json, Set

EXAMPLES = ("loom gpu h100", "loom gpu h100 examples/operations.csv --sustained")
"""Shown below the command's help."""


def command(
    name: Annotated[
        str, typer.Argument(metavar="GPU", help="GPU description: a YAML file or a library name.", autocompletion=gpus)
    ],
    operations: Annotated[
        str | None,
        typer.Argument(metavar="OPS.csv", help="Operations to predict; - is standard input. Without: what the GPU is."),
    ] = None,
    sets: Set = None,
    sustained: Annotated[
        bool, typer.Option("--sustained", help="In a run of seconds, under the power limit, not in a short burst.")
    ] = False,
    cache_write: Annotated[
        bool, typer.Option(help="Prefill's attention writes its keys and values to the cache.")
    ] = True,
    software: Annotated[
        str,
        typer.Option(
            "--software",
            metavar="NAME",
            help="Program whose kernels run: tensorrt-llm, sglang, vllm, ..., or other; by default the fitted ones.",
        ),
    ] = "",
    json_file: Json = None,
) -> None:
    """Predict the times of a list of operations on a GPU.

    The list has products, attentions and collectives; without one, what the GPU is.
    """
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.gpu import load_gpu, refuse_idle
    from siliconloom.baselines.operation_rows import read_operations
    from siliconloom.evaluate.gpu import gpu_json, gpu_result, gpu_summary
    from siliconloom.render.gpu import gpu_tables, summary_tables
    from siliconloom.render.output import check_outputs, write_json, write_text
    from siliconloom.render.tables import console

    check_outputs({"--json": json_file}, (name, operations))
    assignments = parse_assignments(sets or [])
    if operations is not None:
        refuse_idle(assignments, {"memory.capacity": "operations are predicted one by one, whatever holds them"})
    described = load_gpu(name, assignments)
    if operations is None:
        if json_file is not None:
            write_json(json_file, gpu_summary(described))
        if json_file != "-":
            summary_tables(described, gpu_summary(described), console())
        return
    rows = read_operations(operations)
    result = gpu_result(described, rows, sustained=sustained, cache_write=cache_write, software=software)
    if json_file is not None:
        write_text(json_file, gpu_json(result))
    if json_file != "-":
        gpu_tables(result, rows.describe, console())
