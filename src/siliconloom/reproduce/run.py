"""Runs cards and shows them."""

from __future__ import annotations

import csv
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from siliconloom import __version__
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.processes import cores
from siliconloom.render.tables import bold, table
from siliconloom.reproduce import CARDS
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.workers import results

SCHEMA = "siliconloom.reproduction/1"
EXPECTED = Path(__file__).with_name("expected.csv")
LONG = ("neupims", "neupims-simulator", "sn40l", "apex", "nanoflow", "flux-comet", "pim-gpt", "megatron", "distserve")
"""Cards that take half a second or more, the longest first."""
SINGLE = 4
"""Rows of one kind up to which each is shown; more are shown as one line with the worst of them."""


def check_cards(names: Sequence[str]) -> list[str]:
    """The cards that are asked for, each once, or all in order; raises `LoomError` for a name that no card has."""
    for name in names:
        if name not in CARDS:
            near = nearest_name(name, CARDS)
            hint = f"did you mean '{near}'?" if near else "known: " + ", ".join(sorted(CARDS))
            raise LoomError(f"{name}: no published result of that name is reproduced; {hint}")
    return list(dict.fromkeys(names)) or sorted(CARDS)


def load_card(name: str) -> Card:
    """Derive a card's rows; raises `LoomError` for a name that no card has."""
    check_cards([name])
    made = import_module(CARDS[name]).card()
    assert isinstance(made, Card)
    expected = expected_errors()
    return replace(made, rows=tuple(replace(row, expected=expected.get((name, row.name))) for row in made.rows))


@cache
def expected_errors() -> dict[tuple[str, str], float]:
    """Errors of the rows that no tolerance holds, by card and row; ``python -m tests.golden.cards`` writes them."""
    with EXPECTED.open(encoding="utf-8", newline="") as file:
        return {(line["card"], line["row"]): float(line["error"]) for line in csv.DictReader(file)}


def reproduce(names: Sequence[str] = ()) -> dict[str, Any]:
    """Derive the named cards, or all, under the versioned schema."""
    chosen = check_cards(names)
    return gathered(chosen, list(derive(chosen)))


def derive(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The result of each card when it is there: on all cores, one of which has the short cards first."""
    ordered = shortest_first(names)
    if len(names) < 2 or cores() < 2:
        yield from map(card_result, ordered)
    else:
        yield from results(ordered, cores())


def shortest_first(names: Sequence[str]) -> list[str]:
    """Cards of less than half a second in the order asked for, then the others by what they take."""
    return sorted(names, key=lambda name: -LONG.index(name) if name in LONG else -len(LONG))


def gathered(names: Sequence[str], done: Sequence[dict[str, Any]], *, interrupted: bool = False) -> dict[str, Any]:
    """The cards that are done in the order of ``names``, under the versioned schema."""
    ordered = sorted(done, key=lambda card: names.index(card["card"]))
    return {"schema": SCHEMA, "version": __version__, "interrupted": interrupted, "cards": ordered}


def card_result(name: str) -> dict[str, Any]:
    """A card as data: its rows with their verdicts, and how long it took."""
    began = time.perf_counter()
    card = load_card(name)
    rows = [
        {
            "name": row.name,
            "ours": row.ours,
            "published": row.published,
            "error": row.error,
            "tolerance": row.tolerance,
            "within": row.within,
            "cause": row.cause,
            "expected": row.expected,
            "verdict": row.verdict,
        }
        for row in card.rows
    ]
    wall = time.perf_counter() - began
    return {
        "card": card.name,
        "title": card.title,
        "source": card.source,
        "rows": rows,
        "holds": card.holds,
        "wall_s": wall,
    }


def serve() -> None:
    """What a process of `siliconloom.reproduce.workers` does: read a name, write a result, until there are no more."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a card that prints would spoil the lines
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"result": card_result(line.strip())}
        except Exception as error:
            answer = {"error": f"{'' if isinstance(error, LoomError) else type(error).__name__ + ': '}{error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _end_with(parent: int) -> None:
    """End this process soon after the one that asked for its work, which may have been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def broken(result: dict[str, Any]) -> list[str]:
    """Rows that do not hold, each with what is wrong: no cause, or not where the cause puts it."""
    return [
        f"{card['card']}: {row['name']}{_moved(row)}"
        for card in result["cards"]
        for row in card["rows"]
        if row["verdict"] in ("moved", "outside")
    ]


def _moved(row: dict[str, Any]) -> str:
    if row["verdict"] != "moved":
        return ""
    kept = "no error is kept for it" if row["expected"] is None else f"{row['expected']:+.2%} is expected"
    return f" (error {row['error']:+.2%}, {kept})"


def card_tables(card: dict[str, Any], out: Console) -> None:
    """Print a card; rows of one kind that all hold are one line with the worst of them."""
    rows = card["rows"]
    out.print(f"{bold(card['card'])}  {card['title']}")
    out.print(f"  {card['source']}", style="dim")
    causes: list[str] = []
    lines = [_line(name, row, causes) for name, row in _shown(rows)]
    columns = [
        ("quantity", "left"),
        ("ours", "right"),
        ("published", "right"),
        ("error", "right"),
        ("allowed", "right"),
        ("", "left"),
    ]
    out.print(table(_count(rows), columns, lines))
    for place, cause in enumerate(causes, 1):
        out.print(f"  {place}) {cause}")


def _count(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows stand how; bounds and explained rows are not counted as reproduced."""
    compared = [row for row in rows if row["verdict"] != "bound"]
    counts = Counter(row["verdict"] for row in rows)
    others = [f"{counts[name]} {name}" for name in ("explained", "not modelled", "moved", "outside") if counts[name]]
    if counts["bound"]:
        others.append(f"{counts['bound']} bounds respected")
    if not compared:
        return ", ".join(others)
    return ", ".join([f"{counts['inside']} of {len(compared)} rows inside their tolerance", *others])


def _shown(rows: Iterable[dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault((row["name"].partition(" [")[0], row["verdict"]), []).append(row)
    for (kind, _), group in kinds.items():
        if len(group) <= SINGLE:
            yield from ((row["name"], row) for row in group)
        else:
            worst = max(group, key=lambda row: abs(row["error"] or 0.0))
            place = worst["name"].removeprefix(kind).strip()
            yield f"{kind} ({len(group)} rows, worst {place})", worst


def _line(name: str, row: dict[str, Any], causes: list[str]) -> tuple[str, ...]:
    verdict = {"inside": "ok", "bound": "bound", "moved": "MOVED", "outside": "OUTSIDE"}.get(row["verdict"], "")
    if row["cause"] and not row["within"]:
        if row["cause"] not in causes:
            causes.append(row["cause"])
        verdict = f"{verdict} cause {causes.index(row['cause']) + 1})".lstrip()
    return (
        name,
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


__all__ = [
    "SCHEMA",
    "CardRow",
    "broken",
    "card_tables",
    "check_cards",
    "derive",
    "gathered",
    "load_card",
    "reproduce",
    "serve",
]
