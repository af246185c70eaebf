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
    _footprint(result["footprint"], out)
    _traffic(result, out)


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
    lines = [
        ("inputs and outputs once", format_bytes(least), "1.00"),
        (f"fused{spilled}", format_bytes(found["fused"]), f"{found['fused'] / least:.2f}"),
        ("every Einsum alone", format_bytes(found["unfused"]), f"{found['unfused'] / least:.2f}"),
    ]
    columns = [("schedule", "left"), ("bytes", "right"), ("of the least", "right")]
    out.print(table(f"Least traffic of all instances with {room}", columns, lines))


__all__ = ["cascade_tables"]
