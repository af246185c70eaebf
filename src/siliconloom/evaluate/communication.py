"""``loom collective SYSTEM PROGRAM.yaml``: a communication program over the links of a system."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.communication import Communication, load_communication
from siliconloom.arch.document import Document
from siliconloom.arch.network import Network, Wiring, wire
from siliconloom.arch.progress import Watch
from siliconloom.arch.quantity import format_si
from siliconloom.arch.system import System
from siliconloom.arch.timeline import Timeline
from siliconloom.arch.transfers import Transfers
from siliconloom.evaluate.messages import operator_timeline
from siliconloom.evaluate.networks import cheapest, check_clock, costing, link_rows
from siliconloom.mapper.network.collectives import OPERATIONS, Size, candidates
from siliconloom.mapper.network.communication import ProgramOperator, lower
from siliconloom.mapper.network.rendezvous import Call, Key, Meeting, match, read_calls
from siliconloom.sim.network.disturbed import Disturbance, run_disturbed
from siliconloom.sim.network.flows import run_flows
from siliconloom.sim.network.messages import NetworkRun, run_transfers

SCHEMA = "siliconloom.communication/1"
SUFFIXES = (".yaml", ".yml", ".json")


def is_program(name: str) -> bool:
    """Tell whether what stands in place of a collective's name is a file."""
    return name not in OPERATIONS and (Path(name).suffix in SUFFIXES or "/" in name or Path(name).is_file())


def communication_result(
    described: Network | System,
    file: str,
    chips: int,
    *,
    exact: bool = False,
    flows: bool = False,
    watch: Watch = lambda _: None,
    timeline: list[Timeline] | None = None,
) -> dict[str, Any]:
    """When each rank and each operator of a program is done, and the load of every link.

    Where there is a ``timeline``, that of the operators is put there.

    Raises
    ------
    LoomError
        For a program that breaks a rule, a deadlock, a disconnected topology.
    """
    began = time.perf_counter()
    if not Path(file).exists():
        raise LoomError(f"{file}: no such file")
    program, document = load_communication(file)
    wiring = wire(described.topology, described.link, chips)
    calls = read_calls(program, document, chips)
    meetings = match(calls, document)
    disturbances = _disturbances(program, document, wiring)
    transfers, operators = lower(meetings, wiring, _chooser(described, wiring))
    check_clock(wiring, transfers)
    again = 0
    if disturbances and flows:
        raise NotSupported("events in a program that runs as flows; leave --flows out")
    if disturbances:
        run, sent = run_disturbed(wiring, transfers, described.endpoint, disturbances, timeout=program.timeout)
        again = int(sent.sum())
    elif flows:
        run = run_flows(wiring, transfers, described.endpoint, watch=watch)
    else:
        run = run_transfers(wiring, transfers, described.endpoint, exact=exact, watch=watch)
    if timeline is not None:
        timeline.append(operator_timeline(f"{program.name} on {chips} chips of {described.name}", operators, run))
    seconds = run.finish * 1e-12
    bound = _bound(meetings, wiring)
    if seconds < bound * (1 - 1e-9):
        raise AssertionError(f"{file} took {seconds:g} s, under its bound of {bound:g} s")
    return {
        "schema": SCHEMA,
        "version": __version__,
        "system": described.name,
        "program": program.name,
        "chips": chips,
        "model": "flows, max-min fair" if flows else "messages over links",
        "time_s": seconds,
        "lower_bound_s": bound,
        "achieved": bound / seconds if seconds else 1.0,
        "messages": int((transfers.source != transfers.target).sum()),
        "sent_again": again,
        "ranks": _ranks(operators, run, chips),
        "operations": [_operation(each, run, document) for each in operators],
        "links": link_rows(wiring, run, seconds),
        "simulator": {"wall_s": time.perf_counter() - began},
    }


def _chooser(described: Network | System, wiring: Wiring) -> Any:
    costs = costing(wiring, described)

    def choose(operation: str, wanted: str, group: Wiring, placed: Callable[[Transfers], Transfers], size: Size) -> str:
        names = candidates(operation, group) if wanted == "auto" else [wanted]
        return cheapest(operation, names, group, size, lambda p: costs(replace(p, slots=placed(p.slots))))[0]

    return choose


