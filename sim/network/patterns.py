"""A pattern's messages over links: equal ones once, and turn after turn without being written out.

The same times as `sim.network.messages` and `sim.network.flows` give for every message: a few are written out and run
there. Many are folded by the network's symmetry (`sim.network.symmetry`) where it has one. What is left is run turn
after turn, keeping times of the last turn only; where that meets a message that reaches a link before an earlier one it
is written out after all, if there is the memory for it, and run with a queue of events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Pattern
from siliconloom.sim.network.flows import run_flows
from siliconloom.sim.network.messages import (
    NetworkRun,
    Routes,
    Turns,
    find_routes,
    links_of,
    messages_of,
    new_outcome,
    run_in_order,
    run_transfers,
)
from siliconloom.sim.network.symmetry import fold

FEW = 1 << 18
"""Messages that are simply written out."""
SLOT_BYTES = 320
"""Memory of a slot while classes are looked for."""


class PatternRun(Struct, frozen=True):
    """What came of a pattern's messages.

    Parameters
    ----------
    run
        ``done`` of those messages that were run; links as always.
    messages
        How many were run, those from a chip to itself with them.
    """

    run: NetworkRun
    messages: int


def run_pattern(
    wiring: Wiring,
    pattern: Pattern,
    endpoint: Endpoint,
    *,
    exact: bool = False,
    flows: bool = False,
    few: int = FEW,
    worth: float = 2.0,
    watch: Callable[[NDArray[Any]], None] = lambda _: None,
) -> PatternRun:
    """Run every message of a pattern.

    Parameters
    ----------
    exact
        Write all out, and keep a queue of events.
    flows
        As fluids, see `sim.network.flows`.
    few, worth
        Messages up to which nothing is folded; how many slots of a class make it worth it.
    watch
        Is handed the times of messages that are run one by one, negative until they are known, before they are run.

    Raises
    ------
    LoomError
        When a target cannot be reached, messages wait for each other, or all that would have to be written out takes
        more memory than there may be.
    """
    many = not exact and len(pattern) > few
    require_memory(f"{len(pattern.slots):,} messages", len(pattern.slots) * SLOT_BYTES, "fewer chips need less")
    routes = find_routes(wiring, pattern.slots)
    found = fold(wiring, pattern, routes, worth=worth) if many else None
    if found is None:
        return _run(wiring, pattern, routes, endpoint, exact, flows, many, watch)
    small = _run(found.wiring, found.pattern, found.routes, endpoint, exact, flows, len(found.pattern) > few, watch)
    there = found.links >= 0
    busy = np.where(there, small.run.busy[found.links], 0)
    carried = np.where(there, small.run.carried[found.links], 0.0)
    return PatternRun(NetworkRun(small.run.done, busy, carried), small.messages)


def _run(
    wiring: Wiring,
    pattern: Pattern,
    routes: Routes,
    endpoint: Endpoint,
    exact: bool,
    flows: bool,
    many: bool,
    watch: Callable[[NDArray[Any]], None],
) -> PatternRun:
    if many and not flows and (run := _in_turns(wiring, pattern, routes, endpoint)) is not None:
        return PatternRun(run, len(pattern))
    transfers, slot = pattern.written()
    spread = Routes(routes.pair[slot], routes.first, routes.links)
    if flows:
        return PatternRun(run_flows(wiring, transfers, endpoint, spread, watch=watch), len(pattern))
    return PatternRun(run_transfers(wiring, transfers, endpoint, spread, exact=exact, watch=watch), len(pattern))


def _in_turns(wiring: Wiring, pattern: Pattern, routes: Routes, endpoint: Endpoint) -> NetworkRun | None:
    """Message by message in the order of their numbers; `None` when a link would serve them in another one."""
    s = pattern.slots
    outcome = new_outcome(len(s), len(wiring.source))
    turns = Turns(pattern.turns, pattern.begin, pattern.previous, pattern.always)
    sent, links = messages_of(s, routes), links_of(wiring, endpoint)
    latest = run_in_order(turns, sent, s.first, s.waits, routes.first, routes.links, links, outcome)
    return None if latest < 0 else NetworkRun(np.append(outcome.done, latest), outcome.busy, outcome.carried)
