"""A simulation as a self-contained HTML page, and its operators as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.arch.timeline import FoldedRun
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
SHOWN = 16
"""Operators in a bar chart; the table has all."""


def operators_csv(result: dict[str, Any]) -> str:
    """The per-operator table; one header line, plain numbers in base units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "shape", "fused"])
    for operator in result["operators"]:
        row = [operator[name] for name in COLUMNS]
        writer.writerow([*row, shape_text(operator), " ".join(operator["fused"])])
    return text.getvalue()


def report_html(result: dict[str, Any], run: FoldedRun | None, description: str) -> str:
    """The page of a step on one of our chips.

    Parameters
    ----------
    run
        What happened when; without it the page has no timeline.
    description
        Text of the chip that was simulated.
    """
    cycles = result["cycles"] or 1
    operators = sorted((o for o in result["operators"] if o["cycles"]), key=lambda o: -share_of(o, cycles))
    level = next(iter((result["memory"]["levels"] or {}).items()), None)
    points = _points(result) if level else []
    data: dict[str, Any] = {}
    if points and level:
        data["roofline"] = {
            "points": points,
            "peak": result["peak_macs"],
            "bandwidth": level[1]["bandwidth"] / result["clock_hz"],
        }
    if run is not None and run.rows:
        data["timeline"] = timeline_data(run, result, level[1]["bandwidth"] / result["clock_hz"] if level else 0)
    units = result["units"]
    parts = {
        name: {"busy": unit["busy_cycles"], **{c.replace("_", " "): n for c, n in unit["stall_cycles"].items()}}
        for name, unit in units.items()
    }
    traffic = {name: _moved(counts) for name, counts in result["traffic"].items()}
    simulator = result["simulator"]
    return page(
        "report",
        data,
        {
            "operators": ChartData(
                ("operator", "cycles", "share", "bound"),
                tuple((o["name"], o["cycles"], share_of(o, cycles), o["bound"]) for o in operators),
            ),
            "units": ChartData(
                ("unit", "what", "cycles"),
                tuple((u, what, n) for u, found in parts.items() for what, n in found.items()),
            ),
            "energy": ChartData(("component", "joules"), tuple(result["energy"].items())),
            "traffic": ChartData(
                ("level", "what", "bytes"), tuple((n, w, b) for n, found in traffic.items() for w, b in found.items())
            ),
            "memory": ChartData(
                ("level", "used_bytes", "capacity_bytes"),
                tuple((n, v["used_bytes"], v["capacity_bytes"]) for n, v in result["memory"]["levels"].items()),
            ),
        },
        title=f"{result['workload']} on {result['chip']}",
        headline=headline(result),
        asked=asked_text(result),
        overrides=result["asked"]["overrides"],
        notes=result["notes"],
        tiles=_tiles(result),
        timeline="timeline" in data,
        goto=[o["name"] for o in result["operators"]],
        bandwidth=level[0] if level else "",
        left_out=run.left_out if run is not None else 0,
        operator_bars=bars(
            [
                (
                    o["name"],
                    share_of(o, cycles),
                    f"{share_of(o, cycles):.1%}, {format_si(o['seconds'], 's')}",
                    o["bound"],
                )
                for o in operators[:SHOWN]
            ]
        ),
        operator_legend=legend_of([o["bound"] for o in operators[:SHOWN]]),
        unit_bars=[
            PageBar(
                name,
                f"{units[name]['utilization']:.1%} busy",
                tuple(
                    BarPart(n / cycles, colour(what), f"{name}: {what} {n / cycles:.1%}") for what, n in found.items()
                ),
            )
            for name, found in parts.items()
        ],
        unit_legend=legend_of([what for found in parts.values() for what in found]),
        roofline=(f"{result['peak_macs']:,} MACs a cycle", f"{level[0]}, {format_si(level[1]['bandwidth'], 'B/s')}")
        if points and level
        else None,
        energy_text=f"{format_si(result['energy_j'], 'J')}, estimated, {excluded_text(result['energy_excludes'])}.",
        energy_bars=energy_bars(result),
        traffic_text="Bytes that moved. Lost to access size is what a memory moves beside what was asked for.",
        traffic_bars=_traffic_bars(traffic),
        traffic_legend=[(name, TRAFFIC[name]) for name in TRAFFIC],
        level_bars=[
            PageBar(
                name,
                f"{format_bytes(level['used_bytes'])} of {format_bytes(level['capacity_bytes'])}",
                (BarPart(level["used_bytes"] / (level["capacity_bytes"] or 1), colour("memory")),),
            )
            for name, level in result["memory"]["levels"].items()
        ],
        operators=_operators_table(result, cycles),
        machine=result["chip"],
        description=description,
        digest=result["chip_digest"],
        version=result["version"],
        ran=f"{simulator['events']:,} events run and {simulator['events_skipped']:,} jumped in "
        f"{simulator['wall_s'] * 1000:.1f} ms.",
    )


