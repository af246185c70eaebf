"""``loom warmup``."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = ("loom warmup", "loom warmup chips")
"""Shown below the command's help."""


def command(
    part: Annotated[
        str | None,
        typer.Argument(metavar="PART", help="chips (and their memories), gpus, or networks; all if not given."),
    ] = None,
) -> None:
    """Compile the simulator's kernels now, once and for all runs."""
    from siliconloom.commands.warming import check_part, warm_up

    warm_up(None if part is None else (check_part(part),))
