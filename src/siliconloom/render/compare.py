"""A workload on several machines side by side, as tables and lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_si, four_digits
from siliconloom.render.tables import Row, asked_text, bar_text, bold, excluded_text, print_overrides, table


def compare_tables(result: dict[str, Any], out: Console) -> None:
    """Print the totals side by side, then every operator."""
    machines = result["machines"]
    out.print(f"{bold(result['workload'])} ({asked_text(result)})")
    for line in headlines(machines):
        out.print(line)
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    sides = [[machines[0], *machines[at : at + BESIDE]] for at in range(1, len(machines), BESIDE)]
    for side in sides:
        names = [f"{m['count']} x {m['name']}" if m["count"] > 1 else m["name"] for m in side]
        out.print(table("totals", [("", "left"), *((n, "right") for n in names)], total_rows(side)))
    for line in [*error_lines(machines), *energy_lines(machines)]:
        out.print(line, style="dim")
    out.print()
    for side in sides:
        _print_operators(out, result["operators"], side)
    out.print("± error; ratio: of ours, above 1 ours is faster", style="dim")
    for line in measured_lines(machines):
        out.print(line, style="dim")


BESIDE = 2
"""Machines that a table has beside ours; more are in further tables."""


def _print_operators(out: Console, operators: Sequence[dict[str, Any]], machines: list[dict[str, Any]]) -> None:
    """A table of what each operator takes on ours and on the others."""
    first = machines[0]["name"]
    narrow, known = len(machines) > 2, any(m["measured_s"] is not None for m in machines)
    columns = [("operator", "right"), (first, "right"), ("bound", "left")]
    for machine in machines[1:]:
        columns += [(machine["name"], "right"), ("", "left"), ("ratio", "right")]
        if not narrow:
            columns[-1:] = [*[("measured", "left")] * known, ("ratio", "right"), ("of roofline", "right")]
    rows: list[Row] = []
    for operator in operators:
        own = operator["machines"][first]
        row = [operator["name"].removeprefix("layer."), format_si(own["seconds"], "s"), own["bound"] or ""]
        for machine in machines[1:]:
            row += _their_cells(operator["machines"][machine["name"]], own, narrow=narrow, known=known)
        rows.append(tuple(row))
    out.print(table("operators, all executions", columns, rows))


def headlines(machines: list[dict[str, Any]]) -> list[str]:
    """A sentence for each other machine: how many times as fast ours is, or it is, and what each takes of energy."""
    ours, *others = machines
    lines = []
    for other in others:
        named = f"{other['count']} x {other['name']}" if other["count"] > 1 else other["name"]
        ratio, (low, high) = other["speedup"], other["speedup_range"]
        if low <= 1 <= high:
            told = f"{ours['name']} and {named} are as fast within the prediction's error"
        else:
            fast, slow = (ours["name"], named) if ratio > 1 else (named, ours["name"])
            times = [r if ratio > 1 else 1 / r for r in (ratio, low, high) if r > 0]
            span = f" ({min(times[1:]):.3g} to {max(times[1:]):.3g})" if len(times) == 3 and low < high else ""
            told = f"{fast} is {times[0]:.3g} times as fast as {slow}{span}"
        took = f"{format_si(ours['seconds'], 's')} and {format_si(other['seconds'], 's')}"
        lines.append(f"{told}: {took}")
    return lines


def total_rows(machines: list[dict[str, Any]]) -> list[Row]:
    """What is compared, and each machine's figure, as text."""
    labels: list[tuple[str, Any]] = [
        ("time", lambda m: format_si(m["seconds"], "s") + (f" {bar_text(m['error'])}" if m["error"] else "")),
        ("90 % of runs within", lambda m: bar_text(m["error_90"]) if m["error_90"] else "–"),
        ("measured near by", lambda m: "–" if m["measured_share"] is None else f"{m['measured_share']:.0%} of kernels"),
        ("with measured kernels", _measured),
        ("tokens/s", lambda m: f"{four_digits(m['tokens_per_second'])}"),
        ("energy", lambda m: format_si(m["energy_j"], "J")),
        ("power", lambda m: format_si(m["power_w"], "W")),
        ("array utilisation", lambda m: f"{m['utilization']:.1%}"),
        ("of its roofline", lambda m: f"{m['achieved']:.1%}"),
        ("speed-up of ours", _speedup),
        ("energy, of ours", lambda m: f"{m['energy_ratio']:.3g}x" if m.get("energy_ratio") else "–"),
    ]
    if all(m["measured_s"] is None for m in machines):
        labels = [each for each in labels if each[1] is not _measured]
    if any(m["dollars_per_million_tokens"] is not None for m in machines):
        labels.append(("$ per million tokens", _dollars))
    return [(label, *(show(m) for m in machines)) for label, show in labels]


