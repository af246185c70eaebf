"""``loom warmup``."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = ("loom warmup", "loom warmup chips", "loom warmup --background")
"""Shown below the command's help."""


def command(
    part: Annotated[
        str | None,
        typer.Argument(metavar="PART", help="chips, memories, gpus, or networks of chips; all if not given."),
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Return at once, and compile while nothing else wants the processor.")
    ] = False,
) -> None:
    """Compile the simulator's kernels now, once and for all runs."""
    from siliconloom.arch.errors import require_name
    from siliconloom.commands.warming import RUNS, warm_up, warm_up_behind

    parts = None if part is None else (require_name("PART", part, RUNS),)
    if background:
        warm_up_behind(parts)
    else:
        warm_up(parts)
