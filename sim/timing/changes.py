"""Speeds that change at given times: how long work takes that began at a given moment.

Used for chips that fall behind, links that lose bandwidth, streams of a schedule. Times are picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.kernels import kernel

Int = NDArray[np.int64]


class Changes(Struct, frozen=True):
    """For thing i, from ``at[k]`` on work takes ``factor[k]`` times as long, for k from ``first[i]`` to the next's.

    Before its first change a thing's factor is 1.
    """

    first: Int
    at: Int
    factor: NDArray[np.float64]


def read_changes(count: int, entries: Sequence[tuple[int, int, float]]) -> Changes:
    """Changes of ``count`` things from (thing, time, factor) in any order; of equal times the last one counts.

    An infinite factor stops a thing until its next change; `LoomError` when there is none.
    """
    ordered = sorted(entries, key=lambda e: e[:2])
    for place, each in enumerate(ordered):
        if isinf(each[2]) and (place + 1 == len(ordered) or ordered[place + 1][0] != each[0]):
            raise LoomError(f"what stops at {each[1]} ps never goes on: a later change must give it a speed again")
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount([e[0] for e in ordered], minlength=count), out=first[1:])
    return Changes(first, np.array([e[1] for e in ordered], np.int64), np.array([e[2] for e in ordered], np.float64))


@kernel()
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
