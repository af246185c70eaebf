"""Charts as inline SVG, without any script: lines of text, and the frame that takes the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 860
"""Units of a chart's width."""


def drawing(height: float, parts: Sequence[str], label: str) -> str:
    """A drawing of the page's width, of elements of SVG; ``label`` says what it shows."""
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" font-size="12"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def text_at(x: float, y: float, text: str, anchor: str = "start", fill: str = "currentColor") -> str:
    """Text at a place of a drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def shortened_label(text: str, most: int) -> str:
    """The text, at most so many characters of it."""
    return text if len(text) <= most else text[: most - 1] + "…"


__all__ = ["WIDTH", "drawing", "shortened_label", "text_at"]
