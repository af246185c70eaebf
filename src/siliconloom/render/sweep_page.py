"""A sweep as a self-contained HTML page: the front, parallel coordinates, tornado, sensitivity, tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape

from siliconloom import __version__
from siliconloom.arch.swept import SweepResult, SweptMetric, SweptPoint
from siliconloom.render.drawing import WIDTH, drawing, shortened_label, text_at
from siliconloom.render.page import ChartData, PageCell, PageColumn, PageTable, page
from siliconloom.render.sweep import figure_text, heading, points_text, short_names, summary_lines

MOST_LINES = 1000
"""Points that are drawn as lines: those of the front, and others evenly from all."""
MOST_POINTS = 10_000
"""Points in the data of a page: about a megabyte."""
MOST_ROWS = 50
"""Rows of a table of what failed, or of where a better machine takes more time."""
TICKS = 4
REST, BEST, LOST = "#9aa7b8", "#d1495b", "#c9b458"
"""Colours of points, of those on the front, and of those that break a constraint."""


def spans_decades(values: Sequence[float]) -> bool:
    """Whether values are positive and more than a factor of ten apart."""
    return min(values) > 0 and max(values) / min(values) > 10


class Scale:
    """Where values stand between two ends: by their logarithm where they span more than a factor of ten."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = min(values), max(values)
        self.log = spans_decades(values)
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
    asked = result.asked
    paths = [key.path for key in asked.keys]
    metrics = asked.objectives
    tornados = [(metric, tornado(result, metric)) for metric in metrics]
    effects = {
        f"effect-{number}": ChartData(
            ("key", "least_at", "least", "most_at", "most", "points"),
            tuple(
                (b.key, b.least_at, b.least, b.most_at, b.most, b.points)
                for b in result.effects
                if b.objective == metric.name
            ),
        )
        for number, (metric, _) in enumerate(tornados)
    }
    legend = [("on the front", BEST), ("others", REST), *([("break a constraint", LOST)] if asked.constraints else [])]
    failed = _failed(result)
    return page(
        "sweep",
        {},
        {"points": _points(result), **effects},
        title=asked.name,
        headline=_headline(result),
        asked=_asked(result),
        overrides=asked.set,
        notes=[*result.notes, *_left_out(result)],
        tiles=_tiles(result),
        front_title="Pareto front" if len(metrics) > 1 else "Points",
        scatter=scatter(result),
        legend=legend,
        coordinates=parallel_coordinates(result),
        front=_front(result, paths),
        tornados=[(f"effect-{n}", heading(metric), chart) for n, (metric, chart) in enumerate(tornados)],
        sensitivity=_sensitivity(result),
        sobol=any(s.total is not None for s in result.sensitivity),
        breaks=_breaks(result),
        failed=_failures(failed, paths),
        failed_text=f"{len(failed):,} in all" + (f", the first {MOST_ROWS}." if len(failed) > MOST_ROWS else "."),
        version=__version__,
    )


def _asked(result: SweepResult) -> str:
    asked = result.asked
    seed = "" if asked.method == "grid" else f", seed {asked.seed}"
    served = "" if asked.trace is None else f", requests of {asked.trace}"
    return f"{asked.workload} on {asked.machine}{served}, {asked.method}{seed}"


def _headline(result: SweepResult) -> str:
    """What came of the points, in sentences."""
    counts = result.counts
    text = points_text(counts.distinct)
    if result.asked.constraints:
        text += f", of which {counts.feasible:,} keep{'s' * (counts.feasible == 1)} all constraints"
    if not result.front:
        return f"{text}. None of them is an answer."
    metrics = result.asked.objectives
    if len(metrics) > 1:
        text += (
            f": {len(result.front):,} {'is' if len(result.front) == 1 else 'are'} on the front, and no point is better "
        )
        text += f"in all of {', '.join(metric.name for metric in metrics)}."
    else:
        one = next(point for point in result.points if point.number == result.front[0])
        text += f": the best one, point {one.number}, has {heading(metrics[0])} "
        text += f"{figure_text(metrics[0], one.metrics[metrics[0].name])}."
    return text + ("" if result.complete else " The sweep is not complete.")


def _tiles(result: SweepResult) -> list[tuple[str, str]]:
    """Lines of the summary, and the best figure of each objective."""
    by = {point.number: point for point in result.points}
    tiles = []
    for metric in result.asked.objectives:
        found = [by[number].metrics[metric.name] for number in result.front]
        if found:
            best = min(found) if metric.less_is_better else max(found)
            tiles.append((figure_text(metric, best), f"best {heading(metric)}"))
    return [*tiles, *((text, label) for label, text in summary_lines(result))]


