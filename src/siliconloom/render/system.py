"""Steps on systems, chips whose memory computes and bare PIM tiles, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.render.tables import (
    Row,
    asked_text,
    bold,
    excluded_rows,
    predicted_text,
    print_overrides,
    rates_text,
    table,
)


def pim_tables(result: dict[str, Any], out: Console) -> None:
    """Print the result."""
    out.print(f"{bold(result['workload'])} ({asked_text(result)}) on {bold(result['chip'])}")
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    bound, cycles = result["bound"], result["cycles"]
    out.print(f"  time         {format_si(result['seconds'], 's')}  ({cycles:,} cycles)")
    out.print(
        f"  lower bound  {bound['lower_bound_cycles']:,} cycles, {bound['name']}; {bound['achieved']:.1%} of it reached"
    )
    for label, text in [
        ("energy", format_si(result["energy_j"], "J")),
        *excluded_rows(result["energy_excludes"], out, 12),
    ]:
        out.print(f"  {label:12s} {text}")
    out.print()
    rows = [
        (
            o["name"],
            f"x{o['repeat']}",
            f"{o['shape']['m']} x {o['shape']['n']} x {o['shape']['k']}",
            f"{o['cycles']:,}",
            f"{o['bound_cycles'] / o['cycles']:.0%}",
        )
        for o in result["operators"]
    ]
    columns = [
        ("operator", "left"),
        ("times", "right"),
        ("m x n x k", "right"),
        ("cycles", "right"),
        ("of bound", "right"),
    ]
    out.print(table("products in memory", columns, rows))


def planned_tables(result: dict[str, Any], out: Console) -> None:
    """Print a step under a plan, on GPUs or on our own chips."""
    gpus = result["kind"] == "gpus"
    whose = "GPU" if gpus else "chip"
    system, used, bound = result["system"], result["memory"], result["bound"]
    clock = f"  ({result['cycles']:,} cycles at {format_si(result['clock_hz'], 'Hz')})"
    boards = "' boards" if gpus else ""
    binds = "" if gpus else f", {bound['name']}"
    out.print(
        f"{bold(result['workload'])} ({asked_text(result)}) on "
        f"{bold(system['name'])}: {system['chips']} x {result['chip']}"
    )
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    lines = [
        ("time", format_si(result["seconds"], "s") + (predicted_text(result) if gpus else clock)),
        *_measured_line(result),
        (
            "roofline" if gpus else "lower bound",
            f"{format_si(bound['lower_bound_s'], 's')}{binds}; {bound['achieved']:.1%} reached",
        ),
        ("throughput", rates_text(result) or f"{four_digits(result['tokens_per_second'])} tokens/s"),
        ("plan", result["plan_text"] + _shared(system)),
        ("memory", f"{format_bytes(used['used_bytes'])} of {format_bytes(used['capacity_bytes'])} a {whose}"),
        ("energy", f"{format_si(result['energy_j'], 'J')}, {format_si(result['power_w'], 'W')}, all {whose}s{boards}"),
        *excluded_rows(result["energy_excludes"], out, 14),
    ]
    for label, text in lines:
        out.print(f"  {label:14s} {text}", soft_wrap=True)
    out.print()
    if result.get("windows"):
        _window_tables(result, out)
    alone = [o["seconds"] - (o.get("overlap_cycles") or 0) / result["clock_hz"] for o in result["operators"]]
    busy = sum(alone)
    known = any("measured_s" in o for o in result["operators"])
    rows: list[Row] = [
        (
            o["name"],
            o["kind"],
            f"x{o['repeat']}",
            format_si(o["seconds"], "s"),
            f"{share / busy:.1%}",
            o.get("bound", ""),
            *([format_si(o["measured_s"], "s") if "measured_s" in o else ""] if known else []),
        )
        for o, share in zip(result["operators"], alone, strict=True)
    ]
    columns = [
        ("kernel" if gpus else "operator", "left"),
        ("op", "left"),
        *((n, "right") for n in ("times", "time", "share")),
        ("bound", "left"),
        *([("measured", "right")] if known else []),
    ]
    out.print(
        table(
            f"{'kernels' if gpus else 'operators'} of one {whose}'s part, all layers and all parts of its batch",
            columns,
            rows,
        )
    )


def _shared(system: dict[str, Any]) -> str:
    """What arrays and memory do each, where memory computes."""
    if not system.get("attention"):
        return ""
    return f"; attention on {system['attention']['unit']}" + (
        ", two half batches interleaved" if system["interleaved"] else ""
    )


def _window_tables(result: dict[str, Any], out: Console) -> None:
    rows = [
        (
            w["name"],
            f"x{w['repeat']}",
            f"{w['array_cycles']:,}",
            f"{w['memory_cycles']:,}",
            f"{w['cycles']:,}",
            f"{w['cycles'] * w['repeat'] / result['cycles']:.1%}",
        )
        for w in result["windows"]
    ]
    columns = [("window", "left"), *((n, "right") for n in ("times", "arrays", "memory", "cycles", "share"))]
    out.print(table("what works side by side", columns, rows))
    out.print()
    units = [
        (n, f"{u['utilization']:.1%}", f"{u['mac_utilization']:.1%}" if "mac_utilization" in u else "-")
        for n, u in result["units"].items()
    ]
    out.print(table("units", [("unit", "left"), ("busy", "right"), ("of peak", "right")], units))
    out.print()


def _measured_line(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What the step would be with measured kernels in place of predicted ones, if somebody measured any."""
    seconds = result.get("measured_s")
    if seconds is None:
        return []
    kernels = [o for o in result["operators"] if not o["fused"]]
    known = sum("measured_s" in o for o in kernels)
    error = f"±{result['measured_error']:.0%}"
    return [("measured", f"{format_si(seconds, 's')} {error} with {known} of {len(kernels)} kernels as measured")]
