"""A simulation as a self-contained HTML page, and its operators as CSV."""

from __future__ import annotations

import csv
import io
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.arch.timeline import Timeline
from siliconloom.render.charts import bars, grouped, roofline, stacked, timeline
from siliconloom.render.tables import asked_text, excluded_text, shape_text, share_of

COLUMNS = (
    "name",
    "block",
    "kind",
    "repeat",
    "start_cycle",
    "end_cycle",
    "cycles",
    "overlap_cycles",
    "macs",
    "utilization",
    "bound_cycles",
    "bound",
    "read_bytes",
    "write_bytes",
    "energy_j",
    "hardware",
)

TEMPLATES = files("siliconloom.render") / "templates"


def operators_csv(result: dict[str, Any]) -> str:
    """The per-operator table; one header line, plain numbers in base units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "shape", "fused"])
    for operator in result["operators"]:
        row = [operator[name] for name in COLUMNS]
        writer.writerow([*row, shape_text(operator), " ".join(operator["fused"])])
    return text.getvalue()


def report_html(result: dict[str, Any], shown: Timeline, description: str) -> str:
    """The page: headline, where the time goes, what holds each unit up, roofline, energy, traffic, timeline, tables."""
    cycles = result["cycles"] or 1
    operators = sorted(result["operators"], key=lambda o: -o["cycles"])
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((TEMPLATES / "report.html.j2").read_text("utf-8"))
    level = next(iter(result["traffic"]), None)
    busiest = max(result["units"].items(), key=lambda u: u[1]["utilization"], default=("none", {"utilization": 0.0}))
    return template.render(
        result=result,
        asked=asked_text(result),
        excluded=excluded_text(result["energy_excludes"]),
        time=format_si(result["seconds"], "s"),
        energy=format_si(result["energy_j"], "J"),
        power=format_si(result["power_w"], "W"),
        clock=format_si(result["clock_hz"], "Hz"),
        busiest=f"{busiest[0]} ({busiest[1]['utilization']:.1%} busy)",
        memory=f"{format_bytes(result['memory']['used_bytes'])} of {format_bytes(result['memory']['capacity_bytes'])}"
        if level
        else "none",
        operator_chart=bars(
            [
                (o["name"], share_of(o, cycles), f"{share_of(o, cycles):.1%}  {o['cycles']:,} cycles", o["bound"])
                for o in operators[:16]
                if o["cycles"]
            ]
        ),
        unit_chart=stacked(
            {
                name: {
                    "busy": unit["busy_cycles"] / cycles,
                    **{cause.replace("_", " "): count / cycles for cause, count in unit["stall_cycles"].items()},
                }
                for name, unit in result["units"].items()
            }
        ),
        roofline_chart=_roofline(result) if level else "",
        energy_chart=bars(
            [
                (
                    name,
                    joules / (result["energy_j"] or 1),
                    f"{joules / (result['energy_j'] or 1):.1%}  {format_si(joules, 'J')}",
                    name,
                )
                for name, joules in result["energy"].items()
                if joules
            ]
        ),
        traffic=[
            (
                name,
                format_bytes(counts["read"]),
                format_bytes(counts["write"]),
                format_bytes(
                    counts["read"]
                    + counts["write"]
                    - counts.get("useful_read", counts["read"])
                    - counts.get("useful_write", counts["write"])
                ),
            )
            for name, counts in result["traffic"].items()
        ],
        timeline_chart=_timeline(shown),
        operators=[
            {
                **o,
                "shape_text": shape_text(o),
                "share": share_of(o, cycles),
                "traffic": format_bytes(o["read_bytes"] + o["write_bytes"]),
                "energy_text": format_si(o["energy_j"], "J"),
                "reached": o["bound_cycles"] / o["cycles"] if o["cycles"] else None,
            }
            for o in result["operators"]
        ],
        chip=description,
    )


def compare_html(result: dict[str, Any]) -> str:
    """The page of `loom compare`: totals side by side, time and energy by operator with error bars, every row."""
    from siliconloom.render.compare import energy_lines, error_lines, measured_lines, measured_text, total_rows

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((TEMPLATES / "compare.html.j2").read_text("utf-8"))
    names = [m["name"] for m in result["machines"]]
    operators = sorted(
        result["operators"], key=lambda o: -max(found["seconds"] for found in o["machines"].values() if found)
    )

    def chart(value: str, unit: str, whiskers: bool) -> str:
        groups = []
        for operator in operators[:14]:
            found = [(n, o) for n, o in operator["machines"].items() if o and o[value]]
            groups.append(
                (operator["name"], [(n, o[value], o["error"] * whiskers, format_si(o[value], unit)) for n, o in found])
            )
        return grouped([g for g in groups if g[1]])

    return template.render(
        result=result,
        asked=asked_text(result),
        energy_lines=energy_lines(result["machines"]),
        error_lines=error_lines(result["machines"]),
        measured_lines=measured_lines(result["machines"]),
        measured=measured_text,
        names=names,
        totals=total_rows(result["machines"]),
        operators=operators,
        time_chart=chart("seconds", "s", True),
        energy_chart=chart("energy_j", "J", False),
        shown=lambda seconds: format_si(seconds, "s"),
    )


def _roofline(result: dict[str, Any]) -> str:
    nearest = next(iter(result["memory"]["levels"].values()))
    points = [
        (o["name"], o["macs"] / (o["read_bytes"] + o["write_bytes"]), o["macs"] / o["cycles"])
        for o in result["operators"]
        if o["macs"] and o["cycles"] and o["read_bytes"] + o["write_bytes"]
    ]
    return roofline(points, result["peak_macs"], nearest["bandwidth"] / result["clock_hz"])


def _timeline(shown: Timeline) -> str:
    spans = [(shown.tracks[span.track], span.name, span.start, span.end) for span in shown.spans]
    return timeline(spans) if spans else ""
