"""What ``loom map`` shows of the memory hierarchy: which level holds what."""

from __future__ import annotations

from typing import Any

from siliconloom.mapper.chip.program import MappedWorkload


def placement_rows(plan: MappedWorkload) -> list[dict[str, Any]]:
    """One row per object in main memory, the largest first; none where there is one level at most."""
    if plan.placement is None:
        return []
    rows = []
    for demand in plan.placement.demands:
        item = demand.item
        rows.append(
            {
                "operator": item.operator,
                "role": item.role,
                "bytes": item.size,
                "units": item.units,
                "moved_bytes": demand.moved,
                "levels": [
                    {
                        "level": h.level,
                        "first": h.first,
                        "units": h.count,
                        "bytes": h.count * item.unit_bytes,
                        "address": h.address,
                    }
                    for h in plan.placement.homes[item.key]
                ],
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])
