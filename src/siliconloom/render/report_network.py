"""Messages over a network as a self-contained HTML page: a collective, a program, an execution trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.render.page import ChartData, PageCell, PageColumn, PageTable, bars, page

MOST_LINKS = 20_000
"""Links in a page, the busiest ones: half a megabyte."""
TIMES = {"time": "busy", "lower bound": "memory"}
"""Colours of what stands first among the times, as those of categories."""
MOST_ROWS = 500
"""Rows of a table: the longest operators, the busiest links."""


def link_map(links: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the page's script draws of links: names of nodes, and each link by its nodes' numbers; nothing of none."""
    if not links:
        return None
    nodes: dict[str, int] = {}
    for end in ("from", "to"):
        for link in links:
            nodes.setdefault(link[end], len(nodes))
    names = sorted(nodes, key=_in_order)
    number = {name: at for at, name in enumerate(names)}
    shown = sorted(links, key=lambda link: (-link["busy"], -link["bytes"]))[:MOST_LINKS]
    rows = [
        [number[x["from"]], number[x["to"]], round(x["bytes"]), float(f"{x['busy']:.6g}"), x["bandwidth"]]
        for x in shown
    ]
    return {"nodes": names, "links": rows}


def links_text(links: Sequence[Mapping[str, Any]], what: str) -> str:
    """A sentence above the map."""
    cut = len(links) - MOST_LINKS
    text = f"{what} Each square is a link from the node of its row to that of its column."
    return text + (f" {cut:,} links that are less busy are left out." if cut > 0 else "")


