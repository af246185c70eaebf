"""What points say together: the front of the best ones, what each key does, and where a larger machine is worse."""

from __future__ import annotations

import functools
import itertools
import operator
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import fsum
from typing import Any

import numpy as np
from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.sweep import Sweep, SweepMethod, amount_of
from siliconloom.arch.swept import KeyEffect, KeySensitivity, MonotoneBreak, SweptConstraint, SweptMetric, SweptPoint
from siliconloom.sweeps.axes import Axis, Indices
from siliconloom.sweeps.designs import MORRIS_LEVELS, problem_of, sensitivity_sample

WORSE = 0.01
"""By what part a larger machine may take more time without being told."""
LEAST_SHARE = 0.25
"""Of points with figures the least part that a bar of a tornado compares."""
MOST_MASKS = 20
"""Sets of values, the most frequent ones, among which those that are compared are looked for."""
LARGER = (
    r"clock|tile_count",
    r"tile\.array\.(rows|cols|load_rows)",
    r"tile\.(scratchpad|accumulator)\.capacity",
    r"tile\.vector\.(lanes|sublanes|transpose_rows)",
    r"tile\.dma\.bytes_per_cycle",
    r"memory\.[\w-]+\.(bandwidth|capacity|devices)",
)
"""Keys of which more is a larger machine, which ought not to take more time."""
SMALLER = (r"memory\.[\w-]+\.latency", r"tile\.vector\.latency", r"tile\.sequencer\.launch_cycles")
"""Keys of which less is a better machine."""


class ParetoFront:
    """Points of which none is better in one objective without being worse in another; it grows point by point."""

    def __init__(self, objectives: Sequence[SweptMetric]) -> None:
        self._signs = [1.0 if each.less_is_better else -1.0 for each in objectives]
        self._names = [each.name for each in objectives]
        self._costs: dict[int, tuple[float, ...]] = {}

    def add(self, number: int, metrics: dict[str, float]) -> bool:
        """Offer a point that keeps the constraints; tells whether it is on the front now."""
        cost = tuple(sign * metrics[name] for sign, name in zip(self._signs, self._names, strict=True))
        for other in self._costs.values():
            if other != cost and all(a <= b for a, b in zip(other, cost, strict=True)):
                return False
        for beaten in [n for n, other in self._costs.items() if other != cost and _all_less(cost, other)]:
            del self._costs[beaten]
        self._costs[number] = cost
        return True

    def numbers(self) -> tuple[int, ...]:
        """The points of the front, by the first objective, then the others."""
        return tuple(sorted(self._costs, key=lambda number: (self._costs[number], number)))


def _all_less(cost: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(cost, other, strict=True))


def feasible(metrics: dict[str, float], constraints: Sequence[SweptConstraint]) -> bool:
    """Whether figures keep all constraints."""
    return all(each.excess(metrics[each.metric]) <= 0 for each in constraints)


class MatchedPoints(Struct, frozen=True):
    """Points that differ in one key alone: values of the key, and lines of points, each with one point a value."""

    levels: tuple[int, ...]
    lines: tuple[tuple[int, ...], ...]

    @property
    def points(self) -> int:
        return len(self.levels) * len(self.lines)


def compared(places: Sequence[Indices], number: int) -> MatchedPoints:
    """Points that are equal in all keys but one, at as many values of that key as compare the most points.

    Lines that lack a point at one of these values are left out, so that means over the lines differ by the key alone.
    """
    lines: dict[Indices, dict[int, int]] = defaultdict(dict)
    for index, place in enumerate(places):
        lines[(*place[:number], *place[number + 1 :])][place[number]] = index
    masks = Counter(sum(1 << level for level in line) for line in lines.values())
    commonest = [mask for mask, _ in masks.most_common(MOST_MASKS)]
    asked = {a & b for a in commonest for b in commonest} | {functools.reduce(operator.or_, masks, 0)}

    def rank(mask: int) -> tuple[int, int, int]:
        count = sum(times for other, times in masks.items() if other & mask == mask)
        return (mask.bit_count() - 1) * count, mask.bit_count(), -mask

    best = max((mask for mask in asked if mask.bit_count() > 1), key=rank, default=0)
    if not best or not rank(best)[0]:
        return MatchedPoints((), ())
    levels = tuple(level for level in range(best.bit_length()) if best >> level & 1)
    whole = [line for _, line in sorted(lines.items()) if all(level in line for level in levels)]
    return MatchedPoints(levels, tuple(tuple(line[level] for level in levels) for line in whole))