def headline(result: dict[str, Any]) -> str:
    """A step on a chip in sentences: what it takes, what binds, what most of the time goes to, what holds that up."""
    cycles, bound = result["cycles"] or 1, result["bound"]
    longest = max(result["operators"], key=lambda o: share_of(o, cycles), default=None)
    text = (
        f"One step takes {format_si(result['seconds'], 's')}{rates(result)}. {bound['achieved']:.1%} of "
        f"that is the least that its {bound['name']} takes ({bound['key']}), whatever the mapping."
    )
    if longest is not None:
        text += f" Most of the time, {share_of(longest, cycles):.0%}, goes to {longest['name']}."
    units = {name: unit for name, unit in result["units"].items() if name != "sequencer"}
    if units:
        name, unit = max(units.items(), key=lambda item: item[1]["utilization"])
        waits = {c: n for c, n in unit["stall_cycles"].items() if c != "finished" and n}
        text += f" The busiest unit is {name}, at work for {unit['utilization']:.1%} of the time"
        if waits:
            cause = max(waits, key=lambda c: waits[c])
            text += (
                f"; what it waits for most is {WAITS.get(cause, cause.replace('_', ' '))} ({waits[cause] / cycles:.1%})"
            )
        text += "."
    return text


WAITS = {
    "instruction": "its next instruction",
    "operands": "operands",
    "buffer": "a free buffer",
    "dependency": "earlier results",
    "memory_port": "the memory port",
    "stationary_load": "the load of stationary operands",
    "drain": "the drain of results",
    "queue_full": "room in a queue",
}
"""What a unit waits for, as text."""
TRAFFIC = {"read": "#2a6fbb", "written": "#d1742c", "lost to access size": "#b0413e"}
"""Colours of what moves through a memory level."""


