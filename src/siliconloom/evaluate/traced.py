"""``loom collective SYSTEM NAME.et``: a Chakra execution trace over the links and chips of a system."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from siliconloom import __version__
from siliconloom.arch import DataType, LoomError, NotSupported
from siliconloom.arch.budget import require_memory
from siliconloom.arch.execution_trace import ExecutionTrace, NodeKind, TraceNode
from siliconloom.arch.network import Network, Wiring, wire
from siliconloom.arch.progress import Watch
from siliconloom.arch.system import System
from siliconloom.arch.timeline import EVENT_BYTES, Span, Timeline
from siliconloom.arch.transfers import Transfers
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.communication import volume
from siliconloom.evaluate.messages import PICOSECOND, spread
from siliconloom.evaluate.networks import LONGEST_S, cheapest, costing, link_rows
from siliconloom.mapper.network.collectives import Size, candidates
from siliconloom.mapper.network.communication import Choose
from siliconloom.mapper.network.traced import Place, PlacedNode, lower_trace
from siliconloom.sim.network.engines import processor, with_processors
from siliconloom.sim.network.messages import NetworkRun, run_transfers

SCHEMA = "siliconloom.execution_trace/1"
PROCESSORS = 2
"""Of a rank: its chip and its host."""
KINDS = {NodeKind.SEND: "send", NodeKind.RECEIVE: "receive", NodeKind.COMPUTE: "compute", NodeKind.METADATA: "metadata"}
PATH_MOST = 1000
"""Nodes of the path of waits that a result has, the last ones."""


def execution_trace_result(
    described: Network | System,
    trace: ExecutionTrace,
    *,
    exact: bool = False,
    watch: Watch = lambda _: None,
    timeline: list[Timeline] | None = None,
) -> dict[str, Any]:
    """When each rank and each node of a trace is done, what kept the last one, and the load of every link.

    Work takes the time that the trace has, or that of its operations and bytes on the rank's chip at its peaks.

    Raises
    ------
    LoomError
        For ranks that wait for each other, a disconnected topology, work without a duration on a bare network.
    """
    began = time.perf_counter()
    count = len(trace.ranks)
    wiring = wire(described.topology, described.link, count)
    whole = with_processors(wiring, described.endpoint, PROCESSORS)
    work = _Work(described, trace)
    transfers, placed = lower_trace(
        trace, wiring, _chooser(described, wiring), lambda rank, own: processor(wiring, rank, own), work.picoseconds
    )
    _check_clock(wiring, transfers, trace)
    run = run_transfers(whole, transfers, described.endpoint, exact=exact, watch=watch)
    seconds = run.finish * PICOSECOND
    bound = _bound(placed, work, wiring)
    if seconds < bound * (1 - 1e-9):
        raise AssertionError(f"{trace.name} took {seconds:g} s, under its bound of {bound:g} s")
    if timeline is not None:
        timeline.append(_timeline(f"{trace.name} on {count} chips of {described.name}", placed, run, work))
    links = len(wiring.source)
    on_links = NetworkRun(run.done, run.busy[:links], run.carried[:links])
    return {
        "schema": SCHEMA,
        "version": __version__,
        "system": described.name,
        "trace": trace.name,
        "chips": count,
        "model": "messages over links",
        "nodes": len(placed),
        "time_s": seconds,
        "lower_bound_s": bound,
        "achieved": bound / seconds if seconds else 1.0,
        "messages": int(((transfers.source != transfers.target) & (transfers.target < wiring.nodes)).sum()),
        "ranks": _ranks(placed, run, work, count),
        "operations": _operations(placed, run),
        "path": [_row(placed[each], run, work) for each in _path(placed, run, work)],
        "links": link_rows(wiring, on_links, seconds),
        "notes": work.notes,
        "simulator": {"wall_s": time.perf_counter() - began},
    }


class _Work:
    """Picoseconds of the work of nodes."""

    def __init__(self, described: Network | System, trace: ExecutionTrace) -> None:
        self.described, self.trace = described, trace
        self.notes: list[str] = []
        self._peaks: list[tuple[float, float]] = []

    def picoseconds(self, rank: int, node: TraceNode) -> int:
        """Of a node that computes; of others none."""
        if node.kind is not NodeKind.COMPUTE:
            return 0
        if node.duration is not None:
            return node.duration
        if not node.operations and not node.tensor:
            return 0
        if node.on_host:
            raise LoomError(f"{self.trace.node_text(rank, node)}: the host's work has no duration")
        flops, bandwidth = self._peak(rank, node)
        return round(max(node.operations / flops, node.tensor / bandwidth) * 1e12)

    def _peak(self, rank: int, node: TraceNode) -> tuple[float, float]:
        """FLOP/s and bytes per second of a rank's chip."""
        if isinstance(self.described, Network):
            text = self.trace.node_text(rank, node)
            raise LoomError(f"{text}: has no duration, and {self.described.name} is a bare network without chips")
        if not self._peaks:
            cluster = cluster_of(self.described)
            kinds = [(machine.peak(DataType.FP16), machine.bandwidth, count) for machine, count in cluster.kinds]
            self._peaks = [(flops, rate) for flops, rate, count in kinds for _ in range(count)]
            self.notes.append(
                "work without a duration takes that of its operations or bytes at the chip's peaks, of GPUs in fp16"
            )
        return self._peaks[rank]


