"""Tables for the terminal."""

from __future__ import annotations

import re
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from siliconloom.arch.errors import one_line
from siliconloom.arch.quantity import format_bytes, format_count, format_si, four_digits

if TYPE_CHECKING:
    from rich.progress import Progress

Row = tuple[str, ...]
BAR_AFTER = 2.0
"""Seconds after which work shows how far it is."""


class Screen(Console):
    """A terminal on which text is only text: names, paths and notes of users cannot colour it or move its cursor.

    No markup is read; what stands out goes through `bold`, and `plain_text` shows control characters as escapes.
    """

    def __init__(self, *, width: int | None = None, stderr: bool = False) -> None:
        plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
        super().__init__(**plain, width=width, stderr=stderr, force_jupyter=False)  # a notebook shows what it is given

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text that is printed, a table's cells and titles among it, comes through here."""
        kept, spans, start = "", [], 0
        for part in MARKS.split(plain_text(text)):
            if part == BOLD:
                start = len(kept)
            elif part == NORMAL:
                spans.append((start, len(kept)))
            else:
                kept += part
        made = super().render_str(kept, **options)
        for start, end in spans:
            made.stylize("bold", start, end)
        return made

    def on_broken_pipe(self) -> None:
        """Whoever read this has gone, which is no failure of the command."""
        raise BrokenPipeError


BOLD, NORMAL = "\ue000", "\ue001"
"""Characters for private use, which mark what `Screen` prints in bold."""
MARKS = re.compile(f"([{BOLD}{NORMAL}])")
KEPT = frozenset(("\n", BOLD, NORMAL))


def bold(text: object) -> str:
    """The text as one that stands out where `Screen` prints it."""
    return BOLD + one_line(str(text)) + NORMAL


def plain_text(text: str) -> str:
    """The text with every control or format character but line breaks shown as an escape."""
    return text if text.isprintable() else "".join(c if c in KEPT else one_line(c) for c in text)


def console() -> Console:
    """Standard output; 100 columns wide when it is not a terminal, so that piped tables keep their shape."""
    found = Screen()
    return found if found.is_terminal else Screen(width=100)


def table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Table:
    """Make a table; each column is (heading, "left" or "right")."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for heading, justify in columns:
        made.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=justify == "right")
    for row in rows:
        made.add_row(*row)
    return made


def rates_text(result: dict[str, Any]) -> str:
    """Images and tokens a second, of what has any: a list of operators has no tokens."""
    images, asked = result.get("images_per_second"), result["asked"]
    rates = [f"{four_digits(images)} images/s"] if images is not None else []
    if asked["sequence"] is not None:
        rates.append(f"{four_digits(result['tokens_per_second'])} tokens/s")
    return ", ".join(rates)


def placed_text(placed: dict[str, Any] | None) -> str:
    """Who decided where things lie and what the placements take; nothing where only the heuristic was asked."""
    if placed is None or placed["bound_cycles"] is None:
        return ""
    tried = [
        f"{name} {each['cost_cycles']:,.0f} cycles of transfers"
        + ("" if each["cycles"] is None else f", {each['cycles']:,} in all")
        for name, each in placed["tried"].items()
    ]
    least = "the least that transfers can take" if placed["proven"] else "the solver's bound, which is not proven tight"
    return f"{placed['by']}, {placed['gap'] or 0:.3%} above {least}: {'; '.join(tried)}"


def utilization_text(result: dict[str, Any]) -> str:
    """The array's share of its peak, of which multiply-accumulates, and how many are not the array's."""
    array = result["utilization"] * result["cycles"] * result["peak_macs"]
    beside = result["macs"] - round(array)
    if not result["cycles"] or beside <= 1e-6 * result["macs"]:
        return f"{result['utilization']:.1%} of {four_digits(result['macs'] / 1e9)} G multiply-accumulates"
    share = f"{result['utilization']:.1%} of {four_digits(array / 1e9)} G multiply-accumulates"
    return f"{share}; {four_digits(beside / 1e9)} G are the channel's"


def area_text(area: dict[str, Any]) -> str:
    """Square millimetres of a chip's arithmetic and SRAM, and of the largest parts."""
    parts = sorted((square, name) for name, square in area["parts"].items() if square)[::-1]
    named = ", ".join(f"{name} {square:.3g}" for square, name in parts[:3])
    return f"{area['mm2']:.3g} mm2 in {area['technology']}: {named}"