def effects_of(
    axes: Sequence[Axis], objectives: Sequence[SweptMetric], points: Sequence[SweptPoint], places: Sequence[Indices]
) -> tuple[tuple[KeyEffect, ...], list[str]]:
    """The bars of a tornado, of each objective the longest first, and notes of keys that have none or miss points.

    Only points that are equal in all other keys are compared: a key that does nothing has no effect, whatever points
    failed or were not drawn.
    """
    done = [(point, place) for point, place in zip(points, places, strict=True) if point.state == "done"]
    known = {number: compared([place for _, place in done], number) for number, axis in enumerate(axes)}
    enough = {n: each for n, each in known.items() if each.levels and each.points >= LEAST_SHARE * len(done)}
    found = []
    for objective in objectives:
        figures = [point.metrics[objective.name] for point, _ in done]
        bars = []
        for number, each in enough.items():
            levels = axes[number].levels
            means = [fsum(figures[line[n]] for line in each.lines) / len(each.lines) for n in range(len(each.levels))]
            low, high = (choose(range(len(means)), key=means.__getitem__) for choose in (min, max))
            bars.append(
                KeyEffect(
                    key=axes[number].path,
                    objective=objective.name,
                    mean=fsum(means) / len(means),
                    least=means[low],
                    least_at=levels[each.levels[low]],
                    most=means[high],
                    most_at=levels[each.levels[high]],
                    points=each.points,
                )
            )
        found += sorted(bars, key=lambda bar: bar.least - bar.most)
    return tuple(found), _effect_notes(axes, [place for _, place in done], known, enough)


def _effect_notes(
    axes: Sequence[Axis], places: Sequence[Indices], known: dict[int, MatchedPoints], enough: dict[int, MatchedPoints]
) -> list[str]:
    """Which keys have no bar and why, and how many points the bars of the others compare where that is not all."""
    notes = []
    parts = []
    for number, axis in enumerate(axes):
        used = {place[number] for place in places}
        if len(used) < 2:
            continue  # there is nothing to compare
        if number not in enough:
            few = known[number].points
            why = f"only {few:,} of {len(places):,} points are" if few else "no two points with figures are"
            notes.append(f"no tornado of {axis.path}: {why} equal in all other keys")
        elif enough[number].points < len(places):
            left = [axis.levels[level] for level in sorted(used - set(enough[number].levels))]
            without = f" (without {', '.join(left[:3])}{' and others' if len(left) > 3 else ''})" if left else ""
            parts.append(f"{axis.path} {enough[number].points:,} of {len(places):,}{without}")
    if parts:
        notes.append(f"the tornado compares points that are equal in all other keys: {', '.join(parts)}")
    return notes


