"""A comparison of machines as a self-contained HTML page."""

from __future__ import annotations

from typing import Any

from siliconloom.arch.quantity import format_si
from siliconloom.render.compare import energy_lines, error_lines, headlines, measured_lines, measured_text, total_rows
from siliconloom.render.page import BarPart, ChartData, PageBar, PageCell, PageColumn, PageTable, colours_of, page
from siliconloom.render.tables import asked_text, bar_text

SHOWN = 8
"""Operators in a bar chart; the table has all."""


def compare_html(result: dict[str, Any]) -> str:
    """The page of `loom compare`: who is faster, totals side by side, time and energy by operator, every row."""
    machines = result["machines"]
    colours = colours_of(m["name"] for m in machines)
    operators = sorted(
        result["operators"], key=lambda o: -max(found["seconds"] for found in o["machines"].values() if found)
    )
    names = [f"{m['count']} x {m['name']}" if m["count"] > 1 else m["name"] for m in machines]

    def whole(value: str, unit: str) -> list[PageBar]:
        most = max(m[value] for m in machines) or 1
        return [
            PageBar(name, format_si(m[value], unit), (BarPart(m[value] / most, colours[m["name"]]),))
            for name, m in zip(names, machines, strict=True)
        ]

    def chart(value: str) -> ChartData:
        rows = [(o["name"], name, f[value]) for o in operators for name, f in o["machines"].items() if f]
        return ChartData(("operator", "machine", value), tuple(rows))

    return page(
        "compare",
        {},
        {
            "time": ChartData(("machine", "seconds"), tuple((m["name"], m["seconds"]) for m in machines)),
            "energy": ChartData(("machine", "joules"), tuple((m["name"], m["energy_j"]) for m in machines)),
            "operators": chart("seconds"),
            "operator energy": chart("energy_j"),
        },
        title=f"{result['workload']}: {names[0]} beside {' and '.join(names[1:])}",
        headline=_headline(result),
        asked=asked_text(result),
        overrides=result["asked"]["overrides"],
        notes=result["notes"],
        tiles=[],
        names=names,
        totals=total_rows(machines),
        error_lines=error_lines(machines),
        energy_text=f"{'. '.join(line[0].upper() + line[1:] for line in energy_lines(machines))}.",
        whole_time=whole("seconds", "s"),
        whole_energy=whole("energy_j", "J"),
        legend=list(colours.items()),
        time_bars=_grouped(operators, "seconds", "s", colours, True),
        energy_bars=_grouped(operators, "energy_j", "J", colours, False),
        operators=_table(operators, [m["name"] for m in machines], any(m["measured_s"] is not None for m in machines)),
        measured_lines=measured_lines(machines),
        version=result["version"],
    )


def _headline(result: dict[str, Any]) -> str:
    """Who is faster, and the operator that costs the first machine most beside the second."""
    told = [line + "." for line in headlines(result["machines"])]
    ours, other, *_ = (m["name"] for m in result["machines"])
    gaps = [
        (here["seconds"] - there["seconds"], o["name"])
        for o in result["operators"]
        if (here := o["machines"][ours]) and (there := o["machines"][other])
    ]
    if gaps:
        behind = result["machines"][0]["seconds"] > result["machines"][1]["seconds"]
        gap, name = max(gaps) if behind else min(gaps)
        told.append(f"Most of the difference to {other} is in {name} ({format_si(abs(gap), 's')}).")
    return " ".join(told)


def _grouped(
    operators: list[dict[str, Any]], value: str, unit: str, colours: dict[str, str], whiskers: bool
) -> list[PageBar]:
    """A group of bars for each operator, one for each machine that has it."""
    groups = [[(n, f) for n, f in o["machines"].items() if f and f[value]] for o in operators[:SHOWN]]
    ends = [f[value] * (1 + (f["error"] if whiskers else 0)) for group in groups for _, f in group]
    most = max(ends, default=1) or 1
    rows = []
    for operator, group in zip(operators, groups, strict=False):
        for number, (name, found) in enumerate(group):
            share, error = found[value] / most, found["error"] if whiskers else 0
            rows.append(
                PageBar(
                    operator["name"] if number == 0 else "",
                    f"{format_si(found[value], unit)}, {name}",
                    (BarPart(share, colours[name], f"{operator['name']}, {name}: {format_si(found[value], unit)}"),),
                    (share / (1 + error), min(share * (1 + error), 1)) if error else None,
                    first=number == 0,
                )
            )
    return rows


def _table(operators: list[dict[str, Any]], names: list[str], known: bool) -> PageTable:
    columns = [PageColumn("operator", True)]
    for name in names:
        columns += [PageColumn(name), PageColumn("bound", True), PageColumn("of roofline"), PageColumn("source", True)]
        columns += [PageColumn("measured", True)] * known
        if name != names[0]:
            columns.append(PageColumn("ratio"))
    rows = []
    for o in operators:
        own, cells = o["machines"][names[0]], [PageCell(o["name"])]
        for name in names:
            found = o["machines"][name]
            if not found:
                cells += [PageCell("–")] * (4 + known + (name != names[0]))
                continue
            error = f" {bar_text(found['error'])}" if found["error"] else ""
            cells += [
                PageCell(format_si(found["seconds"], "s"), found["seconds"]),
                PageCell(found["bound"] or ""),
                PageCell(f"{found['achieved']:.0%}", found["achieved"]) if found["achieved"] else PageCell("–"),
                PageCell(found["source"] + error),
            ]
            if known:
                spread = f" ±{found['measured_error']:.0%}" if found["measured_error"] else ""
                cells.append(PageCell(measured_text(found) + spread))
            if name != names[0]:
                ratio = found["seconds"] / own["seconds"] if own and own["seconds"] else None
                cells.append(PageCell("–") if ratio is None else PageCell(f"{ratio:.3g}", ratio))
        rows.append(tuple(cells))
    return PageTable("operators", "operators", tuple(columns), tuple(rows))


__all__ = ["compare_html"]
