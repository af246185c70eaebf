"""What a run of a fleet came to: percentiles, rates, replicas, and the run over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.service_level import ServiceLevel
from siliconloom.arch.serving import ServeSettings
from siliconloom.arch.timeline import Span, Timeline
from siliconloom.sim.service.fleet import AnyReplica, Fleet
from siliconloom.sim.service.log import Intervals
from siliconloom.sim.service.replica import Replica
from siliconloom.workloads.serving.trace import RequestTrace

Float = NDArray[np.float64]
SPANS = 240
"""Spans of the timeline."""
LITTLE = 1e-6
"""Relative difference that rounding may make between the two sides of Little's law."""


def spread(values: Float) -> dict[str, float]:
    """Mean and percentiles; zeros of nothing."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), 0.0)
    p50, p90, p95, p99 = np.quantile(values, (0.5, 0.9, 0.95, 0.99)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": float(values.max())}


def request_columns(fleet: Fleet) -> dict[str, NDArray[Any]]:
    """Of every request, seconds from its arrival on: ``ttft_s``, ``tpot_s``, ``e2e_s``, ``queue_s``; NaN where not."""
    log, requests = fleet.log, fleet.requests
    with np.errstate(invalid="ignore", divide="ignore"):
        further = np.where(requests.output > 1, requests.output - 1, np.nan)
        return {
            "arrival_s": log.arrival,
            "prompt_tokens": requests.prompt,
            "output_tokens": requests.output,
            "queue_s": log.scheduled - log.arrival,
            "ttft_s": log.first - log.arrival,
            "tpot_s": (log.finished - log.first) / further,
            "e2e_s": log.finished - log.arrival,
            "cached_tokens": log.cached,
            "preempted": log.preempted,
            "moved": log.moved,
            "replica": log.replica,
        }


def attained(fleet: Fleet, objective: ServiceLevel) -> NDArray[np.bool_]:
    """Which requests keep to all limits."""
    columns = request_columns(fleet)
    kept: NDArray[np.bool_] = ~np.isnan(columns["e2e_s"])
    for name, limit in objective.asked.items():
        values = columns[name]
        kept &= np.isnan(values) | (values <= limit)  # one token has no time for each further one
    return kept


def run_result(fleet: Fleet, trace: RequestTrace, settings: ServeSettings, objective: ServiceLevel) -> dict[str, Any]:
    """Sections of `arch.served.ServingResult` that the run itself says; ``step_joules`` are those above standing."""
    log, requests = fleet.log, fleet.requests
    columns = request_columns(fleet)
    done = ~np.isnan(log.finished)
    check_little(fleet)
    last = float(log.finished[done].max()) if done.any() else 0.0
    duration = max(last - float(requests.arrival_s[0]), 0.0)
    span = float(requests.arrival_s[-1] - requests.arrival_s[0])
    kept = attained(fleet, objective)
    output = int(requests.output[done].sum())
    prompt = int(requests.prompt[done].sum())
    intervals = Intervals()
    engines = fleet.engines
    for engine in engines:
        intervals.merge(engine.account.intervals)
    able = _able(fleet, duration)
    busy = [replica.busy_s / s if s else 0.0 for replica, s in zip(fleet.replicas, able, strict=True)]
    steps = sum(engine.account.steps for engine in engines)
    computed = sum(engine.account.prompt_tokens for engine in engines)
    tpot = columns["tpot_s"][done]
    per_s = 1 / duration if duration else 0.0
    return {
        "requests": {
            "count": len(requests.prompt),
            "finished": int(done.sum()),
            "prompt_tokens": prompt,
            "output_tokens": output,
            "span_s": span,
            "rate": (len(requests.prompt) - 1) / span if span else None,
        },
        "duration_s": duration,
        "ttft_s": spread(columns["ttft_s"][done]),
        "tpot_s": spread(tpot[~np.isnan(tpot)]),
        "itl_s": _of_intervals(intervals),
        "e2e_s": spread(columns["e2e_s"][done]),
        "queue_s": spread(columns["queue_s"][done]),
        "slo": {**objective.asked, "attained": float(kept.mean())},
        "goodput": float(kept.sum()) * per_s,
        "requests_per_s": float(done.sum()) * per_s,
        "tokens_per_s": output * per_s,
        "prompt_tokens_per_s": prompt * per_s,
        "step_joules": sum(engine.account.joules for engine in engines),
        "busy": float(np.mean(busy)) if fleet.elastic is None else float(np.dot(busy, able)) / max(sum(able), 1e-30),
        "batch": sum(_decoded(engine) for engine in engines) / max(steps, 1),
        "preempted": int(log.preempted.sum()),
        **_accepted(fleet),
        **_scaling(fleet, duration),
        **_migration(fleet),
        **_power(fleet, last),
        **_spill(fleet),
        **_tuned(fleet, duration),
        **_experts(fleet),
        "cached_share": float(log.cached[done].sum()) / max(int(log.cached[done].sum()) + computed, 1),
        "replicas": [
            _replica(replica, share, handing=bool(fleet.second))
            for replica, share in zip(fleet.replicas, busy, strict=True)
        ],
        "timeline": _timeline(fleet, duration),
    }


def _able(fleet: Fleet, duration: float) -> list[float]:
    """Seconds in which every replica was there."""
    if fleet.elastic is None:
        return [duration] * len(fleet.replicas)
    begin = float(fleet.requests.arrival_s[0])
    return fleet.elastic.able(begin, begin + duration)


def _scaling(fleet: Fleet, duration: float) -> dict[str, Any]:
    """Of replicas that come and go, how many there were."""
    if fleet.elastic is None or not fleet.settings.elastic:
        return {}
    begin = float(fleet.requests.arrival_s[0])
    paid = sum(fleet.elastic.paid(begin, begin + duration))
    able = sum(fleet.elastic.able(begin, begin + duration))
    return {
        "scaling": {
            "replica_s": paid,
            "mean": able / duration if duration else 0.0,
            "started": fleet.elastic.started,
            "lost": fleet.elastic.lost,
            "remade": int(fleet.log.lost.sum()),
        }
    }


def _migration(fleet: Fleet) -> dict[str, Any]:
    """Of requests that moved between replicas as they ran."""
    moves = None if fleet.elastic is None else fleet.elastic.migration
    if moves is None:
        return {}
    return {
        "migration": {
            "moved": moves.moved,
            "given_up": moves.given_up,
            "copied_tokens": moves.copied,
            "apart_s": moves.apart_s / moves.moved if moves.moved else 0.0,
        }
    }


def _power(fleet: Fleet, end: float) -> dict[str, Any]:
    """What was drawn under a limit."""
    power = None if fleet.elastic is None else fleet.elastic.power
    return {} if power is None else {"power": power.result(end)}


def _tuned(fleet: Fleet, duration: float) -> dict[str, Any]:
    """What was trained beside the requests."""
    tuners = [engine.tuner for engine in fleet.engines if engine.tuner is not None]
    if not tuners:
        return {}
    tokens = sum(tuner.tokens for tuner in tuners)
    found = {"tokens": tokens, "sequences": sum(tuner.sequences for tuner in tuners)}
    return {"tuning": {**found, "tokens_per_s": tokens / duration if duration else 0.0}}


def _experts(fleet: Fleet) -> dict[str, Any]:
    """What came from the host for tokens that used it."""
    experts = [engine.experts for engine in fleet.engines if engine.experts is not None]
    if not experts:
        return {}
    used, loads = sum(each.used for each in experts), sum(each.loads for each in experts)
    waited = sum(each.waited_s for each in experts)
    return {"experts": {"used": used, "loads": loads, "load_s": experts[0].routing.load_s, "waited_s": waited}}


def _spill(fleet: Fleet) -> dict[str, Any]:
    """What was brought from slower memories."""
    tiers = fleet.settings.spill
    brought = [sum(engine.spill.brought[at] for engine in fleet.engines) for at in range(len(tiers))]
    rows = [{"name": tier.name, "brought_tokens": many} for tier, many in zip(tiers, brought, strict=True)]
    return {"spill": rows} if tiers else {}


def _accepted(fleet: Fleet) -> dict[str, float]:
    guessed = sum(engine.account.guessed for engine in fleet.engines)
    checks = sum(engine.guesses.checks for engine in fleet.engines)
    found = {"accepted": sum(engine.account.accepted for engine in fleet.engines) / guessed} if guessed else {}
    return found | ({"ready": sum(engine.guesses.ready for engine in fleet.engines) / checks} if checks else {})


def check_little(fleet: Fleet) -> None:
    """Little's law: requests present, over time, are all requests' times in the system; raises `AssertionError`."""
    if not fleet.log.complete:
        return
    present = sum(engine.account.present_s for engine in fleet.engines)
    apart = float(fleet.apart_s)
    times = float((fleet.log.finished - fleet.log.arrival).sum())
    if abs(present + apart - times) > LITTLE * max(times, 1e-12):
        raise AssertionError(f"{present + apart} request-seconds were spent and {times} are told: a bug")


def _of_intervals(intervals: Intervals) -> dict[str, float]:
    if not intervals.count:
        return spread(np.zeros(0))
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    found = {name: intervals.quantile(share) for name, share in shares.items()}
    return {"mean": intervals.total / intervals.count, **found, "max": intervals.most}


def _decoded(replica: Replica) -> float:
    return float(replica.account.activity.table()["decoding"].sum())


def _replica(replica: AnyReplica, busy: float, *, handing: bool) -> dict[str, Any]:
    engines = replica.engines
    kind = "whole" if not handing else "prompts" if engines[0].hands_over else "answers"
    steps = sum(engine.account.steps for engine in engines)
    used = [float(engine.account.activity.table()["blocks"].max(initial=0.0)) for engine in engines]
    return {
        "kind": kind,
        "requests": sum(engine.left for engine in engines),
        "steps": steps,
        "prompt_tokens": sum(engine.account.prompt_tokens for engine in engines),
        "output_tokens": sum(engine.account.tokens for engine in engines),
        "busy": busy,
        "batch": sum(_decoded(engine) for engine in engines) / max(steps, 1),
        "adapter_loads": sum(engine.adapters.loads for engine in engines),
        "model_loads": sum(engine.models.loads for engine in engines),
        "cache_used": max(each / engine.pool.blocks for each, engine in zip(used, engines, strict=True)),
    }


def _timeline(fleet: Fleet, duration: float) -> dict[str, list[float]]:
    """The run in equal spans; a record of several spans is shared out among them."""
    edges = np.linspace(0.0, duration, SPANS + 1) if duration else np.array([0.0, 1.0])
    width = float(edges[1] - edges[0])
    first = float(fleet.requests.arrival_s[0])
    found = {name: np.zeros(len(edges) - 1) for name in ("prompt_tokens_per_s", "tokens_per_s", "joules_per_s")}
    used = np.zeros(len(edges) - 1)
    for replica in fleet.engines:
        table = replica.account.activity.table()
        begins, ends = table["start_s"] - first, table["start_s"] + table["seconds"] - first
        columns = (("prompt_tokens", "prompt_tokens_per_s"), ("tokens", "tokens_per_s"), ("joules", "joules_per_s"))
        for column, name in columns:
            found[name] += _shared(begins, ends, table[column], edges) / width
        lows = np.clip(((begins) / width).astype(np.int64), 0, len(used) - 1)
        highs = np.clip(np.ceil(ends / width).astype(np.int64) - 1, lows, len(used) - 1)
        peak = np.zeros(len(used))
        np.maximum.at(peak, lows, table["blocks"])
        np.maximum.at(peak, highs, table["blocks"])
        for row in np.flatnonzero(highs > lows + 1):  # records of a replica follow each other: few are so long
            inner = slice(lows[row] + 1, highs[row])
            peak[inner] = np.maximum(peak[inner], table["blocks"][row])
        used += peak / replica.pool.blocks / len(fleet.engines)
    more = {}
    if fleet.elastic is not None and fleet.settings.elastic:
        periods = [(each.up - first, min(each.end - first, duration)) for each in fleet.elastic.periods]
        ups, gone = np.array([(up, duration if end != end else end) for up, end in periods]).T
        there = gone > ups
        more["replicas"] = (_shared(ups[there], gone[there], (gone - ups)[there], edges) / width).tolist()
    log = fleet.log
    middles = (edges[:-1] + edges[1:]) / 2 + first
    came = np.searchsorted(np.sort(log.arrival), middles, side="right")
    begun = np.searchsorted(np.sort(log.scheduled), middles, side="right")
    left = np.searchsorted(np.sort(log.finished), middles, side="right")
    return {
        "start_s": edges[:-1].tolist(),
        **{name: values.tolist() for name, values in found.items()},
        "running": (begun - left).astype(float).tolist(),
        "waiting": (came - begun).astype(float).tolist(),
        "cache_used": used.tolist(),
        **more,
    }


def _shared(begins: Float, ends: Float, amounts: Float, edges: Float) -> Float:
    """Amounts of intervals, in equal measure over their time, by the spans between ``edges``."""
    if not len(begins):
        return np.zeros(len(edges) - 1)
    order = np.argsort(begins, kind="stable")
    begins, ends, amounts = begins[order], np.maximum(ends[order], begins[order] + 1e-15), amounts[order]
    points = np.concatenate([begins, ends])
    rates = np.concatenate([amounts / (ends - begins), -amounts / (ends - begins)])
    by = np.argsort(points, kind="stable")
    points, rates = points[by], np.cumsum(rates[by])
    total = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(points))])
    return np.diff(np.interp(edges, points, total))


def request_table(fleet: Fleet) -> dict[str, NDArray[Any]]:
    """Every request's times, in seconds from the first arrival; NaN is what never happened."""
    columns = request_columns(fleet)
    return {**columns, "arrival_s": columns["arrival_s"] - float(fleet.requests.arrival_s[0])}


