"""``loom verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from siliconloom.commands.options import Json, Machine, Set

EXAMPLES = (
    "loom verify npu-edge-int8 --seed 7",
    "loom verify systolic-ws-8 --cases 2 --simulator icarus",
    "loom verify npu-edge-int8 --only 'random 3' --waves run.fst",
    "loom verify npu-edge gpt2 --set workload.layers=1 --set workload.sequence=8",
)
"""Shown below the command's help."""


def command(
    chip: Machine,
    workload: Annotated[
        str | None,
        typer.Argument(metavar="WORKLOAD", help="Run the program that loom sim times, in place of random work."),
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
    liberty: Annotated[
        Path | None, typer.Option("--liberty", metavar="FILE", help="Run the netlist of this library's cells.")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME", help="Run one program of an npu tile, named in the table.")
    ] = None,
    waves: Annotated[
        Path | None,
        typer.Option(
            "--waves",
            metavar="F.fst|F.vcd",
            help="Write all signals with the model's timeline beside them, and views for GTKWave and Surfer.",
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Run the RTL of a chip beside its models, and compare.

    Random work, or a workload's program; every value and every cycle must be the same.
    """
    from siliconloom.api.hardware import check_simulator, check_waves, verified, views_of
    from siliconloom.arch import CheckFailed
    from siliconloom.arch.document import parse_assignments
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import Terminal, console
    from siliconloom.render.verification import verification_table

    check_simulator(simulator)
    outputs: dict[str, str | Path | None] = {"--json": json_file}
    if waves is not None:
        check_waves(waves)
        outputs |= {"--waves": waves} | {f"--waves ({suffix})": path for suffix, path in views_of(waves).items()}
    check_outputs(outputs, tuple(name for name in (chip, workload, mapping, liberty) if name))
    record = verified(
        chip,
        workload,
        parse_assignments(sets or []),
        seed=seed,
        simulator=simulator,
        cases=cases,
        programs=programs,
        mapping=mapping,
        liberty=liberty,
        waves=waves,
        only=only,
        watcher=Terminal(json_file != "-"),
    )
    if json_file != "-":
        verification_table(record, console())
    if json_file is not None:
        write_json(json_file, record.as_dict())
    if not record.passed:
        raise CheckFailed(f"{record.asked.machine}: RTL and model disagree, see the table (seed {seed}, {simulator})")
