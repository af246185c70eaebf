"""A training run on chips that fail: checkpoints, lost work, restarts and spare chips, event by event.

The run does its steps in stretches with a checkpoint after each but the last. When a chip fails, all that was done
since the last checkpoint is lost; a spare chip takes its place, or the run waits until a failed one is mended, and
after a restart it goes on from the checkpoint. Chips also fail during checkpoints, restarts and waits. Times are
seconds here: a run takes weeks, and nothing in it is counted in clock cycles.

Sources: Young, "A first order approximation to the optimum checkpoint interval" (1974); Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps" (2006).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from math import exp, expm1, inf, isfinite, sqrt
from typing import Literal

import numpy as np
from msgspec import Struct

from siliconloom.arch.errors import LoomError

FAILURES_MOST = 1_000_000
"""Of one run."""
DRAWN = 1024
"""Times between failures that are drawn at once; the same as one after the other."""

EventKind = Literal["failure", "waited", "restarted", "checkpoint", "finished"]


class TrainingRun(Struct, frozen=True, kw_only=True):
    """What a run has to do, and what goes wrong.

    Parameters
    ----------
    steps, step_s
        Training steps, and seconds that each one takes without failures.
    chips
        Chips that all must work.
    mtbf_s
        Mean time between failures of one chip; failures of different chips are independent and exponential.
    checkpoint_s, restart_s
        Seconds in which a checkpoint is written while nothing is trained, and from a failure (or the spare chip's
        arrival) until training goes on.
    checkpoint_steps
        Steps between checkpoints; `None` for Daly's best interval.
    spares
        Chips that wait to take a failed one's place at once; `None` for any number.
    repair_s
        Until a failed chip is a spare one; infinite for never.
    """

    steps: int
    step_s: float
    chips: int = 1
    mtbf_s: float = inf
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    checkpoint_steps: int | None = None
    spares: int | None = None
    repair_s: float = inf

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 0),
            ("step_s", 0),
            ("chips", 1),
            ("checkpoint_s", 0),
            ("restart_s", 0),
            ("spares", 0),
            ("repair_s", 0),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise LoomError(f"run.{name}: must be at least {least} (got {value})")
        if not self.mtbf_s > 0:
            raise LoomError(f"run.mtbf_s: must be more than 0 (got {self.mtbf_s})")
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise LoomError(f"run.checkpoint_steps: must be at least 1 (got {self.checkpoint_steps})")

    @property
    def mtbf(self) -> float:
        """Seconds between failures of any of the chips, on the average."""
        return self.mtbf_s / self.chips

    @property
    def stretch(self) -> int:
        """Steps between checkpoints."""
        if self.checkpoint_steps is not None:
            return min(self.checkpoint_steps, max(self.steps, 1))
        if not isfinite(self.mtbf) or self.step_s == 0:
            return max(self.steps, 1)
        return min(max(round(best_interval(self.checkpoint_s, self.mtbf) / self.step_s), 1), max(self.steps, 1))


class RunEvent(Struct, frozen=True):
    """Something that happened at a time: after it ``saved`` steps are in a checkpoint, or done for good.

    Of checkpoints that follow each other without a failure the last one stands for all.
    """

    seconds: float
    kind: EventKind
    saved: int


class RunResult(Struct, frozen=True):
    """How long a run took and what for; the five parts add up to ``seconds``.

    Parameters
    ----------
    useful_s, checkpoint_s, lost_s, restart_s, waiting_s
        In steps that counted, in checkpoints that counted, in steps and checkpoints that a failure undid, in restarts
        (those that failed, too), and in waiting for a mended chip.
    """

    seconds: float
    useful_s: float
    checkpoint_s: float
    lost_s: float
    restart_s: float
    waiting_s: float
    failures: int
    checkpoints: int
    events: tuple[RunEvent, ...]

    @property
    def goodput(self) -> float:
        """Share of the time that was spent in steps that counted."""
        return self.useful_s / self.seconds if self.seconds else 1.0


def best_interval(checkpoint_s: float, mtbf: float) -> float:
    """Seconds of work between checkpoints that make a run shortest, by Daly's higher order estimate.

    Young's is its first term, the root of 2 times checkpoint time times mean time between failures.
    """
    if checkpoint_s >= 2 * mtbf:
        return mtbf
    part = checkpoint_s / (2 * mtbf)
    return sqrt(2 * checkpoint_s * mtbf) * (1 + sqrt(part) / 3 + part / 9) - checkpoint_s


def expected_seconds(run: TrainingRun) -> float:
    """Mean time of a run with exponential failures that never waits for spares.

    After Daly: a stretch of w seconds takes M exp(R / M) (exp(w / M) - 1) on the average, where M are the
    seconds between failures and R those of a restart, which may fail itself. Infinite where that overflows.
    """
    mtbf, stretch = run.mtbf, run.stretch
    written = max(run.steps - 1, 0) // stretch
    whole, last = stretch * run.step_s + run.checkpoint_s, (run.steps - written * stretch) * run.step_s
    if not isfinite(mtbf):
        return written * whole + last
    try:
        return mtbf * exp(run.restart_s / mtbf) * (written * expm1(whole / mtbf) + expm1(last / mtbf))
    except OverflowError:
        return inf


def expected_failures(run: TrainingRun) -> float:
    """Mean number of failures of a run with exponential failures that never waits for spares: of waits there are more.

    Failures are independent of what the run does, so they are its mean time over the mean time between them.
    """
    return expected_seconds(run) / run.mtbf if isfinite(run.mtbf) else 0.0


def run_training(
    run: TrainingRun, *, seed: int = 0, failures: Sequence[float] | None = None, record: bool = True
) -> RunResult:
    """Run all steps.

    ``failures`` are given times, in seconds from the start; without them they are drawn from ``seed``. Without
    ``record`` the result has no events, which are some hundred bytes each: three for a failure.

    Raises
    ------
    LoomError
        When no spare chip is left and none comes back, or the run fails a million times before it ends.
    """
    times = iter(sorted(failures)) if failures is not None else _draw(run.mtbf, seed)
    upcoming = next(times, inf)
    now = checkpoint_s = lost_s = restart_s = waiting_s = 0.0
    saved = failed = checkpoints = 0
    events: list[RunEvent] = []
    pool = _Pool(run.spares, run.repair_s)

    def note(seconds: float, kind: EventKind) -> None:
        if record:
            events.append(RunEvent(seconds, kind, saved))

    def fail() -> None:
        """Stop at the failure that is due, replace the chip, restart until a restart gets through."""
        nonlocal now, upcoming, failed, waiting_s, restart_s
        restarted = False
        while not restarted:
            note(now, "failure")
            ready = pool.replace(now)
            upcoming = next(times, inf)
            failed += 1
            while upcoming < ready:  # another one during the wait
                note(upcoming, "failure")
                ready = max(ready, pool.replace(upcoming))
                upcoming = next(times, inf)
                failed += 1
            if failed > FAILURES_MOST:
                raise LoomError(
                    f"the run failed {failed:,} times and is at step {saved} of {run.steps}: its chips fail every "
                    f"{run.mtbf:.4g} s, a restart takes {run.restart_s:.4g} s"
                )
            if ready > now:
                waiting_s += ready - now
                note(ready, "waited")
            now = ready
            restarted = now + run.restart_s <= upcoming
            end = now + run.restart_s if restarted else upcoming
            restart_s += end - now
            now = end
        note(now, "restarted")

    stretch = run.stretch
    whole = stretch * run.step_s + run.checkpoint_s
    while saved < run.steps:
        written = (run.steps - saved - 1) // stretch  # stretches that a checkpoint follows, those before the failure
        if isfinite(upcoming) and whole > 0:
            written = min(written, int((upcoming - now) / whole))
        if written:
            now += written * whole
            saved += written * stretch
            checkpoints += written
            checkpoint_s += written * run.checkpoint_s
            note(now, "checkpoint")
        steps = min(stretch, run.steps - saved)
        end = now + steps * run.step_s + (run.checkpoint_s if saved + steps < run.steps else 0.0)
        if upcoming < end:
            lost_s += max(upcoming - now, 0.0)
            now = max(upcoming, now)
            fail()
        else:
            now, saved = end, saved + steps
            if saved < run.steps:  # a stretch that ends on the very moment of a failure
                checkpoints += 1
                checkpoint_s += run.checkpoint_s
    note(now, "finished")
    useful = run.steps * run.step_s
    return RunResult(now, useful, checkpoint_s, lost_s, restart_s, waiting_s, failed, checkpoints, tuple(events))


class _Pool:
    """Spare chips, and failed ones on their way back."""

    def __init__(self, spares: int | None, repair_s: float) -> None:
        self.spares, self.repair_s = spares, repair_s
        self.returns: list[float] = []

    def replace(self, now: float) -> float:
        """When a chip is there for one that fails now."""
        if self.spares is None:
            return now
        while self.returns and self.returns[0] <= now:
            heapq.heappop(self.returns)
            self.spares += 1
        if isfinite(self.repair_s):
            heapq.heappush(self.returns, now + self.repair_s)
        if self.spares:
            self.spares -= 1
            return now
        if not self.returns:
            raise LoomError(f"no spare chip is left {now:.4g} s into the run, and none is mended (run.repair_s)")
        return heapq.heappop(self.returns)


def _draw(mean: float, seed: int) -> Iterator[float]:
    if not isfinite(mean):
        return
    random, now = np.random.default_rng(seed), 0.0
    while True:
        for after in random.exponential(mean, DRAWN).tolist():
            now += after
            yield now
