"""Times operations on a GPU: warm, many times, with results checked, and writes what it found as a table.

The machine is behind `Backend` (`torch_backend` is the one there is), so that everything here runs, and is tested,
without one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

import numpy as np
from msgspec import Struct, field

from siliconloom.arch.errors import LoomError
from siliconloom.baselines.jobs import Deployment
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import Precision
from siliconloom.baselines.tables import Dropped, Method, Provenance, Table, build

TOLERANCE = {
    Precision.FP64: 1e-6,
    Precision.FP32: 1e-4,
    Precision.TF32: 4e-3,
    Precision.FP16: 4e-3,
    Precision.BF16: 2e-2,
    Precision.FP8: 4e-2,
    Precision.INT8: 0.0,
    Precision.FP4: 4e-2,
    Precision.INT4: 0.0,
}
"""Largest error of a result against float32 on the same operands, as a share of the result's norm.

A result is rounded once to its format (bf16: 2^-9), a few times in attention and in a layer; eight-bit operands are
compared as they are, and their result is bf16.
"""
PROBE_SECONDS = 1e-3
LARGEST_LAUNCHES = 100_000


class CannotRun(Exception):
    """An operation that this machine or its software does not have; the text says why."""


class Sensors(Struct, frozen=True):
    """Watts and megahertz while something ran; ``None`` when not known."""

    power_w: float | None = None
    clock_mhz: float | None = None


class MeasuringCase(Protocol):
    """An operation that is ready to run, with its operands in memory."""

    software: str
    """What runs it, as it will stand in the table."""

    def run(self, launches: int, during: Callable[[], None] | None = None) -> float:
        """Seconds, by the device's clock, of that many launches one after the other; ``during`` is called meanwhile."""
        ...

    def error(self) -> float:
        """Error of one result against float32, as a share of the norm of the result."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class Backend(Protocol):
    """A machine that can time operations."""

    device: str
    """Name that the machine gives its GPU."""
    gpu: str
    """Name that the GPU has in tables."""
    gpus: int
    software: tuple[str, ...]
    details: str

    def prepare(self, job: Deployment) -> list[MeasuringCase]:
        """Every way that this machine has to run an operation; raises `CannotRun`."""
        ...

    def sensors(self) -> Sensors:
        """Power and clock now."""
        ...


class Settings(Struct, frozen=True, kw_only=True):
    """How long everything is timed.

    Parameters
    ----------
    samples
        Times of which the median is taken.
    sample_seconds
        Least length of each: the operation is launched as often as that takes.
    hold_seconds
        The operation runs that long before the first sample, so that its power has set the clocks.
    """

    samples: int = 20
    sample_seconds: float = 0.01
    hold_seconds: float = 0.3

    @property
    def method(self) -> Method:
        """How the times of a table were taken."""
        return Method.SUSTAINED if self.hold_seconds >= 0.3 else Method.SHORT_BURST


QUICK = Settings(samples=5, sample_seconds=0.002, hold_seconds=0.02)


class Measured(Struct, frozen=True, kw_only=True):
    """One operation's time: the median of the samples, and how far apart nine tenths of them lie (a share of it)."""

    job: Deployment
    software: str
    seconds: float
    spread: float
    error: float
    power_w: float | None
    clock_mhz: float | None


class Measurement(Struct):
    """Everything that was timed, and what was not and why."""

    rows: list[Measured] = field(default_factory=list)
    skipped: list[tuple[Deployment, str]] = field(default_factory=list)


