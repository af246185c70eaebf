"""When requests come: as a trace says, scaled to another rate, or drawn from a process of that rate."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError
from siliconloom.arch.serving import Arrivals, ServeSettings
from siliconloom.workloads.serving.trace import RequestTrace


def timed(trace: RequestTrace, settings: ServeSettings) -> RequestTrace:
    """The requests of ``trace`` that are served, at the times at which they come.

    A trace's own times begin at its first request, and are stretched or squeezed to ``serve.rate`` where one is given:
    the mean rate is the number of gaps over the time between the first and the last arrival. A trace without times is
    asked at once, unless a process says otherwise.

    Raises
    ------
    LoomError
        For more requests than the trace has, or a rate of a trace whose requests all come at once.
    """
    first = settings.skip
    wanted = len(trace) - first if settings.requests is None else settings.requests
    if first >= len(trace):
        raise LoomError(f"serve.skip {first:,}: {trace.name} has {len(trace):,} requests")
    if trace.endless and settings.requests is None:
        raise LoomError(f"{trace.name}: says how long requests are, not how many; --set serve.requests=100 does")
    if trace.endless:
        trace = trace.repeated(first + wanted)
    if wanted > len(trace) - first:
        behind = f" behind the first {first:,}" if first else ""
        raise LoomError(f"serve.requests {wanted:,}: {trace.name} has {len(trace) - first:,}{behind}")
    served = trace.part(first, first + wanted)
    rate, generator = settings.rate, np.random.default_rng(settings.seed)
    kind, gaps = settings.arrivals, len(served) - 1
    if kind is Arrivals.TRACE:
        if rate is None:
            return served
        span = float(served.arrival_s[-1])
        if span <= 0:
            raise LoomError(
                f"serve.rate: all requests of {trace.name} come at once, and no rate stretches that; "
                "serve.arrivals=poisson draws their times"
            )
        return replace(served, arrival_s=served.arrival_s * (gaps / span / rate))
    if kind is Arrivals.AT_ONCE:
        return replace(served, arrival_s=np.zeros(len(served)))
    assert rate is not None  # as the settings' own check says
    if kind is Arrivals.UNIFORM:
        between = np.full(gaps, 1.0 / rate)
    elif kind is Arrivals.POISSON:
        between = generator.exponential(1.0 / rate, gaps)
    else:
        assert settings.burstiness is not None
        shape = settings.burstiness**-2
        between = generator.gamma(shape, 1.0 / (rate * shape), gaps)
    return replace(served, arrival_s=np.concatenate([[0.0], np.cumsum(between)]))


__all__ = ["timed"]
