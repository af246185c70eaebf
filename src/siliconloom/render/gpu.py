"""Predicted operations of a GPU, and its description, as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from siliconloom.arch.gpu import Gpu
from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.render.tables import Row, bar_text, bold, table

ROWS = (
    "±: bars that hold half, and 90 %, of measurements left out; by rows measured near by on this GPU, or by the "
    "mechanism alone"
)
SHOWN = 40
"""Rows that the terminal shows; all are in the JSON."""


def gpu_tables(result: dict[str, Any], described: Callable[[int], str], out: Console) -> None:
    """Print the first rows and their sum; ``described`` names the operation of a row."""
    clock = "bursts at full clock" if result["clock"] == "burst" else "sustained, under the power limit"
    out.print(f"{bold(result['gpu'])}: {len(result['rows']):,} operations, {clock}")
    rows: list[Row] = []
    for index, row in enumerate(result["rows"][:SHOWN]):
        share = row["roofline_us"] / row["time_us"]
        rows.append(
            (
                described(index),
                format_si(row["time_us"] * 1e-6, "s"),
                bar_text(row["error"]),
                bar_text(row["error_90"]),
                "rows" if row["nearby"] else "alone",
                row["bound"],
                f"{share:.0%}" if share else "–",
                format_si(row["energy_j"], "J"),
            )
        )
    columns = [
        ("operation", "left"),
        ("time", "right"),
        ("half in", "right"),
        ("90 % in", "right"),
        ("by", "left"),
        ("bound", "left"),
        ("of roofline", "right"),
        ("energy", "right"),
    ]
    out.print(table("predicted", columns, rows))
    if (more := len(result["rows"]) - SHOWN) > 0:
        out.print(f"... and {more:,} more; --json FILE has all of them")
    total = sum(row["time_us"] for row in result["rows"]) * 1e-6
    out.print(ROWS)
    out.print(result["measured"])
    out.print(f"sum {format_si(total, 's')}; constants: {result['basis']}")


def summary_tables(gpu: Gpu, found: dict[str, Any], out: Console) -> None:
    """Print what the description says, with the rates multiplied out in ``found``."""
    cap = "" if gpu.power_cap is None else f", held to {gpu.power_cap:g} W"
    clock = "" if gpu.locked_clock is None else f", locked to {format_si(gpu.locked_clock, 'Hz')}"
    peaks = ", ".join(f"{p} {format_si(f, 'FLOP/s')}" for p, f in found["peak_flops"].items())
    rows = [
        ("product", gpu.product),
        ("source", gpu.source),
        ("multiprocessors", f"{gpu.multiprocessors} at {format_si(gpu.clock, 'Hz')}" + clock),
        ("peak", peaks),
        ("memory", f"{format_bytes(gpu.memory.capacity)} at {format_si(gpu.memory_bandwidth, 'B/s')}"),
        ("L2", format_bytes(gpu.l2.capacity)),
        ("links", f"{format_si(gpu.link_bandwidth, 'B/s')} each way, {gpu.link.per_node} in a node"),
        (
            "between nodes",
            f"{format_si(gpu.link.network, 'B/s')}, {format_si(found['network_latency_s'], 's')}; the switch within "
            f"{'adds' if gpu.link.in_switch else 'does not add'}",
        ),
        ("exponentials", f"{format_si(found['exponentials_per_second'], '/s')}"),
        ("power", f"{gpu.power:g} W{cap}, {gpu.idle_power:g} W at work on nothing"),
        ("constants", found["basis"]),
        ("recorded only", f"{gpu.memory.kind}, {gpu.link.kind}, first level and latencies: no prediction uses them"),
    ]
    out.print(table(gpu.name, [("", "left"), ("", "left")], rows))