def _chooser(described: Network | System, wiring: Wiring) -> Choose:
    """The system's algorithm where it does the operation, otherwise the cheapest."""
    costs = costing(wiring, described)

    def choose(operation: str, wanted: str, group: Wiring, placed: Callable[[Transfers], Transfers], size: Size) -> str:
        names = candidates(operation, group)
        names = [described.algorithm] if described.algorithm in names else names
        return cheapest(operation, names, group, size, lambda p: costs(replace(p, slots=placed(p.slots))))[0]

    return choose


def _check_clock(wiring: Wiring, transfers: Transfers, trace: ExecutionTrace) -> None:
    """Refuse what could take longer than the simulator's clock counts."""
    working = transfers.target >= wiring.nodes
    seconds = float(transfers.size[working].sum()) * PICOSECOND
    seconds += float(transfers.size[~working].sum()) / float(wiring.bandwidth.min(initial=np.inf))
    if not seconds <= LONGEST_S:
        raise LoomError(
            f"{trace.name} could take {seconds:.3g} s, more than the {LONGEST_S:.3g} s that the clock counts"
        )


def _bound(placed: dict[Place, PlacedNode], work: _Work, wiring: Wiring) -> float:
    """Seconds that no algorithms can beat: the longest path of waits, each node at its own least, and the busiest rank.

    A message takes at least what must leave and enter its chips, and so does a rank's part of a collective.
    """
    out = np.bincount(wiring.source, weights=wiring.bandwidth, minlength=wiring.nodes)
    into = np.bincount(wiring.target, weights=wiring.bandwidth, minlength=wiring.nodes)
    after: dict[Place, float] = {}
    busy: dict[tuple[int, bool], float] = {}
    for place, each in placed.items():
        own = work.picoseconds(each.rank, each.node) * PICOSECOND
        key = each.rank, each.node.on_host
        busy[key] = busy.get(key, 0.0) + own
        if each.node.kind is NodeKind.SEND:
            own = each.node.size / min(out[each.rank], into[each.node.peer])
        elif each.call is not None:
            sent, got = volume(each.call)
            own = max(sent / out[each.rank], got / into[each.rank]) if sent or got else 0.0
        waits = [w for w in each.waits if each.call is None or w[0] == each.rank]
        after[place] = max((after[earlier] for earlier in waits), default=0.0) + own
    return max([*after.values(), *busy.values()])


def _times(each: PlacedNode, run: NetworkRun, work: _Work) -> tuple[int, int]:
    """When a node begins, its work when the processor takes it up, and when it is done."""
    end = int(run.done[each.ended])
    if each.node.kind is NodeKind.COMPUTE:
        return end - work.picoseconds(each.rank, each.node), end
    return (int(run.done[each.began]) if each.began >= 0 else 0), end


def _kind(node: TraceNode) -> str:
    return node.collective.name.lower() if node.collective is not None else KINDS[node.kind]


def _row(each: PlacedNode, run: NetworkRun, work: _Work) -> dict[str, Any]:
    start, end = _times(each, run, work)
    return {
        "rank": each.rank,
        "node": each.node.id,
        "name": each.node.name,
        "kind": _kind(each.node),
        "start_s": start * PICOSECOND,
        "end_s": end * PICOSECOND,
    }


