"""What was measured, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_count, format_si
from siliconloom.render.tables import bold, table

SHOWN_SKIPPED = 5
"""Operations left out that the terminal shows; all are in the JSON."""


def measurement_tables(result: dict[str, Any], out: Console) -> None:
    """Print the times, with the rates that they come to."""
    out.print(f"{bold(result['device'])} ({result['gpu']}), {', '.join(result['software'])}; {result['method']}")
    rows = []
    for row in result["rows"]:
        seconds = row["time_us"] / 1e6
        model = f" {row['model']}, {row['input_tokens']} tokens" if row["model"] else ""
        rows.append(
            (
                row["text"] + model,
                format_si(seconds, "s"),
                format_si(row["flops"] / seconds, "FLOP/s") if row["flops"] else "",
                format_si(row["bytes_moved"] / seconds, "B/s") if row["bytes_moved"] else "",
                "" if row["power_w"] is None else f"{row['power_w']:.0f} W",
                row["software"],
            )
        )
    heads = [("operation", "left"), ("time", "right"), ("rate", "right"), ("memory", "right"), ("power", "right")]
    out.print(table("measured", [*heads, ("software", "left")], rows))
    skipped = result["skipped"]
    for entry in skipped[:SHOWN_SKIPPED]:
        out.print(f"left out: {entry['operation']}: {entry['reason']}", style="yellow")
    if len(skipped) > SHOWN_SKIPPED:
        out.print(f"and {format_count(len(skipped) - SHOWN_SKIPPED, 'more operation')} (all in --json)", style="yellow")
    out.print(f"written: {result['file']}, {format_count(len(rows), 'row')}, with its provenance beside it")
