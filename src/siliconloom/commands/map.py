"""``loom map``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Chip, Json, Set, Workload


def command(
    chip: Chip,
    workload: Workload,
    sets: Set = None,
    program: Annotated[bool, typer.Option("--program", help="Print the disassembled Program as well.")] = False,
    json_file: Json = None,
) -> None:
    """Show the mapping of a workload to a chip, how it was chosen, and its lower bound."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.isa import disassemble
    from siliconloom.evaluate.mapping import load_plan, plan_summary
    from siliconloom.render.mapping import mapping_tables
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import console

    check_outputs({"--json": json_file}, (chip, workload))
    plan = load_plan(chip, workload, parse_assignments(sets or []))
    result = plan_summary(plan)
    if json_file != "-":
        mapping_tables(result, console(), program=disassemble(plan.program) if program else None)
    if json_file is not None:
        write_json(json_file, result)
