"""Spans on tracks as the script of a page draws them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from siliconloom.arch.timeline import Span, Timeline

MOST_SPANS = 50_000
"""Spans in a page: about a megabyte."""
TICKS = 1_000_000
"""Most ticks that a page's chart is told in, so that its numbers are short."""


def tracks_of(drawn: Timeline) -> tuple[dict[str, Any] | None, int]:
    """What the page's script draws of spans on tracks, and how many that leaves out: finer ones, or else later ones."""
    spans = sorted(drawn.spans, key=lambda span: span.start)
    tracks, whole = dict(drawn.tracks), len(spans)
    if whole > MOST_SPANS:
        spans = [span for span in spans if span.track not in drawn.finer]
        tracks = {track: name for track, name in tracks.items() if track not in drawn.finer}
    shown = spans[:MOST_SPANS]
    if not shown:
        return None, 0
    end = max(span.end for span in spans)
    size = max(end / TICKS, 1)
    kinds = list(dict.fromkeys(span.category for span in shown))
    names = list(dict.fromkeys(span.name for span in shown))
    numbers = {name: number for number, name in enumerate(names)}
    of_track: dict[int, list[Span]] = {track: [] for track in tracks}
    for span in shown:
        of_track[span.track].append(span)
    return {
        "end": round(end / size),
        "tick": drawn.tick * size,
        "tracks": [tracks[track] for track in of_track],
        "kinds": kinds,
        "names": names,
        "spans": [_flat(found, size, kinds, numbers) for found in of_track.values()],
    }, whole - len(shown)


def passes_text(drawn: Timeline, operators: str = "operators") -> str:
    """What a chart of a step shows: passes, the operators in them, or why there are none."""
    why, steady = (str(drawn.facts[name]) if name in drawn.facts else "" for name in ("operators", "steady"))
    text = "Every pass of every part of a batch, on the stage that runs it"
    text += f"; its {operators} are {why}" if why else f", and below it the {operators} in it, one after the other"
    return f"{text}; what lies between is waiting.{f' {steady[0].upper()}{steady[1:]}.' if steady else ''}"


def _flat(spans: Iterable[Span], size: float, kinds: list[str], names: dict[str, int]) -> list[int]:
    """Name, kind, ticks since the end of the last, ticks: of each span of a track."""
    flat: list[int] = []
    last = 0
    for span in spans:
        begin, end = round(span.start / size), round(span.end / size)
        flat += (names[span.name], kinds.index(span.category), begin - last, end - begin)
        last = end
    return flat


__all__ = ["MOST_SPANS", "TICKS", "passes_text", "tracks_of"]
