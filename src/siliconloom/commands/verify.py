"""``loom verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json, Machine, Set


def command(
    chip: Machine,
    workload: Annotated[
        str | None,
        typer.Argument(metavar="[WORKLOAD]", help="Run the program that loom sim times, in place of random work."),
    ] = None,
    sets: Set = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random shapes, values and stalls.")] = 0,
    simulator: Annotated[str, typer.Option("--simulator", help="icarus or verilator.")] = "verilator",
    cases: Annotated[
        int | None,
        typer.Option(
            "--cases", min=1, max=1000, help="Sequences of GEMMs, of macros on a pim tile, of packets on links; 8."
        ),
    ] = None,
    programs: Annotated[
        int | None, typer.Option("--programs", min=1, max=1000, help="Programs on an npu tile; 8.")
    ] = None,
    mapping: Annotated[
        str | None, typer.Option("--mapping", metavar="FILE", help="Of the workload, as loom map -o writes it.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Build the RTL of a chip, run random work or a workload's program, and print RTL cycles beside the model's."""
    from siliconloom.api.hardware import check_simulator, verified
    from siliconloom.arch import CheckFailed
    from siliconloom.arch.document import Document, parse_assignments
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import Terminal, console
    from siliconloom.render.verification import verification_table

    check_simulator(simulator)
    check_outputs({"--json": json_file}, tuple(name for name in (chip, workload, mapping) if name))
    record = verified(
        chip,
        workload,
        parse_assignments(sets or []),
        seed=seed,
        simulator=simulator,
        cases=cases,
        programs=programs,
        mapping=None if mapping is None else Document.load(mapping),
        watcher=Terminal(json_file != "-"),
    )
    if json_file != "-":
        verification_table(record, console())
    if json_file is not None:
        write_json(json_file, record.as_dict())
    if not record.passed:
        raise CheckFailed(f"{record.asked.machine}: RTL and model disagree, see the table (seed {seed}, {simulator})")
