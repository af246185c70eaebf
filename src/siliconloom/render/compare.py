"""A workload on several machines side by side, as tables and lines."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_si
from siliconloom.render.tables import Row, asked_text, bold, excluded_text, print_overrides, table


def compare_tables(result: dict[str, Any], out: Console) -> None:
    """Print the totals side by side, then every operator."""
    machines = result["machines"]
    out.print(f"{bold(result['workload'])} ({asked_text(result)})")
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    rows: list[Row] = total_rows(machines)
    names = [f"{m['count']} x {m['name']}" if m["count"] > 1 else m["name"] for m in machines]
    out.print(table("totals", [("", "left"), *((n, "right") for n in names)], rows))
    for line in [*error_lines(machines), *energy_lines(machines)]:
        out.print(line, style="dim")
    out.print()
    first = machines[0]["name"]
    narrow = len(machines) > 2
    columns = [("operator", "right"), (first, "right"), ("bound", "left")]
    for machine in machines[1:]:
        columns += [(machine["name"], "right"), ("", "left"), ("ratio", "right")]
        if not narrow:
            columns.append(("of roofline", "right"))
    rows = []
    for operator in result["operators"]:
        own = operator[first]
        row = [operator["name"].removeprefix("layer."), format_si(own["seconds"], "s"), own["bound"]]
        for machine in machines[1:]:
            cells = _their_cells(operator[machine["name"]], own)
            row += cells[:3] if narrow else cells
        rows.append(tuple(row))
    out.print(table("operators, all executions", columns, rows))
    out.print("m measured at this size, p predicted, ± error; ratio: of ours, above 1 ours is faster", style="dim")


def total_rows(machines: list[dict[str, Any]]) -> list[Row]:
    """What is compared, and each machine's figure, as text."""
    labels: list[tuple[str, Any]] = [
        ("time", lambda m: format_si(m["seconds"], "s") + (f" ±{m['error']:.0%}" if m["error"] else "")),
        ("tokens/s", lambda m: f"{m['tokens_per_second']:,.4g}"),
        ("energy", lambda m: format_si(m["energy_j"], "J")),
        ("power", lambda m: format_si(m["power_w"], "W")),
        ("array utilisation", lambda m: f"{m['utilization']:.1%}"),
        ("of its roofline", lambda m: f"{m['achieved']:.1%}"),
        ("speed-up of ours", _speedup),
        ("energy, of ours", lambda m: f"{m['energy_ratio']:.3g}x" if m.get("energy_ratio") else "–"),
    ]
    if any(m["dollars_per_million_tokens"] is not None for m in machines):
        labels.append(("$ per million tokens", _dollars))
    return [(label, *(show(m) for m in machines)) for label, show in labels]


ERROR_OF_KERNELS = (
    "±: the median error of its kernels on shapes that the fit did not see. Of measured whole models most lie outside: "
    "7 to 11 % off in the median (docs/gpu.md)"
)


def error_lines(machines: list[dict[str, Any]]) -> list[str]:
    """What a machine's ± is, if any has one."""
    return [ERROR_OF_KERNELS] if any(m["error"] for m in machines) else []


def energy_lines(machines: list[dict[str, Any]]) -> list[str]:
    """What each machine's energy is, and leaves out."""
    lines = []
    for m in machines:
        what = "whole boards, predicted" if m["energy_of"] == "boards" else "an estimate"
        lines.append(f"energy of {m['name']}: {what}, {excluded_text(m['energy_excludes'])}")
    return lines


def _their_cells(found: dict[str, Any] | None, own: dict[str, Any]) -> list[str]:
    if found is None:
        return ["–", "", "", ""]
    ratio = found["seconds"] / own["seconds"] if own["seconds"] else 0.0
    mark = {"measured": "m", "modelled": "p", "both": "m+p"}[found["source"]]
    return [
        format_si(found["seconds"], "s"),
        f"{mark} ±{found['error']:.0%}",
        f"{ratio:.3g}" if ratio else "–",
        f"{found['achieved']:.0%}" if found["achieved"] else "–",
    ]


def _speedup(machine: dict[str, Any]) -> str:
    if "speedup" not in machine:
        return "–"
    low, high = machine["speedup_range"]
    return f"{machine['speedup']:.3g} ({low:.3g} to {high:.3g})"


def _dollars(machine: dict[str, Any]) -> str:
    found = machine["dollars_per_million_tokens"]
    return "–" if found is None else f"{found:.3g}"