def _left_out(result: SweepResult) -> list[str]:
    """A note, where the page's data has not all points."""
    done, kept = sum(p.state == "done" for p in result.points), len(_points(result).rows)
    return [f"the page's data has {kept:,} of {done:,} points; loom show --csv F writes all"] if kept < done else []


def _points(result: SweepResult) -> ChartData:
    """Points that have figures, as rows that can be saved: the front, and of the others as many as a page holds."""
    paths, front = [key.path for key in result.asked.keys], set(result.front)
    done = [p for p in result.points if p.state == "done"]
    room = MOST_POINTS - sum(p.number in front for p in done)
    others = [p.number for p in done if p.number not in front]
    kept = front | set(others[: max(room, 0)])
    names = [metric.name for metric in result.asked.objectives]
    rows = tuple(
        (p.number, *(p.values[q] for q in paths), *(p.metrics[n] for n in names), "yes" if p.number in front else "no")
        for p in done
        if p.number in kept
    )
    return ChartData(("point", *paths, *names, "on_the_front"), rows)


def _front(result: SweepResult, paths: list[str]) -> PageTable:
    by = {point.number: point for point in result.points}
    names, metrics = short_names(paths), result.asked.objectives
    columns = [PageColumn("point"), *(PageColumn(names[q], True) for q in paths)]
    columns += [PageColumn(heading(metric)) for metric in metrics]
    rows = [
        (
            PageCell(str(point.number), point.number),
            *(PageCell(point.values[q]) for q in paths),
            *(PageCell(figure_text(m, point.metrics[m.name]), point.metrics[m.name]) for m in metrics),
        )
        for point in (by[number] for number in result.front)
    ]
    return PageTable("front", "front", tuple(columns), tuple(rows))


def _sensitivity(result: SweepResult) -> PageTable | None:
    if not result.sensitivity:
        return None
    names = short_names(key.path for key in result.asked.keys)
    sobol = any(s.total is not None for s in result.sensitivity)
    columns = [PageColumn("key", True), PageColumn("objective", True)]
    columns += map(PageColumn, ("alone", "with others") if sobol else ("mean size", "deviation"))
    rows = [
        (
            PageCell(names[s.key]),
            PageCell(s.objective),
            PageCell(f"{s.first:.3f} ± {s.first_confidence:.3f}", s.first)
            if s.first is not None
            else PageCell(f"{s.mu_star:.4g}", s.mu_star),
            PageCell(f"{s.total:.3f} ± {s.total_confidence:.3f}", s.total)
            if s.total is not None
            else PageCell(f"{s.sigma:.4g}", s.sigma),
        )
        for s in result.sensitivity
    ]
    return PageTable("sensitivity", "sensitivity", tuple(columns), tuple(rows))


def _breaks(result: SweepResult) -> PageTable | None:
    if not result.monotone:
        return None
    names = short_names(key.path for key in result.asked.keys)
    columns = tuple(PageColumn(name, name == "key") for name in ("key", "from", "to", "time", "points"))
    rows = [
        (
            PageCell(names[b.key]),
            PageCell(b.smaller),
            PageCell(b.larger),
            PageCell(f"+{b.worse:.1%}", b.worse),
            PageCell(f"{b.smaller_point} and {b.larger_point}"),
        )
        for b in result.monotone[:MOST_ROWS]
    ]
    return PageTable("breaks", "where a better machine takes more time", columns, tuple(rows))


def _failures(failed: list[SweptPoint], paths: list[str]) -> PageTable | None:
    if not failed:
        return None
    names = short_names(paths)
    rows = [
        (
            PageCell(str(p.number), p.number),
            PageCell(", ".join(f"{names[q]}={p.values[q]}" for q in paths)),
            PageCell(p.why or ""),
        )
        for p in failed[:MOST_ROWS]
    ]
    columns = (PageColumn("point"), PageColumn("keys", True), PageColumn("why", True))
    return PageTable("failed", "failed points", columns, tuple(rows))


def _failed(result: SweepResult) -> list[SweptPoint]:
    return [point for point in result.points if point.state == "failed"]


