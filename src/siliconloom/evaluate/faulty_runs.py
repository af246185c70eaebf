"""Whole training runs of a plan on chips that fail: the mean and spread of many simulated ones."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from siliconloom.arch.errors import LoomError
from siliconloom.arch.run import DescribedRun
from siliconloom.sim.system.failures import (
    FAILURES_MOST,
    TrainingRun,
    expected_failures,
    expected_seconds,
    run_training,
)

FAILURES_IN_ALL = 5_000_000
"""Of all runs together: some ten seconds."""


def faulty_run(run: DescribedRun, *, step_s: float, chips: int, state_bytes: float = 0.0) -> dict[str, Any]:
    """What becomes of a run of steps that take ``step_s`` seconds each on ``chips`` chips.

    ``state_bytes`` are those of a checkpoint, of all chips together; they go to ``run.storage`` where no time is given.

    The dictionary has ``steps``, ``chips``, ``mtbf_s`` (of the whole system; null without failures), ``checkpoint_s``,
    ``checkpoint_steps``, ``ideal_s`` (steps alone), ``expected_s`` (Daly's formula; null with few spares, which it does
    not know), ``seconds`` with ``mean``, ``p10`` and ``p90``, and the means of ``failures``, ``checkpoints``,
    ``goodput``, and of the parts of the time: ``useful_s``, ``checkpoints_s``, ``lost_s``, ``restart_s``,
    ``waiting_s``.

    Raises
    ------
    LoomError
        For settings that contradict each other, or a run that does not get to its end.
    """
    if run.checkpoint is not None and run.storage is not None:
        raise LoomError("run.checkpoint and run.storage: give one of them, the other follows")
    written = state_bytes / run.storage if run.storage is not None else run.checkpoint or 0.0
    made = TrainingRun(
        steps=run.steps,
        step_s=step_s,
        chips=chips,
        mtbf_s=run.mtbf,
        checkpoint_s=written,
        restart_s=run.restart,
        checkpoint_steps=run.checkpoint_steps,
        spares=run.spares,
        repair_s=run.repair,
    )
    seeds = run.seeds if isfinite(made.mtbf) else 1
    _check_failures(made, run.steps, seeds)
    results = [run_training(made, seed=seed, record=False) for seed in range(seeds)]
    seconds = np.array([each.seconds for each in results])

    def mean(name: str) -> float:
        return float(np.mean([getattr(each, name) for each in results]))

    expected = expected_seconds(made) if run.spares is None else float("inf")
    return {
        "steps": run.steps,
        "chips": chips,
        "mtbf_s": made.mtbf if isfinite(made.mtbf) else None,
        "checkpoint_s": written,
        "checkpoint_steps": made.stretch,
        "ideal_s": run.steps * step_s,
        "expected_s": expected if isfinite(expected) else None,
        "seconds": {
            "mean": float(seconds.mean()),
            "p10": float(np.quantile(seconds, 0.1)),
            "p90": float(np.quantile(seconds, 0.9)),
        },
        "failures": mean("failures"),
        "checkpoints": mean("checkpoints"),
        "goodput": mean("goodput"),
        "useful_s": mean("useful_s"),
        "checkpoints_s": mean("checkpoint_s"),
        "lost_s": mean("lost_s"),
        "restart_s": mean("restart_s"),
        "waiting_s": mean("waiting_s"),
    }


def _check_failures(made: TrainingRun, steps: int, seeds: int) -> None:
    """Refuse before it begins what would fail more often than anybody waits for."""
    if made.spares is not None and not isfinite(made.repair_s):
        return  # ends with the last spare chip
    each = expected_failures(made)
    if each > FAILURES_MOST:
        many = f"{each:,.0f} times" if each < 1e15 else "without end"
        raise LoomError(
            f"run.mtbf: chips fail every {made.mtbf:.4g} s, a restart takes {made.restart_s:.4g} s and a stretch of "
            f"{made.stretch} of {steps} steps {made.stretch * made.step_s:.4g} s: the run would fail {many}, at most "
            f"{FAILURES_MOST:,} are simulated; fewer run.steps, or a longer run.mtbf"
        )
    if each * seeds > FAILURES_IN_ALL:
        raise LoomError(
            f"run.seeds: {seeds:,} runs that fail {each:,.0f} times each are {each * seeds:,.0f} failures, at most "
            f"{FAILURES_IN_ALL:,} are simulated; fewer run.seeds or run.steps"
        )
