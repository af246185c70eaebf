"""How many tokens each expert of a layer gets where every token draws its experts by chance, all as likely."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def drawn(experts: int, tokens: int, used: int) -> list[int]:
    """Rows of each expert where every token draws ``used``, all as likely: ``tokens * used`` in all, most first.

    Each expert's number has a binomial distribution of ``tokens`` draws with the chance ``used / experts``. The r-th of
    E experts has the smallest number whose distribution function reaches (r - 1/2) / E, and those nearest to the next
    number have one more or less, so that all rows are there. It is a typical draw, the same whenever it is asked for.
    """
    chance, total = used / experts, tokens * used
    if used >= experts:
        return [tokens] * experts
    first, cumulative = _binomial(tokens, chance)
    asked = (np.arange(experts) + 0.5) / experts
    at = np.minimum(np.searchsorted(cumulative, asked), len(cumulative) - 1)
    while (missing := total - int((at + first).sum())) != 0:
        up = missing > 0
        # how far the distribution is beyond what was asked for, or was before it reached that
        slack = cumulative[at] - asked if up else asked - np.where(at > 0, cumulative[np.maximum(at - 1, 0)], 0.0)
        fixed = at + first >= tokens if up else at + first <= 0
        order = np.argsort(np.where(fixed, np.inf, slack), kind="stable")[: min(abs(missing), int((~fixed).sum()))]
        at[order] += 1 if up else -1
        cumulative = np.append(cumulative, 1.0) if up and at.max() >= len(cumulative) else cumulative
        if at.min() < 0:
            first, at, cumulative = first - 1, at + 1, np.append(0.0, cumulative)
    return sorted((int(value) for value in at + first), reverse=True)


def _binomial(draws: int, chance: float) -> tuple[int, NDArray[np.float64]]:
    """A number, and the distribution function from there on: all that is likelier than 1e-15, about."""
    mean, spread = draws * chance, 8.0 * math.sqrt(draws * chance * (1.0 - chance)) + 16.0
    low, high = max(0, math.floor(mean - spread)), min(draws, math.ceil(mean + spread))
    number = np.arange(low, high + 1)
    steps = np.log((draws - number[:-1]) / (number[1:])) + math.log(chance) - math.log1p(-chance)
    start = math.lgamma(draws + 1) - math.lgamma(low + 1) - math.lgamma(draws - low + 1)
    start += low * math.log(chance) + (draws - low) * math.log1p(-chance)
    found: NDArray[np.float64] = np.cumsum(np.exp(start + np.concatenate([[0.0], np.cumsum(steps)])))
    return low, found


__all__ = ["drawn"]
