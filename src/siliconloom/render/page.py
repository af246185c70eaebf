"""Pages of results: one file of HTML with its own style, script and data, which fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from colorsys import hls_to_rgb
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader
from msgspec import Struct

from siliconloom.arch.quantity import four_digits

TEMPLATES = files("siliconloom.render") / "templates"
COLOURS = {
    "busy": "#2a9d5c",
    "compute": "#2a6fbb",
    "memory": "#d1742c",
    "vector": "#8b5fbf",
    "operands": "#c9a227",
    "buffer": "#7d9db5",
    "dependency": "#b0413e",
    "memory port": "#d1742c",
    "stationary load": "#5b8e7d",
    "instruction": "#9a9a9a",
    "drain": "#6d6875",
    "queue full": "#b5a58b",
    "finished": "#c9ced6",
    "array": "#2a6fbb",
    "scratchpad": "#5b8e7d",
    "accumulator": "#b0413e",
    "link": "#c9a227",
    "links": "#c9a227",
    "bank": "#3f8f88",
    "roofline": "#2a6fbb",
}
PALETTE = ("#2a6fbb", "#d1742c", "#2a9d5c", "#8b5fbf", "#c9a227", "#b0413e", "#5b8e7d", "#6d6875")


def colour(name: str) -> str:
    """Colour of a category; names without one get a fixed colour of the palette."""
    return COLOURS.get(name, PALETTE[sum(map(ord, name)) % len(PALETTE)])


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Different colours of names, in their order: those of the palette, then others around the circle of hues."""
    found = list(dict.fromkeys(names))
    shades = [*PALETTE, *(_hue(n) for n in range(len(found) - len(PALETTE)))]
    return dict(zip(found, shades, strict=False))


def _hue(number: int) -> str:
    red, green, blue = hls_to_rgb(number * 0.618034 % 1, 0.35 + 0.3 * (number % 2), 0.45)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


class BarPart(Struct, frozen=True):
    """A part of a bar: its length of the chart's width, its colour, and what is told of it."""

    share: float
    colour: str
    title: str = ""


class PageBar(Struct, frozen=True):
    """A row of a bar chart.

    Parameters
    ----------
    label, text
        Before and behind the bar.
    parts
        One after the other.
    whisker
        From where to where a line lies over the bar, of the chart's width.
    first
        Whether a group begins.
    """

    label: str
    text: str
    parts: tuple[BarPart, ...]
    whisker: tuple[float, float] | None = None
    first: bool = False


class PageColumn(Struct, frozen=True):
    """A column of a table: its heading, and whether it is text."""

    name: str
    left: bool = False


class PageCell(Struct, frozen=True):
    """A cell of a table: its text, the number that it is sorted and saved by, and what else is told of it."""

    text: str
    value: float | None = None
    title: str = ""


class PageTable(Struct, frozen=True):
    """A table that is sorted by its headings: its identity on the page, what it is called, columns and rows."""

    id: str
    title: str
    columns: tuple[PageColumn, ...]
    rows: tuple[tuple[PageCell, ...], ...]


class ChartData(Struct, frozen=True):
    """What a bar chart shows, as rows that can be saved."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]


def bars(rows: Sequence[tuple[str, float, str, str]]) -> tuple[PageBar, ...]:
    """Bars of (label, length from 0 to 1, text, category): the longest fills the width."""
    longest = max((length for _, length, _, _ in rows), default=1.0) or 1.0
    return tuple(
        PageBar(label, text, (BarPart(length / longest, colour(category), f"{label}: {text}"),))
        for label, length, text, category in rows
    )


def legend_of(categories: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Each category once, with its colour."""
    return tuple((name, colour(name)) for name in dict.fromkeys(categories))


def rates(result: dict[str, Any]) -> str:
    """Images and tokens a second of a step, in brackets; nothing of a list of operators, which has neither."""
    images = result.get("images_per_second")
    found = [f"{four_digits(images)} images/s"] if images is not None else []
    if result["asked"]["sequence"] is not None:
        found.append(f"{four_digits(result['tokens_per_second'])} tokens/s")
    return f" ({', '.join(found)})" if found else ""


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("siliconloom.render", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )


def page(template: str, data: dict[str, Any], charts: dict[str, ChartData], **shown: Any) -> str:
    """A page from one of the templates.

    Parameters
    ----------
    template
        Name of its file without the ending; it extends ``page.html.j2``.
    data
        Of each figure with a canvas, by its identity, what the page's script draws.
    charts
        Of each bar chart, by its name, what it shows.
    shown
        What the template reads.
    """
    embedded = {**data, "charts": {name: {"columns": c.columns, "rows": c.rows} for name, c in charts.items()}}
    text = json.dumps(embedded, separators=(",", ":"), allow_nan=False)
    # nothing in a name may end the element that the data stands in
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return (
        _environment()
        .get_template(f"{template}.html.j2")
        .render(
            css=(TEMPLATES / "page.css").read_text("utf-8"),
            script=(TEMPLATES / "page.js").read_text("utf-8"),
            data=text,
            **shown,
        )
    )


__all__ = [
    "BarPart",
    "ChartData",
    "PageBar",
    "PageCell",
    "PageColumn",
    "PageTable",
    "bars",
    "colour",
    "legend_of",
    "page",
    "rates",
]
