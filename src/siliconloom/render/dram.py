"""What a replay of requests took, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch.dram import Dram
from siliconloom.arch.quantity import format_count, format_si
from siliconloom.render.tables import bold, table


def dram_tables(dram: Dram, result: dict[str, Any], out: Console) -> None:
    """Print what a replay took."""
    out.print(f"{bold(dram.name)} ({dram.standard}): {format_count(len(result['requests']), 'request')}")
    share = result["bandwidth"] / result["peak_bandwidth"]
    columns = result["row_hits"] + result["row_misses"]
    rows = [
        ("time", f"{format_si(result['seconds'], 's')}  ({result['cycles']:,} cycles)"),
        ("bandwidth", f"{format_si(result['bandwidth'], 'B/s')}, {share:.1%} of its peak"),
        ("row hits", f"{result['row_hits']:,} of {columns:,}"),
        ("refreshes", f"{result['refreshes']:,}"),
    ]
    if known := result["simulator"]["requests_known"]:
        rows.append(("known from before", f"{format_count(known, 'request')}, not run again"))
    if latency := result["read_latency_cycles"]:
        rows.append(("read latency", f"{latency['mean']:.1f} cycles on average, 99 % within {latency['p99']:.0f}"))
    out.print(table("replay", [("", "left"), ("", "left")], rows))
