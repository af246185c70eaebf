"""Which chip takes which rank: on links or chips that differ, where the plan's groups lie decides what they wait for.

Pipette (2024) and Holmes (2023) place ranks so that what talks most is joined best. Here a placement is judged by the
whole step: every collective's messages on the links' queues, every stage on its chips. Systems of at most five chips
are searched whole; of larger ones, chains of the best joined chips are improved by swaps until none helps.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.network import Wiring
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.planner import StepTime
from siliconloom.mapper.system.training import Trainer

WHOLE_MOST = 5
"""Chips up to which every placement is tried."""
TRIES = 200
"""Placements that are tried of larger systems."""

Places = tuple[int, ...]


def place(
    planner: Trainer | Server, plan: Plan, *, progress: Callable[[float], None] | None = None
) -> tuple[Places, StepTime]:
    """The fastest placement found, and its step; the given one where all chips and links are alike."""
    cluster = planner.cluster
    start = cluster.places
    best = start, planner.step(plan)
    if not cluster.uneven:
        return best
    tried = {start}

    def attempt(places: Places) -> bool:
        nonlocal best
        if places in tried:
            return False
        tried.add(places)
        other = type(planner)(cluster.placed(places), planner.graph, planner.documents)
        if progress is not None:
            progress(min(len(tried) / TRIES, 1.0))
        if other.least(plan) >= best[1].seconds * (1 - 1e-9):
            return False
        step = other.step(plan)
        if step.seconds >= best[1].seconds * (1 - 1e-9):
            return False
        best = places, step
        return True

    if len(start) <= WHOLE_MOST:
        for places in permutations(start):
            attempt(places)
        return best
    for first in range(0, len(start), max(len(start) // 8, 1)):
        attempt(_chain(cluster, first))
    improved = True
    while improved and len(tried) < TRIES:
        improved = False
        for a, b in combinations(range(len(start)), 2):
            if len(tried) >= TRIES:
                break
            swapped = list(best[0])
            swapped[a], swapped[b] = swapped[b], swapped[a]
            improved |= attempt(tuple(swapped))
    return best


def _chain(cluster: Cluster, first: int) -> Places:
    """Chips one after the other, each the best joined of those that are left to the ones just placed."""
    near = rates(cluster.wiring) if cluster.wiring is not None else np.ones((cluster.chips, cluster.chips))
    found, left = [first], set(range(cluster.chips)) - {first}
    while left:
        recent = found[-8:]
        following = max(sorted(left), key=lambda c: (sum(float(near[r, c]) for r in recent), -c))
        found.append(following)
        left.discard(following)
    return tuple(found)


def rates(wiring: Wiring) -> NDArray[np.float64]:
    """Bytes per second between any two chips, over the widest path of the fewest links, by its number of links."""
    n = wiring.nodes
    width = np.zeros((n, n))
    for source, target, rate in zip(wiring.source, wiring.target, wiring.bandwidth, strict=True):
        width[source, target] = max(width[source, target], rate)
    found, reach = width.copy(), width > 0
    np.fill_diagonal(reach, True)
    path = width.copy()
    for hops in range(2, n + 1):
        path = np.maximum.reduce([np.minimum(path[:, k, None], width[None, k, :]) for k in range(n)])
        fresh = (path > 0) & ~reach
        if not fresh.any():
            break
        found[fresh] = path[fresh] / hops
        reach |= fresh
    chips: NDArray[np.float64] = found[: wiring.chips, : wiring.chips]
    return chips