def drawn_points(result: SweepResult) -> list[SweptPoint]:
    """Points to draw, those of the front last, over the others."""
    done = [point for point in result.points if point.state == "done"]
    front = set(result.front)
    rest = [point for point in done if point.number not in front]
    every = max(1, -(-len(rest) // MOST_LINES))
    by = {point.number: point for point in done}
    return [*rest[::every], *(by[number] for number in result.front)]


def point_colour(point: SweptPoint, front: set[int]) -> str:
    return BEST if point.number in front else REST if point.feasible else LOST


def _told(result: SweepResult, point: SweptPoint) -> str:
    """What a point says when it is pointed at."""
    values = [f"{key.path} = {point.values[key.path]}" for key in result.asked.keys]
    figures = [f"{m.name} {figure_text(m, point.metrics[m.name])}" for m in result.asked.objectives]
    return escape("\n".join([f"point {point.number}", *values, *figures]))


def staircase(line: Sequence[tuple[float, float]], less_is_better: bool) -> list[tuple[float, float]]:
    """Corners between points of a front, by the first of their objectives: nothing lies between two designs.

    Parameters
    ----------
    less_is_better
        Of the first objective: up to the next point the best is the one before, else the next one.
    """
    found = list(line[:1])
    for (a, b), (c, d) in itertools.pairwise(line):
        found += [(c, b) if less_is_better else (a, d), (c, d)]
    return found


def scatter(result: SweepResult) -> str:
    """The first two objectives of all points; of one objective, it over the order of points."""
    points = drawn_points(result)
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
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in staircase(line, across is not None and across.less_is_better))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{BEST}" stroke-opacity=".5"/>')
    for point, a, b in zip(points, xs, ys, strict=True):
        size = 4.5 if point.number in front else 2.8
        parts.append(
            f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="{size}" fill="{point_colour(point, front)}" '
            f'fill-opacity=".8">'
            f"<title>{_told(result, point)}</title></circle>"
        )
    what = " over ".join(heading(m) for m in metrics[1::-1]) if across is not None else heading(down)
    return drawing(top + high + 42, parts, f"Scatter chart of the points: {what}.")


def parallel_coordinates(result: SweepResult) -> str:
    """A line a point across its keys, at equal steps from value to value, and its objectives."""
    points = drawn_points(result)
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
            f'<polyline points="{path}" fill="none" stroke="{point_colour(point, front)}" '
            f'stroke-width="{1.8 if on else 0.7}" '
            f'stroke-opacity="{0.9 if on else 0.35}"><title>{_told(result, point)}</title></polyline>'
        )
    return drawing(top + high + 12, [*lines, *parts], "Parallel coordinates: a line for each point.")


def _axis(x: float, top: float, high: float, name: str) -> list[str]:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + high}" stroke="currentColor" stroke-opacity=".5"/>'
    return [line, text_at(x, top - 14, shortened_label(name, 18), "middle")]


def tornado(result: SweepResult, metric: SweptMetric) -> str:
    """The range of each key's means, all other keys equal, around the mean of its points, the longest first."""
    bars = [bar for bar in result.effects if bar.objective == metric.name]
    if not bars:
        return ""
    names = short_names(key.path for key in result.asked.keys)
    left, wide, step = 170, WIDTH - 490, 26
    low, high = min(bar.least for bar in bars), max(bar.most for bar in bars)
    scale = Scale([low, high], left + 155, left + 155 + wide)
    parts = []
    for number, bar in enumerate(bars):
        y, first, last = 6 + number * step, scale.at(bar.least), scale.at(bar.most)
        parts.append(text_at(left - 8, y + 15, shortened_label(names[bar.key], 26), "end"))
        if bar.most == bar.least:
            parts.append(text_at(last + 5, y + 14, f"no effect: {figure_text(metric, bar.least)}"))
        else:
            parts.append(
                f'<rect x="{first:.1f}" y="{y}" width="{max(last - first, 1):.1f}" height="19" fill="{REST}" rx="2"/>'
            )
            least, most = (
                shortened_label(f"{figure_text(metric, value)} ({at})", 22)
                for value, at in ((bar.least, bar.least_at), (bar.most, bar.most_at))
            )
            parts.append(text_at(first - 5, y + 14, least, "end"))
            parts.append(text_at(last + 5, y + 14, most))
        middle = scale.at(bar.mean)
        line = f'x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - 2}" y2="{y + 21}"'
        parts.append(f'<line {line} stroke="currentColor"/>')
    height = 6 + len(bars) * step
    return drawing(height + 4, parts, f"Tornado chart: the range of {metric.name} over the values of each key.")


__all__ = [
    "Scale",
    "drawn_points",
    "parallel_coordinates",
    "point_colour",
    "scatter",
    "spans_decades",
    "staircase",
    "sweep_html",
    "tornado",
]
