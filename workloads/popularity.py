"""How many tokens each expert of a layer gets where some are more popular than others, or each is drawn by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

GROUPS = 6
"""Kinds of load that are told apart, each with two numbers of rows at most."""


def zipf(experts: int, exponent: float) -> tuple[float, ...]:
    """Weights of so many experts: that of the r-th is r to the power of ``-exponent``."""
    return tuple(float(rank) ** -exponent for rank in range(1, experts + 1))


def rows_of(weights: Sequence[float], tokens: int, used: int) -> list[int]:
    """Rows of each expert: ``tokens`` times ``used`` in all, in proportion to weights, most first.

    No expert has more rows than there are tokens, which use an expert once: what lies above is shared by the others in
    proportion. Parts of a row go to the largest remainders.

    Raises
    ------
    ValueError
        When fewer experts than a token uses have any weight.
    """
    left = sorted(weights, reverse=True)
    if sum(weight > 0 for weight in left) < used:
        raise ValueError(f"at least {used} experts must have tokens, as each token uses {used}")
    full, total = 0, tokens * used
    while full < len(left) and left[full] > 0:  # those that every token uses come first
        rest, weight = total - full * tokens, sum(left[full:])
        if left[full] * rest < weight * tokens:
            break
        full += 1
    rest, weight = total - full * tokens, sum(left[full:])
    exact = [each * rest / weight if weight else 0.0 for each in left[full:]]
    rows = [int(each) for each in exact]
    by_remainder = sorted(range(len(rows)), key=lambda index: (rows[index] - exact[index], index))
    for index in by_remainder[: rest - sum(rows)]:
        rows[index] += 1
    return sorted([tokens] * full + rows, reverse=True)


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


def alike(rows: Sequence[int], most: int = GROUPS) -> list[tuple[int, int]]:
    """Experts put together by their rows: how many, and rows of each, most rows first; those without any are left out.

    Where there are more than ``most`` different numbers of rows, experts that have nearly as many share theirs evenly,
    in groups that change the rows of experts least (by the sum of squares): rows of all together are the same.
    """
    found = [(count, value) for value, each in groupby(sorted(rows, reverse=True)) if value and (count := len([*each]))]
    if len(found) <= most:
        return found
    made: list[tuple[int, int]] = []
    for part in _parts(found, most):
        count, total = sum(n for n, _ in part), sum(n * value for n, value in part)
        low, higher = divmod(total, count)
        made += [(n, value) for n, value in ((higher, low + 1), (count - higher, low)) if n]
    return made


def _parts(found: Sequence[tuple[int, int]], most: int) -> list[Sequence[tuple[int, int]]]:
    """Cut a falling list of numbers, each with how often it is there, where the squares within parts are least."""
    size = len(found)
    sums = [(0, 0, 0)]
    for count, value in found:
        n, total, squares = sums[-1]
        sums.append((n + count, total + count * value, squares + count * value**2))

    def spread(start: int, end: int) -> float:
        n, total, squares = (b - a for a, b in zip(sums[start], sums[end], strict=True))
        return squares - total**2 / n

    best = [(spread(0, end), [0, end]) for end in range(1, size + 1)]
    for parts in range(2, most + 1):
        best = [
            min(
                (best[middle - 1][0] + spread(middle, end), [*best[middle - 1][1], end])
                for middle in range(parts - 1, end)
            )
            if end >= parts
            else (float("inf"), [])
            for end in range(1, size + 1)
        ]
    cuts = best[-1][1]
    return [found[start:end] for start, end in pairwise(cuts)]


__all__ = ["GROUPS", "alike", "drawn", "rows_of", "zipf"]
