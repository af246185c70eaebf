"""What collectives and communication programs share: the choice of an algorithm, the table of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from siliconloom.arch.description import System
from siliconloom.arch.network import Network, Wiring
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.transfers import Transfers
from siliconloom.mapper.collectives import Size, cost, sample
from siliconloom.sim.network import NetworkRun, find_routes
from siliconloom.tables import table

SHOWN = 16


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
