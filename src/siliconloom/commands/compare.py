"""``loom compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.completion import gpus
from siliconloom.commands.options import Json, Machine, Set, Workload

EXAMPLES = (
    "loom compare npu-datacenter llama3-8b --gpu h100",
    "loom compare npu-edge gpt2 --gpu h100,a100 --price h100=2.5",
)
"""Shown below the command's help."""


def command(
    chip: Machine,
    workload: Workload,
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", metavar="GPU[,GPU]", help="GPUs to compare with: library names or files.", autocompletion=gpus
        ),
    ],
    sets: Set = None,
    tensor: Annotated[int, typer.Option("--tensor", min=1, max=1024, help="GPUs that share every operator.")] = 1,
    sustained: Annotated[
        bool, typer.Option("--sustained", help="GPUs in a run of seconds, under the power limit.")
    ] = False,
    stack: Annotated[
        str, typer.Option("--stack", help="Serving software on the GPUs: none, tensorrt-llm, vllm, vllm-async, ...")
    ] = "none",
    price: Annotated[
        list[str] | None, typer.Option("--price", metavar="NAME=DOLLARS", help="Of a machine, an hour. Repeatable.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Put a workload on a chip and on GPUs side by side."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.gpu import load_gpu
    from siliconloom.arch.overrides import split_overrides
    from siliconloom.baselines.stacks import find_stack
    from siliconloom.evaluate.compare import compare_workload
    from siliconloom.render.compare import compare_tables
    from siliconloom.render.output import check_outputs, write_json, write_text
    from siliconloom.render.tables import Terminal, console
    from siliconloom.workloads import load_workload

    check_outputs({"--report": report, "--json": json_file}, (chip, workload, *gpu.split(",")))
    assignments = parse_assignments(sets or [])
    chip_sets, workload_sets = split_overrides(assignments)
    gpus = [load_gpu(name.strip()) for name in gpu.split(",")]
    software = find_stack(stack)
    graph = load_workload(workload, workload_sets)
    result = compare_workload(
        chip,
        chip_sets,
        graph,
        gpus,
        tensor=tensor,
        sustained=sustained,
        stack=software,
        prices=price or [],
        watcher=Terminal(json_file != "-"),
        overrides=assignments,
    )
    if report is not None:
        from siliconloom.render.report_compare import compare_html

        write_text(report, compare_html(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (report, json_file):
        compare_tables(result, console())
