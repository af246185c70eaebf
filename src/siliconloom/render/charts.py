"""Charts as inline SVG, without any script: they open anywhere and follow the page's light or dark colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 860
COLOURS = {
    "busy": "#2a9d5c",
    "compute": "#2a6fbb",
    "memory": "#d1742c",
    "vector": "#8b5fbf",
    "operands": "#c9a227",
    "buffer": "#7d9db5",
    "dependency": "#b0413e",
    "memory port": "#d1742c",
    "stationary load": "#5b8e7d",
    "instruction": "#9a9a9a",
    "drain": "#6d6875",
    "queue full": "#b5a58b",
    "finished": "#d9d9d9",
    "array": "#2a6fbb",
    "scratchpad": "#5b8e7d",
    "accumulator": "#b0413e",
}
PALETTE = ("#2a6fbb", "#d1742c", "#2a9d5c", "#8b5fbf", "#c9a227", "#b0413e", "#5b8e7d", "#6d6875")


def colour(name: str) -> str:
    """Colour of a category; names without one get a fixed colour of the palette."""
    return COLOURS.get(name, PALETTE[sum(map(ord, name)) % len(PALETTE)])


def bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: (label, length from 0 to 1, text beside the bar, category for the colour)."""
    longest = max((length for _, length, _, _ in rows), default=1.0) or 1.0
    left, room, step = 230, 380, 24
    parts = []
    for index, (label, length, text, category) in enumerate(rows):
        y, width = index * step, max(length / longest * room, 1.0)
        parts.append(text_at(left - 8, y + 16, shortened_label(label, 32), "end"))
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{width:.1f}" height="16" rx="2" fill="{colour(category)}"/>')
        parts.append(text_at(left + width + 6, y + 16, text))
    return drawing(len(rows) * step + 4, parts) + _legend([category for _, _, _, category in rows])


def grouped(rows: Sequence[tuple[str, Sequence[tuple[str, float, float, str]]]]) -> str:
    """Groups of horizontal bars: (label, bars of (category, length, relative error, text)), errors as whiskers."""
    longest = max((length * (1 + error) for _, group in rows for _, length, error, _ in group), default=1.0) or 1.0
    left, room, step = 230, 420, 15
    parts, names, y = [], [], 0
    for label, group in rows:
        parts.append(text_at(left - 8, y + len(group) * step / 2 + 5, shortened_label(label, 32), "end"))
        for name, length, error, text in group:
            names.append(name)
            width = max(length / longest * room, 1.0)
            parts.append(
                f'<rect x="{left}" y="{y + 2}" width="{width:.1f}" height="{step - 3}" rx="1" fill="{colour(name)}">'
                f"<title>{escape(label)}: {escape(name)} {escape(text)}</title></rect>"
            )
            low, high = (left + max(length * (1 + s * error), 0.0) / longest * room for s in (-1, 1))
            if high - low > 2:
                middle = y + 2 + (step - 3) / 2
                parts.append(
                    f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="currentColor"/>'
                )
            parts.append(text_at(max(left + width, high) + 6, y + step - 3, text))
            y += step
        y += 7
    return drawing(y + 2, parts) + _legend(names)


def stacked(rows: Mapping[str, Mapping[str, float]]) -> str:
    """One full-width bar per row, cut into named parts that add up to 1."""
    left, room, step = 110, WIDTH - 130, 30
    parts, names = [], []
    for index, (label, shares) in enumerate(rows.items()):
        x, y = float(left), index * step
        parts.append(text_at(left - 8, y + 19, label, "end"))
        for name, share in shares.items():
            names.append(name)
            width = share * room
            parts.append(
                f'<rect x="{x:.2f}" y="{y + 4}" width="{width:.2f}" height="22" fill="{colour(name)}">'
                f"<title>{escape(label)}: {escape(name)} {share:.1%}</title></rect>"
            )
            if width > 46:
                parts.append(
                    text_at(
                        x + width / 2, y + 19, f"{share:.0%}", "middle", "#ffffff" if name != "finished" else "#333333"
                    )
                )
            x += width
    return drawing(len(rows) * step + 6, parts) + _legend(names)


