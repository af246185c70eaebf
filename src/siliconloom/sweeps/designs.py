"""Designs: lists of points that are known before any of them is evaluated."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.arch.sweep import MOST_POINTS, Sweep, SweepMethod
from siliconloom.sweeps.axes import Axis, Indices, size_of
from siliconloom.sweeps.extras import required

TRIES = 200
"""Exchanges that are tried for a point of a Latin hypercube that another one is the same as."""
MORRIS_LEVELS = 4
"""Levels of the unit interval that a trajectory steps on, as Morris took them."""


class DesignError(LoomError):
    """Points that a sweep cannot have: the ``key`` of its description that says so, the rule, and the value."""

    def __init__(self, key: str, rule: str, value: int | None = None) -> None:
        self.key, self.rule, self.value = key, rule, value
        super().__init__(f"{key}: {rule}" + ("" if value is None else f" (got {value})"))


def design_of(sweep: Sweep, axes: Sequence[Axis]) -> list[Indices]:
    """The points of a sweep that does not search, in order; of a sampled one some may be the same.

    Raises
    ------
    LoomError
        For more points than there are, or too few for what is estimated from them.
    """
    if sweep.method is SweepMethod.GRID:
        if size_of(axes) > MOST_POINTS:
            rule = f"the grid has {size_of(axes):,} points, the most are {MOST_POINTS:,}; take method: random"
            raise DesignError("keys", rule)
        return list(itertools.product(*(range(len(axis)) for axis in axes)))
    assert sweep.points is not None
    if sweep.method is SweepMethod.RANDOM:
        return _random(axes, sweep.points, sweep.seed)
    if sweep.method is SweepMethod.LATIN_HYPERCUBE:
        latin = required("SALib.sample.latin", "sweeps", "method: latin_hypercube")
        rows = latin.sample(problem_of(axes), sweep.points, seed=sweep.seed).tolist()
        ranks = [[0] * len(axes) for _ in rows]  # each axis has one point in each of as many strata
        for number, axis in enumerate(axes):
            column = [row[number] for row in rows]
            for rank, row in enumerate(sorted(range(len(rows)), key=column.__getitem__)):
                ranks[row][number] = rank * len(axis) // len(rows)
        return _spread(list(map(tuple, ranks)), random.Random(sweep.seed))
    return _levels(sensitivity_sample(sweep, axes), axes)


def sensitivity_sample(sweep: Sweep, axes: Sequence[Axis]) -> Any:
    """Rows in the unit cube from which Sobol's or Morris's indices are estimated, at most as many as the points.

    Raises
    ------
    LoomError
        For too few points.
    """
    assert sweep.points is not None
    if sweep.method is SweepMethod.SALTELLI:
        each, least = len(axes) + 2, 8
        base = 1 << max((sweep.points // each).bit_length() - 1, 0)
        saltelli = required("SALib.sample.sobol", "sweeps", "method: saltelli")
        enough = base >= least and base * each <= sweep.points
    else:
        each, least = len(axes) + 1, 4
        base = sweep.points // each
        morris = required("SALib.sample.morris", "sweeps", "method: morris")
        enough = base >= least
    if not enough:
        what = f"{sweep.method.value} of {len(axes)} keys takes at least {least * each} points"
        raise DesignError("points", what, sweep.points)
    if sweep.method is SweepMethod.SALTELLI:
        return saltelli.sample(problem_of(axes), base, calc_second_order=False, seed=sweep.seed)
    return morris.sample(problem_of(axes), base, num_levels=MORRIS_LEVELS, seed=sweep.seed)


def problem_of(axes: Sequence[Axis]) -> dict[str, Any]:
    """The axes as SALib wants them: each the unit interval."""
    return {"num_vars": len(axes), "names": [axis.path for axis in axes], "bounds": [[0.0, 1.0]] * len(axes)}


def _random(axes: Sequence[Axis], points: int, seed: int) -> list[Indices]:
    """Different points, each as likely as any other."""
    size = size_of(axes)
    if points > size:
        raise DesignError("points", f"{points:,} are asked, and the keys' values have {size:,} combinations")
    found = []
    for number in _different(random.Random(seed), size, points):
        place, rest = [], number
        for axis in reversed(axes):
            rest, level = divmod(rest, len(axis))
            place.append(level)
        found.append(tuple(reversed(place)))
    return found


def _different(source: random.Random, size: int, count: int) -> list[int]:
    """So many different numbers below ``size``, which may be more than a `range` can have."""
    if size <= sys.maxsize:
        return source.sample(range(size), count)
    drawn = dict[int, None]()
    while len(drawn) < count:
        drawn[source.randrange(size)] = None
    return list(drawn)


def _spread(points: list[Indices], source: random.Random) -> list[Indices]:
    """Points that are different as far as exchanges of one value between two of them lead: values stay as often."""
    times, found = Counter(points), list(points)
    for number, point in enumerate(found):
        for _ in range(TRIES if times[point] > 1 else 0):
            axis, other = source.randrange(len(point)), source.randrange(len(found))
            theirs = found[other]
            mine = (*point[:axis], theirs[axis], *point[axis + 1 :])
            given = (*theirs[:axis], point[axis], *theirs[axis + 1 :])
            if mine != given and not times[mine] and not times[given]:
                times[point] -= 1
                times[theirs] -= 1
                times[mine] += 1
                times[given] += 1
                found[number], found[other] = mine, given
                break
    return found


def _levels(rows: Any, axes: Sequence[Axis]) -> list[Indices]:
    """Points of the unit cube as values of the keys: the interval is shared out evenly among an axis's values."""
    return [
        tuple(min(int(x * len(axis)), len(axis) - 1) for x, axis in zip(row, axes, strict=True))
        for row in rows.tolist()
    ]


__all__ = ["MORRIS_LEVELS", "design_of", "problem_of", "sensitivity_sample"]
