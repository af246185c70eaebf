"""What collectives and communication programs share: the choice of an algorithm, the table of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.budget import TooLarge
from siliconloom.arch.errors import LoomError
from siliconloom.arch.network import Network, Wiring
from siliconloom.arch.system import System
from siliconloom.arch.transfers import NONE, Pattern, Transfers, pattern_of
from siliconloom.mapper.network.collectives import Size, cost, pattern, sample
from siliconloom.sim.network.messages import NetworkRun, find_routes

SCREENED_FROM = 1024
"""Chips above which algorithms that cannot be the cheapest are not costed."""
SCREENED_CHIPS = 128
"""Neighbouring chips whose messages tell that, and"""
SCREENED_MESSAGES = 64
"""messages of each step."""
LONGEST_S = 2**62 * 1e-12
"""Seconds that the clock of the network's simulator can count."""


def check_clock(wiring: Wiring, found: Transfers | Pattern) -> None:
    """Refuse what could take longer than the clock counts: all bytes one after the other over the slowest link.

    Raises
    ------
    LoomError
        With how long it could take.
    """
    found = pattern_of(found) if isinstance(found, Transfers) else found
    if not len(found):
        return
    work = found.slots.work
    working = 0.0 if work is None else float(np.add.reduceat(work.astype(np.float64), found.begin[:-1]) @ found.turns)
    seconds = found.volume / float(wiring.bandwidth.min()) + working * 1e-12
    if not seconds <= LONGEST_S:
        raise LoomError(f"this could take {seconds:.3g} s, more than the {LONGEST_S:.3g} s that the clock counts")


def link_rows(wiring: Wiring, run: NetworkRun, seconds: float) -> list[dict[str, Any]]:
    """Every directed link: ends, bytes, share of the time in which it is busy, bandwidth."""
    busy = run.busy * 1e-12 / seconds if seconds else np.zeros(len(run.busy))
    return [
        {"from": wiring.label(a), "to": wiring.label(b), "bytes": carried, "busy": min(share, 1.0), "bandwidth": rate}
        for a, b, carried, share, rate in zip(
            wiring.source.tolist(),
            wiring.target.tolist(),
            run.carried.tolist(),
            busy.tolist(),
            wiring.bandwidth.tolist(),
            strict=True,
        )
    ]


def cheapest(
    operation: str,
    names: Sequence[str],
    group: Wiring,
    size: Size,
    costs: Callable[[Pattern], float],
    least: Callable[[Pattern], float] | None = None,
) -> tuple[str, dict[str, float]]:
    """Algorithm of ``names`` that costs least, and what each one costs; nothing is costed where there is one.

    With ``least``, which is fast and no more than the cost, those come first that may be cheap, and what cannot be is
    left out. So is, while there is another, what would take more memory than there may be.
    """
    if len(names) == 1:
        return names[0], {}
    tried: dict[str, float] = {}
    refused: TooLarge | None = None
    bounds = dict.fromkeys(names, 0.0)
    for name in names if least is not None else ():
        try:
            bounds[name] = least(pattern(operation, name, group, size)) if least is not None else 0.0
        except TooLarge as error:
            refused, bounds[name] = error, np.inf
    for name in sorted(names, key=lambda n: bounds[n]):
        if bounds[name] > min(tried.values(), default=LONGEST_S):
            break
        try:
            tried[name] = sum(n * costs(part) for part, n in sample(pattern(operation, name, group, size)))
        except TooLarge as error:
            refused = error
    if not tried and refused is not None:
        raise refused
    tried = {name: tried[name] for name in names if name in tried}
    return min(tried, key=lambda n: tried[n]), tried


def costing(wiring: Wiring, described: Network | System) -> Callable[[Pattern], float]:
    """The cost model over a system's links."""

    def costs(found: Pattern) -> float:
        routes = find_routes(wiring, found.slots)
        return cost(wiring, found, routes.pair, routes.first, routes.links, described.endpoint)

    return costs


def screening(wiring: Wiring, described: Network | System) -> Callable[[Pattern], float] | None:
    """What a pattern costs at least, by a part of its messages; `None` where it is as fast to cost them all.

    Whatever goes to some neighbouring chips costs no more than all does. And a step takes the mean load of the links,
    weighted by their bandwidths, and its longest path; of both it is enough to look at some messages of every step.
    """
    if wiring.chips <= SCREENED_FROM:
        return None
    costs = costing(wiring, described)
    bandwidth, latency = float(wiring.bandwidth.sum()), float(wiring.latency.min()) * 1e-12

    def least(found: Pattern) -> float:
        near = sum(
            n * costs(_part(part, np.flatnonzero(part.slots.target < SCREENED_CHIPS))) for part, n in sample(found)
        )
        slots = found.slots
        group = np.repeat(np.arange(len(found.turns)), np.diff(found.begin))
        step = np.unique(group * (int(slots.step.max()) + 1) + slots.step, return_inverse=True)[1]
        count = np.bincount(step)
        order = np.argsort(step, kind="stable")
        place = np.arange(len(order)) - (np.cumsum(count) - count)[step[order]]
        every = np.maximum(count // SCREENED_MESSAGES, 1)
        looked = order[place % every[step[order]] == 0]
        routes = find_routes(wiring, _part(found, looked).slots)
        hops = np.diff(routes.first)[routes.pair]
        weight = (count / np.bincount(step[looked], minlength=len(count)))[step[looked]]
        weight *= np.repeat(found.turns, np.diff(found.begin))[looked]
        load = float((slots.size[looked] * hops * weight).sum()) / bandwidth
        longest = np.zeros(int(slots.step.max()) + 1)
        np.maximum.at(longest, slots.step[looked], hops * latency)
        return max(near, load + float(longest.sum()))

    return least


def _part(found: Pattern, slots: NDArray[np.int64]) -> Pattern:
    """Some slots of a pattern, without what they wait for."""
    s = found.slots
    some = Transfers(
        s.source[slots],
        s.target[slots],
        s.size[slots],
        s.adds[slots],
        np.zeros(len(slots) + 1, np.int64),
        np.zeros(0, np.int32),
        s.step[slots],
    )
    return Pattern(
        found.turns,
        np.searchsorted(np.sort(slots), found.begin).astype(np.int64),
        some,
        np.full(len(slots), NONE),
        found.always,
        found.whole,
    )
