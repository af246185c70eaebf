"""``loom reproduce``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json

EXAMPLES = ("loom reproduce gpipe", "loom reproduce")
"""Shown below the command's help."""


def command(
    cards: Annotated[
        list[str] | None, typer.Argument(metavar="[CARD]...", help="Published results; all of them if none.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Derive published results again: ours, theirs, the error."""
    from siliconloom.render.output import check_outputs
    from siliconloom.reproduce.command import reproduce_and_print

    check_outputs({"--json": json_file})
    reproduce_and_print([card.lower() for card in cards or []], json_file)
