"""One step on any machine, as the tables of its kind."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def step_tables(result: dict[str, Any], out: Console) -> None:
    """Print a step; the kind of the result says on what."""
    if result["kind"] == "chip":
        from siliconloom.render.tables import simulation_tables as tables
    elif result["kind"] == "pim_tile":
        from siliconloom.render.system import pim_tables as tables
    else:
        from siliconloom.render.system import planned_tables as tables
    tables(result, out)