ERROR_OF_KERNELS = (
    "±: holds half of measurements that were left out; of a whole step, half of measured whole runs, and of those 90 % "
    "lie within the wider one (docs/gpu.md)"
)


def error_lines(machines: list[dict[str, Any]]) -> list[str]:
    """What a machine's ± is, if any has one."""
    return [ERROR_OF_KERNELS] if any(m["error"] for m in machines) else []


MARKS = {"all": "m", "some": "m+p", "none": ""}
"""By which of an operator's kernels were measured."""
MEASURED = (
    "m: what was measured of kernels of just this size (m+p: others predicted), as a time or over what is predicted; "
    "times, ratios and totals are predicted throughout, as loom sim has them"
)


def measured_lines(machines: list[dict[str, Any]]) -> list[str]:
    """What a measured time is, if any machine has one."""
    return [MEASURED] if any(m["measured_s"] is not None for m in machines) else []


def measured_text(found: dict[str, Any]) -> str:
    """An operator's measured time: ``m 4.563 ms``; nothing where no kernel of it was measured."""
    mark = MARKS[found["measured"]]
    return f"{mark} {format_si(found['measured_s'], 's')}" if mark else ""


def energy_lines(machines: list[dict[str, Any]]) -> list[str]:
    """What each machine's energy is, and leaves out."""
    lines = []
    for m in machines:
        what = "whole boards, predicted" if m["energy_of"] == "boards" else "an estimate"
        lines.append(f"energy of {m['name']}: {what}, {excluded_text(m['energy_excludes'])}")
    return lines


def _their_cells(found: dict[str, Any] | None, own: dict[str, Any], *, narrow: bool, known: bool) -> list[str]:
    """Time, error, what was measured if anything is ``known`` of it, ratio, share of the roofline."""
    if found is None:
        return ["–", "", ""] if narrow else ["–", "", *[""] * known, "", ""]
    ratio = found["seconds"] / own["seconds"] if own["seconds"] else 0.0
    time, measured = format_si(found["seconds"], "s"), measured_text(found)
    error = bar_text(found["error"]) if found["error"] else ""
    shown = f"{ratio:.3g}" if ratio else "–"
    if narrow:
        if measured:
            error = f"{MARKS[found['measured']]} {found['measured_s'] / found['seconds'] - 1:+.0%}"
        return [time, error, shown]
    if measured:
        measured += f" ±{found['measured_error']:.0%}"
    return [time, error, *[measured] * known, shown, f"{found['achieved']:.0%}" if found["achieved"] else "–"]


def _measured(machine: dict[str, Any]) -> str:
    if machine["measured_s"] is None:
        return "–"
    return f"{format_si(machine['measured_s'], 's')} ±{machine['measured_error']:.0%}"


def _speedup(machine: dict[str, Any]) -> str:
    if "speedup" not in machine:
        return "–"
    low, high = machine["speedup_range"]
    return f"{machine['speedup']:.3g} ({low:.3g} to {high:.3g})"


def _dollars(machine: dict[str, Any]) -> str:
    found = machine["dollars_per_million_tokens"]
    return "–" if found is None else f"{found:.3g}"
