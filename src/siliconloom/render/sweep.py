"""A sweep on the terminal: how far it is, the front, what each key does, and what is odd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.arch.swept import MonotoneBreak, SweepProgress, SweepResult, SweptConstraint, SweptMetric, SweptPoint
from siliconloom.render.tables import Screen, bold, format_seconds, plain_text, table

SHOWN_LIVE = 10
SHOWN_FRONT = 20
SHOWN_FAILED = 5
SHOWN_BREAKS = 8
BAR = 24
"""Characters of the longest bar."""


HEADED = ("tokens/s", "requests/s", "$/M tokens")
"""Units that stand in a heading and not behind every figure."""


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each key path by its shortest ending, of whole names, that no other path of these has."""
    known = list(dict.fromkeys(paths))
    found = {}
    for path in known:
        names = path.split(".")
        endings = [".".join(names[-count:]) for count in range(1, len(names) + 1)]
        found[path] = next(
            ending
            for ending in endings
            if ending == path or not any(o != path and (f".{o}").endswith(f".{ending}") for o in known)
        )
    return found


def figure_text(metric: SweptMetric, value: float) -> str:
    """A figure with its unit."""
    if metric.unit in ("s", "J", "W"):
        return format_si(value, metric.unit)
    if metric.unit == "B":
        return format_bytes(value)
    if metric.unit == "cycles":
        return f"{value:,.0f}"
    return f"{four_digits(value)}" + (f" {metric.unit}" if metric.unit and metric.unit not in HEADED else "")


def points_text(count: int) -> str:
    """So many points, in words."""
    return f"{count:,} point{'s' * (count != 1)}"


def heading(metric: SweptMetric) -> str:
    """How a column of figures is called."""
    return f"{metric.name} ({metric.unit})" if metric.unit in HEADED else metric.name


def point_rows(
    points: Sequence[SweptPoint], paths: Sequence[str], metrics: Sequence[SweptMetric]
) -> list[tuple[str, ...]]:
    """A row a point: its number, the values of its keys, its figures."""
    return [
        (
            str(point.number),
            *(point.values[path] for path in paths),
            *(figure_text(metric, point.metrics[metric.name]) for metric in metrics),
        )
        for point in points
    ]


def point_table(
    title: str, points: Sequence[SweptPoint], paths: Sequence[str], metrics: Sequence[SweptMetric]
) -> Table:
    """Points with the values of the keys, by their short names, and the objectives."""
    names = short_names(paths)
    columns = [("point", "right"), *((names[path], "left") for path in paths)]
    return table(title, [*columns, *((heading(m), "right") for m in metrics)], point_rows(points, paths, metrics))


class LiveSweep(AbstractContextManager["LiveSweep"]):
    """A watcher of a sweep: one line of how far it is, and the front so far, on standard error.

    Parameters
    ----------
    show
        Whether to show anything; nothing is shown where standard error is no terminal.
    """

    def __init__(self, show: bool, screen: Console | None = None) -> None:
        self._screen = screen or Screen(stderr=True)
        self._live = Live(console=self._screen, transient=True, auto_refresh=False) if show else None
        if not self._screen.is_terminal:
            self._live = None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: SweepProgress) -> None:
        if self._live is not None:
            self._live.update(progress_shown(progress), refresh=True)


def progress_text(progress: SweepProgress) -> str:
    """One line: finished points, how many were known or failed, the rate, what is left."""
    fresh = progress.done - progress.reused
    parts = [f"{progress.done:,} of {points_text(progress.total)}"]
    if progress.reused:
        parts.append(f"{progress.reused:,} known before")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if fresh > 0 and progress.seconds > 0:
        rate = fresh / progress.seconds
        parts.append(f"{rate:,.3g} points/s")
        if progress.done < progress.total:
            parts.append(f"about {format_seconds((progress.total - progress.done) / rate)} left")
    return ", ".join(parts)


def progress_shown(progress: SweepProgress) -> Group:
    """The line, and the best points so far."""
    line = Text(plain_text(progress_text(progress)))
    if not progress.front:
        return Group(line)
    paths = _own(progress.front[0].values)
    front = point_table("front so far", progress.front[:SHOWN_LIVE], paths, progress.objectives)
    return Group(line, front)


def _own(values: Mapping[str, str]) -> list[str]:
    """Keys to show where it is not said which ones move with others: those whose values are not another one's."""
    kept = list[str]()
    for path, value in values.items():
        if not any(values[other] == value for other in kept):
            kept.append(path)
    return kept


def sweep_tables(result: SweepResult, out: Console) -> None:
    """Print a sweep: what was asked, the front, what each key does, where a larger machine is worse, what failed."""
    asked, counts = result.asked, result.counts
    names = [key.path for key in asked.keys]
    served = "" if asked.trace is None else f", requests of {bold(asked.trace)}"
    out.print(f"{bold(asked.name)}: {bold(asked.workload)} on {bold(asked.machine)}{served}, {asked.method}")
    if asked.set:
        out.print("set: " + ", ".join(f"{path}={value}" for path, value in asked.set.items()), style="dim")
    for note in result.notes:
        out.print(f"note: {note}", style="yellow")
    for label, text in summary_lines(result):
        out.print(f"  {label:12s} {text}")
    out.print()
    if result.front:
        by = {point.number: point for point in result.points}
        shown = [by[number] for number in result.front[:SHOWN_FRONT]]
        left = len(result.front) - len(shown)
        title = "front" if len(asked.objectives) > 1 else "best"
        title += f" (first {SHOWN_FRONT}; {left} more in --json)" if left else ""
        out.print(point_table(title, shown, names, asked.objectives))
        out.print()
    elif counts.distinct > counts.failed and asked.constraints:
        out.print("no point keeps all constraints\n")
    _print_effects(result, out)
    _print_sensitivity(result, out)
    _print_breaks(result.monotone, out)
    failed = [point for point in result.points if point.state == "failed"]
    if failed:
        out.print(
            f"{points_text(len(failed))} failed" + (f"; the first {SHOWN_FAILED}" if len(failed) > SHOWN_FAILED else "")
        )
        for point in failed[:SHOWN_FAILED]:
            values = ", ".join(f"{path}={point.values[path]}" for path in names)
            out.print(f"  {point.number} ({values}): {point.why}")
    del counts