def _disturbances(program: Communication, document: Document, wiring: Wiring) -> list[Disturbance]:
    found = []
    for number, event in enumerate(program.events):
        if event.chip is not None:
            if event.chip >= wiring.chips:
                rule = f"must be a chip from 0 to {wiring.chips - 1}"
                raise document.error(rule, ("events", number, "chip"), value=event.chip)
            found.append(Disturbance(event.at, chip=event.chip, factor=event.factor or 1.0))
            continue
        a, b = event.between or (-1, -1)
        links = np.flatnonzero(
            ((wiring.source == a) & (wiring.target == b)) | ((wiring.source == b) & (wiring.target == a))
        )
        if not len(links):
            rule = f"there is no link between {a} and {b} (nodes 0 to {wiring.nodes - 1})"
            raise document.error(rule, ("events", number, "between"))
        for link in links.tolist():
            usual = float(wiring.bandwidth[link])
            if event.bandwidth is not None and event.bandwidth > usual:
                rule = f"must not be more than the link's own {format_si(usual, 'B/s')}"
                raise document.error(rule, ("events", number, "bandwidth"), value=event.bandwidth)
            factor = 1.0 if event.bandwidth is None else usual / event.bandwidth
            found.append(Disturbance(event.at, link=link, factor=factor, failed=event.failed))
    return found


def _ranks(operators: list[ProgramOperator], run: NetworkRun, chips: int) -> list[dict[str, Any]]:
    finish = [0] * chips
    for each in operators:
        for call, last in zip(each.meeting.calls, each.ended, strict=True):
            finish[call.rank] = max(finish[call.rank], int(run.done[last]))
    return [{"rank": rank, "finish_s": at * 1e-12} for rank, at in enumerate(finish)]


def _operation(each: ProgramOperator, run: NetworkRun, document: Document) -> dict[str, Any]:
    call = each.meeting.calls[0]
    size = call.bytes if isinstance(call.bytes, float) else max(map(sum, call.bytes), default=0.0)
    return {
        "operator": call.kind,
        "group": call.where,
        "ranks": list(call.group) if call.group else [c.rank for c in each.meeting.calls],
        "stream": call.stream,
        "bytes": size,
        "algorithm": each.algorithm,
        "start_s": min(int(run.done[b]) if b >= 0 else 0 for b in each.began) * 1e-12,
        "end_s": max(int(run.done[e]) for e in each.ended) * 1e-12,
        "line": document.position((*call.path, call.kind)).line,
    }


def _bound(meetings: list[Meeting], wiring: Wiring) -> float:
    """Seconds that no algorithms can beat: the longest path of waits, each operator at its own least.

    A member's part of a collective takes at least what must leave and enter its chip; where every member's data
    matters to all, nobody is done before all have begun.
    """
    out = np.bincount(wiring.source, weights=wiring.bandwidth, minlength=wiring.nodes)[: wiring.chips]
    into = np.bincount(wiring.target, weights=wiring.bandwidth, minlength=wiring.nodes)[: wiring.chips]
    position: dict[Key, int] = {}
    before: dict[Key, float] = {}
    after: dict[Key, float] = {}

    def enter(call: Call) -> float:
        if position.get(call.key, 0) != call.position:
            position[call.key] = call.position
            before[call.key] = after[call.key]
        return before.get(call.key, 0.0)

    for meeting in meetings:
        began = [enter(call) for call in meeting.calls]
        for call, entry in zip(meeting.calls, began, strict=True):
            end = entry
            if call.kind == "compute":
                end += call.time * 1e-12
            else:
                sent, got = volume(call)
                together = call.kind not in ("broadcast", "all_to_all")
                least = max(sent / out[call.rank], got / into[call.rank]) if sent or got else 0.0
                end = max(max(began) if together else entry, entry + least)
            after[call.key] = max(after.get(call.key, 0.0), end)
    return max(after.values(), default=0.0)


def volume(call: Call) -> tuple[float, float]:
    """Bytes that must leave and enter a member's chip whatever the algorithm, sums in the network included."""
    if isinstance(call.bytes, tuple):
        at = call.group.index(call.rank)
        own = call.bytes[at][at]
        return sum(call.bytes[at]) - own, sum(row[at] for row in call.bytes) - own
    n, size = len(call.group), max(call.bytes, 0.0)
    if call.kind == "send":
        return size, 0.0
    if n < 2 or call.kind in ("barrier", "receive"):
        return 0.0, 0.0
    part = size * (n - 1) / n
    return {
        "all_reduce": (size, size),
        "all_gather": (size / n, part),
        "reduce_scatter": (part, size / n),
        "all_to_all": (part, part),
        "broadcast": (size, 0.0) if call.rank == call.root else (0.0, size),
    }[call.kind]