def step_links(messages: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As `link_map`, of a step whose messages were run over the links as an execution trace."""
    return None if messages is None else link_map(messages["links"])


def step_links_text(messages: Mapping[str, Any] | None, untold: str) -> str:
    """A sentence above the map of a step's links, or why there is no map."""
    if messages is None:
        return f"What the links carry is not told: {untold}." if untold else ""
    text = f"The step run as messages over the links takes {format_si(messages['time_s'], 's')}."
    return links_text(messages["links"], text)


def _in_order(name: str) -> tuple[bool, str, int]:
    """Chips first, by their numbers."""
    kind, _, number = name.rpartition(" ")
    return (kind != "chip", kind, int(number)) if number.isdigit() else (True, name, 0)


def network_html(result: Mapping[str, Any]) -> str:
    """The page of `loom collective`, whatever it ran."""
    what, asked = _what(result)
    times = _times(result)
    longest = max((seconds for _, seconds in times), default=0.0) or 1.0
    links = link_map(result["links"])
    shown = sorted(result["links"], key=lambda link: -link["busy"])
    found = [("ranks-table", "Ranks", _ranks(result["ranks"]))] if "ranks" in result else []
    if "path" in result:
        found.append(("path-table", "What kept the last rank", _path(result["path"])))
    if result.get("operations"):
        found.append(("operations-table", "Operators", _operations(result["operations"])))
    found.append(("links-table", "The busiest links" if len(shown) > MOST_ROWS else "All links", _links(shown)))
    return page(
        "network",
        {"links": links} if links else {},
        {"times": ChartData(("what", "seconds"), tuple(times))},
        title=f"{what} on {result['system']}",
        headline=_headline(result, shown),
        asked=asked,
        overrides={},
        notes=result.get("notes", []),
        tiles=_tiles(result),
        links=links,
        links_text=links_text(result["links"], f"What {result['messages']:,} messages put on the links."),
        time_bars=bars([(name, s / longest, format_si(s, "s"), TIMES.get(name, "buffer")) for name, s in times]),
        tables=found,
        version=result["version"],
    )


def _what(result: Mapping[str, Any]) -> tuple[str, str]:
    """What was run, and what is told of it."""
    over = f"{result['chips']:,} chips, {result['model']}"
    if "operation" in result:
        return f"{result['operation']} of {format_bytes(result['bytes'])}", f"{over}; algorithm {result['algorithm']}"
    return str(result.get("program") or result["trace"]), over


def _headline(result: Mapping[str, Any], ordered: Sequence[Mapping[str, Any]]) -> str:
    text = (
        f"It takes {format_si(result['time_s'], 's')}; {result['achieved']:.1%} of that is the lower bound, which no "
        "algorithm on these links can beat."
    )
    if ordered and ordered[0]["busy"]:
        one = ordered[0]
        text += f" The busiest link, {one['from']} to {one['to']}, carries {format_bytes(one['bytes'])}"
        text += f" and is busy {one['busy']:.1%} of the time."
    return text


def _tiles(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    tiles = [
        (format_si(result["time_s"], "s"), f"lower bound {format_si(result['lower_bound_s'], 's')}"),
        (f"{result['messages']:,}", "messages"),
        (f"{result['chips']:,}", "chips"),
        (format_bytes(sum(link["bytes"] for link in result["links"])), "over all links"),
    ]
    if "bus_bandwidth" in result:
        tiles.append((format_si(result["bus_bandwidth"], "B/s"), "bus bandwidth"))
    if result.get("sent_again"):
        tiles.append((f"{result['sent_again']:,}", "times a message was sent again"))
    return tiles


def _times(result: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The time and its bound, and what each algorithm costs, or when the last ranks are done."""
    times = [("time", result["time_s"]), ("lower bound", result["lower_bound_s"])]
    times += [(f"{name}, by the cost model", cost) for name, cost in result.get("tried", {}).items()]
    ranks = sorted(result.get("ranks", ()), key=lambda rank: -rank["finish_s"])[:16]
    return times + [(f"rank {r['rank']}", r["finish_s"]) for r in sorted(ranks, key=lambda r: r["rank"])]


def _seconds(value: float) -> PageCell:
    return PageCell(format_si(value, "s"), value)


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> PageTable:
    worked = any("compute_s" in rank for rank in ranks)
    columns = [PageColumn("rank"), PageColumn("done"), *[PageColumn("computes")] * worked]
    shown = sorted(ranks, key=lambda rank: -rank["finish_s"])[:MOST_ROWS]
    rows = [
        (PageCell(str(r["rank"]), r["rank"]), _seconds(r["finish_s"]), *([_seconds(r["compute_s"])] if worked else []))
        for r in shown
    ]
    return PageTable("ranks", "ranks", tuple(columns), tuple(rows))


def _path(path: Sequence[Mapping[str, Any]]) -> PageTable:
    names = (("rank", False), ("node", False), ("name", True), ("kind", True), ("from", False), ("to", False))
    rows = [
        (
            PageCell(str(p["rank"]), p["rank"]),
            PageCell(str(p["node"]), p["node"]),
            PageCell(p["name"]),
            PageCell(p["kind"]),
            _seconds(p["start_s"]),
            _seconds(p["end_s"]),
        )
        for p in path[-MOST_ROWS:]
    ]
    return PageTable("path", "what kept the last rank", tuple(PageColumn(*each) for each in names), tuple(rows))


def _operations(operations: Sequence[Mapping[str, Any]]) -> PageTable:
    names = (("operator", True), ("ranks", True), ("algorithm", True), ("bytes", False), ("from", False), ("to", False))
    longest = sorted(operations, key=lambda o: o["start_s"] - o["end_s"])[:MOST_ROWS]
    rows = [
        (
            PageCell(o["operator"]),
            PageCell(o["group"] or ", ".join(map(str, o["ranks"]))),
            PageCell(o["algorithm"] or "–"),
            PageCell(format_bytes(o["bytes"]), o["bytes"]),
            _seconds(o["start_s"]),
            _seconds(o["end_s"]),
        )
        for o in longest
    ]
    return PageTable("operations", "operators", tuple(PageColumn(*each) for each in names), tuple(rows))


def _links(ordered: Sequence[Mapping[str, Any]]) -> PageTable:
    names = (("from", True), ("to", True), ("carried", False), ("busy", False), ("bandwidth", False))
    rows = [
        (
            PageCell(x["from"]),
            PageCell(x["to"]),
            PageCell(format_bytes(x["bytes"]), x["bytes"]),
            PageCell(f"{x['busy']:.1%}", x["busy"]),
            PageCell(format_si(x["bandwidth"], "B/s"), x["bandwidth"]),
        )
        for x in ordered[:MOST_ROWS]
    ]
    return PageTable("link-rows", "links", tuple(PageColumn(*each) for each in names), tuple(rows))


__all__ = ["link_map", "links_text", "network_html", "step_links", "step_links_text"]
