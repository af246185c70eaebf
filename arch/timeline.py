"""What happened when: spans on tracks, as a simulation or a plan leaves them for whoever draws them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

EVENT_BYTES = 800
"""Memory of a span on its way to a file: a line of some 200 characters, joined and encoded."""


class Span(Struct, frozen=True):
    """Something that goes on for a time.

    Parameters
    ----------
    track
        Number of the track it is on.
    name, category
        What it is, and of which kind.
    start, end
        In ticks of the timeline.
    details
        What else is known of it.
    """

    track: int
    name: str
    category: str
    start: int
    end: int
    details: Mapping[str, Any] | None = None


class Timeline(Struct, frozen=True):
    """Spans on tracks.

    Parameters
    ----------
    title
        What all of it is.
    tick
        Seconds of a tick.
    tracks
        Name of each track by its number.
    spans
        In order of their tracks' own times; they may be made as they are read, once.
    facts
        What a reader should know of the whole.
    """

    title: str
    tick: float
    tracks: Mapping[int, str]
    spans: Iterable[Span]
    facts: Mapping[str, Any] = field(default_factory=dict)