def timeline_data(run: FoldedRun, result: dict[str, Any], bandwidth: float) -> dict[str, Any]:
    """What the page's script draws a timeline from; each row is told from the one before it."""
    flat: list[int] = []
    last = 0
    for instruction, waited, arrived, granted, cause, begin, end in run.rows:
        flat += (instruction, begin - waited, arrived - waited, granted - arrived, cause, begin - last, end - begin)
        last = begin
    seen = {cause.replace("_", " ") for unit in result["units"].values() for cause in unit["stall_cycles"]}
    firsts = {}
    for o in result["operators"]:
        whole = o["end_cycle"] - o["start_cycle"]
        firsts[o["name"]] = [o["start_cycle"], o["start_cycle"] + min(whole, max(o["cycles"] // (o["repeat"] or 1), 1))]
    return {
        "cycles": max(row[-1] for row in run.rows) if run.left_out else run.cycles,
        "clock": run.clock,
        "bandwidth": bandwidth,
        "units": run.units,
        "operators": run.operators,
        "causes": run.causes,
        "colours": [colour(cause) for cause in run.causes],
        "seen": [cause in seen and cause != "finished" for cause in run.causes],
        "instruction": run.causes.index("instruction"),
        "holder": run.holder,
        "within": run.within,
        "instructions": [[i.operator, i.unit, i.name, i.busy, i.moved] for i in run.instructions],
        "rows": flat,
        "jumps": run.jumps,
        "firsts": firsts,
    }


def energy_bars(result: dict[str, Any]) -> tuple[PageBar, ...]:
    """A step's energy by component, the largest first."""
    whole = result["energy_j"] or 1
    largest = sorted(((name, joules) for name, joules in result["energy"].items() if joules), key=lambda e: -e[1])
    return bars([(name, j / whole, f"{j / whole:.1%}, {format_si(j, 'J')}", name) for name, j in largest])


def _points(result: dict[str, Any]) -> list[dict[str, Any]]:
    cycles = result["cycles"] or 1
    found = [
        (o, o["macs"] / (o["read_bytes"] + o["write_bytes"]), o["macs"] / o["cycles"])
        for o in result["operators"]
        if o["macs"] and o["cycles"] and o["read_bytes"] + o["write_bytes"]
    ]
    return [
        {"n": n, "name": o["name"], "x": x, "y": y, "share": max(share_of(o, cycles), 0.0)}
        for n, (o, x, y) in enumerate(found)
    ]


def _moved(counts: dict[str, int]) -> dict[str, int]:
    """Bytes of a level that were read and written, and what of both was not asked for."""
    read, write = counts.get("useful_read", counts["read"]), counts.get("useful_write", counts["write"])
    return {"read": read, "written": write, "lost to access size": counts["read"] + counts["write"] - read - write}


def _traffic_bars(traffic: dict[str, dict[str, int]]) -> list[PageBar]:
    most = max((sum(found.values()) for found in traffic.values()), default=1) or 1
    return [
        PageBar(
            name,
            format_bytes(sum(found.values())),
            tuple(BarPart(b / most, TRAFFIC[what], f"{name}: {what} {format_bytes(b)}") for what, b in found.items()),
        )
        for name, found in traffic.items()
    ]


def _tiles(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Figures at the top, and what each is."""
    bound, hardware, memory, area = (result[name] for name in ("bound", "hardware", "memory", "area"))
    has_tokens = result["asked"]["sequence"] is not None
    return [
        (format_si(result["seconds"], "s"), f"{result['cycles']:,} cycles at {format_si(result['clock_hz'], 'Hz')}"),
        (
            f"{bound['achieved']:.1%}",
            f"of the {bound['name']} bound ({bound['key']}), {bound['lower_bound_cycles']:,} cycles",
        ),
        (f"{result['utilization']:.1%}", "array utilisation"),
        *([(four_digits(result["tokens_per_second"]), "tokens per second")] if has_tokens else []),
        (format_si(result["energy_j"], "J"), f"{format_si(result['power_w'], 'W')} on average"),
        *(
            [(format_bytes(memory["used_bytes"]), f"of {format_bytes(memory['capacity_bytes'])} of main memory")]
            if memory["levels"]
            else []
        ),
        (f"{area['mm2']:.3g} mm²", f"{area['technology']}: arithmetic and SRAM, good to a factor of two"),
        (
            hardware["word"],
            f"hardware: {hardware['proven']} of {hardware['operators']} operators run on the generated Verilog as they "
            "are mapped",
        ),
    ]


def _operators_table(result: dict[str, Any], cycles: int) -> PageTable:
    columns = (
        PageColumn("operator", True),
        PageColumn("share"),
        PageColumn("cycles"),
        PageColumn("times"),
        PageColumn("array"),
        PageColumn("bound", True),
        PageColumn("reached"),
        PageColumn("traffic"),
        PageColumn("energy"),
        PageColumn("beside others"),
        PageColumn("shape", True),
        PageColumn("hardware", True),
    )
    rows = []
    for o in result["operators"]:
        moved, reached = o["read_bytes"] + o["write_bytes"], o["bound_cycles"] / o["cycles"] if o["cycles"] else None
        fused = "".join(f" +{name.split('.')[-1]}" for name in o["fused"])
        rows.append(
            (
                PageCell(o["name"] + fused),
                PageCell(f"{share_of(o, cycles):.1%}", share_of(o, cycles)),
                PageCell(f"{o['cycles']:,}", o["cycles"]),
                PageCell(f"{o['repeat']:,}", o["repeat"]),
                PageCell(f"{o['utilization']:.1%}", o["utilization"]) if o["macs"] else PageCell("–"),
                PageCell(o["bound"]),
                PageCell("–") if reached is None else PageCell(f"{reached:.0%}", reached),
                PageCell(format_bytes(moved), moved),
                PageCell(format_si(o["energy_j"], "J"), o["energy_j"]),
                PageCell(f"{o['overlap_cycles']:,}", o["overlap_cycles"]) if o["overlap_cycles"] else PageCell("–"),
                PageCell(shape_text(o)),
                PageCell(o["hardware"], title=o["hardware_why"] or ""),
            )
        )
    return PageTable("operators", "operators", columns, tuple(rows))


__all__ = ["energy_bars", "headline", "operators_csv", "report_html", "timeline_data"]
