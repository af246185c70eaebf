"""A sweep as a self-contained HTML page: the front, parallel coordinates, tornado, sensitivity, tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from jinja2 import Environment

from siliconloom.arch.swept import SweepResult, SweptMetric, SweptPoint
from siliconloom.render.drawing import WIDTH, drawing, shortened_label, text_at
from siliconloom.render.page import TEMPLATES
from siliconloom.render.sweep import figure_text, heading, point_rows, short_names, summary_lines

MOST_LINES = 1000
"""Points that are drawn as lines: those of the front, and others evenly from all."""
TICKS = 4
REST, BEST, LOST = "#9aa7b8", "#d1495b", "#c9b458"
"""Colours of points, of those on the front, and of those that break a constraint."""


class Scale:
    """Where values stand between two ends: by their logarithm where they span more than a factor of ten."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = min(values), max(values)
        self.log = self.low > 0 and self.high / self.low > 10
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Values to write beside the axis."""
        shares = [n / (TICKS - 1) for n in range(TICKS)] if self.high > self.low else [0.0]
        if self.log:
            return [self.low * (self.high / self.low) ** share for share in shares]
        return [self.low + share * (self.high - self.low) for share in shares]


def sweep_html(result: SweepResult) -> str:
    """The page."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((TEMPLATES / "sweep.html.j2").read_text("utf-8"))
    paths = [key.path for key in result.asked.keys]
    names = short_names(paths)
    by = {point.number: point for point in result.points}
    front = [by[number] for number in result.front]
    metrics = result.asked.objectives
    return template.render(
        result=result,
        asked=result.asked,
        summary=summary_lines(result),
        scatter=scatter(result),
        coordinates=parallel_coordinates(result),
        tornados=[(metric.name, tornado(result, metric)) for metric in metrics],
        columns=["point", *(names[path] for path in paths), *map(heading, metrics)],
        front=point_rows(front, paths, metrics),
        sensitivity=[
            (
                names[s.key],
                s.objective,
                f"{s.first:.3f} ± {s.first_confidence:.3f}" if s.first is not None else f"{s.mu_star:.4g}",
                f"{s.total:.3f} ± {s.total_confidence:.3f}" if s.total is not None else f"{s.sigma:.4g}",
            )
            for s in result.sensitivity
        ],
        sobol=any(s.total is not None for s in result.sensitivity),
        breaks=[(names[b.key], b.smaller, b.larger, f"+{b.worse:.1%}") for b in result.monotone[:50]],
        failed=[(p.number, ", ".join(f"{names[q]}={p.values[q]}" for q in paths), p.why) for p in _failed(result)[:50]],
        failures=len(_failed(result)),
    )


def _failed(result: SweepResult) -> list[SweptPoint]:
    return [point for point in result.points if point.state == "failed"]


