"""``loom warmup``."""

from __future__ import annotations

EXAMPLES = ("loom warmup",)
"""Shown below the command's help."""


def command() -> None:
    """Compile the simulator's kernels now, once and for all runs."""
    from siliconloom.commands.warming import warm_up

    warm_up()
