"""How much a fleet can take: the highest rate, the fewest replicas or the cheapest machines that keep to limits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.errors import require_name
from siliconloom.arch.fleet import ReplicaRole
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.quantity import four_digits
from siliconloom.arch.service_level import ServiceLevel
from siliconloom.arch.serving import Arrivals
from siliconloom.evaluate.fleets import check_choices, with_trace
from siliconloom.evaluate.serving import FleetMember, Served, ServedFleet
from siliconloom.evaluate.serving_run import serve
from siliconloom.sim.service.fleet import Fleet

CLOSE = 0.01
"""Relative difference of two rates between which nothing more is looked for."""
MOST_DOUBLINGS = 40
MOST_RATE = 1e6
"""Requests a second that ``serve.rate`` may be."""
WHATS = ("rate", "replicas", "fleet")
MOST_FLEETS = 1024
"""Numbers of machines of each kind, all together, that are looked among."""


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
    """The run at the highest ``rate`` (to one percent), with the fewest ``replicas``, or with the machines of a
    ``fleet`` that cost the least (Melange, Griggs et al., 2024), that keeps to the objective.

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
    if what == "fleet":
        return _cheapest(served, objective, attain, overrides, watcher=watcher, kept=kept)

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


def _cheapest(
    served: Served | ServedFleet,
    objective: ServiceLevel,
    attain: float,
    overrides: Sequence[tuple[str, str]],
    *,
    watcher: Watcher,
    kept: list[Fleet] | None,
) -> dict[str, Any]:
    """The cheapest machines of a fleet, by the hour, with which requests keep to the objective.

    Numbers of each group's machines, up to what the fleet says, are tried in the order of their price, all of them up
    to the first that does: one more machine is not always better, as a router may send requests to a slow one.
    """
    if not isinstance(served, ServedFleet):
        raise LoomError("--find fleet: needs machines of several kinds, a file of kind: fleet")
    members = served.members
    for at, member in enumerate(members):
        if member.price is None:
            raise LoomError(f"--find fleet: groups.{at} has no price (price, dollars for an hour of a chip)")
    settings = served.first.settings
    if settings.draft_on is not None and settings.draft_price is None:
        raise LoomError("--find fleet: serve.draft_on has no price (serve.draft_price, dollars an hour)")
    if settings.replicas_least is not None:
        raise LoomError("--find fleet: how many there are follows what is due (serve.replicas_least)")
    most = [member.count // member.served.replicas for member in members]
    combined = prod(each + 1 for each in most)
    if combined > MOST_FLEETS:
        largest = most.index(max(most))
        raise LoomError(
            f"--find fleet: {combined:,} numbers of machines are more than {MOST_FLEETS:,} (groups.{largest}.count)"
        )
    apart = any(member.role is not ReplicaRole.WHOLE for member in members)
    wanted = {ReplicaRole.PROMPTS, ReplicaRole.ANSWERS} if apart else {ReplicaRole.WHOLE}
    ways = sorted(
        (sum(_hourly(member, count) for member, count in zip(members, counts, strict=True)), sum(counts), counts)
        for counts in product(*(range(each + 1) for each in most))
        if {member.role for member, count in zip(members, counts, strict=True) if count} == wanted
    )
    tried: list[dict[str, float]] = []
    refused: list[tuple[tuple[int, ...], LoomError]] = []
    best = 0.0
    for price, _, counts in ways:
        some = tuple(
            replace(member, count=count * member.served.replicas)
            for member, count in zip(members, counts, strict=True)
            if count
        )
        fleets: list[Fleet] = []
        try:
            result = serve(replace(served, members=some), objective, overrides, watcher=watcher, audits=0, kept=fleets)
        except LoomError as error:  # of this number of machines: others may serve
            refused.append((counts, error))
            continue
        reached = result["slo"]["attained"]
        machines = {f"groups.{at}": float(count) for at, count in enumerate(counts)}
        tried.append({"value": price, "attained": reached, "goodput": result["goodput"], **machines})
        best = max(best, reached)
        if reached < attain and result["complete"]:
            continue
        if kept is not None:
            kept.append(fleets[0])
        if reached >= attain and result["complete"]:
            result["found"] = {"what": "fleet", "value": price, "attain": attain, "tried": tried, "machines": counts}
            try:
                check_choices(settings, some)
            except LoomError as error:  # of others that were tried it does
                result["notes"] = [f"{error} among the machines that were found", *result["notes"]]
        else:
            note = "interrupted: the search had not ended, and these machines were being tried"
            result["notes"] = [note, *result["notes"]]
        return result
    if refused and not tried:
        raise refused[0][1]
    rest = ""
    if refused:
        counts, reason = refused[0]
        one = ", ".join(f"groups.{at}.count={count}" for at, count in enumerate(counts))
        rest = f"; {len(refused)} do not serve ({one}: {reason})"
    raise LoomError(
        f"--find fleet: with none of {len(ways):,} numbers of machines {_percent(attain)} of the requests keep to the "
        f"limits; with the best of them {_percent(best)} do{rest}"
    )


def _hourly(member: FleetMember, machines: int) -> float:
    """Dollars for an hour of so many of a group's machines: of the chips that work, and of those that guess ahead."""
    served = member.served
    replica = served.plan.chips * (member.price or 0.0) + (served.settings.draft_price or 0.0)
    return machines * served.replicas * replica


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"


def _one(served: Served | ServedFleet) -> Served:
    return served.first if isinstance(served, ServedFleet) else served


def _of(served: Served | ServedFleet, replicas: int) -> Served:
    """The same with so many replicas."""
    if isinstance(served, ServedFleet):
        raise NotSupported("--find replicas of a fleet: it has several kinds; --find fleet finds the cheapest")
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
                raise LoomError(
                    f"--find rate: no rate that can be tried breaks the limits, up to {four_digits(low)} a second"
                )
        else:
            high = rate
            if low:
                break
            rate /= 2
    if good is None:
        raise LoomError(
            f"--find rate: at no rate do {_percent(attain)} of the requests keep to the limits; at {rate * 2:.3g} "
            f"requests a second {_percent(best)} do"
        )
    if not high:
        raise LoomError(f"--find rate: no rate that can be tried breaks the limits, up to {four_digits(low)} a second")
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
        kept = f"{_percent(reached)} of the requests keep to the limits, not {_percent(attain)}"
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
