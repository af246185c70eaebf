"""``loom plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json, Set, Workload


def command(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="System: a YAML file or a library name.")],
    model: Workload,
    sets: Set = None,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="Write a timeline for Perfetto.")] = None,
    json_file: Json = None,
) -> None:
    """Find the fastest way to split a model over a system; --set plan.tensor=8 and so on fix parts of it.

    --set workload.phase=training, prefill or decode; --set run.steps=... times a whole training run with failures.
    """
    from siliconloom.arch.document import parse_assignments
    from siliconloom.output import check_outputs, write_json
    from siliconloom.planning.command import plan_result, plan_tables, read_plan_input
    from siliconloom.simulate import asked
    from siliconloom.tables import console

    check_outputs({"--trace": trace, "--json": json_file}, (system, model))
    assignments = parse_assignments(sets or [])
    cluster, graph, fixed, troubles, decoding = read_plan_input(system, model, assignments)
    result = plan_result(cluster, graph, fixed, troubles, decoding, quiet=json_file == "-", trace=trace)
    result["asked"] = asked(graph, assignments)
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        plan_tables(result, console())
