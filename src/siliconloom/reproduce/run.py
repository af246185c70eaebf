"""Runs cards and shows them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.markup import escape

from siliconloom import __version__
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.reproduce import CARDS
from siliconloom.reproduce.card import Card, Row
from siliconloom.tables import table

SCHEMA = "siliconloom.reproduction/1"
SINGLE = 4
"""Rows of one kind up to which each is shown; more are shown as one line with the worst of them."""


def load_card(name: str) -> Card:
    """Derive a card's rows; raises `LoomError` for a name that no card has."""
    if name not in CARDS:
        near = nearest_name(name, CARDS)
        hint = f"did you mean '{near}'?" if near else "known: " + ", ".join(sorted(CARDS))
        raise LoomError(f"{name}: no published result of that name is reproduced; {hint}")
    made = import_module(CARDS[name]).card()
    assert isinstance(made, Card)
    return made


def reproduce(names: Sequence[str] = ()) -> dict[str, Any]:
    """Derive the named cards, or all, under the versioned schema."""
    return {"schema": SCHEMA, "version": __version__, "cards": [_result(name) for name in names or sorted(CARDS)]}


def _result(name: str) -> dict[str, Any]:
    began = time.perf_counter()
    card = load_card(name)
    rows = [
        {
            "name": row.name, "ours": row.ours, "published": row.published, "error": row.error,
            "tolerance": row.tolerance, "within": row.within, "cause": row.cause,
        }
        for row in card.rows
    ]  # fmt: skip
    wall = time.perf_counter() - began
    return {
        "card": card.name, "title": card.title, "source": card.source, "rows": rows, "holds": card.holds,
        "wall_s": wall,
    }  # fmt: skip


def broken(result: dict[str, Any]) -> list[str]:
    """Names of the rows outside their tolerance for which no cause is named."""
    return [
        f"{card['card']}: {row['name']}"
        for card in result["cards"]
        for row in card["rows"]
        if not row["within"] and not row["cause"]
    ]


def reproduction_tables(result: dict[str, Any], out: Console) -> None:
    """Print each card; rows of one kind that all hold are one line with the worst of them."""
    for number, card in enumerate(result["cards"]):
        if number:
            out.print()
        rows = card["rows"]
        inside = sum(row["within"] for row in rows)
        out.print(f"[bold]{card['card']}[/bold]  {card['title']}")
        out.print(f"  {card['source']}", style="dim")
        causes: list[str] = []
        lines = [_line(name, row, causes) for name, row in _shown(rows)]
        columns = [("quantity", "left"), ("ours", "right"), ("published", "right"), ("error", "right"),
                   ("allowed", "right"), ("", "left")]  # fmt: skip
        out.print(table(f"{inside} of {len(rows)} rows inside their tolerance", columns, lines))
        for place, cause in enumerate(causes, 1):
            out.print(f"  {place}) {escape(cause)}")


def _shown(rows: Iterable[dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    kinds: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault((row["name"].partition(" [")[0], row["within"]), []).append(row)
    for (kind, _), group in kinds.items():
        if len(group) <= SINGLE:
            yield from ((row["name"], row) for row in group)
        else:
            worst = max(group, key=lambda row: abs(row["error"] or 0.0))
            place = worst["name"].removeprefix(kind).strip()
            yield f"{kind} ({len(group)} rows, worst {place})", worst


def _line(name: str, row: dict[str, Any], causes: list[str]) -> tuple[str, ...]:
    verdict = "ok"
    if not row["within"]:
        verdict = "OUTSIDE"
        if row["cause"]:
            if row["cause"] not in causes:
                causes.append(row["cause"])
            verdict = f"cause {causes.index(row['cause']) + 1})"
    return (
        escape(name),
        "-" if row["ours"] is None else f"{row['ours']:.4g}",
        f"{row['published']:.4g}",
        "-" if row["error"] is None else f"{row['error']:+.2%}",
        _allowed(row),
        verdict,
    )


def _allowed(row: dict[str, Any]) -> str:
    """The tolerance, or on which side of the published figure ours may lie as far as it will."""
    if row["within"] and abs(row["error"]) > row["tolerance"]:
        return "at most" if row["error"] < 0 else "at least"
    return f"{row['tolerance']:.1%}"


__all__ = ["SCHEMA", "Row", "broken", "load_card", "reproduce", "reproduction_tables"]
