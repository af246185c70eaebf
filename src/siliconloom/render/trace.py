"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.arch.files import written_through
from siliconloom.arch.timeline import Span, Timeline
from siliconloom.render.output import write_bytes, write_text

COMPRESSED = ".json.gz"

COLORS = {"forward": "good", "backward": "bad", "weights": "grey"}
"""Of a pipeline's passes, by the viewer's names."""


def check_trace_name(file: str | None, more: Mapping[str, str] | None = None) -> None:
    """Refuse a trace's name whose ending no format has; ``-``, and what is no regular file, takes JSON.

    Parameters
    ----------
    more
        Other endings that the command knows, and what is in such a file.

    Raises
    ------
    LoomError
        With the endings that are known.
    """
    known = {".json": "for Perfetto", COMPRESSED: "the same, compressed"} | dict(more or {})
    if file is None or file == "-" or file.lower().endswith(tuple(known)) or written_through(file):
        return
    texts = [f"{ending} ({what})" for ending, what in known.items()]
    said = f"unknown ending {Path(file).suffix}" if Path(file).suffix else "the name has no ending"
    raise LoomError(f"--trace {file}: {said}; known are {', '.join(texts[:-1])} and {texts[-1]}")


def write_trace(file: str, timeline: Timeline) -> None:
    """Write a timeline as JSON, compressed where the name ends in .json.gz."""
    text = trace_text(timeline)
    if file.lower().endswith(COMPRESSED):
        write_bytes(file, gzip.compress(text.encode(), mtime=0))
    else:
        write_text(file, text)


def trace_text(timeline: Timeline) -> str:
    """A timeline as JSON: one process, a thread for each track, microseconds.

    Events are written one at a time, since all of them as objects take gigabytes.
    """
    events = [json.dumps({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": timeline.title}})]
    events += [
        json.dumps({"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}})
        for track, name in timeline.tracks.items()
    ]
    scale = timeline.tick * 1e6
    events += [json.dumps(_event(span, scale)) for span in timeline.spans]
    events += [
        json.dumps({"ph": "C", "pid": 1, "name": f"bytes of {timeline.tracks[track]}", "ts": at * scale, "args": args})
        for track, (always, steps) in timeline.held.items()
        for at, args in ((tick, {"held": always + size}) for tick, size in ((0, 0.0), *steps))
    ]
    rest = {"displayTimeUnit": "ns", "otherData": dict(timeline.facts)}
    return f'{{"traceEvents": [{", ".join(events)}], {json.dumps(rest)[1:]}\n'


def _event(span: Span, scale: float) -> dict[str, Any]:
    event = {
        "ph": "X",
        "pid": 1,
        "tid": span.track,
        "name": span.name,
        "cat": span.category,
        "ts": span.start * scale,
        "dur": (span.end - span.start) * scale,
    }
    if span.category in COLORS:
        event["cname"] = COLORS[span.category]
    if span.details is not None:
        event["args"] = dict(span.details)
    return event
