"""When messages of a collective and operators of a communication program were under way, as spans on tracks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch import LoomError
from siliconloom.arch.budget import require_memory
from siliconloom.arch.network import Endpoint, Wiring
from siliconloom.arch.timeline import EVENT_BYTES, Span, Timeline
from siliconloom.arch.transfers import Pattern, Transfers
from siliconloom.mapper.network.communication import ProgramOperator
from siliconloom.sim.network.flows import run_flows
from siliconloom.sim.network.messages import NetworkRun, run_transfers

MESSAGE_LIMIT = 200_000
"""Most messages in a trace: about 40 MB."""
PICOSECOND = 1e-12
FLOWS_ROUND = 1e-9
"""How far flows of messages that were folded and that were written out may lie apart, relatively."""


def check_messages(pattern: Pattern) -> None:
    """Raise `LoomError` where a trace would have more than `MESSAGE_LIMIT` messages, or take too much memory."""
    if len(pattern) > MESSAGE_LIMIT:
        raise LoomError(f"--trace: {len(pattern):,} messages are more than the {MESSAGE_LIMIT:,} that a trace may have")
    require_memory(f"--trace: {len(pattern):,} messages", len(pattern) * EVENT_BYTES, "fewer chips send fewer")


def message_timeline(
    title: str, wiring: Wiring, pattern: Pattern, endpoint: Endpoint, *, flows: bool, finish: int
) -> Timeline:
    """Every message from when it may leave its chip until it has arrived, and been added where it is.

    Messages that are under way at once from one chip are on tracks of their own. All are written out and run again for
    this; ``finish`` is when the last one was there.
    """
    transfers, _ = pattern.written()
    run = run_flows(wiring, transfers, endpoint) if flows else run_transfers(wiring, transfers, endpoint)
    if abs(run.finish - finish) > (finish * FLOWS_ROUND if flows else 0):
        raise AssertionError(f"{title}: {run.finish} ps when written out, {finish} ps before")
    tracks, spans = spread(_message_rows(wiring, transfers, run))
    facts = {"messages": len(spans), "ends_s": run.finish * PICOSECOND}
    return Timeline(title, PICOSECOND, tracks, spans, facts)


def released(transfers: Transfers, run: NetworkRun) -> NDArray[np.int64]:
    """When each message may leave: when the last one that it waits for has arrived."""
    found = np.zeros(len(transfers), np.int64)
    waiting = np.repeat(np.arange(len(transfers)), np.diff(transfers.first))
    np.maximum.at(found, waiting, run.done[transfers.waits])
    return found


def _message_rows(wiring: Wiring, transfers: Transfers, run: NetworkRun) -> Iterator[tuple[str, Span]]:
    begins = released(transfers, run)
    for message in np.lexsort((run.done, begins, transfers.source)).tolist():
        source, target = int(transfers.source[message]), int(transfers.target[message])
        category = "work" if source == target else "message"
        name = category if source == target else f"to {wiring.label(target)}"
        details = {"bytes": float(transfers.size[message]), "step": int(transfers.step[message]), "message": message}
        yield wiring.label(source), Span(0, name, category, int(begins[message]), int(run.done[message]), details)


def operator_timeline(title: str, operators: Sequence[ProgramOperator], run: NetworkRun) -> Timeline:
    """Every operator of a communication program on every rank that takes part, a track for each rank's stream."""
    count = sum(len(each.meeting.calls) for each in operators)
    require_memory(f"--trace: {count:,} operators", count * EVENT_BYTES, "fewer ranks have fewer")
    rows = []
    for each in operators:
        for call, before, last in zip(each.meeting.calls, each.began, each.ended, strict=True):
            begin = int(run.done[before]) if before >= 0 else 0
            details = {"algorithm": each.algorithm, "where": call.where}
            span = Span(0, call.kind, call.kind, begin, int(run.done[last]), details)
            rows.append(((call.rank, str(call.stream)), span))
    rows.sort(key=lambda row: (row[0], row[1].start, row[1].end))
    tracks, spans = spread((f"rank {rank}, {stream}", span) for (rank, stream), span in rows)
    return Timeline(title, PICOSECOND, tracks, spans, {"operators": len(operators), "ends_s": run.finish * PICOSECOND})


def spread(rows: Iterable[tuple[str, Span]]) -> tuple[dict[int, str], list[Span]]:
    """Spans on as few tracks as have no two at once, and the tracks' names.

    Parameters
    ----------
    rows
        What each span is of, which names its tracks, and the span; of one name in order of their beginning.
    """
    numbers: dict[tuple[str, int], int] = {}
    busy: dict[str, list[tuple[int, int]]] = {}
    spans = []
    for name, span in rows:
        lanes = busy.setdefault(name, [])
        lane = heapq.heappop(lanes)[1] if lanes and lanes[0][0] <= span.start else len(lanes)
        heapq.heappush(lanes, (span.end, lane))
        spans.append(replace(span, track=numbers.setdefault((name, lane), len(numbers) + 1)))
    return {track: name + (f" ({lane + 1})" if lane else "") for (name, lane), track in numbers.items()}, spans
