"""What a point is measured by: figures of its one result (`arch.result`), each a row of a registry.

Points of a sweep with a trace are services (`arch.served`), which have a registry of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct
from pydantic_core import PydanticCustomError

from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.quantity import BYTES, DURATION, ENERGY, parse
from siliconloom.arch.registry import Registry
from siliconloom.arch.sweep import Sweep
from siliconloom.arch.swept import SweptConstraint, SweptMetric

Figures = Mapping[str, Any]
"""A result as `evaluate.machine.evaluate` makes it."""

SECONDS = {unit: factor / 10**12 for unit, factor in DURATION.items()}
WATTS = {prefix + "W": Decimal(factor) for prefix, factor in (("u", "1e-6"), ("m", "1e-3"), ("", "1"), ("k", "1e3"))}
JOULE_SECONDS = {"J s": Decimal(1)}
SQUARES = {"mm2": Decimal(1)}
UNITS = {"s": SECONDS, "J": ENERGY, "W": WATTS, "B": BYTES, "J s": JOULE_SECONDS, "mm2": SQUARES}
"""How values of a constraint may be written, by the unit of its metric; of others they are bare numbers."""
EXAMPLES = {"s": "5 ms", "J": "3 mJ", "W": "5 W", "B": "2 GiB", "J s": "0.001 J s", "mm2": "100 mm2"}


class Metric(Struct, frozen=True):
    """A figure: its unit, whether less is better, and how it is read from a result; ``None`` where that has none."""

    unit: str
    less: bool
    read: Callable[[Figures], float | None]


METRICS: Registry[str, Metric] = Registry("metric")
"""Figures of a step."""
SERVED: Registry[str, Metric] = Registry("metric of a service")
"""Figures of a served trace."""


def _share(result: Figures, over: str, under: str) -> float | None:
    part, whole = result["memory"][over], result["memory"][under]
    return None if part is None or not whole else part / whole


def _product(result: Figures) -> float | None:
    joules = result.get("energy_j")
    return None if joules is None else joules * result["seconds"]


def _gap(result: Figures) -> float | None:
    bound = result["bound"]["lower_bound_s"]
    return result["seconds"] / bound - 1 if bound else None


METRICS.add("time", Metric("s", True, lambda result: result["seconds"]))
METRICS.add("cycles", Metric("cycles", True, lambda result: result.get("cycles")))
METRICS.add("energy", Metric("J", True, lambda result: result.get("energy_j")))
METRICS.add("edp", Metric("J s", True, _product))
METRICS.add("power", Metric("W", True, lambda result: result.get("power_w")))
METRICS.add("throughput", Metric("tokens/s", False, lambda result: result.get("tokens_per_second")))
METRICS.add("utilization", Metric("", False, lambda result: result.get("utilization")))
METRICS.add("memory", Metric("B", True, lambda result: result["memory"]["used_bytes"]))
METRICS.add("memory_share", Metric("", True, lambda result: _share(result, "used_bytes", "capacity_bytes")))
METRICS.add("gap", Metric("", True, _gap))
METRICS.add("area", Metric("mm2", True, lambda result: (result.get("area") or {}).get("mm2")))


def _spread(name: str, key: str) -> Callable[[Figures], float | None]:
    return lambda result: result[name][key]


for _name in ("ttft", "tpot", "itl", "e2e", "queue"):
    SERVED.add(_name, Metric("s", True, _spread(f"{_name}_s", "mean")))
    SERVED.add(f"{_name}_p99", Metric("s", True, _spread(f"{_name}_s", "p99")))
SERVED.add("goodput", Metric("requests/s", False, lambda result: result["goodput"]))
SERVED.add("attained", Metric("", False, lambda result: result["slo"]["attained"]))
SERVED.add("tokens_per_s", Metric("tokens/s", False, lambda result: result["tokens_per_s"]))
SERVED.add("cost", Metric("$/M tokens", True, lambda result: result["cost"]["usd_per_million_tokens"]))
SERVED.add("energy", Metric("J", True, lambda result: result["energy_j"]))
SERVED.add("joules_per_token", Metric("J", True, lambda result: result["joules_per_token"]))
SERVED.add("power", Metric("W", True, lambda result: result["power_w"]))
SERVED.add("busy", Metric("", False, lambda result: result["busy"]))
SERVED.add("chips", Metric("", True, lambda result: result["chips"]))


def metrics_of(result: Figures) -> dict[str, float]:
    """Every figure that a result has."""
    known = SERVED if result.get("kind") == "serving" else METRICS
    read = {name: metric.read(result) for name, metric in known.items()}
    return {name: float(value) for name, value in read.items() if value is not None and math.isfinite(value)}


def described_metric(name: str, *, served: bool = False) -> SweptMetric:
    """A metric of a step, or of a service, by name; raises `LoomError` for another name."""
    known, other = (SERVED, METRICS) if served else (METRICS, SERVED)
    if name in known:
        return SweptMetric(name, known[name].unit, known[name].less)
    near = nearest_name(name, known)
    hint = f"; did you mean '{near}'?" if near else ""
    if name in other:
        hint = ", which is of single steps, and a trace is served" if served else ", which needs a trace to be served"
    raise LoomError(f"must be one of {', '.join(known)} (got '{name}'){hint}")


def objectives_of(sweep: Sweep, document: Document) -> tuple[SweptMetric, ...]:
    """The objectives that a sweep names; raises `LoomError` for what is none."""
    served = sweep.trace is not None
    return tuple(
        _at(document, ("objectives", number), name, served=served) for number, name in enumerate(sweep.objectives)
    )


def constraints_of(sweep: Sweep, document: Document) -> tuple[SweptConstraint, ...]:
    """The constraints of a sweep in base units; raises `LoomError` for other metrics and units."""
    found = []
    for number, each in enumerate(sweep.constraints):
        place = ("constraints", number, "metric")
        metric = _at(document, place, each.metric, served=sweep.trace is not None)
        sides = {"at_most": each.at_most, "at_least": each.at_least}
        read = {
            side: None if value is None else _bound(document, ("constraints", number, side), value, metric)
            for side, value in sides.items()
        }
        found.append(SweptConstraint(metric.name, **read))
    return tuple(found)


def _at(document: Document, path: tuple[str | int, ...], name: str, *, served: bool) -> SweptMetric:
    try:
        return described_metric(name, served=served)
    except LoomError as error:
        raise document.error(str(error), path) from None


def _bound(document: Document, path: tuple[str | int, ...], value: float | str, metric: SweptMetric) -> float:
    if not isinstance(value, str):
        return _finite(document, path, float(value))
    if metric.unit not in UNITS:
        raise document.error(f"must be a bare number, as {metric.name} has no units to choose from", path, value=value)
    try:
        return _finite(document, path, float(parse(value, UNITS[metric.unit], EXAMPLES[metric.unit])))
    except PydanticCustomError as error:
        raise document.error(error.message(), path, value=value) from None


def _finite(document: Document, path: tuple[str | int, ...], value: float) -> float:
    if not math.isfinite(value):
        raise document.error("must be a finite number", path, value=value)
    return value


__all__ = ["METRICS", "SERVED", "Metric", "constraints_of", "described_metric", "metrics_of", "objectives_of"]
