"""Messages over links while chips fall behind and links lose bandwidth, fail and come back.

The rules are those of `siliconloom.sim.network.messages`, and without disturbances so are the times. A chip's work and
sums take its factor longer while it is slow, a link's messages while it has less bandwidth. What is on a link or waits
for it when it fails is lost, as is what reaches it later; the whole message leaves its source again ``timeout`` after
that. What leaves takes a shortest path over the links that work then, or waits for the first moment at which there is
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Transfers
from siliconloom.sim.network.messages import Disturbed, NetworkRun, Routes, find_routes, new_outcome, run_events
from siliconloom.sim.timing.changes import Changes, read_changes

Int = NDArray[np.int64]
FOREVER = 2**62


class Disturbance(Struct, frozen=True):
    """One change from ``at`` on (picoseconds): of a chip's or a link's factor, or a link's failure or return.

    ``link`` is the number of one directed link.
    """

    at: int
    chip: int = -1
    link: int = -1
    factor: float = 1.0
    failed: bool | None = None


def run_disturbed(
    wiring: Wiring, transfers: Transfers, endpoint: Endpoint, disturbances: Sequence[Disturbance], *, timeout: int
) -> tuple[NetworkRun, Int]:
    """Run every message; also how often each one was sent again.

    Raises
    ------
    LoomError
        When failures leave a message without a path for good, or messages wait for each other in a circle.
    """
    links = len(wiring.source)
    chips = read_changes(wiring.nodes, [(d.chip, d.at, d.factor) for d in disturbances if d.chip >= 0])
    rates = read_changes(links, [(d.link, d.at, d.factor) for d in disturbances if d.link >= 0 and d.failed is None])
    epochs, routes, pairs = _epochs(wiring, transfers, disturbances)
    outages = _outages(links, disturbances)
    disturbed = Disturbed(epochs, pairs, _columns(chips), _columns(rates), outages, timeout)
    outcome = new_outcome(len(transfers), links)
    return run_events(wiring, transfers, endpoint, routes, disturbed, outcome), outcome.again


def _columns(changes: Changes) -> tuple[Any, Any, Any]:
    return changes.first, changes.at, changes.factor


def _outages(links: int, disturbances: Sequence[Disturbance]) -> tuple[Int, Int, Int]:
    """For each link when it goes down and comes up again."""
    spans: list[tuple[int, int, int]] = []
    since: dict[int, int] = {}
    for each in sorted((d for d in disturbances if d.failed is not None), key=lambda d: d.at):
        if each.failed:
            since.setdefault(each.link, each.at)
        elif each.link in since:
            spans.append((each.link, since.pop(each.link), each.at))
    spans = sorted(spans + [(link, at, FOREVER) for link, at in since.items()])
    first = np.zeros(links + 1, np.int64)
    np.cumsum(np.bincount([s[0] for s in spans], minlength=links), out=first[1:])
    return first, np.array([s[1] for s in spans], np.int64), np.array([s[2] for s in spans], np.int64)


def _epochs(wiring: Wiring, transfers: Transfers, disturbances: Sequence[Disturbance]) -> tuple[Int, Routes, int]:
    """Times from which other links work, the routes of each such time one after the other, and pairs in each."""
    changes = sorted((d for d in disturbances if d.failed is not None), key=lambda d: d.at)
    times = sorted({0, *(d.at for d in changes)})
    found: list[Routes] = []
    for time in times:
        works = np.ones(len(wiring.source), bool)
        for each in changes:
            if each.at <= time:
                works[each.link] = not each.failed
        kept = np.flatnonzero(works)
        rest = replace(
            wiring,
            source=wiring.source[kept],
            target=wiring.target[kept],
            bandwidth=wiring.bandwidth[kept],
            latency=wiring.latency[kept],
        )
        routes = find_routes(rest, transfers, whole=False)
        found.append(Routes(routes.pair, routes.first, kept[routes.links].astype(np.int32)))
    offsets = np.cumsum([0] + [len(r.links) for r in found])
    first = np.concatenate([np.zeros(1, np.int64)] + [r.first[1:] + o for r, o in zip(found, offsets, strict=False)])
    links = np.concatenate([r.links for r in found])
    return np.array(times, np.int64), Routes(found[0].pair, first, links), len(found[0].first) - 1
