"""How much a fleet can take: the highest rate, or the fewest replicas, at which requests keep to their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.errors import require_name
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.service_level import ServiceLevel
from siliconloom.arch.serving import Arrivals
from siliconloom.evaluate.fleets import with_trace
from siliconloom.evaluate.serving import Served, ServedFleet
from siliconloom.evaluate.serving_run import serve
from siliconloom.sim.service.fleet import Fleet

CLOSE = 0.01
"""Relative difference of two rates between which nothing more is looked for."""
MOST_DOUBLINGS = 40
MOST_RATE = 1e6
"""Requests a second that ``serve.rate`` may be."""
WHATS = ("rate", "replicas")


_Found = tuple[dict[str, Any], Fleet, float | None]
"""A run, its fleet, and the value that it was found for; none of one that was interrupted."""


def find_capacity(
    served: Served | ServedFleet,
    what: str,
    objective: ServiceLevel | None,
    attain: float,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    watcher: Watcher = NOBODY,
    kept: list[Fleet] | None = None,
) -> dict[str, Any]:
    """The run at the highest ``rate`` (to one percent), or with the fewest ``replicas``, that keeps to the objective.

    Parameters
    ----------
    attain
        Share of the requests that must keep to all limits.
    kept
        Is given the fleet of that run.

    Raises
    ------
    LoomError
        Where nothing that can be tried keeps to them, with how near the best came.
    """
    require_name("--find", what, WHATS)
    if objective is None or not objective.asked:
        raise LoomError(f"--find {what}: needs limits to keep to, as in --slo ttft=2s,tpot=50ms")
    if not 0 < attain <= 1:
        raise LoomError(f"--attain: must be a share of the requests, above 0 and at most 1 (got {attain:g})")
    if what == "replicas" and _one(served).settings.replicas_least is not None:
        raise LoomError("--find replicas: their number follows what is due (serve.replicas_least)")
    tried: list[dict[str, float]] = []

    def run(value: float) -> tuple[dict[str, Any], Fleet]:
        fleets: list[Fleet] = []
        asked = _at_rate(served, value) if what == "rate" else _of(served, round(value))
        result = serve(asked, objective, overrides, watcher=watcher, audits=0, kept=fleets)
        tried.append({"value": value, "attained": result["slo"]["attained"], "goodput": result["goodput"]})
        return result, fleets[0]

    best = _highest(served, run, attain) if what == "rate" else _fewest(served, run, attain)
    result, fleet, value = best
    if kept is not None:
        kept.append(fleet)
    if value is not None:
        result["found"] = {"what": what, "value": value, "attain": attain, "tried": tried}
    return result


def _one(served: Served | ServedFleet) -> Served:
    return served.first if isinstance(served, ServedFleet) else served


def _of(served: Served | ServedFleet, replicas: int) -> Served:
    """The same with so many replicas."""
    if isinstance(served, ServedFleet):
        raise NotSupported("--find replicas of a fleet: say how many there are of each kind (groups.0.count)")
    return replace(served, replicas=replicas)


def _at_rate(served: Served | ServedFleet, rate: float) -> Served | ServedFleet:
    """The same requests at another rate, their gaps stretched or squeezed alike."""
    trace, before = _one(served).trace, _one(served).settings.rate
    span = float(trace.arrival_s[-1])
    now = (len(trace) - 1) / span
    factor = now / rate
    # of a process the rate that it draws with, which is not what came out
    settings = _one(served).settings.model_copy(update={"rate": rate if before is None else before / factor})
    return with_trace(served, replace(trace, arrival_s=trace.arrival_s * factor), settings)


def _cut(good: _Found | None, result: dict[str, Any], fleet: Fleet, value: float) -> _Found:
    """Of a search that was interrupted, the best so far, marked; where there is none, the run that was interrupted."""
    if good is None:
        return result, fleet, None
    note = "interrupted: the search had not ended, and this is the best that it had found"
    return {**good[0], "complete": False, "notes": [note, *good[0]["notes"]]}, good[1], good[2]


def _highest(asked: Served | ServedFleet, run: Any, attain: float) -> _Found:
    served = _one(asked)
    span = float(served.trace.arrival_s[-1])
    if span <= 0 or len(served.trace) < 2:
        how = "serve.arrivals=poisson with serve.rate=1 draws their times"
        raise LoomError(f"--find rate: all requests of {served.trace.name} come at once; {how}")
    if served.settings.arrivals is Arrivals.AT_ONCE:
        raise LoomError("--find rate: serve.arrivals is at_once")
    rate = (len(served.trace) - 1) / span
    good: _Found | None = None
    low, high = 0.0, 0.0
    best = 0.0
    for _ in range(MOST_DOUBLINGS):
        result, fleet = run(rate)
        reached = result["slo"]["attained"]
        best = max(best, reached)
        if not result["complete"]:
            return _cut(good, result, fleet, rate)
        if reached >= attain:
            good, low = (result, fleet, rate), rate
            if high:
                break
            rate *= 2
            if rate > MOST_RATE:
                raise LoomError(f"--find rate: no rate that can be tried breaks the limits, up to {low:,.4g} a second")
        else:
            high = rate
            if low:
                break
            rate /= 2
    if good is None:
        raise LoomError(
            f"--find rate: at no rate do {attain:.0%} of the requests keep to the limits; at {rate * 2:.3g} requests a "
            f"second {best:.1%} do"
        )
    if not high:
        raise LoomError(f"--find rate: no rate that can be tried breaks the limits, up to {low:,.4g} a second")
    while high / low > 1 + CLOSE:
        rate = (low * high) ** 0.5
        result, fleet = run(rate)
        if not result["complete"]:
            return _cut(good, result, fleet, rate)
        if result["slo"]["attained"] >= attain:
            good, low = (result, fleet, rate), rate
        else:
            high = rate
    return good


def _fewest(asked: Served | ServedFleet, run: Any, attain: float) -> _Found:
    served = _one(asked)
    most = served.cluster.chips // served.plan.chips
    if served.given_data:
        raise LoomError("--find replicas: plan.data says how many there are; leave it out")
    low, high = served.settings.prefill_replicas, most
    result, fleet = run(most)
    if not result["complete"]:
        return result, fleet, None
    if result["slo"]["attained"] < attain:
        reached = result["slo"]["attained"]
        kept = f"{reached:.1%} of the requests keep to the limits, not {attain:.0%}"
        raise LoomError(f"--find replicas: with all {most} replicas {kept}")
    best: _Found = (result, fleet, float(most))
    while high - low > 1 and best[0]["complete"]:
        middle = (low + high) // 2
        result, fleet = run(middle)
        if not result["complete"]:
            return _cut(best, result, fleet, float(middle))
        if result["slo"]["attained"] >= attain:
            best, high = (result, fleet, float(middle)), middle
        else:
            low = middle
    return best


__all__ = ["find_capacity"]
