"""Plots of results with matplotlib, for notebooks and papers; pages draw their own."""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.quantity import format_si
from siliconloom.render.page import colour


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
        series = {result["chip"]: {each["name"]: each["seconds"] for each in result["operators"]}}
    longest = sorted(next(iter(series.values())).items(), key=lambda item: -item[1])[:most]
    height = 0.8 / len(series)
    for number, (name, seconds) in enumerate(series.items()):
        places = [row + number * height for row in range(len(longest))]
        drawn.barh(places, [seconds.get(each, 0.0) for each, _ in longest], height, label=name, color=colour(name))
    drawn.set_yticks([row + 0.4 - height / 2 for row in range(len(longest))], [name for name, _ in longest])
    drawn.invert_yaxis()
    drawn.set_title(f"{result['workload']}, {result['phase']}")
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
        drawn.scatter([intensity], [speed], label=label, zorder=3)
    drawn.set_xscale("log")
    drawn.set_yscale("log")
    drawn.set_ylabel("multiply-accumulates per second")
    roofs = f"{format_si(peak, 'MAC/s')} and {format_si(nearest['bandwidth'], 'B/s')} of {name}"
    drawn.set_title(f"{result['workload']} on {result['chip']}: roofs {roofs}")
    drawn.legend(fontsize="small")
    return drawn


def _axes(axes: Axes | None, xlabel: str) -> Axes:
    drawn = axes if axes is not None else pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]
    drawn.set_xlabel(xlabel)
    return drawn


__all__ = ["plot_operators", "plot_roofline"]
