"""What a sweep came to: its points, the front of the best ones, and what each key does.

`siliconloom.sweeps` makes it, ``loom sweep --json`` and ``loom show --json`` print it, ``loom schema sweep-result`` its
JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from siliconloom.arch.sweep import typed_levels

SWEEP_SCHEMA = "siliconloom.sweep/1"


class SweptMetric(Struct, frozen=True):
    """A figure of a point: its name, its unit, and whether less of it is better."""

    name: str
    unit: str
    less_is_better: bool


class SweptConstraint(Struct, frozen=True):
    """A bound of a metric, in its base unit."""

    metric: str
    at_most: float | None
    at_least: float | None

    def excess(self, value: float) -> float:
        """By how much a value is beyond the bound; not positive where it keeps it."""
        if self.at_most is not None:
            return value - self.at_most
        assert self.at_least is not None
        return self.at_least - value


class SweptKey(Struct, frozen=True):
    """A key that was swept, with its values as ``--set`` takes them, and those of the keys that move with it."""

    path: str
    values: tuple[str, ...]
    linked: dict[str, tuple[str, ...]]


class SweptQuestion(Struct, frozen=True):
    """All that was asked of a sweep; ``trace``, ``slo`` and ``stack`` where its points serve requests."""

    name: str
    machine: str
    workload: str
    set: dict[str, str]
    keys: tuple[SweptKey, ...]
    method: str
    seed: int
    objectives: tuple[SweptMetric, ...]
    constraints: tuple[SweptConstraint, ...]
    mapping: dict[str, Any]
    trace: str | None = None
    slo: str | None = None
    stack: str | None = None


class SweptPoint(Struct, frozen=True, kw_only=True):
    """A point: the values of its keys and what it came to, or why it came to nothing.

    Parameters
    ----------
    number
        From 0, in the order in which points were first asked.
    asked
        How often the method chose it; it is evaluated once.
    feasible
        Whether it keeps all constraints; ``None`` of a failed one.
    bound
        What sets its lower bound, such as memory.
    """

    number: int
    values: dict[str, str]
    asked: int
    state: Literal["done", "failed"]
    why: str | None
    metrics: dict[str, float]
    feasible: bool | None
    bound: str | None


class SweptCounts(Struct, frozen=True):
    """How many points were asked, are different, were evaluated now, were found again, failed, keep the constraints."""

    asked: int
    distinct: int
    evaluated: int
    reused: int
    failed: int
    feasible: int


class KeyEffect(Struct, frozen=True):
    """A bar of a tornado: means of an objective at the values of a key, at their least and at their most.

    Parameters
    ----------
    mean
        Over all points that are compared.
    points
        How many: means are over points that are equal in all other keys, as many at one value as at another.
    """

    key: str
    objective: str
    mean: float
    least: float
    least_at: str
    most: float
    most_at: str
    points: int


class KeySensitivity(Struct, frozen=True, kw_only=True):
    """Sensitivity of an objective to a key, with half of its 95 % confidence interval.

    Parameters
    ----------
    first, total
        Sobol's indices: the share of the variance that the key has alone, and with others.
    mu_star, sigma
        Morris's: mean size of elementary effects, and their standard deviation.
    """

    key: str
    objective: str
    first: float | None = None
    first_confidence: float | None = None
    total: float | None = None
    total_confidence: float | None = None
    mu_star: float | None = None
    mu_star_confidence: float | None = None
    sigma: float | None = None


class MonotoneBreak(Struct, frozen=True):
    """Two points that differ in one key alone, of which the larger machine takes more time.

    Parameters
    ----------
    worse
        By what part of the smaller machine's time.
    """

    key: str
    smaller: str
    larger: str
    smaller_point: int
    larger_point: int
    worse: float


class SweepResult(Struct, frozen=True, kw_only=True):
    """The result of a sweep, under its versioned schema."""

    schema: Literal["siliconloom.sweep/1"] = "siliconloom.sweep/1"
    version: str
    asked: SweptQuestion
    complete: bool
    seconds: float
    counts: SweptCounts
    front: tuple[int, ...]
    points: tuple[SweptPoint, ...]
    effects: tuple[KeyEffect, ...]
    sensitivity: tuple[KeySensitivity, ...]
    monotone: tuple[MonotoneBreak, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found


def check_swept(data: object) -> None:
    """Check plain data of a sweep's result; raises `ValueError` where it is none or contradicts itself."""
    found = msgspec.convert(data, SweepResult)
    names = {metric.name for metric in found.asked.objectives}
    levels = {key.path: set(key.values) for key in found.asked.keys}
    for n, point in enumerate(found.points):
        if point.number != n:
            raise ValueError(f"points.{n}: has the number {point.number}")
        if point.state == "done" and (lacking := sorted(names - set(point.metrics))):
            raise ValueError(f"points.{n}: has no {lacking[0]}")
        if any(point.values.get(path) not in values for path, values in levels.items()):
            raise ValueError(f"points.{n}: has other values than its keys")
    if not all(0 <= n < len(found.points) and found.points[n].state == "done" for n in found.front):
        raise ValueError("front: has points that have no figures")
    for n, bar in enumerate(found.effects):
        if bar.key not in levels or bar.objective not in names:
            raise ValueError(f"effects.{n}: is of no key and objective of the sweep")


def typed_values(asked: Mapping[str, Any], points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The values of points as tables have them: numbers in base units where their keys take numbers or quantities.

    Parameters
    ----------
    asked, points
        Of a result as plain data.
    """
    lists = {
        path: values for key in asked["keys"] for path, values in ((key["path"], key["values"]), *key["linked"].items())
    }
    known = {path: typed_levels(values) for path, values in lists.items()}
    return [{path: known[path][text] for path, text in point["values"].items()} for point in points]


class SweepProgress(Struct, frozen=True):
    """How far a sweep is: points in all, finished, of these found again and failed, seconds, the front so far."""

    total: int
    done: int
    reused: int
    failed: int
    seconds: float
    objectives: tuple[SweptMetric, ...]
    front: tuple[SweptPoint, ...]


def swept_schema() -> dict[str, Any]:
    """JSON Schema of a sweep's result."""
    (made,), components = msgspec.json.schema_components([SweepResult], ref_template="#/$defs/{name}")
    return {"title": SWEEP_SCHEMA, **made, "$defs": components}


__all__ = [
    "SWEEP_SCHEMA",
    "KeyEffect",
    "KeySensitivity",
    "MonotoneBreak",
    "SweepProgress",
    "SweepResult",
    "SweptConstraint",
    "SweptCounts",
    "SweptKey",
    "SweptMetric",
    "SweptPoint",
    "SweptQuestion",
    "check_swept",
    "swept_schema",
    "typed_values",
]