def _drawn(result: SweepResult) -> list[SweptPoint]:
    """Points to draw, those of the front last, over the others."""
    done = [point for point in result.points if point.state == "done"]
    front = set(result.front)
    rest = [point for point in done if point.number not in front]
    every = max(1, -(-len(rest) // MOST_LINES))
    by = {point.number: point for point in done}
    return [*rest[::every], *(by[number] for number in result.front)]


def _colour(point: SweptPoint, front: set[int]) -> str:
    return BEST if point.number in front else REST if point.feasible else LOST


def _told(result: SweepResult, point: SweptPoint) -> str:
    """What a point says when it is pointed at."""
    values = [f"{key.path} = {point.values[key.path]}" for key in result.asked.keys]
    figures = [f"{m.name} {figure_text(m, point.metrics[m.name])}" for m in result.asked.objectives]
    return escape("\n".join([f"point {point.number}", *values, *figures]))


def scatter(result: SweepResult) -> str:
    """The first two objectives of all points; of one objective, it over the order of points."""
    points = _drawn(result)
    if not points:
        return ""
    metrics, front = result.asked.objectives, set(result.front)
    down = metrics[0]
    left, top, wide, high = 90, 14, WIDTH - 110, 330
    if len(metrics) > 1:
        across: SweptMetric | None = metrics[0]
        down = metrics[1]
        xs = [point.metrics[metrics[0].name] for point in points]
    else:
        across, xs = None, [float(point.number) for point in points]
    ys = [point.metrics[down.name] for point in points]
    x, y = Scale(xs, left + 10, left + wide - 10), Scale(ys, top + high - 10, top + 10)
    x.log = x.log and across is not None
    parts = [f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="var(--line)"/>']
    for tick in y.ticks():
        parts.append(text_at(left - 6, y.at(tick) + 4, figure_text(down, tick), "end"))
    for tick in x.ticks():
        text = figure_text(across, tick) if across is not None else f"{tick:.0f}"
        parts.append(text_at(x.at(tick), top + high + 16, text, "middle"))
    parts.append(text_at(left + wide / 2, top + high + 34, heading(across) if across else "point", "middle"))
    parts.append(text_at(left + 6, top - 3, heading(down)))
    if len(metrics) == 2 and front:  # of more, points of the front are no line of two of them
        line = sorted((x.at(a), y.at(b)) for a, b, p in zip(xs, ys, points, strict=True) if p.number in front)
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{BEST}" stroke-opacity=".5"/>')
    for point, a, b in zip(points, xs, ys, strict=True):
        size = 4.5 if point.number in front else 2.8
        parts.append(
            f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="{size}" fill="{_colour(point, front)}" '
            f'fill-opacity=".8">'
            f"<title>{_told(result, point)}</title></circle>"
        )
    return drawing(top + high + 42, parts)


def parallel_coordinates(result: SweepResult) -> str:
    """A line a point across its keys, at equal steps from value to value, and its objectives."""
    points = _drawn(result)
    if not points:
        return ""
    keys, metrics, front = result.asked.keys, result.asked.objectives, set(result.front)
    names = short_names(key.path for key in keys)
    left, right, top, high = 60, 90, 34, 300
    step = (WIDTH - left - right) / max(len(keys) + len(metrics) - 1, 1)
    parts: list[str] = []
    columns: list[list[float]] = []
    for number, key in enumerate(keys):
        x, levels = left + number * step, len(key.values)
        places = {v: top + high - (n / max(levels - 1, 1)) * high for n, v in enumerate(key.values)}
        columns.append([places[point.values[key.path]] for point in points])
        parts += _axis(x, top, high, names[key.path])
        every = max(1, -(-levels // 8))
        parts += [text_at(x + 4, places[v] + 4, shortened_label(v, 12)) for v in key.values[::every]]
    for number, metric in enumerate(metrics, len(keys)):
        x = left + number * step
        scale = Scale([point.metrics[metric.name] for point in points], top + high, top)
        columns.append([scale.at(point.metrics[metric.name]) for point in points])
        parts += _axis(x, top, high, heading(metric))
        parts += [text_at(x + 4, scale.at(tick) + 4, figure_text(metric, tick)) for tick in scale.ticks()]
    lines = []
    for number, point in enumerate(points):
        path = " ".join(f"{left + n * step:.1f},{column[number]:.1f}" for n, column in enumerate(columns))
        on = point.number in front
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{_colour(point, front)}" '
            f'stroke-width="{1.8 if on else 0.7}" '
            f'stroke-opacity="{0.9 if on else 0.35}"><title>{_told(result, point)}</title></polyline>'
        )
    return drawing(top + high + 12, [*lines, *parts])


def _axis(x: float, top: float, high: float, name: str) -> list[str]:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + high}" stroke="currentColor" stroke-opacity=".5"/>'
    return [line, text_at(x, top - 14, shortened_label(name, 18), "middle")]


def tornado(result: SweepResult, metric: SweptMetric) -> str:
    """The range of each key's means around the mean of all points, the longest first."""
    bars = [bar for bar in result.effects if bar.objective == metric.name]
    if not bars:
        return ""
    names = short_names(key.path for key in result.asked.keys)
    left, wide, step = 180, WIDTH - 440, 26
    low, high = min(bar.least for bar in bars), max(bar.most for bar in bars)
    scale = Scale([low, high], left + 110, left + 110 + wide)
    parts = []
    for number, bar in enumerate(bars):
        y, first, last = 6 + number * step, scale.at(bar.least), scale.at(bar.most)
        parts.append(text_at(left - 8, y + 15, shortened_label(names[bar.key], 26), "end"))
        parts.append(
            f'<rect x="{first:.1f}" y="{y}" width="{max(last - first, 1):.1f}" height="19" fill="{REST}" rx="2"/>'
        )
        text = shortened_label(f"{figure_text(metric, bar.least)} ({bar.least_at})", 22)
        parts.append(text_at(first - 5, y + 14, text, "end"))
        parts.append(text_at(last + 5, y + 14, shortened_label(f"{figure_text(metric, bar.most)} ({bar.most_at})", 22)))
    middle = scale.at(min(max(bars[0].mean, low), high))
    height = 6 + len(bars) * step
    parts.append(f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="0" y2="{height}" stroke="currentColor"/>')
    return drawing(height + 4, parts)


__all__ = ["Scale", "parallel_coordinates", "scatter", "sweep_html", "tornado"]