def simulation_tables(result: dict[str, Any], out: Console) -> None:
    """Print a simulation's result: what it took, where the time went, what held each unit up."""
    bound, cycles = result["bound"], result["cycles"]
    out.print(f"{bold(result['workload'])} ({asked_text(result)}) on {bold(result['chip'])}")
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    lines = [
        ("time", f"{format_si(result['seconds'], 's')}  ({cycles:,} cycles at {format_si(result['clock_hz'], 'Hz')})"),
        (
            "lower bound",
            f"{bound['lower_bound_cycles']:,} cycles, {bound['name']} ({bound['key']}); {bound['achieved']:.1%} of it "
            "reached",
        ),
        ("array utilisation", utilization_text(result)),
    ]
    if rates := rates_text(result):
        lines.append(("throughput", rates))
    if result["traffic"]:
        for name, level in result["memory"]["levels"].items():
            moved = result["traffic"][name]
            lines.append(
                (
                    "traffic",
                    f"{name}: {format_bytes(moved['read'])} read, {format_bytes(moved['write'])} written; "
                    f"{format_bytes(level['used_bytes'])} in use",
                )
            )
            if "dram" in level:
                share = level["bandwidth"] / level["pin_bandwidth"]
                rates = f"{format_si(level['bandwidth'], 'B/s')} to streams, {share:.1%} of {level['dram']}'s pins"
                lines.append(("memory", f"{name}: {rates}; {format_si(level['latency_s'], 's')} to first data"))
    if text := placed_text(result["memory"].get("placed")):
        lines.append(("placement", text))
    lines.append(("hardware", hardware_text(result["hardware"])))
    lines.append(("energy", f"{format_si(result['energy_j'], 'J')}, {format_si(result['power_w'], 'W')} on average"))
    lines += excluded_rows(result["energy_excludes"], out, 18)
    lines += [("area", area_text(result["area"])), ("", "arithmetic and SRAM; whole dies have 0.8 to 2.6 times that")]
    from siliconloom.arch.area import CHANNEL_EXCLUDED  # it asks for descriptions, which some tables do without

    if CHANNEL_EXCLUDED in result["area"]["excludes"]:
        lines.append(("", f"without {CHANNEL_EXCLUDED}"))
    engine = result["simulator"]
    events = engine["events"] + engine["events_skipped"]
    jumped = f"{format_count(events, 'event')}, {engine['events_skipped'] / max(events, 1):.2%} of them jumped"
    lines.append(("simulated in", f"{format_si(engine['wall_s'], 's')}: {jumped}"))
    for label, text in lines:
        out.print(f"  {label:18s} {text}")
    out.print()
    rows = [
        (
            o["name"] + ("".join(" +" + f.rsplit(".", 1)[-1] for f in o["fused"])),
            f"x{o['repeat']}",
            f"{o['cycles']:,}",
            f"{o['overlap_cycles']:,}" if o["overlap_cycles"] else "-",
            f"{share_of(o, cycles):.1%}" if cycles else "-",
            f"{o['utilization']:.1%}" if o["macs"] else "-",
            o["bound"],
            f"{o['bound_cycles'] / o['cycles']:.0%}" if o["cycles"] else "-",
            format_bytes(o["read_bytes"] + o["write_bytes"]),
        )
        for o in sorted(result["operators"], key=lambda o: -o["cycles"])[:20]
    ]
    columns = [
        ("operator", "left"),
        ("times", "right"),
        ("cycles", "right"),
        ("overlap", "right"),
        ("share", "right"),
        ("array", "right"),
        ("bound", "left"),
        ("reached", "right"),
        ("traffic", "right"),
    ]
    if not any(o["overlap_cycles"] for o in result["operators"]):  # a column of dashes
        hidden = next(i for i, (name, _) in enumerate(columns) if name == "overlap")
        columns = columns[:hidden] + columns[hidden + 1 :]
        rows = [(*row[:hidden], *row[hidden + 1 :]) for row in rows]  # type: ignore[misc]
    left_out = len(result["operators"]) - len(rows)
    out.print(
        table("operators by time" + (f" (first 20; {left_out} more in --csv)" if left_out else ""), columns, rows)
    )
    out.print()
    units = [
        (
            name,
            f"{u['utilization']:.1%}",
            ", ".join(
                f"{cause.replace('_', ' ')} {count / cycles:.1%}"
                for cause, count in sorted(u["stall_cycles"].items(), key=lambda i: -i[1])
                if count / cycles >= 0.001
            ),
        )
        for name, u in result["units"].items()
    ]
    out.print(table("units", [("unit", "left"), ("busy", "right"), ("waiting for", "left")], units))


