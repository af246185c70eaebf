"""A step on GPUs, on a system of our chips, or on memory that computes, as a self-contained HTML page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.arch.timeline import Timeline
from siliconloom.render.page import (
    BarPart,
    ChartData,
    PageBar,
    PageCell,
    PageColumn,
    PageTable,
    bars,
    colour,
    legend_of,
    page,
    rates,
)
from siliconloom.render.page_tracks import passes_text, tracks_of
from siliconloom.render.report import SHOWN, energy_bars
from siliconloom.render.report_network import step_links, step_links_text
from siliconloom.render.tables import asked_text, excluded_text, predicted_text

WHOSE = {"gpus": "GPU", "system": "chip", "pim_tile": "tile", "chip": "chip"}
"""What one of the machines is, by the kind of the result."""


def step_html(
    result: dict[str, Any], messages: Mapping[str, Any] | None = None, untold: str = "", drawn: Timeline | None = None
) -> str:
    """The page of a step whose result is not one program's: of a plan, of GPUs, of a PIM tile.

    Parameters
    ----------
    drawn
        The step's passes and operators in time, where they are known.
    messages, untold
        The step's messages over its links, or why there are none.
    """
    links = step_links(messages)
    pipeline, cut = tracks_of(drawn) if drawn is not None else (None, 0)
    kernel = "kernel" if result["kind"] == "gpus" else "operator"
    alone = [_alone(o, result) for o in result["operators"]]
    whole = sum(alone) or 1
    rows = sorted(zip(result["operators"], alone, strict=True), key=lambda row: -row[1])
    kinds: dict[str, float] = defaultdict(float)
    for o, seconds in rows:
        kinds[o["kind"]] += seconds
    memory, plan = result["memory"], result["asked"]["plan"]
    units = result.get("units") or {}
    return page(
        "step",
        {name: each for name, each in (("pipeline", pipeline), ("links", links)) if each},
        {
            "operators": ChartData(
                (kernel, "kind", "seconds", "bound"),
                tuple((o["name"], o["kind"], s, o.get("bound") or "") for o, s in rows),
            ),
            "kinds": ChartData(("kind", "seconds"), tuple(kinds.items())),
            "units": ChartData(("unit", "busy_share"), tuple((n, u["utilization"]) for n, u in units.items())),
            "energy": ChartData(("component", "joules"), tuple(result["energy"].items())),
            "memory": ChartData(("used_bytes", "capacity_bytes"), ((memory["used_bytes"], memory["capacity_bytes"]),)),
        },
        title=f"{result['workload']} on {_machine(result)}",
        headline=_headline(result, rows, whole),
        asked=", ".join(part for part in (asked_text(result), result.get("plan_text") or "") if part),
        overrides=result["asked"]["overrides"],
        notes=result["notes"],
        tiles=_tiles(result),
        pipeline=pipeline,
        cut=cut,
        schedule_text=_schedule_text(drawn, kernel),
        links=links,
        links_text=step_links_text(messages, untold),
        what=kernel,
        what_plural=f"{kernel}s".capitalize(),
        time_text=_time_text(result),
        operator_bars=bars(
            [
                (o["name"], s / whole, f"{s / whole:.1%}, {format_si(s, 's')}", o.get("bound") or o["kind"])
                for o, s in rows[:SHOWN]
                if s
            ]
        ),
        operator_legend=legend_of([o.get("bound") or o["kind"] for o, s in rows[:SHOWN] if s]),
        kind_bars=bars(
            [
                (name, s / whole, f"{s / whole:.1%}, {format_si(s, 's')}", name)
                for name, s in sorted(kinds.items(), key=lambda item: -item[1])
            ]
        ),
        unit_bars=[
            PageBar(name, f"{unit['utilization']:.1%} busy", (BarPart(unit["utilization"], colour("busy")),))
            for name, unit in units.items()
        ],
        unit_text="Shares of the step in which each is at work.",
        windows=_windows(result),
        energy_text=f"{format_si(result['energy_j'], 'J')}, {excluded_text(result['energy_excludes'])}.",
        energy_bars=energy_bars(result),
        memory_text=f"Of one {WHOSE[result['kind']]}, the fullest.",
        memory_bars=[
            PageBar(
                "in use",
                f"{format_bytes(memory['used_bytes'])} of {format_bytes(memory['capacity_bytes'])}",
                (BarPart(min(memory["used_bytes"] / (memory["capacity_bytes"] or 1), 1), colour("memory")),),
            )
        ],
        operators=_table(result, rows, whole, kernel),
        plan=_plan(plan) if plan else None,
        digest=result["asked"]["machine_digest"],
        version=result["version"],
    )


def _schedule_text(drawn: Timeline | None, kernel: str) -> str:
    """What the chart of the step shows."""
    if drawn is None:
        return ""
    return passes_text(drawn, f"{kernel}s")


def _alone(operator: dict[str, Any], result: dict[str, Any]) -> float:
    """Seconds of an operator that no other one runs beside."""
    return float(operator["seconds"] - (operator.get("overlap_cycles") or 0) / result["clock_hz"])


def _machine(result: dict[str, Any]) -> str:
    system = result.get("system")
    if not system or system["name"] == result["chip"]:
        return str(result["chip"])
    return f"{system['name']}: {system['chips']} x {result['chip']}"


def _headline(result: dict[str, Any], rows: list[tuple[dict[str, Any], float]], whole: float) -> str:
    bound = result["bound"]
    error = predicted_text(result) if result.get("error") else ""
    text = f"One step takes {format_si(result['seconds'], 's')}{error}{rates(result)}. "
    least = "its roofline" if bound["name"] == "roofline" else f"the bound of {bound['name']}"
    text += f"{bound['achieved']:.1%} of that is {least}, which nothing on this machine can beat."
    if rows and rows[0][1]:
        operator, seconds = rows[0]
        bound_by = f", bound by {operator['bound']}" if operator.get("bound") else ""
        text += f" Most of the time, {seconds / whole:.0%}, goes to {operator['name']}{bound_by}."
    waits = sum(s for o, s in rows if o.get("bound") in ("link", "links"))
    if waits:
        text += f" Messages between {WHOSE[result['kind']]}s take {waits / whole:.0%}."
    return text


def _tiles(result: dict[str, Any]) -> list[tuple[str, str]]:
    whose, bound = WHOSE[result["kind"]], result["bound"]
    tiles = [
        (format_si(result["seconds"], "s"), f"{result['cycles']:,} cycles at {format_si(result['clock_hz'], 'Hz')}"),
        (f"{bound['achieved']:.1%}", f"of the bound, {bound['name']}: {format_si(bound['lower_bound_s'], 's')}"),
        (f"{result['utilization']:.1%}", "of the peak of arithmetic"),
    ]
    if result["asked"]["sequence"] is not None:
        tiles.append((four_digits(result["tokens_per_second"]), "tokens per second"))
    tiles.append((format_si(result["energy_j"], "J"), f"{format_si(result['power_w'], 'W')} on average, all {whose}s"))
    memory = result["memory"]
    tiles.append((format_bytes(memory["used_bytes"]), f"of {format_bytes(memory['capacity_bytes'])} a {whose}"))
    if result.get("measured_s") is not None:
        error = f"±{result['measured_error']:.0%}"
        tiles.append((f"{format_si(result['measured_s'], 's')} {error}", "with measured kernels' times where known"))
    return tiles


def _time_text(result: dict[str, Any]) -> str:
    if result["kind"] == "gpus":
        return "Of one GPU's part, all layers and all parts of its batch, coloured by what bounds each kernel."
    return "Of one chip's part, all layers and all parts of its batch, coloured by what bounds each operator."


def _windows(result: dict[str, Any]) -> PageTable | None:
    found = result.get("windows")
    if not found:
        return None
    columns = [PageColumn("window", True), *map(PageColumn, ("times", "arrays", "memory", "cycles", "share"))]
    rows = []
    for w in found:
        share = w["cycles"] * w["repeat"] / result["cycles"]
        rows.append(
            (
                PageCell(w["name"]),
                *(PageCell(f"{w[k]:,}", w[k]) for k in ("repeat", "array_cycles", "memory_cycles", "cycles")),
                PageCell(f"{share:.1%}", share),
            )
        )
    return PageTable("windows", "windows of arrays and memory", tuple(columns), tuple(rows))


def _table(result: dict[str, Any], found: list[tuple[dict[str, Any], float]], whole: float, kernel: str) -> PageTable:
    measured = any("measured_s" in o for o, _ in found)
    energies = any(o.get("energy_j") is not None for o, _ in found)
    columns = [PageColumn(kernel, True), PageColumn("kind", True), PageColumn("share"), PageColumn("time")]
    columns += [PageColumn("times"), PageColumn("bound", True)]
    columns += [PageColumn("measured")] * measured + [PageColumn("energy")] * energies + [PageColumn("shape", True)]
    rows = []
    for o, seconds in found:
        cells = [
            PageCell(o["name"]),
            PageCell(o["kind"]),
            PageCell(f"{seconds / whole:.1%}", seconds / whole),
            PageCell(format_si(o["seconds"], "s"), o["seconds"]),
            PageCell(f"{o['repeat']:,}", o["repeat"]),
            PageCell(o.get("bound") or "–"),
        ]
        for key, unit, shown in (("measured_s", "s", measured), ("energy_j", "J", energies)):
            if shown:
                figure = o.get(key)
                cells.append(PageCell("–") if figure is None else PageCell(format_si(figure, unit), figure))
        shape = ", ".join(f"{k} {v}" for k, v in o["shape"].items() if k != "op" and v not in (None, False))
        rows.append((*cells, PageCell(shape)))
    return PageTable("operators", f"{kernel}s", tuple(columns), tuple(rows))


def _plan(plan: dict[str, Any]) -> PageTable:
    rows = tuple((PageCell(f"plan.{key}"), PageCell(str(value))) for key, value in plan.items())
    return PageTable("plan-keys", "plan", (PageColumn("key", True), PageColumn("value", True)), rows)


__all__ = ["step_html"]
