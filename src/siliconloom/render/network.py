"""Collectives and communication programs over links, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.render.tables import Row, bold, table

SHOWN = 16
"""Operators, and links, that the terminal shows; all are in the JSON."""


def collective_tables(result: dict[str, Any], out: Console) -> None:
    """Print the time and the busiest links."""
    out.print(
        f"{bold(result['operation'])} of {format_bytes(result['bytes'])} over {result['chips']:,} chips of "
        f"{bold(result['system'])}"
    )
    rows: list[Row] = [("time", format_si(result["time_s"], "s"))]
    if (known := result["measured"]) is not None:
        below, above = (format_bytes(size) for size in known["between"])
        where = f"as measured at {below}" if below == above else f"between {below} and {above} as measured"
        rows.append(("", f"{where}; ±{known['error']:.0%} where a size is left out"))
        rows.append(("predicted", format_si(result["predicted_s"], "s")))
    rows += [
        ("lower bound", f"{format_si(result['lower_bound_s'], 's')}; {result['achieved']:.1%} of it reached"),
        ("bus bandwidth", format_si(result["bus_bandwidth"], "B/s")),
        ("algorithm", result["algorithm"] + (f" ({result['model']})" if "NCCL" in result["model"] else "")),
        ("messages", _messages(result)),
        ("simulated in", format_si(result["simulator"]["wall_s"], "s")),
    ]
    out.print(table("collective", [("", "left"), ("", "left")], rows))
    if len(result["tried"]) > 1:
        shown = [(n, format_si(s, "s")) for n, s in sorted(result["tried"].items(), key=lambda t: t[1])]
        out.print(table("algorithms, by the cost model", [("algorithm", "left"), ("cost", "right")], shown))
    link_table(result["links"], out)


def _messages(result: dict[str, Any]) -> str:
    sent, run = result["messages"], result["simulator"]["messages_run"]
    return f"{sent:,}" + (f"; {run:,} run, the others are equal to these" if run < sent else "")


def communication_tables(result: dict[str, Any], out: Console) -> None:
    """Print the time, the longest operators and the busiest links."""
    out.print(f"{bold(result['program'])} on {result['chips']:,} chips of {bold(result['system'])}")
    last = max(result["ranks"], key=lambda rank: rank["finish_s"])
    rows: list[Row] = [
        ("time", f"{format_si(result['time_s'], 's')}, until rank {last['rank']} is done"),
        ("lower bound", f"{format_si(result['lower_bound_s'], 's')}; {result['achieved']:.1%} of it reached"),
        (
            "messages",
            f"{result['messages']:,}"
            + (f", and {result['sent_again']:,} times one sent again" if result["sent_again"] else ""),
        ),
        ("simulated in", format_si(result["simulator"]["wall_s"], "s")),
    ]
    out.print(table("program", [("", "left"), ("", "left")], rows))
    _operation_table(result["operations"], out)
    link_table(result["links"], out)


def execution_trace_tables(result: dict[str, Any], out: Console) -> None:
    """Print the time, every rank's end, what kept the last one, the longest operators and the busiest links."""
    out.print(f"{bold(result['trace'])} on {result['chips']:,} chips of {bold(result['system'])}")
    last = max(result["ranks"], key=lambda rank: rank["finish_s"])
    rows: list[Row] = [
        ("time", f"{format_si(result['time_s'], 's')}, until rank {last['rank']} is done"),
        ("lower bound", f"{format_si(result['lower_bound_s'], 's')}; {result['achieved']:.1%} of it reached"),
        ("nodes", f"{result['nodes']:,}, {result['messages']:,} messages"),
        ("simulated in", format_si(result["simulator"]["wall_s"], "s")),
    ]
    out.print(table("execution trace", [("", "left"), ("", "left")], rows))
    ranks = sorted(result["ranks"], key=lambda rank: -rank["finish_s"])[:SHOWN]
    shown: list[Row] = [
        (str(r["rank"]), format_si(r["finish_s"], "s"), format_si(r["compute_s"], "s"))
        for r in sorted(ranks, key=lambda r: r["rank"])
    ]
    many = len(result["ranks"])
    title = "ranks" if many <= SHOWN else f"the {SHOWN} last of {many:,} ranks"
    out.print(table(title, [("rank", "left"), ("done", "right"), ("computes", "right")], shown))
    path = result["path"][-SHOWN:]
    steps: list[Row] = [
        (f"{p['rank']}.{p['node']}", p["name"], p["kind"], format_si(p["start_s"], "s"), format_si(p["end_s"], "s"))
        for p in path
    ]
    columns = [("rank.node", "left"), ("name", "left"), ("", "left"), ("from", "right"), ("to", "right")]
    title = "what kept the last rank" + (f", its last {SHOWN} nodes" if len(result["path"]) > SHOWN else "")
    out.print(table(title, columns, steps))
    if result["operations"]:
        _operation_table(result["operations"], out)
    link_table(result["links"], out)
    for note in result["notes"]:
        out.print(f"note: {note}")


def _operation_table(operations: Sequence[dict[str, Any]], out: Console) -> None:
    """Print the operators that took longest, in the order in which they began."""
    longest = sorted(operations, key=lambda o: o["start_s"] - o["end_s"])[:SHOWN]
    shown = [
        (
            o["operator"],
            o["group"] or ", ".join(map(str, o["ranks"])),
            o["algorithm"],
            format_bytes(o["bytes"]),
            format_si(o["start_s"], "s"),
            format_si(o["end_s"], "s"),
        )
        for o in sorted(longest, key=lambda o: o["start_s"])
    ]
    columns = [
        ("operator", "left"),
        ("ranks", "left"),
        ("algorithm", "left"),
        ("bytes", "right"),
        ("from", "right"),
        ("to", "right"),
    ]
    many = len(operations)
    out.print(table("operators" if many <= SHOWN else f"the {SHOWN} longest of {many:,} operators", columns, shown))


def link_table(links: Sequence[dict[str, Any]], out: Console) -> None:
    """Print the busiest links."""
    ordered = sorted(links, key=lambda link: -link["busy"])
    shown = [
        (f"{link['from']} to {link['to']}", format_bytes(link["bytes"]), f"{link['busy']:.1%}")
        for link in ordered[:SHOWN]
    ]
    title = "links" if len(links) <= SHOWN else f"the {SHOWN} busiest of {len(links):,} links"
    out.print(table(title, [("link", "left"), ("carried", "right"), ("busy", "right")], shown))
