"""A pipeline's passes in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json

from siliconloom.arch.budget import require_memory
from siliconloom.planning.step import PipelineRun
from siliconloom.trace import EVENT_BYTES, events_text

COLORS = {"F": "good", "B": "bad", "W": "grey"}
"""Of forward, backward and weight passes, by the viewer's names."""
MICRO = 1e6


def pipeline_trace(title: str, devices: int, found: PipelineRun) -> str:
    """One process; a thread for each stage's chips, and for each link that is a stream of its own."""
    run, tasks = found.run, found.tasks
    require_memory(f"--trace: {len(tasks):,} passes", len(tasks) * EVENT_BYTES, "a larger plan.microbatch has fewer")
    events = [json.dumps({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}})]
    for stream in sorted(set(tasks.stream)):
        name = f"stage {stream}" if stream < devices else f"link {(stream - devices) // 2}"
        events.append(json.dumps({"ph": "M", "pid": 1, "tid": stream, "name": "thread_name", "args": {"name": name}}))
    for name, stream, start, end in zip(tasks.names, tasks.stream, run.start.tolist(), run.end.tolist(), strict=True):
        event = {"ph": "X", "pid": 1, "tid": stream, "name": name, "ts": start / MICRO, "dur": (end - start) / MICRO}
        if name[0] in COLORS:
            event["cname"] = COLORS[name[0]]
        events.append(json.dumps(event))
    return events_text(events, {"displayTimeUnit": "ms"})
