"""How many tokens each expert of a layer gets where some are more popular than others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

GROUPS = 6
"""Kinds of load that are told apart, each with two numbers of rows at most."""


def zipf(experts: int, exponent: float) -> tuple[float, ...]:
    """Weights of so many experts: that of the r-th is r to the power of ``-exponent``."""
    return tuple(float(rank) ** -exponent for rank in range(1, experts + 1))


def chances_of(weights: Sequence[float], used: int) -> list[float]:
    """The chance that a token uses each expert, most first: in proportion to weights, 1 at most, ``used`` in all.

    What lies above 1 is shared by the others, as in `rows_of`, which raises the same.
    """
    full, exact = _shared(weights, 1, used)
    return [1.0] * full + exact


def _shared(weights: Sequence[float], tokens: int, used: int) -> tuple[int, list[float]]:
    """How many experts every token uses, and rows of all others, most first; see `rows_of`."""
    left = sorted(weights, reverse=True)
    if sum(weight > 0 for weight in left) < used:
        raise ValueError(f"at least {used} experts must have tokens, as each token uses {used}")
    full, total = 0, tokens * used
    while full < len(left) and left[full] > 0:
        rest, weight = total - full * tokens, sum(left[full:])
        if left[full] * rest < weight * tokens:
            break
        full += 1
    rest, weight = total - full * tokens, sum(left[full:])
    return full, [each * rest / weight if weight else 0.0 for each in left[full:]]


def rows_of(weights: Sequence[float], tokens: int, used: int) -> list[int]:
    """Rows of each expert: ``tokens`` times ``used`` in all, in proportion to weights, most first.

    No expert has more rows than there are tokens, which use an expert once: what lies above is shared by the others in
    proportion. Parts of a row go to the largest remainders.

    Raises
    ------
    ValueError
        When fewer experts than a token uses have any weight.
    """
    full, exact = _shared(weights, tokens, used)
    total = tokens * used
    rows = [int(each) for each in exact]
    by_remainder = sorted(range(len(rows)), key=lambda index: (rows[index] - exact[index], index))
    for index in by_remainder[: total - full * tokens - sum(rows)]:
        rows[index] += 1
    return sorted([tokens] * full + rows, reverse=True)


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


__all__ = ["GROUPS", "alike", "chances_of", "rows_of", "zipf"]
