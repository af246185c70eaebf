"""A model's text as it comes, and the table of what it takes, read from the record alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.render.tables import bold, plain_text, print_changes, table


class Speech:
    """Prints a text piece by piece on standard output, if it is to ``show`` it."""

    def __init__(self, show: bool, out: Console) -> None:
        self.show, self.out = show, out

    def begin(self, title: str, prompt: str) -> None:
        """Say whose text it is, and what was asked."""
        if self.show:
            self.out.print(f"{bold(title)}: {plain_text(prompt)}", highlight=False)

    def add(self, text: str) -> None:
        """Print a piece."""
        if self.show and text:
            sys.stdout.write(plain_text(text))
            sys.stdout.flush()

    def end(self, text: str) -> None:
        """Print the last piece, and end the line."""
        self.add(text + "\n")


def text_table(record: Mapping[str, Any], changes: Mapping[str, str], out: Console) -> None:
    """Print what the programs of a text take on the described chip, and the text of float32 beside it."""
    print_changes(changes, out)
    for note in record["notes"]:
        out.print(f"note: {note}", style="yellow")
    out.print(f"{bold('float32')}: {plain_text(record['float32_text'])}", highlight=False)
    out.print(difference(record))
    steps = record["steps"]
    count = len(steps) - len(record["tokens"]) + 1
    groups = [("prompt", steps[:count]), ("token", steps[count:])]
    columns = (
        ("program", "left"),
        ("times", "right"),
        ("tokens", "right"),
        ("time", "right"),
        ("tokens/s", "right"),
        ("energy a token", "right"),
        ("array", "right"),
        ("bandwidth", "right"),
        ("golden model", "right"),
    )
    rows, golden = [], list(record["golden_s"])
    for name, own in groups:
        spent, golden = golden[: len(own)], golden[len(own) :]
        if own:
            rows.append(_row(name, own, spent))
    title = f"at {format_si(record['clock_hz'], 'Hz')}; cache for {record['cache_length']:,} positions"
    out.print(table(f"{title}, {format_bytes(record['memory_bytes'])} of memory", columns, rows))
    out.print(closing(record))


def _row(name: str, steps: list[Mapping[str, Any]], golden: list[float]) -> tuple[str, ...]:
    """Means of programs of one kind; shares by time."""
    tokens, seconds = sum(step["tokens"] for step in steps), sum(step["seconds"] for step in steps)
    array, bandwidth = (
        sum(step[key] * step["seconds"] for step in steps) / seconds if seconds else 0.0
        for key in ("array", "bandwidth")
    )
    return (
        name,
        f"x{len(steps)}",
        f"{tokens / len(steps):.0f}",
        format_si(seconds / len(steps), "s"),
        f"{tokens / seconds:,.0f}" if seconds else "",
        format_si(sum(step["energy_j"] for step in steps) / tokens, "J"),
        f"{array:.1%}",
        f"{bandwidth:.1%}",
        f"{sum(golden) / len(golden):.1f} s",
    )


def difference(record: Mapping[str, Any]) -> str:
    """One line: from which token on the tile's text is another than that of float32."""
    at, kind = record["first_difference"], record["precision"]
    if at is None:
        return f"{kind} and float32 say the same, {len(record['tokens'])} tokens"
    same = "from the first token on" if at == 0 else f"after {at} token{'' if at == 1 else 's'}"
    return f"{kind} says something else than float32 {same}"


def closing(record: Mapping[str, Any]) -> str:
    """One line: the figures that a user asks for, and what was compared."""
    found = record["summary"]
    parts = [f"first token after {format_si(found['time_to_first_token_s'] or 0.0, 's')}"]
    if found["time_per_token_s"] is not None and found["energy_per_token_j"] is not None:
        parts.append(f"{format_si(found['time_per_token_s'], 's')} a token")
        parts.append(f"{found['tokens_per_second']:,.0f} tokens/s")
        parts.append(f"{format_si(found['energy_per_token_j'], 'J')} a token")
    parts.append(f"{record['differing']:,} of {record['compared']:,} logits differ from the second reading")
    if record["rtl"]:
        cycles = sum(each["rtl_cycles"] for each in record["rtl"])
        compared = sum(each["bytes_compared"] for each in record["rtl"])
        verdict = "equal" if all(each["passed"] for each in record["rtl"]) else "different"
        parts.append(f"RTL {cycles:,} cycles, {compared:,} bytes compared: {verdict}")
    return "; ".join(parts)


__all__ = ["Speech", "closing", "difference", "text_table"]
