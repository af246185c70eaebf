"""``loom map``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Chip, Json, Objective, Placement, Set, Workload


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
    search: Annotated[
        bool, typer.Option("--search", help="Lower every way to share out the buffers, and take the best.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the mapping as YAML, for --mapping; - is standard output."
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Show the mapping of a workload to a chip, how far it is from its lower bound, and why.

    Ctrl-C ends the search with the best mapping so far.
    """
    from siliconloom.arch.document import Document, parse_assignments
    from siliconloom.arch.errors import LoomError, NotSupported
    from siliconloom.arch.isa import disassemble
    from siliconloom.evaluate.mapping import load_plan, plan_summary
    from siliconloom.evaluate.objectives import check_objective
    from siliconloom.mapper.chip.described import mapping_text
    from siliconloom.render.mapping import mapping_tables
    from siliconloom.render.output import check_outputs, write_json, write_text
    from siliconloom.render.tables import console

    check_outputs({"--json": json_file, "-o": output}, (chip, workload, *((mapping,) if mapping else ())))
    check_objective(objective)
    if mapping is not None and (search or objective != "time"):
        raise LoomError("--objective and --search are of the search of a mapping, and --mapping gives one")
    if mapping is not None and placement is not None:
        raise LoomError("--placement is of the search of a mapping, and --mapping gives one")
    given = None if mapping is None else Document.load(mapping)
    plan, joined = load_plan(
        chip, workload, parse_assignments(sets or []), given, objective, search=search, placement=placement
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
