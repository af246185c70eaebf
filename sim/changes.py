"""Speeds that change at given times: how long work takes that began at a given moment.

Used for chips that fall behind, links that lose bandwidth, streams of a schedule. Times are picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Changes:
    """For thing i, from ``at[k]`` on work takes ``factor[k]`` times as long, for k from ``first[i]`` to the next's.

    Before its first change a thing's factor is 1.
    """

    first: Int
    at: Int
    factor: NDArray[np.float64]


def read_changes(count: int, entries: Sequence[tuple[int, int, float]]) -> Changes:
    """Changes of ``count`` things from (thing, time, factor) in any order; of equal times the last one counts."""
    ordered = sorted(entries, key=lambda e: e[:2])
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount([e[0] for e in ordered], minlength=count), out=first[1:])
    return Changes(first, np.array([e[1] for e in ordered], np.int64), np.array([e[2] for e in ordered], np.float64))


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def work_end(first: Any, at: Any, factor: Any, thing: Any, start: Any, work: Any) -> Any:
    """When ``work`` picoseconds of a thing at its usual speed are done that begin at ``start``."""
    now, left, slow = start, np.float64(work), 1.0
    for change in range(first[thing], first[thing + 1]):
        if at[change] > now:
            if left * slow <= at[change] - now:
                break
            left -= (at[change] - now) / slow
            now = at[change]
        slow = factor[change]
    if slow == 1.0 and now == start:
        return start + work
    return now + np.int64(np.ceil(left * slow - 1e-6))