def _ranks(placed: dict[Place, PlacedNode], run: NetworkRun, work: _Work, count: int) -> list[dict[str, Any]]:
    finish, busy = [0] * count, [0] * count
    for each in placed.values():
        finish[each.rank] = max(finish[each.rank], int(run.done[each.ended]))
        if not each.node.on_host:
            busy[each.rank] += work.picoseconds(each.rank, each.node)
    return [
        {"rank": rank, "finish_s": at * PICOSECOND, "compute_s": own * PICOSECOND}
        for rank, (at, own) in enumerate(zip(finish, busy, strict=True))
    ]


def _operations(placed: dict[Place, PlacedNode], run: NetworkRun) -> list[dict[str, Any]]:
    """Every collective once, and every message that is sent, as `loom collective PROGRAM` has operators."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    turns: dict[tuple[str, int], int] = {}
    for each in placed.values():
        node = each.node
        if node.kind not in (NodeKind.SEND, NodeKind.COLLECTIVE):
            continue
        key: tuple[Any, ...] = (each.rank, node.id)
        if node.kind is NodeKind.COLLECTIVE:
            turn = turns[node.group, each.rank] = turns.get((node.group, each.rank), 0) + 1
            key = ("group", node.group, turn)
        start = int(run.done[each.began]) if each.began >= 0 else 0
        row = found.setdefault(
            key,
            {
                "operator": _kind(node),
                "name": node.name,
                "group": node.group or ("all" if node.collective is not None else ""),
                "ranks": [each.rank, node.peer] if node.kind is NodeKind.SEND else [],
                "bytes": float(node.size),
                "algorithm": each.algorithm,
                "start_s": start * PICOSECOND,
                "end_s": 0.0,
            },
        )
        if node.kind is NodeKind.COLLECTIVE:
            row["ranks"].append(each.rank)
        row["start_s"] = min(row["start_s"], start * PICOSECOND)
        row["end_s"] = max(row["end_s"], int(run.done[each.ended]) * PICOSECOND)
    return list(found.values())


def _path(placed: dict[Place, PlacedNode], run: NetworkRun, work: _Work) -> list[Place]:
    """What kept the node that ends last, from its beginning: each began when the one before it was done.

    Work that waits for its processor was kept by the work before it.
    """
    freed: dict[tuple[int, bool, int], Place] = {}
    for place, each in placed.items():
        if each.node.kind is NodeKind.COMPUTE and work.picoseconds(each.rank, each.node):
            freed[each.rank, each.node.on_host, int(run.done[each.ended])] = place
    at: Place | None = max(placed, key=lambda place: int(run.done[placed[place].ended]))
    found: list[Place] = []
    while at is not None and len(found) < PATH_MOST:
        found.append(at)
        each = placed[at]
        start, _ = _times(each, run, work)
        before = max(each.waits, key=lambda place: int(run.done[placed[place].ended]), default=None)
        ready = 0 if before is None else int(run.done[placed[before].ended])
        if each.node.kind is NodeKind.COMPUTE and start > ready:
            before = freed.get((each.rank, each.node.on_host, start), before)
        at = before if before != at else None
    return found[::-1]


def _timeline(title: str, placed: dict[Place, PlacedNode], run: NetworkRun, work: _Work) -> Timeline:
    """Every node but those that only wait, a track for each rank's work and one for its messages."""
    require_memory(f"--trace: {len(placed):,} nodes", len(placed) * EVENT_BYTES, "a shorter trace has fewer")
    rows = []
    for each in placed.values():
        if each.node.kind is NodeKind.METADATA:
            continue
        start, end = _times(each, run, work)
        kind = _kind(each.node)
        track = "messages" if each.node.kind is not NodeKind.COMPUTE else "host" if each.node.on_host else "compute"
        details = {"node": each.node.id, "bytes": each.node.size, "algorithm": each.algorithm}
        rows.append(((each.rank, track), Span(0, each.node.name or kind, kind, start, end, details)))
    rows.sort(key=lambda row: (row[0], row[1].start, row[1].end))
    tracks, spans = spread((f"rank {rank}, {track}", span) for (rank, track), span in rows)
    return Timeline(title, PICOSECOND, tracks, spans, {"nodes": len(spans), "ends_s": run.finish * PICOSECOND})


def refuse_flows(flows: bool) -> None:
    """Raise `NotSupported` where a trace is to run as flows."""
    if flows:
        raise NotSupported("an execution trace as flows; leave --flows out: work waits in queues, as messages do")


__all__ = ["execution_trace_result", "refuse_flows"]
