"""Plots of results with matplotlib, for notebooks and papers; pages draw their own."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.quantity import format_si
from siliconloom.arch.swept import SWEEP_SCHEMA
from siliconloom.render.page import PALETTE, colours_of
from siliconloom.render.plots_sweep import draw_sweep


def plot_operators(result: dict[str, Any], axes: Axes | None, most: int) -> Axes:
    """Bars of the seconds that the longest operators take, of each machine of a comparison; returns the axes."""
    drawn = _axes(axes, "seconds, all executions")
    if "machines" in result:
        names = [machine["name"] for machine in result["machines"]]
        series = {
            name: {
                row["name"]: row["machines"][name]["seconds"] for row in result["operators"] if row["machines"][name]
            }
            for name in names
        }
    else:
        series = {_machine(result): {each["name"]: each["seconds"] for each in result["operators"]}}
    longest = sorted(next(iter(series.values())).items(), key=lambda item: -item[1])[:most]
    height, colours = 0.8 / len(series), colours_of(series)
    for number, (name, seconds) in enumerate(series.items()):
        places = [row + number * height for row in range(len(longest))]
        drawn.barh(
            places, [seconds.get(each, 0.0) for each, _ in longest], height, label=_plain(name), color=colours[name]
        )
    drawn.set_yticks([row + 0.4 - height / 2 for row in range(len(longest))], [_plain(name) for name, _ in longest])
    drawn.invert_yaxis()
    where = "" if len(series) > 1 else f" on {_machine(result)}"
    drawn.set_title(_plain(f"{result['workload']}{where}, {result['phase']}"))
    if len(series) > 1:  # machines may be a thousand times apart
        drawn.set_xscale("log")
        drawn.legend()
    return drawn


def plot_roofline(result: dict[str, Any], axes: Axes | None) -> Axes:
    """Operators by their intensity and speed, under the roofs of arithmetic and of the nearest memory.

    Raises
    ------
    NotSupported
        For results without the traffic of each operator: those of GPUs, systems and plans.
    """
    levels = result.get("memory", {}).get("levels")
    if not levels or not result.get("peak_macs"):
        raise NotSupported("a roofline of a result without the traffic of each operator; it is of one of our chips")
    name, nearest = next(iter(levels.items()))
    peak = float(result["peak_macs"]) * result["clock_hz"]
    drawn = _axes(axes, "multiply-accumulates per byte of main-memory traffic")
    points = [
        (each["name"], each["macs"] / moved, each["macs"] / each["seconds"])
        for each in result["operators"]
        if (moved := each["read_bytes"] + each["write_bytes"]) and each["macs"] and each["seconds"]
    ]
    ridge = peak / nearest["bandwidth"]
    low = min([x for _, x, _ in points] + [ridge]) / 3
    high = max([x for _, x, _ in points] + [ridge]) * 3
    drawn.plot([low, ridge, high], [low * nearest["bandwidth"], peak, peak], color="#b0413e")
    for label, intensity, speed in points:
        drawn.scatter([intensity], [speed], label=_plain(label), zorder=3)
    drawn.set_xscale("log")
    drawn.set_yscale("log")
    drawn.set_ylabel("multiply-accumulates per second")
    roofs = f"{format_si(peak, 'MAC/s')} and {format_si(nearest['bandwidth'], 'B/s')} of {name}"
    drawn.set_title(_plain(f"{result['workload']} on {_machine(result)}\n{roofs}"), fontsize="medium")
    drawn.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return drawn


def plot_energy(result: dict[str, Any], axes: Axes | None) -> Axes:
    """Bars of the energy that each component of a step takes, or each machine of a comparison; returns the axes.

    Raises
    ------
    NotSupported
        For plans, which have no energies.
    """
    if "machines" in result:
        joules = {machine["name"]: machine["energy_j"] for machine in result["machines"]}
        title = f"{result['workload']}, {result['phase']}"
    elif "energy" in result:
        joules = {name: figure for name, figure in result["energy"].items() if figure}
        title = f"{result['workload']} on {_machine(result)}: {format_si(result['energy_j'], 'J')}"
    else:
        raise NotSupported(f"energies of {_whose(result)}; loom sim has those of its step")
    drawn = _axes(axes, "joules")
    largest = sorted(joules.items(), key=lambda item: -item[1])
    colours = colours_of(joules)  # of machines those that their operators have
    drawn.barh(range(len(largest)), [figure for _, figure in largest], color=[colours[name] for name, _ in largest])
    drawn.set_yticks(range(len(largest)), [_plain(name) for name, _ in largest])
    drawn.invert_yaxis()
    drawn.set_title(_plain(title))
    return drawn


def plot_latency(result: dict[str, Any], axes: Axes | None) -> Axes:
    """Percentiles of a service's times: the share of requests (or tokens) that waited no longer; returns the axes.

    Raises
    ------
    NotSupported
        For other results.
    """
    _service(result, "percentiles of times")
    drawn = _axes(axes, "seconds")
    for name, label in LATENCIES:
        known = [(result[name][key], share) for key, share in SHARES if result[name][key] > 0]
        drawn.plot([value for value, _ in known], [share for _, share in known], marker="o", label=label)
    drawn.set_xscale("log")
    drawn.set_ylabel("share that waits no longer")
    drawn.legend(fontsize="small", frameon=False)
    drawn.set_title(_plain(_served_title(result)), fontsize="medium")
    return drawn


def plot_timeline(result: dict[str, Any], axes: Axes | None) -> Axes:
    """A service over time: tokens of answers a second, and on an axis of its own requests that run and wait.

    Raises
    ------
    NotSupported
        For other results.
    """
    _service(result, "a run over time")
    drawn = _axes(axes, "seconds from the first arrival")
    timeline = result["timeline"]
    rate = drawn.step(timeline["start_s"], timeline["tokens_per_s"], where="post", color="#2a6fbb")
    drawn.set_ylabel("tokens of answers a second")
    other = drawn.twinx()
    lines = [
        other.step(timeline["start_s"], timeline[name], where="post", color=shade, linestyle=dashes)[0]
        for name, shade, dashes in (("running", "#2a9d5c", "-"), ("waiting", "#b0413e", "--"))
    ]
    other.set_ylabel("requests")
    drawn.legend([*rate, *lines], ["tokens/s", "running", "waiting"], fontsize="small", frameon=False)
    drawn.set_title(_plain(_served_title(result)), fontsize="medium")
    return drawn


LATENCIES = (
    ("ttft_s", "first token"),
    ("tpot_s", "each further token"),
    ("itl_s", "between tokens"),
    ("e2e_s", "answer"),
)
SHARES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


def plot_plans(result: dict[str, Any], axes: Axes | None) -> Axes:
    """Bars of the steps under the best plan and the next best ones; returns the axes.

    Raises
    ------
    NotSupported
        For results that are of no plan.
    """
    if "alternatives" not in result or "plan_text" not in result:
        raise NotSupported("plans of a result that is of no plan; loom plan --json has them")
    drawn = _axes(axes, "seconds of a step")
    plans = [result, *result["alternatives"]][:MOST]
    shades = [PALETTE[2] if number == 0 else PALETTE[0] for number in range(len(plans))]
    drawn.barh(range(len(plans)), [plan["step_s"] for plan in plans], color=shades)
    drawn.set_yticks(range(len(plans)), [_plain(plan["plan_text"]) for plan in plans], fontsize="small")
    drawn.invert_yaxis()
    drawn.set_title(_plain(f"{result['workload']} on {result['system']}, {result['phase']}"))
    return drawn


def _machine(result: dict[str, Any]) -> str:
    """What a step is on: the whole system, not its chip."""
    return str(result.get("asked", {}).get("machine") or result["chip"])


def _whose(result: dict[str, Any]) -> str:
    if result.get("schema") == SWEEP_SCHEMA:
        return "a sweep"
    return "a service" if result.get("kind") == "serving" else "a plan"


def _service(result: dict[str, Any], what: str) -> None:
    if result.get("kind") != "serving":
        raise NotSupported(f"{what} of a result that is of no service; loom serve --json has them")


def _served_title(result: dict[str, Any]) -> str:
    asked = result["asked"]
    return f"{asked['workload']} on {asked['machine']}, requests of {asked['trace']}"


MOST = 12
"""Operators in a figure."""
DRAWN: dict[str, Callable[[dict[str, Any], Axes], Axes]] = {
    "roofline": plot_roofline,
    "operators": lambda result, axes: plot_operators(result, axes, MOST),
    "energy": plot_energy,
    "latency": plot_latency,
    "timeline": plot_timeline,
    "plans": plot_plans,
}
"""What a figure shows, by the name of its kind."""
SWEPT = ("pareto", "parallel", "tornado")
"""Kinds of figures of sweeps."""
FORMATS = ("svg", "png", "pdf")
KEPT_TEXT: Any = {"svg.fonttype": "none", "svg.hashsalt": "siliconloom", "pdf.fonttype": 42}
"""Text stays text, and the same result makes the same file."""


def figure_bytes(result: dict[str, Any], kind: str, suffix: str) -> bytes:
    """A file of a figure for a paper.

    Parameters
    ----------
    kind
        One of `DRAWN` or `SWEPT`.
    suffix
        One of `FORMATS`.

    Raises
    ------
    LoomError
        For figures that the result has no data for, and for numbers that cannot be drawn.
    """
    if "operators" not in result and kind == "operators":
        raise NotSupported(f"operators of {_whose(result)}; loom sim has those of its step")
    made = Figure(figsize=(7, 4), layout="constrained")
    file, dated = io.BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    try:
        with matplotlib.rc_context(KEPT_TEXT), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for it
            if kind in SWEPT:
                draw_sweep(kind, result, made)
            else:
                DRAWN[kind](result, made.subplots())
            made.savefig(file, format=suffix, dpi=200, metadata=dated[suffix])
    except (ValueError, ArithmeticError) as error:
        raise LoomError(f"this result cannot be drawn: {error}") from None
    return file.getvalue()


def _plain(text: str) -> str:
    """The text with no formula in it, whatever names have."""
    return text.replace("$", r"\$")


def _axes(axes: Axes | None, xlabel: str) -> Axes:
    drawn = axes if axes is not None else pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]
    drawn.set_xlabel(xlabel)
    return drawn


__all__ = [
    "DRAWN",
    "FORMATS",
    "SWEPT",
    "figure_bytes",
    "plot_energy",
    "plot_latency",
    "plot_operators",
    "plot_plans",
    "plot_roofline",
    "plot_timeline",
]
