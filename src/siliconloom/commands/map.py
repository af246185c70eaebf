"""``loom map``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Chip, Json, Objective, Placement, Search, SearchTime, Seed, Set, Workload

EXAMPLES = (
    "loom map npu-edge gpt2",
    "loom map npu-edge gpt2 -o mapping.yaml",
    "loom map npu-edge gpt2 --set workload.layers=1 --search --objective energy",
)
"""Shown below the command's help."""


def command(
    chip: Chip,
    workload: Workload,
    sets: Set = None,
    program: Annotated[bool, typer.Option("--program", help="Print the disassembled Program as well.")] = False,
    mapping: Annotated[
        str | None, typer.Option("--mapping", metavar="FILE", help="Lower this mapping instead of looking for one.")
    ] = None,
    objective: Objective = "time",
    placement: Placement = None,
    search: Search = False,
    search_time: SearchTime = None,
    seed: Seed = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            "--mapping-out",
            metavar="FILE",
            help="Write the mapping as YAML, for --mapping; - is standard output.",
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Show the mapping of a workload to a chip, and its gap.

    The gap is how far each task is from its lower bound, and why.
    Ctrl-C ends the search with the best mapping so far.
    """
    from siliconloom.arch.document import Document, parse_assignments
    from siliconloom.arch.errors import LoomError, NotSupported
    from siliconloom.arch.listing import disassemble
    from siliconloom.arch.progress import NOBODY
    from siliconloom.evaluate.mapping import load_plan, plan_summary
    from siliconloom.evaluate.objectives import budget_of, check_objective
    from siliconloom.mapper.chip.written import mapping_text
    from siliconloom.render.mapping import mapping_tables
    from siliconloom.render.output import check_outputs, write_json, write_text
    from siliconloom.render.tables import Terminal, console

    check_outputs({"--json": json_file, "-o": output}, (chip, workload, *((mapping,) if mapping else ())))
    check_objective(objective)
    length = budget_of(search, search_time, seed)
    if mapping is not None and (length or objective != "time"):
        raise LoomError("--objective and --search are of the search of a mapping, and --mapping gives one")
    if mapping is not None and placement is not None:
        raise LoomError("--placement is of the search of a mapping, and --mapping gives one")
    given = None if mapping is None else Document.load(mapping)
    watcher = NOBODY if json_file == "-" else Terminal(True)
    plan, joined = load_plan(
        chip,
        workload,
        parse_assignments(sets or []),
        given,
        objective,
        search=length,
        placement=placement,
        alone="" if output is None else "mapping files",
        watcher=watcher,
    )
    result = plan_summary(plan)
    if output is not None:
        if plan.mapping is None:
            raise NotSupported("-o for a bare array: nothing is decided about it")
        write_text(output, mapping_text(plan, joined=joined))
    if "-" not in (json_file, output):
        mapping_tables(result, console(), program=disassemble(plan.program) if program else None)
    if json_file is not None:
        write_json(json_file, result)