def hardware_text(hardware: dict[str, Any]) -> str:
    """Whether the generated Verilog runs what was timed, and how much of it if not."""
    if not hardware["why"]:
        return f"{hardware['word']}: the generated Verilog runs this program"
    reasons = ", ".join(f"{why}: {count}" for why, count in list(hardware["why"].items())[:2])
    more = ", ..." if len(hardware["why"]) > 2 else ""
    return f"{hardware['word']}; proven {hardware['proven']} of {hardware['operators']} ({reasons}{more})"


def share_of(operator: dict[str, Any], cycles: int) -> float:
    """Part of a run's ``cycles`` that is an operator's; the parts of all operators add up to one."""
    return float((operator["cycles"] - operator["overlap_cycles"]) / cycles)


def excluded_text(names: Sequence[str]) -> str:
    """One line on what an energy leaves out."""
    return f"without {'; '.join(names)}"


def excluded_rows(names: Sequence[str], out: Console, label: int) -> list[tuple[str, str]]:
    """The same as rows without a label, cut where the terminal ends: their values stand under each other."""
    return [("", line) for line in textwrap.wrap(excluded_text(names), max(out.width - label - 3, 16))]


def predicted_text(result: dict[str, Any]) -> str:
    """Bars of a predicted step, and whether it lies outside of what was measured: `` ±6% (90 % within ±24%), ...``."""
    where = "predicted" if result["measured_share"] else "predicted outside of what was measured"
    return f" {bar_text(result['error'])} (90 % within {bar_text(result['error_90'])}), {where}"


def bar_text(error: float) -> str:
    """A bar: ``±8%``, and ``2.2 times`` where it is so wide that the two ways are no longer alike."""
    return f"±{error:.0%}" if error < WIDE else f"{1 + error:.2g} times"


WIDE = 0.5
"""Bars from which on a factor is told."""


def asked_text(result: dict[str, Any]) -> str:
    """Phase, batch, new tokens of each sequence, those before a chunk or all that a next one attends to, precision.

    One new token goes without saying in decode, and so does nothing before a prompt.
    """
    asked = result["asked"]
    parts = [result["phase"], f"batch {result['batch']:,}"]
    new, seen = asked["sequence"], asked["context"]
    decode = result["phase"] == "decode"
    if new is not None and not (decode and new == 1):
        parts.append(f"sequence {new:,}")
    if seen is not None and (decode or seen != new):
        parts.append(f"context {seen if decode else seen - new:,}")
    return ", ".join([*parts, result["precision"]])


def print_overrides(result: dict[str, Any], out: Console) -> None:
    """One line with what ``--set`` changed, if it changed anything."""
    print_changes(result["asked"]["overrides"], out)


def print_changes(changes: Mapping[str, str], out: Console) -> None:
    """One line with key paths and values, if there are any."""
    if changes:
        out.print("set: " + ", ".join(f"{path}={value}" for path, value in changes.items()), style="dim")


