"""``loom verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json, Machine, Set

COUNT = 8
"""Random cases, and programs, where nothing is said."""


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
    from siliconloom.arch import CheckFailed, LoomError, NotSupported, load_chip, machine_kind
    from siliconloom.arch.chip_ring import load_ring
    from siliconloom.arch.document import Document, parse_assignments
    from siliconloom.arch.errors import nearest_name
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import Terminal, console
    from siliconloom.render.verification import verification_table
    from siliconloom.verification.machine import verify as run_verification

    simulators = ("icarus", "verilator")
    if simulator not in simulators:
        near = nearest_name(simulator, simulators)
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"--simulator: must be one of {', '.join(simulators)} (got '{simulator}'){hint}")
    check_outputs({"--json": json_file}, tuple(name for name in (chip, workload, mapping) if name))
    assignments = parse_assignments(sets or [])
    mapped = None
    if workload is None:
        if mapping is not None:
            raise LoomError("--mapping is of a workload; name it behind the chip")
        described = load_ring(chip, assignments) if machine_kind(chip) == "system" else load_chip(chip, assignments)
    else:
        given = [name for name, value in (("--cases", cases), ("--programs", programs)) if value is not None]
        if given:
            raise LoomError(f"{' and '.join(given)}: of random work; a workload's program runs once")
        from siliconloom.arch.overrides import split_overrides
        from siliconloom.evaluate.mapping import load_plan

        if machine_kind(chip) == "system":
            raise NotSupported(f"RTL of a workload on a system ({chip}); name one of its chips")
        described = load_chip(chip, split_overrides(assignments)[0])
        mapped, _ = load_plan(chip, workload, assignments, None if mapping is None else Document.load(mapping))
    record = run_verification(
        described,
        overrides=assignments,
        seed=seed,
        simulator=simulator,
        cases=COUNT if cases is None else cases,
        programs=COUNT if programs is None else programs,
        workload=mapped,
        watcher=Terminal(json_file != "-"),
    )
    if json_file != "-":
        verification_table(record, console())
    if json_file is not None:
        write_json(json_file, record.as_dict())
    if not record.passed:
        raise CheckFailed(f"{described.name}: RTL and model disagree, see the table (seed {seed}, {simulator})")
