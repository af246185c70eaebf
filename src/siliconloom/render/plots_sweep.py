"""Plots of sweeps with matplotlib: the front, parallel coordinates, tornado."""

from __future__ import annotations

from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.swept import SWEEP_SCHEMA, SweepResult, SweptMetric
from siliconloom.render.drawing import shortened_label
from siliconloom.render.sweep import figure_text, short_names
from siliconloom.render.sweep_page import BEST, LOST, REST, Scale, drawn_points, point_colour, spans_decades

LEVELS = 8
"""Values of a key that are written beside its line."""


def draw_sweep(kind: str, data: dict[str, Any], figure: Figure) -> None:
    """Draw a sweep's result on a figure.

    Raises
    ------
    NotSupported
        For results that are of no sweep, or that have not what is drawn.
    """
    if data.get("schema") != SWEEP_SCHEMA:
        raise NotSupported(f"{kind} of a result that is of no sweep; loom sweep --json and its file of results have it")
    result = msgspec.convert(data, SweepResult)
    if not any(point.state == "done" for point in result.points):
        raise NotSupported("a figure of a sweep without any point that has figures")
    {"pareto": _pareto, "parallel": _parallel, "tornado": _tornado}[kind](result, figure)
    asked = result.asked
    figure.suptitle(f"{asked.name}: {asked.workload} on {asked.machine}".replace("$", r"\$"), fontsize="medium")


def _logarithmic(axes: Axes, side: Axis) -> None:
    """Scale an axis by logarithms, with numbers at powers of ten alone."""
    (axes.set_xscale if side is axes.xaxis else axes.set_yscale)("log")
    side.set_minor_formatter(NullFormatter())


def _labelled(metric: SweptMetric) -> str:
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def _pareto(result: SweepResult, figure: Figure) -> None:
    """The first two objectives of all points; of two, the front is a staircase, as nothing is between two designs."""
    if len(result.asked.objectives) < 2:
        raise NotSupported("a front of one objective; --kind parallel and tornado show such a sweep")
    across, up = result.asked.objectives[:2]
    axes, front = figure.subplots(), set(result.front)
    points = drawn_points(result)
    for label, shade in (("break a constraint", LOST), ("others", REST), ("on the front", BEST)):
        own = [point for point in points if point_colour(point, front) == shade]
        if own:
            xs, ys = ([point.metrics[metric.name] for point in own] for metric in (across, up))
            axes.scatter(xs, ys, color=shade, s=22 if shade == BEST else 9, label=label, zorder=2 + (shade == BEST))
    if len(result.asked.objectives) == 2 and front:
        line = sorted((p.metrics[across.name], p.metrics[up.name]) for p in points if p.number in front)
        axes.step(
            [x for x, _ in line],
            [y for _, y in line],
            where="post" if across.less_is_better else "pre",
            color=BEST,
            linewidth=1,
        )
    for metric, side in ((across, axes.xaxis), (up, axes.yaxis)):
        if spans_decades([point.metrics[metric.name] for point in points]):
            _logarithmic(axes, side)
    axes.set_xlabel(_labelled(across))
    axes.set_ylabel(_labelled(up))
    axes.legend(fontsize="small", frameon=False)


def _parallel(result: SweepResult, figure: Figure) -> None:
    """A line a point across its keys, at equal steps from value to value, and its objectives."""
    axes, front, points = figure.subplots(), set(result.front), drawn_points(result)
    keys, metrics = result.asked.keys, result.asked.objectives
    names = short_names(key.path for key in keys)
    columns: list[list[float]] = []
    for x, key in enumerate(keys):
        places = {value: n / max(len(key.values) - 1, 1) for n, value in enumerate(key.values)}
        columns.append([places[point.values[key.path]] for point in points])
        for value in key.values[:: max(1, -(-len(key.values) // LEVELS))]:
            _written(axes, x, places[value], shortened_label(value, 14))
    for x, metric in enumerate(metrics, len(keys)):
        scale = Scale([point.metrics[metric.name] for point in points], 0.0, 1.0)
        columns.append([scale.at(point.metrics[metric.name]) for point in points])
        for tick in scale.ticks():
            _written(axes, x, scale.at(tick), figure_text(metric, tick))
    for number, point in enumerate(points):
        on = point.number in front
        axes.plot(
            range(len(columns)),
            [column[number] for column in columns],
            color=point_colour(point, front),
            linewidth=1.4 if on else 0.5,
            alpha=0.9 if on else 0.35,
        )
    labels = [*(names[key.path] for key in keys), *(metric.name for metric in metrics)]
    axes.set_xticks(range(len(labels)), [shortened_label(label, 18).replace("$", r"\$") for label in labels])
    axes.tick_params(axis="x", labelsize="small", length=0)
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    for x in range(len(labels)):
        axes.axvline(x, color="0.5", linewidth=0.6, zorder=1)


def _written(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x + 0.03, y, text.replace("$", r"\$"), fontsize="x-small", va="center")


def _tornado(result: SweepResult, figure: Figure) -> None:
    """Of each objective the range of every key's means, all other keys equal, around the mean of its points."""
    if not result.effects:
        why = [note for note in result.notes if note.startswith("no tornado")]
        search = result.asked.method in ("nsga2", "tpe")
        text = "a search's points crowd where it looked" if search else why[0] if why else "no key has two values"
        raise NotSupported(f"a tornado of this sweep: {text}")
    metrics = result.asked.objectives
    names = short_names(key.path for key in result.asked.keys)
    figure.set_size_inches(7, 1 + sum(0.5 + 0.3 * len(result.asked.keys) for _ in metrics))
    drawn = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for axes, metric in zip(drawn, metrics, strict=True):
        bars = [bar for bar in result.effects if bar.objective == metric.name]
        low, high = min(bar.least for bar in bars), max(bar.most for bar in bars)
        for y, bar in enumerate(bars):
            if bar.most > bar.least:
                axes.barh(y, bar.most - bar.least, left=bar.least, height=0.7, color=REST)
            texts = ((bar.least, bar.least_at, "right"), (bar.most, bar.most_at, "left"))
            for value, at, side in texts if bar.most > bar.least else ((bar.most, "no effect", "left"),):
                text = f" {shortened_label(at, 14)} ".replace("$", r"\$")
                axes.text(value, y, text, fontsize="x-small", va="center", ha=side)
            axes.plot([bar.mean, bar.mean], [y - 0.35, y + 0.35], color="black", linewidth=1)
        if low > 0 and high / low > 10:
            _logarithmic(axes, axes.xaxis)
            axes.set_xlim(low / (high / low) ** 0.25, high * (high / low) ** 0.25)
        else:
            room = (high - low or abs(high) or 1.0) * 0.25
            axes.set_xlim(low - room, high + room)
        axes.set_yticks(range(len(bars)), [names[bar.key].replace("$", r"\$") for bar in bars])
        axes.invert_yaxis()
        axes.set_xlabel(_labelled(metric))


__all__ = ["draw_sweep"]