def workload_tables(summary: dict[str, Any], out: Console) -> None:
    """Print what a workload contains."""
    out.print(
        f"{bold(summary['name'])} ({summary['phase']}, batch {summary['batch']}, {summary['tokens']} tokens, "
        f"{summary['precision']})"
    )
    for note in summary["notes"]:
        out.print(f"note: {note}", style="yellow")
    state = summary["state_bytes"]
    for label, text in (
        ("parameters", f"{summary['parameters']:,} ({format_bytes(summary['weight_bytes'])})"),
        ("active", f"{summary['active_parameters']:,} per token"),
        ("work", format_si(summary["flops"], "FLOP")),
        (
            "KV cache",
            f"{format_bytes(summary['kv_bytes_per_token'])} per token, {format_bytes(summary['kv_bytes'])} here",
        ),
        *([("state", f"{format_bytes(state)} here, whatever the tokens before")] if state else []),
    ):
        out.print(f"  {label:12s} {text}")
    out.print()
    rows = [
        (
            o["name"],
            o["kind"],
            f"x{o['repeat']}",
            shape_text(o),
            format_si(o["flops"], "FLOP") if o["flops"] else "-",
            format_bytes(o["weight_bytes"]) if o["weight_bytes"] else "-",
            format_bytes(o["input_bytes"] + o["output_bytes"]),
        )
        for o in summary["operators"]
    ]
    columns = [
        ("operator", "left"),
        ("kind", "left"),
        ("times", "right"),
        ("shape", "left"),
        ("work", "right"),
        ("weights", "right"),
        ("data", "right"),
    ]
    out.print(table("operators, one execution each", columns, rows))


def shape_text(operator: dict[str, Any]) -> str:
    """One line for the dimensions of an operator."""
    s = operator["shape"]
    if operator["kind"] == "gemm":
        fewer = f" ({s['batch'] * s['m'] - s['short']} rows)" if s.get("short") else ""
        return (f"{s['batch']} x " if s["batch"] > 1 else "") + f"{s['m']} x {s['n']} x {s['k']}{fewer}"
    if operator["kind"] == "attention":
        heads = str(s["heads"]) + (f"/{s['kv_heads']}" if s["kv_heads"] != s["heads"] else "")
        return f"{s['batch']} x {heads} heads, {s['q_len']} x {s['kv_len']} x {s['head_dim']}"
    return f"{s['function']} {s['rows']} x {s['cols']}"


__all__ = ["console", "format_si", "shape_text", "simulation_tables", "table", "workload_tables"]


@contextmanager
def progress_bar(show: bool, text: str) -> Iterator[Callable[[float], None]]:
    """A bar on standard error for work that has gone on for two seconds; what is yielded takes the share done.

    Until a share is known it shows that something goes on. What is left is the time at the rate so far: an upper bound
    where the simulator may still jump.
    """
    screen = Screen(stderr=True)
    if not show or not screen.is_terminal:
        yield lambda _: None
        return
    began, lock = time.monotonic(), threading.Lock()
    bars: list[Progress | None] = []

    def started() -> Progress | None:
        with lock:
            if not bars:
                bars.append(_started_bar(screen, text))
            return bars[0]

    def advance(share: float) -> None:
        passed = time.monotonic() - began
        if passed < BAR_AFTER or (bar := started()) is None:
            return
        left = passed * (1 - share) / max(share, 1e-9)
        told = f"at most {format_seconds(left)} left" if share else ""
        bar.update(bar.task_ids[0], total=1.0, completed=share, left=told)

    timer = threading.Timer(BAR_AFTER, started)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        with lock:
            shown, bars[:] = list(bars), [None]  # the timer may be at it this moment
        for bar in shown:
            if bar is not None:
                bar.stop()


def _started_bar(screen: Console, text: str) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = TextColumn(text, markup=False), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[left]}")
    bar = Progress(*columns, console=screen, transient=True)
    bar.add_task(text, total=None, left="")
    bar.start()
    return bar


def format_seconds(seconds: float) -> str:
    """Seconds, minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60:02d} min"


@contextmanager
def under_way(show: bool, text: str) -> Iterator[Callable[[str], None]]:
    """Say on standard error what is being done, while it is; what is yielded changes the text."""
    if not show:
        yield lambda _: None
        return
    with Screen(stderr=True).status(Text(plain_text(text))) as status:
        yield lambda changed: status.update(Text(plain_text(changed)))


class Terminal:
    """A watcher that shows bars and stages on standard error, if it is to (`arch.progress.Watcher`)."""

    def __init__(self, show: bool) -> None:
        self.show = show

    def share(self, text: str) -> AbstractContextManager[Callable[[float], None]]:
        return progress_bar(self.show, text)

    def stage(self, text: str) -> AbstractContextManager[Callable[[str], None]]:
        return under_way(self.show, text)
