"""What ``loom map`` shows of the memory hierarchy: which level holds what."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from siliconloom.arch.quantity import format_bytes
from siliconloom.mapper.plan import Plan
from siliconloom.tables import table

LISTED = 24
"""Most objects that the table shows; ``--json`` has all."""


def placement_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per object in main memory, the largest first; none where there is one level at most."""
    if plan.placement is None:
        return []
    rows = []
    for demand in plan.placement.demands:
        item = demand.item
        rows.append({
            "operator": item.operator,
            "role": item.role,
            "bytes": item.size,
            "units": item.units,
            "moved_bytes": demand.moved,
            "levels": [
                {"level": h.level, "first": h.first, "units": h.count, "bytes": h.count * item.unit_bytes,
                 "address": h.address}
                for h in plan.placement.homes[item.key]
            ],
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["bytes"])


def placement_table(plan: Plan) -> Table:
    """The same as a table."""
    rows = placement_rows(plan)
    lines = []
    for row in rows[:LISTED]:
        parts = row["levels"]
        where = ", ".join(
            f"{p['level']} {p['units']} of {row['units']}" if row["units"] > 1 else p["level"] for p in parts
        )
        moved = f"{row['moved_bytes'] / row['bytes']:.3g}" if row["bytes"] else "-"
        lines.append((f"{row['operator']} {row['role']}", format_bytes(row["bytes"]), moved, where))
    left = len(rows) - len(lines)
    title = "placement, each object by the time that a nearer level saves per byte"
    if left > 0:
        title += f" (the {LISTED} largest; {left} more in --json)"
    return table(title, [("object", "left"), ("size", "right"), ("moved / size", "right"), ("level", "left")], lines)
