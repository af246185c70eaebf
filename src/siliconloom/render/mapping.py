"""How a workload is mapped, as tables."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table

from siliconloom.arch.quantity import format_bytes
from siliconloom.render.tables import bold, placed_text, table

NAMED = 4
"""Most tasks of which is said what they wait for."""
CLOSE, SHARE = 0.02, 0.005
"""Those that are less than this above their bound, or leave less of the whole time, are not named."""
MEANING = {"energy": "energy", "edp": "product of energy and time", "traffic": "bytes moved, of equals the fastest"}
LISTED = 24
"""Most objects in memory that the table shows; ``--json`` has all."""


def mapping_tables(result: dict[str, Any], out: Console, *, program: str | None = None) -> None:
    """Print a mapping, and the text of its program where there is one."""
    bound, estimate, code = result["bound"], result["estimated_cycles"], result["program"]
    out.print(f"{bold(result['workload'])} ({result['phase']}) on {bold(result['chip'])}")
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    out.print(
        f"  program      {code['instructions']} instructions ({format_bytes(code['bytes'])}), for any number of tiles"
    )
    _print_wrapped(
        "  lower bound  ",
        f"{bound['lower_bound_cycles']:,} cycles: compute {bound['compute_cycles']:,}, memory "
        f"{bound['memory_cycles']:,}, vector {bound['vector_cycles']:,}",
        out,
    )
    if result["lower_bound"]:
        more = f"{result['gap']:.1%} above the bound"
        _print_wrapped("  cycles       ", f"{result['cycles']:,}, {more}; the mapper's estimate: {estimate:,}", out)
    if result["objective"] != "time":
        out.print(f"  objective    the least {MEANING[result['objective']]}")
    if text := placed_text(result["placed"]):
        _print_wrapped("  placement    ", text, out)
    if result["remembered"]:
        out.print("  search       of an earlier command, remembered")
    if result["layout"] is not None:
        slots = ", ".join(f"{name} {format_bytes(size)}" for name, size in result["layout"].items() if size)
        _print_wrapped("  buffers      ", f"two slots each: {slots}", out)
    out.print()
    columns = [
        ("task", "left"),
        ("times", "right"),
        ("tile", "left"),
        ("cycles", "right"),
        ("bound", "right"),
        ("gap", "right"),
        ("by", "left"),
        ("traffic", "right"),
    ]
    rows = [_task_row(task) for task in result["tasks"]]
    out.print(table("tasks: cycles of one execution, and bytes that one tile moves", columns, rows))
    _print_left(result, out)
    if result["placement"]:
        out.print()
        out.print(placement_table(result["placement"], result["placed"]["by"]))
    if program is not None:
        out.print()
        out.print(program, soft_wrap=True, markup=False)


def _print_wrapped(label: str, text: str, out: Console, indent: int | None = None) -> None:
    """Print a label and a text that goes on under itself, or so far in, where the terminal ends."""
    below = " " * (len(label) if indent is None else indent)
    width = max(out.width, len(below) + 16)
    for line in textwrap.wrap(label + text, width, subsequent_indent=below, break_on_hyphens=False):
        out.print(line, soft_wrap=True)


def _print_left(result: dict[str, Any], out: Console) -> None:
    """Name the tasks that together are most of what the whole takes above the bounds of its parts, and why."""
    found = [task for task in result["tasks"] if task["binding"] is not None and (task["gap"] or 0) > CLOSE]
    left = {task["name"]: task["repeat"] * (task["cycles"] - task["lower_bound"]) for task in found}
    found.sort(key=lambda task: -left[task["name"]])
    shown = [task for task in found if left[task["name"]] > SHARE * result["cycles"]][:NAMED]
    if shown:
        out.print("most of what is left above the bounds:")
    for task in shown:
        part = left[task["name"]] / result["cycles"]
        _print_wrapped(f"  {task['name']}: ", f"{part:.1%} of the time; {task['binding']['words']}", out, 4)


def _task_row(task: dict[str, Any]) -> tuple[str, ...]:
    tiling, own = task["tiling"], task["bound"]
    fused = "".join(" +" + name.rsplit(".", 1)[-1] for name in task["fused"])
    early = (f"ahead of {name}" for name in dict.fromkeys(task["ahead"].values()))
    anew = ["buffers divided anew"] if task["layout"] else []
    cut = [f"chunks of {format_bytes(task['chunk'])}"] if task["chunk"] else []
    return (
        task["name"] + fused,
        f"x{task['repeat']}",
        ", ".join([_tile(task["kind"], tiling), *anew, *early, *cut]),
        f"{task['cycles']:,.0f}",
        f"{task['lower_bound']:,}",
        "-" if task["gap"] is None else f"{task['gap']:.0%}",
        own["name"],
        "-" if tiling is None else format_bytes(tiling["read_bytes"] + tiling["write_bytes"]),
    )


def _tile(kind: str, tiling: dict[str, Any] | None) -> str:
    """One line for a tile's dimensions and the order of the loops over tiles."""
    if tiling is None:
        return "whole"
    if not tiling.keys() & {"m", "queries", "rows"}:
        return "by the channel"
    if kind == "gemm":
        stays = tiling["resident"] or tiling["order"] == "m_kept"
        kept = ("B" if tiling["order"] == "n_outer" else "A") + " kept" if stays else "reloaded"
        return f"{tiling['m']} x {tiling['n']} x {tiling['k']}, {tiling['order'][0]} outer, {kept}"
    if kind == "attention":
        return f"{tiling['queries']} queries x {tiling['heads']} heads, {tiling['keys']} keys"
    return f"{tiling['rows']} x {tiling['cols']}"


PLACED = {
    "heuristic": "each object by the time that a nearer level saves per byte",
    "exact": "the least time of all transfers, by constraint programming",
    "mapping": "as the mapping says",
}


def placement_table(objects: list[dict[str, Any]], by: str) -> Table:
    """What lies in which level of memory, the largest objects first."""
    lines = []
    for row in objects[:LISTED]:
        parts = row["levels"]
        where = ", ".join(
            f"{p['level']} {p['units']} of {row['units']}" if row["units"] > 1 else p["level"] for p in parts
        )
        moved = f"{row['moved_bytes'] / row['bytes']:.3g}" if row["bytes"] else "-"
        lines.append((f"{row['operator']} {row['role']}", format_bytes(row["bytes"]), moved, where))
    left = len(objects) - len(lines)
    title = f"placement, {PLACED[by]}"
    if left > 0:
        title += f" (the {LISTED} largest; {left} more in --json)"
    return table(title, [("object", "left"), ("size", "right"), ("moved / size", "right"), ("level", "left")], lines)
