"""What collectives and communication programs share: the choice of an algorithm, the table of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from siliconloom.arch.description import System
from siliconloom.arch.errors import LoomError
from siliconloom.arch.network import Network, Wiring
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.transfers import Transfers
from siliconloom.mapper.collectives import Size, cost, sample
from siliconloom.sim.network import NetworkRun, find_routes
from siliconloom.tables import table

SHOWN = 16
LONGEST_S = 2**62 * 1e-12
"""Seconds that the clock of the network's simulator can count."""


def check_clock(wiring: Wiring, transfers: Transfers) -> None:
    """Refuse what could take longer than the clock counts: all bytes one after the other over the slowest link.

    Raises
    ------
    LoomError
        With how long it could take.
    """
    if not len(transfers):
        return
    work = 0.0 if transfers.work is None else float(transfers.work.astype(np.float64).sum()) * 1e-12
    seconds = float(transfers.size.sum()) / float(wiring.bandwidth.min()) + work
    if not seconds <= LONGEST_S:
        raise LoomError(f"this could take {seconds:.3g} s, more than the {LONGEST_S:.3g} s that the clock counts")


def link_rows(wiring: Wiring, run: NetworkRun, seconds: float) -> list[dict[str, Any]]:
    """Every directed link: ends, bytes, share of the time in which it is busy, bandwidth."""
    busy = run.busy * 1e-12 / seconds if seconds else np.zeros(len(run.busy))
    return [
        {"from": wiring.label(a), "to": wiring.label(b), "bytes": carried, "busy": min(share, 1.0), "bandwidth": rate}
        for a, b, carried, share, rate in zip(
            wiring.source.tolist(), wiring.target.tolist(), run.carried.tolist(), busy.tolist(),
            wiring.bandwidth.tolist(), strict=True,
        )
    ]  # fmt: skip


def link_table(links: Sequence[dict[str, Any]], out: Console) -> None:
    """Print the busiest links."""
    ordered = sorted(links, key=lambda link: -link["busy"])
    shown = [
        (f"{link['from']} to {link['to']}", format_bytes(link["bytes"]), f"{link['busy']:.1%}")
        for link in ordered[:SHOWN]
    ]
    title = "links" if len(links) <= SHOWN else f"the {SHOWN} busiest of {len(links):,} links"
    out.print(table(title, [("link", "left"), ("carried", "right"), ("busy", "right")], shown))


def cheapest(
    operation: str, names: Sequence[str], group: Wiring, size: Size, costs: Callable[[Transfers], float]
) -> tuple[str, dict[str, float]]:
    """Algorithm of ``names`` that costs least, and what each one costs; nothing is costed where there is one."""
    tried: dict[str, float] = {}
    if len(names) > 1:
        for name in names:
            tried[name] = sum(times * costs(part) for part, times in sample(operation, name, group, size))
    return (min(tried, key=lambda n: tried[n]) if tried else names[0]), tried


def costing(wiring: Wiring, described: Network | System) -> Callable[[Transfers], float]:
    """The cost model over a system's links."""

    def costs(transfers: Transfers) -> float:
        routes = find_routes(wiring, transfers)
        return cost(wiring, transfers, routes.pair, routes.first, routes.links, described.endpoint)

    return costs