def sensitivity_of(
    sweep: Sweep, axes: Sequence[Axis], objectives: Sequence[SweptMetric], asked: Sequence[SweptPoint]
) -> tuple[KeySensitivity, ...]:
    """Sobol's or Morris's indices of a sweep whose points were chosen for them.

    Parameters
    ----------
    asked
        The points in the order of the sample, some of them several times.

    Raises
    ------
    LoomError
        Where some points have no figures, as the indices are estimated from all of them.
    """
    if sweep.method not in (SweepMethod.SALTELLI, SweepMethod.MORRIS):
        return ()
    failed = sum(point.state == "failed" for point in asked)
    if failed:
        raise LoomError(f"no sensitivity: {failed} of {len(asked)} points failed, and the indices need all of them")
    found = list[KeySensitivity]()
    for objective in objectives:
        values = np.array([point.metrics[objective.name] for point in asked])
        if not np.ptp(values):
            continue  # nothing changes it
        with warnings.catch_warnings(action="ignore"):  # of pandas and of divisions by a key's variance of zero
            made = _sobol if sweep.method is SweepMethod.SALTELLI else _morris
            found += made(sweep, axes, objective.name, values)
    return tuple(found)


def _sobol(sweep: Sweep, axes: Sequence[Axis], objective: str, values: Any) -> list[KeySensitivity]:
    from SALib.analyze import sobol

    scaled = (values - values.mean()) / values.std()
    made = sobol.analyze(problem_of(axes), scaled, calc_second_order=False, seed=sweep.seed)
    return [
        KeySensitivity(
            key=axis.path,
            objective=objective,
            first=float(made["S1"][n]),
            first_confidence=float(made["S1_conf"][n]),
            total=float(made["ST"][n]),
            total_confidence=float(made["ST_conf"][n]),
        )
        for n, axis in enumerate(axes)
    ]


def _morris(sweep: Sweep, axes: Sequence[Axis], objective: str, values: Any) -> list[KeySensitivity]:
    from SALib.analyze import morris

    sample = sensitivity_sample(sweep, axes)
    made = morris.analyze(problem_of(axes), sample, values, num_levels=MORRIS_LEVELS, seed=sweep.seed)
    return [
        KeySensitivity(
            key=axis.path,
            objective=objective,
            mu_star=float(made["mu_star"][n]),
            mu_star_confidence=float(made["mu_star_conf"][n]),
            sigma=float(made["sigma"][n]),
        )
        for n, axis in enumerate(axes)
    ]


def direction_of(axis: Axis) -> int:
    """1 where more of a key is a larger machine, -1 where less of it is a better one, 0 where neither is said."""
    ways = {_direction(path) for path in axis.values}
    known = all(amount_of(level) is not None for level in axis.levels)
    return ways.pop() if known and len(ways) == 1 else 0


def _direction(path: str) -> int:
    name = path.removeprefix("chip.")
    if any(re.fullmatch(pattern, name) for pattern in LARGER):
        return 1
    return -1 if any(re.fullmatch(pattern, name) for pattern in SMALLER) else 0


def monotone_breaks(
    axes: Sequence[Axis], points: Sequence[SweptPoint], places: Sequence[Indices]
) -> tuple[MonotoneBreak, ...]:
    """Neighbours in one key, all else equal, of which the better machine takes over 1 % more time, the worst first."""
    done = [(point, place) for point, place in zip(points, places, strict=True) if point.state == "done"]
    found = []
    for number, axis in enumerate(axes):
        way = direction_of(axis)
        if not way:
            continue
        sizes = [amount.base for level in axis.levels if (amount := amount_of(level)) is not None]
        lines: dict[Indices, list[tuple[SweptPoint, int]]] = defaultdict(list)
        for point, place in done:
            lines[(*place[:number], *place[number + 1 :])].append((point, place[number]))
        for line in lines.values():
            line.sort(key=lambda member: way * sizes[member[1]])
            for (small, a), (large, b) in itertools.pairwise(line):
                if not small.metrics.get("time"):  # of a service: a larger machine has other queues
                    continue
                worse = large.metrics["time"] / small.metrics["time"] - 1
                if worse > WORSE:
                    levels = axis.levels[a], axis.levels[b]
                    found.append(MonotoneBreak(axis.path, *levels, small.number, large.number, worse))
    return tuple(sorted(found, key=lambda each: -each.worse))


__all__ = ["ParetoFront", "direction_of", "effects_of", "feasible", "monotone_breaks", "sensitivity_of"]