def requests_csv(fleet: Fleet) -> str:
    """Every request's times as CSV, in seconds from the first arrival; what never happened is left empty."""
    columns = request_table(fleet)
    lines = [",".join(columns)]
    for at in range(len(fleet.requests.prompt)):
        cells = []
        for values in columns.values():
            cells.append("" if values[at] != values[at] else repr(values[at].item()))
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def _step_spans(track: int, engine: Replica, ticks: Callable[[float], int]) -> list[Span]:
    """A scheduler's steps, or as many of them together as its activity has in a row."""
    names = ("steps", "decoding", "prompt_tokens", "blocks", "waiting")
    table = engine.account.activity.table()
    found = []
    for row in range(len(table["start_s"])):
        begin = float(table["start_s"][row])
        details = {name: round(float(table[name][row])) for name in names}
        kind = "prompts" if details["prompt_tokens"] else "next tokens"
        found.append(Span(track, kind, "steps", ticks(begin), ticks(begin + float(table["seconds"][row])), details))
    return found


MOST_TRACKS = 256
"""Requests of one replica that a trace shows side by side."""
TICK = 1e-9


def serving_timeline(fleet: Fleet, result: dict[str, Any]) -> Timeline:
    """Requests as spans (queue, prompt, answer), as many tracks of each replica as there are at once, and its steps."""
    log, requests = fleet.log, fleet.requests
    first = float(requests.arrival_s[0])
    tracks: dict[int, str] = {}
    spans: list[Span] = []
    left_out = 0

    def ticks(seconds: float) -> int:
        return round((seconds - first) / TICK)

    for index, replica in enumerate(fleet.replicas):
        for place, engine in enumerate(replica.engines):
            steps = len(tracks)
            which = f", scheduler {place + 1}" if len(replica.engines) > 1 else ""
            tracks[steps] = f"replica {index}{which}: steps"
            spans += _step_spans(steps, engine, ticks)
        free: list[float] = []
        lanes: list[int] = []
        members = np.flatnonzero((log.replica == index) & ~np.isnan(log.finished))
        for number in members[np.argsort(log.arrival[members], kind="stable")].tolist():
            came, left = float(log.arrival[number]), float(log.finished[number])
            lane = next((i for i, end in enumerate(free) if end <= came), len(free))
            if lane == MOST_TRACKS:
                left_out += 1
                continue
            if lane == len(free):
                free.append(0.0)
                lanes.append(len(tracks))
                tracks[lanes[-1]] = f"replica {index}: requests {lane + 1}"
            free[lane] = left
            details = {
                "request": number + 1,
                "prompt_tokens": int(requests.prompt[number]),
                "output_tokens": int(requests.output[number]),
                "preempted": int(log.preempted[number]),
            }
            ends = [("queue", came, log.scheduled[number]), ("prompt", log.scheduled[number], log.first[number])]
            for name, begin, end in [*ends, ("answer", log.first[number], left)]:
                begin, end = max(float(begin), came), float(end)
                if end > begin:
                    spans.append(Span(lanes[lane], name, name, ticks(begin), ticks(end), details))
    asked = result["asked"]
    title = f"{asked['workload']} on {asked['machine']}, requests of {asked['trace']}"
    facts = {"version": result["version"]}
    if left_out:
        facts["left_out"] = f"{left_out:,} requests, of more than {MOST_TRACKS} at once on a replica"
    return Timeline(title, TICK, tracks, spans, facts)


__all__ = [
    "attained",
    "check_little",
    "request_columns",
    "request_table",
    "requests_csv",
    "run_result",
    "serving_timeline",
    "spread",
]
