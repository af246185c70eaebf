"""Searches that ask for points and are told what they came to: NSGA-II and TPE of Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from siliconloom.arch.sweep import Sweep, SweepMethod
from siliconloom.arch.swept import SweptMetric
from siliconloom.sweeps.axes import Axis, Indices
from siliconloom.sweeps.extras import required

POPULATION = {SweepMethod.NSGA2: 50, SweepMethod.TPE: 10}
"""Points that are asked before any of them is told."""
STARTUP = 10
"""Points that TPE draws before it chooses."""
VIOLATIONS = "violations"


def drawn_at_first(sweep: Sweep) -> int:
    """Points of a search that are drawn before anything is known: its first generation, or what TPE begins with."""
    population = sweep.population or POPULATION[sweep.method]
    return population if sweep.method is SweepMethod.NSGA2 else -(-STARTUP // population) * population


class PointSearch:
    """Asks for points in batches; the same answers lead to the same points, whatever they were evaluated on.

    Points of a batch are asked before any of it is told, and told in the order in which they were asked, so that
    neither the number of workers nor an interruption changes what is asked next.
    """

    def __init__(self, sweep: Sweep, axes: Sequence[Axis], objectives: Sequence[SweptMetric]) -> None:
        self._optuna = required("optuna", "sweeps", f"method: {sweep.method.value}")
        self.population = sweep.population or POPULATION[sweep.method]
        self._axes = axes
        self._constrained = bool(sweep.constraints)
        self._waiting: list[Any] = []
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        with self._quiet():
            self._study = self._optuna.create_study(
                directions=["minimize" if each.less_is_better else "maximize" for each in objectives],
                sampler=self._sampler(sweep),
            )

    def _quiet(self) -> Any:
        """Optuna tells what is experimental in warnings, which are not for the users of a sweep."""
        return warnings.catch_warnings(action="ignore")

    def _sampler(self, sweep: Sweep) -> Any:
        samplers, constraints = self._optuna.samplers, None
        if self._constrained:

            def constraints(trial: Any) -> Any:
                return trial.user_attrs[VIOLATIONS]

        if sweep.method is SweepMethod.NSGA2:
            mutation = None if len(self._axes) > 1 else 0.5  # of one key all of its values would be drawn anew
            return samplers.NSGAIISampler(
                population_size=self.population, seed=sweep.seed, mutation_prob=mutation, constraints_func=constraints
            )
        return samplers.TPESampler(n_startup_trials=STARTUP, seed=sweep.seed, constraints_func=constraints)

    def ask(self, count: int) -> list[Indices]:
        """The next points."""
        space = self._optuna.distributions
        asked = {
            axis.path: space.IntDistribution(0, len(axis) - 1)
            if axis.rises
            else space.CategoricalDistribution(list(range(len(axis))))
            for axis in self._axes
        }
        with self._quiet():
            self._waiting = [self._study.ask(asked) for _ in range(count)]
        return [tuple(trial.params[axis.path] for axis in self._axes) for trial in self._waiting]

    def tell(self, answers: Sequence[tuple[Sequence[float], Sequence[float]] | None]) -> None:
        """What the points that were asked came to: objectives and violations; ``None`` of failed ones."""
        with self._quiet():
            for trial, answer in zip(self._waiting, answers, strict=True):
                if answer is None:
                    trial.set_user_attr(VIOLATIONS, [float("inf")])
                    self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                else:
                    trial.set_user_attr(VIOLATIONS, list(answer[1]))
                    self._study.tell(trial, list(answer[0]))


__all__ = ["POPULATION", "PointSearch", "drawn_at_first"]
