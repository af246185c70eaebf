"""``loom warmup``."""

from __future__ import annotations


def command() -> None:
    """Compile the simulator's kernels now (once per installation), so that no later run waits for it."""
    from siliconloom.commands.warming import warm_up

    warm_up()
