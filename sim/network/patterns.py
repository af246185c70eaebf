"""A pattern's messages over links: equal ones once, and turn after turn without being written out.

The same times as `sim.network.messages` and `sim.network.flows` give for every message: a few are written out and run
there. Many are folded by the network's symmetry (`sim.network.symmetry`) where it has one. What is left is run turn
after turn, keeping times of the last turn only; where that meets a message that reaches a link before an earlier one it
is written out after all, if there is the memory for it, and run with a queue of events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.kernels import kernel
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.transfers import Pattern
from siliconloom.sim.network.flows import run_flows
from siliconloom.sim.network.messages import NetworkRun, Routes, find_routes, run_transfers
from siliconloom.sim.network.symmetry import fold

FEW = 1 << 18
"""Messages that are simply written out."""
SLOT_BYTES = 320
"""Memory of a slot while classes are looked for."""


@dataclass(frozen=True)
class PatternRun:
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
    done = np.zeros(len(s), np.int64)
    busy, carried = np.zeros(len(wiring.source), np.int64), np.zeros(len(wiring.source))
    work = np.zeros(len(s), np.int64) if s.work is None else s.work
    latest = _turns(
        pattern.turns,
        pattern.begin,
        pattern.previous,
        pattern.always,
        s.size,
        s.adds,
        s.first,
        s.waits,
        work,
        routes.pair,
        routes.first,
        routes.links,
        1e12 / wiring.bandwidth,
        wiring.latency,
        wiring.topology.forwarding == "store_and_forward",
        endpoint.delay,
        2e12 / endpoint.memory,
        done,
        busy,
        carried,
    )
    return None if latest < 0 else NetworkRun(np.append(done, latest), busy, carried)


@kernel(nogil=True)
def _turns(
    turns: Any,
    begin: Any,
    previous: Any,
    always: Any,
    size: Any,
    adds: Any,
    first: Any,
    waits: Any,
    work: Any,
    pair: Any,
    route_first: Any,
    route_links: Any,
    per_byte: Any,
    latency: Any,
    whole: bool,
    delay: int,
    add_per_byte: float,
    done: Any,
    busy: Any,
    carried: Any,
) -> Any:
    """As `sim.network.messages._run_in_order`, turn by turn; when the last message is there, or -1.

    ``done`` holds each slot's last turn. Of what a slot waits for in its own turn, slots before it have their time.
    """
    free = np.zeros(per_byte.size, np.int64)
    latest = np.zeros(per_byte.size, np.int64)
    then = np.zeros(size.size, np.int64)  # each slot's turn before the present one
    finish: Any = 0
    for group in range(turns.size):
        a, b = begin[group], begin[group + 1]
        for turn in range(turns[group]):
            for slot in range(a, b):
                then[slot] = done[slot]
            for slot in range(a, b):
                head = then[previous[slot]] if turn > 0 and previous[slot] >= 0 else np.int64(0)
                for at in range(first[slot], first[slot + 1]):
                    before = waits[at]
                    if before >= slot:
                        return -1
                    if before >= a or turn == 0 or always[group]:
                        head = max(head, done[before])
                route = pair[slot]
                if route_first[route] == route_first[route + 1]:
                    done[slot] = head + work[slot]
                    finish = max(finish, done[slot])
                    continue
                tail = head
                for at in range(route_first[route], route_first[route + 1]):
                    link = route_links[at]
                    if head < latest[link]:
                        return -1
                    latest[link] = head
                    start = max(head, free[link])
                    serial = np.int64(np.ceil(size[slot] * per_byte[link]))
                    end = start + serial
                    if not whole and at > route_first[route] and tail > end:
                        end = tail
                    free[link] = end
                    busy[link] += serial
                    carried[link] += size[slot]
                    tail = end + latency[link]
                    head = tail if whole else start + latency[link]
                tail += delay
                if adds[slot]:
                    tail += np.int64(np.ceil(size[slot] * add_per_byte))
                done[slot] = tail
                finish = max(finish, tail)
    return finish