def measure(
    jobs: Sequence[Deployment],
    backend: Backend,
    settings: Settings,
    progress: Callable[[float], None] = lambda _: None,
    *,
    limit_seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Time every job; one that the machine cannot run, or whose result is wrong, is left out with the reason.

    Jobs that have not begun after ``limit_seconds`` of ``clock`` are left out, too. So that a part of them is like the
    whole, they are taken in a shuffled order then, always the same.
    """
    found = Measurement()
    if limit_seconds < math.inf:
        jobs = random.Random(0).sample(jobs, len(jobs))
    began = clock()
    for number, job in enumerate(jobs):
        if clock() - began > limit_seconds:
            found.skipped += [(left, f"not begun within {limit_seconds:g} s") for left in jobs[number:]]
            break
        try:
            cases = backend.prepare(job)
        except CannotRun as reason:
            found.skipped.append((job, str(reason)))
            cases = []
        for case in cases:
            try:
                found.rows.append(time_case(job, case, backend, settings))
            except CannotRun as reason:
                found.skipped.append((job, f"{case.software}: {reason}"))
            finally:
                case.close()
        progress((number + 1) / len(jobs))
    return found


def time_case(job: Deployment, case: MeasuringCase, backend: Backend, settings: Settings) -> Measured:
    """Check one operation's result, then time it."""
    error = case.error()
    if not 0 <= error <= TOLERANCE[job.dtype]:  # NaN too
        raise CannotRun(f"its result differs from float32 by {error:.2g} of its norm, {TOLERANCE[job.dtype]:g} allowed")
    launches, seconds = _probe(case)
    held = 0.0
    block = _launches(max(settings.sample_seconds, 0.05), seconds / launches)
    while held < settings.hold_seconds:
        held += _positive(case.run(block))
    each = _launches(settings.sample_seconds, seconds / launches)
    times: list[float] = []
    seen: list[Sensors] = []
    for _ in range(settings.samples):
        times.append(_positive(case.run(each, lambda: seen.append(backend.sensors()))) / each)
    low, middle, high = np.quantile(times, [0.05, 0.5, 0.95]).tolist()
    return Measured(
        job=job,
        software=case.software,
        seconds=middle,
        spread=(high - low) / middle,
        error=error,
        power_w=_middle([s.power_w for s in seen]) if settings.method is Method.SUSTAINED else None,
        clock_mhz=_middle([s.clock_mhz for s in seen]),
    )


def _probe(case: MeasuringCase) -> tuple[int, float]:
    """Launches that take about `PROBE_SECONDS`, and their seconds, after a first run that nothing is made of."""
    case.run(1)
    launches = 1
    while True:
        seconds = _positive(case.run(launches))
        if seconds >= PROBE_SECONDS or launches >= LARGEST_LAUNCHES:
            return launches, seconds
        launches = min(LARGEST_LAUNCHES, max(2 * launches, _launches(PROBE_SECONDS, seconds / launches)))


def _launches(wanted: float, each: float) -> int:
    return int(min(LARGEST_LAUNCHES, max(1, np.ceil(wanted / each))))


def _positive(seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise CannotRun(f"the device's clock gave {seconds} s")
    return seconds


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def to_table(name: str, found: Measurement, backend: Backend, settings: Settings) -> Table:
    """The table of a measurement; raises `LoomError` when nothing could be timed."""
    if not found.rows:
        first = f": {found.skipped[0][0]}: {found.skipped[0][1]}" if found.skipped else ""
        raise LoomError(f"nothing could be measured on this {backend.device}{first}")
    reasons: dict[str, int] = {}
    for _, reason in found.skipped:
        reasons[reason] = reasons.get(reason, 0) + 1
    spread = median(row.spread for row in found.rows)
    details = (
        f"{backend.details} Median of {settings.samples} samples of at least {settings.sample_seconds * 1e3:g} ms, "
        f"after {settings.hold_seconds:g} s of the same; nine tenths of them lie within {spread:.1%} (median of the "
        "rows)."
    )
    provenance = Provenance(
        title=f"Measured on {backend.gpus} x {backend.device}",
        gpus=(backend.gpu,),
        source="loom measure",
        licence="as you choose",
        method=settings.method,
        details=details,
        software=tuple(dict.fromkeys((*backend.software, *sorted({row.software for row in found.rows})))),
        dropped=tuple(Dropped(what="operations", rows=count, why=why) for why, count in reasons.items()),
    )

    def known(value: float | None) -> float:
        return np.nan if value is None else float(f"{value:.4g}")

    return build(
        name,
        provenance,
        make_operations([row.job.columns() for row in found.rows]),
        gpu=backend.gpu,
        time_us=[float(f"{row.seconds * 1e6:.5g}") for row in found.rows],
        model=[row.job.model for row in found.rows],
        power_w=[known(row.power_w) for row in found.rows],
        clock_mhz=[known(row.clock_mhz) for row in found.rows],
        software=[row.software for row in found.rows],
        input_tokens=[row.job.input_tokens for row in found.rows],
    )


__all__ = [
    "Backend",
    "CannotRun",
    "MeasuringCase",
    "Measured",
    "Measurement",
    "QUICK",
    "Sensors",
    "Settings",
    "TOLERANCE",
    "measure",
    "time_case",
    "to_table",
]