def roofline(points: Sequence[tuple[str, float, float]], peak: float, bandwidth: float) -> str:
    """Log-log roofline: (name, multiply-accumulates per byte, multiply-accumulates per cycle) under both roofs."""
    ridge = peak / bandwidth
    xs = [x for _, x, _ in points] + [ridge]
    ys = [y for _, _, y in points] + [peak]
    x0, x1 = math.floor(math.log10(min(xs) / 1.5)), math.ceil(math.log10(max(xs) * 1.5))
    y0, y1 = math.floor(math.log10(min(ys) / 1.5)), math.ceil(math.log10(max(ys) * 1.5))
    left, top, wide, high = 70, 12, WIDTH - 330, 300

    def at(x: float, y: float) -> tuple[float, float]:
        fx, fy = (math.log10(x) - x0) / (x1 - x0), (math.log10(y) - y0) / (y1 - y0)
        return left + min(max(fx, 0.0), 1.0) * wide, top + (1 - min(max(fy, 0.0), 1.0)) * high

    parts = [
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="currentColor" opacity="0.4"/>'
    ]
    for power in range(x0, x1 + 1):
        x, _ = at(10.0**power, 10.0**y0)
        parts.append(
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + high}" stroke="currentColor" opacity="0.12"/>'
        )
        parts.append(text_at(x, top + high + 16, f"{10.0**power:g}", "middle"))
    for power in range(y0, y1 + 1):
        _, y = at(10.0**x0, 10.0**power)
        parts.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{left + wide}" y2="{y:.1f}" stroke="currentColor" opacity="0.12"/>'
        )
        parts.append(text_at(left - 6, y + 4, f"{10.0**power:g}", "end"))
    start = max(10.0**x0, 10.0**y0 / bandwidth)
    corners = [at(start, start * bandwidth), at(ridge, peak), at(10.0**x1, peak)]
    parts.append(
        '<polyline fill="none" stroke="#b0413e" stroke-width="2" points="'
        + " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        + '"/>'
    )
    for index, (name, x, y) in enumerate(points):
        px, py = at(x, y)
        shade = PALETTE[index % len(PALETTE)]
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="{shade}">'
            f"<title>{escape(name)}: {x:.3g} MAC/B, {y:.4g} MAC/cycle</title></circle>"
        )
        if index < 16:
            ly = top + 8 + index * 18
            parts.append(f'<circle cx="{left + wide + 20}" cy="{ly}" r="5" fill="{shade}"/>')
            parts.append(text_at(left + wide + 30, ly + 4, shortened_label(name, 32)))
    parts.append(
        text_at(left + wide / 2, top + high + 36, "multiply-accumulates per byte of main-memory traffic", "middle")
    )
    parts.append(
        text_at(left, top + high + 54, f"MAC per cycle, roofs: {peak:,.0f} MAC/cycle and {bandwidth:,.1f} B/cycle")
    )
    return drawing(top + high + 62, parts)


def timeline(spans: Sequence[tuple[str, str, int, int]]) -> str:
    """What each unit does over time: (unit, operator, first cycle, last cycle)."""
    units = list(
        dict.fromkeys(unit for unit in ("load", "array", "vector", "store") if any(s[0] == unit for s in spans))
    )
    begin, end = min(s[2] for s in spans), max(s[3] for s in spans)
    left, room, step = 70, WIDTH - 90, 34
    scale = room / max(end - begin, 1)
    parts = []
    for index, unit in enumerate(units):
        y = index * step
        parts.append(text_at(left - 8, y + 21, unit, "end"))
        parts.append(
            f'<line x1="{left}" y1="{y + 30}" x2="{left + room}" y2="{y + 30}" stroke="currentColor" opacity="0.15"/>'
        )
        for name, operator, start, stop in spans:
            if name == unit:
                x, width = left + (start - begin) * scale, max((stop - start) * scale, 0.6)
                parts.append(
                    f'<rect x="{x:.2f}" y="{y + 6}" width="{width:.2f}" height="22" '
                    f'fill="{colour(operator)}" stroke="var(--page)" stroke-width="0.4">'
                    f"<title>{escape(operator)}: cycles {start:,} to {stop:,}</title></rect>"
                )
    bottom = len(units) * step
    for part in range(5):
        cycle = begin + (end - begin) * part // 4
        parts.append(
            text_at(
                left + (cycle - begin) * scale,
                bottom + 16,
                f"{cycle:,}",
                ("start", "middle", "middle", "middle", "end")[part],
            )
        )
    return drawing(bottom + 22, parts) + _legend([operator for _, operator, _, _ in spans])


def text_at(x: float, y: float, text: str, anchor: str = "start", fill: str = "currentColor") -> str:
    """Text at a place of a drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def shortened_label(text: str, most: int) -> str:
    """The text, at most so many characters of it."""
    return text if len(text) <= most else text[: most - 1] + "…"


def drawing(height: float, parts: Sequence[str]) -> str:
    """A drawing of the page's width, of elements of SVG."""
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-size="12">{"".join(parts)}</svg>'


def _legend(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))[:14]
    items = (f'<span><i style="background:{colour(name)}"></i>{escape(name)}</span>' for name in unique)
    return f'<p class="legend">{"".join(items)}</p>'
