"""Tables of ``loom cascade``."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.render.tables import bold, table


def cascade_tables(result: dict[str, Any], out: Console) -> None:
    """Print what is derived of a cascade."""
    out.print(f"{bold(result['name'])}  {result['description']}")
    if result["source"]:
        out.print(f"  {result['source']}", style="dim")
    ranks = ", ".join(f"{rank} {size}" for rank, size in result["ranks"].items())
    out.print(f"  ranks: {ranks}; {result['instances']} instances of the cascade")
    lines = [
        (
            line["einsum"],
            str(line["pass"]) if line["walks"] else f"after {line['pass']}",
            format_si(line["points"], ""),
            ", ".join(f"{n} {name}" if n > 1 else name for name, n in line["operations"].items()),
        )
        for line in result["einsums"]
    ]
    columns = [("extended Einsum", "left"), (f"pass over {result['stream']}", "right"), ("points", "right")]
    out.print(table("Einsums of one instance", [*columns, ("at a point", "left")], lines))
    passes = ", ".join(f"{rank} {count}" for rank, count in result["passes"].items())
    out.print(f"passes over each rank: {passes}")
    if result["footprint"] is not None:
        _footprint(result["footprint"], out)
    _traffic(result, out)
    if "schedule" in result:
        _schedule(result["schedule"], out)


def _footprint(found: dict[str, Any], out: Console) -> None:
    blocks = ", ".join(f"{size} of {rank}" for rank, size in found["block"].items())
    title = f"Live in the buffer, a block of {blocks}" if blocks else "Live in the buffer"
    lines = [
        (line["tensor"], line["kind"], line["expression"], format_si(line["elements"], ""), format_bytes(line["bytes"]))
        for line in found["tensors"]
        if line["kind"] != "transient"
    ]
    columns = [
        ("tensor", "left"),
        ("", "left"),
        ("<block of> ranks", "left"),
        ("elements", "right"),
        ("bytes", "right"),
    ]
    out.print(table(f"{title}: {format_bytes(found['bytes'])}", columns, lines))
    others = [line["tensor"] for line in found["tensors"] if line["kind"] == "transient"]
    if others:
        out.print(f"  made and used at a point, in the arrays: {', '.join(others)}")


def _traffic(result: dict[str, Any], out: Console) -> None:
    found = result["traffic"]
    least = found["compulsory"]
    room = "any buffer" if result["buffer_bytes"] is None else f"a buffer of {format_bytes(result['buffer_bytes'])}"
    spilled = f"; spilled: {', '.join(found['spilled'])}" if found["spilled"] else ""
    shown = {
        "inputs and outputs once": least,
        f"fused{spilled}": found["fused"],
        "every Einsum alone": found["unfused"],
    }
    lines = [
        (name, "-", "-") if size is None else (name, format_bytes(size), f"{size / least:.2f}")
        for name, size in shown.items()
    ]
    columns = [("schedule", "left"), ("bytes", "right"), ("of the least", "right")]
    out.print(table(f"Least traffic of all instances with {room}", columns, lines))
    if found["not_fused"]:
        out.print(f"  not fused: {found['not_fused']}")


def _schedule(found: dict[str, Any], out: Console) -> None:
    lines = [
        (
            ", ".join(group["tasks"]),
            f"{group['mode']} along {group['rank']}" if group["rank"] else group["mode"],
            " + ".join(map(str, group["cores"])),
            format_si(group["cycles"], ""),
            format_bytes(group["moved_bytes"]),
            ", ".join(group["kept"]),
        )
        for group in found["groups"]
    ]
    columns = [("products", "left"), ("", "left"), ("cores", "left"), ("cycles", "right"), ("memory", "right")]
    title = (
        f"Schedule of one instance: {format_si(found['cycles'], 'cycles')}, {format_bytes(found['moved_bytes'])}; "
        f"one by one {format_si(found['sequential_cycles'], 'cycles')}, {format_bytes(found['sequential_moved_bytes'])}"
    )
    out.print(table(title, [*columns, ("stays on chip", "left")], lines))


__all__ = ["cascade_tables"]