def summary_lines(result: SweepResult) -> list[tuple[str, str]]:
    """Points, constraints, time."""
    counts, asked = result.counts, result.asked
    parts = [f"{counts.distinct:,}" + ("" if counts.asked == counts.distinct else f" (asked {counts.asked:,} times)")]
    parts.append(f"{counts.evaluated:,} evaluated")
    if counts.reused:
        parts.append(f"{counts.reused:,} known before")
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    lines = [("points", ", ".join(parts))]
    if asked.constraints:
        said = " and ".join(constraint_text(each) for each in asked.constraints)
        lines.append(("constraints", f"{said}; {points_text(counts.feasible)} keep{'s' * (counts.feasible == 1)} them"))
    rate = f", {counts.evaluated / result.seconds:,.3g} points/s" if counts.evaluated and result.seconds else ""
    lines.append(("took", f"{format_si(result.seconds, 's')}{rate}"))
    if not result.complete:
        lines.append(("state", "not complete; the same loom sweep goes on from there"))
    return lines


def constraint_text(constraint: SweptConstraint) -> str:
    """A constraint in base units."""
    sign, value = ("<=", constraint.at_most) if constraint.at_most is not None else (">=", constraint.at_least)
    return f"{constraint.metric} {sign} {value:.6g}"


def _print_effects(result: SweepResult, out: Console) -> None:
    """A tornado for each objective, drawn between the least and the most of all keys."""
    metrics = {each.name: each for each in result.asked.objectives}
    names = short_names(key.path for key in result.asked.keys)
    for name, metric in metrics.items():
        bars = [each for each in result.effects if each.objective == name]
        if not bars:
            continue
        low, high = min(b.least for b in bars), max(b.most for b in bars)
        scale = BAR / (high - low) if high > low else 0.0
        rows = []
        for bar in bars:
            first = round((bar.least - low) * scale)
            if bar.most == bar.least:
                rows.append((names[bar.key], "none", f"{figure_text(metric, bar.least)} at all", ""))
                continue
            drawn = " " * first + "=" * max(round((bar.most - bar.least) * scale), 1)
            least = f"{figure_text(metric, bar.least)} at {bar.least_at}"
            rows.append((names[bar.key], drawn, least, f"{figure_text(metric, bar.most)} at {bar.most_at}"))
        columns = [("key", "left"), ("", "left"), ("least", "left"), ("most", "left")]
        out.print(table(f"{heading(metric)}, mean at a value, all other keys equal", columns, rows))
        out.print()


def _print_sensitivity(result: SweepResult, out: Console) -> None:
    names = short_names(key.path for key in result.asked.keys)
    for metric in result.asked.objectives:
        found = [each for each in result.sensitivity if each.objective == metric.name]
        if not found:
            continue
        if found[0].total is not None:
            title = f"{metric.name}, Sobol's indices (share of the variance, 95 % confidence)"
            columns = [("key", "left"), ("alone", "right"), ("with others", "right")]
            rows = [
                (
                    names[s.key],
                    f"{s.first:.3f} +- {s.first_confidence:.3f}",
                    f"{s.total:.3f} +- {s.total_confidence:.3f}",
                )
                for s in sorted(found, key=lambda s: -(s.total or 0.0))
            ]
        else:
            title = f"{metric.name}, Morris's elementary effects"
            columns = [("key", "left"), ("mean size", "right"), ("deviation", "right")]
            rows = [
                (names[s.key], figure_text(metric, s.mu_star or 0.0), figure_text(metric, s.sigma or 0.0))
                for s in sorted(found, key=lambda s: -(s.mu_star or 0.0))
            ]
        out.print(title, style="bold")
        out.print(table("", columns, rows))
        out.print()


def _print_breaks(found: Sequence[MonotoneBreak], out: Console) -> None:
    if not found:
        return
    more = f"; the worst {SHOWN_BREAKS}" if len(found) > SHOWN_BREAKS else ""
    out.print(
        f"a better machine takes more time, all else equal, {len(found):,} time{'s' * (len(found) != 1)}{more}",
        style="yellow",
    )
    names = short_names(each.key for each in found)
    rows = [
        (names[b.key], b.smaller, b.larger, f"+{b.worse:.1%}", f"{b.smaller_point} and {b.larger_point}")
        for b in found[:SHOWN_BREAKS]
    ]
    columns = [("key", "left"), ("from", "left"), ("to", "left"), ("time", "right"), ("points", "left")]
    out.print(table("", columns, rows))
    out.print()


__all__ = ["LiveSweep", "figure_text", "points_text", "progress_text", "short_names", "summary_lines", "sweep_tables"]
