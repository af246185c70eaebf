"""Plans, where their time goes and what the next best ones lose by, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.render.tables import Row, bold, print_overrides, table

MASKED = 1.005
"""Scores that a mask saves are told of where model FLOPs with them are so many times as many."""


def per_chip(result: Mapping[str, Any]) -> str:
    """Model FLOP/s of a chip, and what of its peak is reached by those that are computed."""
    model, computed = (result[key] for key in ("tflops_per_chip", "computed_tflops_per_chip"))
    reached = f"{result['utilization']:.1%} of the peak"
    if model > MASKED * computed:
        return f"{model:.4g} TFLOP/s; {computed:.4g} without masked scores, {reached}"
    return f"{model:.4g} TFLOP/s; {reached} is reached"


def long_time(seconds: float) -> str:
    """Hours or days where seconds are many."""
    for unit, size in (("d", 86400.0), ("h", 3600.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.4g} {unit}"
    return format_si(seconds, "s")


def plan_tables(result: dict[str, Any], out: Console) -> None:
    """Print the plan, where its time goes, and the next best ones."""
    training = result["phase"] == "training"
    size, new, seen = f"{result['parameters'] / 1e9:.4g} G parameters", result["asked"]["sequence"], result["sequence"]
    several = new is not None and new < seen and not (result["phase"] == "decode" and new == 1)
    work = f"{result['batch']:,} x {new:,} of {seen:,}" if several else f"{result['batch']:,} x {seen:,}"
    if new is None:  # requests of unequal lengths, which a note tells
        work = f"{result['batch']:,}"
    out.print(f"{bold(result['workload'])} ({size}, {result['phase']}, batch {work}) on {bold(result['system'])}")
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    memory, looked = result["memory"], result["search"]
    parts = ", ".join(f"{name} {format_bytes(value)}" for name, value in memory.items() if value and name != "host")
    parts += f"; on the host {format_bytes(memory['host'])}" if memory["host"] else ""
    rows: list[Row] = [
        ("plan", result["plan_text"]),
        ("step", f"{format_si(result['step_s'], 's')}; the arithmetic alone {format_si(result['lower_bound_s'], 's')}"),
        ("per chip", per_chip(result)),
        ("tokens", f"{four_digits(result['tokens_per_second'])} a second"),
        ("bubble", f"{result['bubble']:.1%} of the pipeline"),
        ("waiting for messages", format_si(result["exposed_comm_s"], "s")),
        *(
            [
                (
                    "gradients, optimizer",
                    f"{format_si(result['gradient_s'], 's')} left over, {format_si(result['optimizer_s'], 's')}",
                )
            ]
            if training
            else []
        ),
        *([("waiting for the host", format_si(result["host_s"], "s"))] if result["host_s"] else []),
        ("memory", f"{format_bytes(result['memory_bytes'])}: {parts}"),
        *(
            [
                (
                    "placement",
                    f"ranks in order on chips {runs_of(result['placement'])}; "
                    f"{result['unplaced_step_s'] / result['step_s'] - 1:.1%} slower in the order described",
                )
            ]
            if result["placement"]
            else []
        ),
        (
            "search",
            f"{looked['simulated']} plans simulated, {looked['pruned']:,} slower by their bound, "
            f"{looked['too_large']:,} too large, in {format_si(looked['wall_s'], 's')}",
        ),
    ]
    out.print(table("plan", [("", "left"), ("", "left")], rows))
    if "decode" in result:
        after = result["decode"]
        out.print()
        tokens: list[Row] = [
            ("plan", after["plan_text"]),
            ("step", f"{format_si(after['step_s'], 's')}; {four_digits(after['tokens_per_second'])} tokens a second"),
            ("memory", format_bytes(after["memory_bytes"])),
            (
                "KV transfer",
                f"{format_bytes(after['moved_bytes'])} of a cache of {format_bytes(after['cache_bytes'])} "
                f"change chips in {format_si(after['kv_transfer_s'], 's')}",
            ),
        ]
        out.print(table("next tokens", [("", "left"), ("", "left")], tokens))
    if "slow" in result:
        late = result["slow"]
        out.print(f"with the straggler: {format_si(late['step_s'], 's')}, {late['slower_by']:.1%} slower")
    if "run" in result:
        out.print()
        run = result["run"]
        spread = run["seconds"]
        expected = f", {long_time(run['expected_s'])} by Daly's formula" if run["expected_s"] else ""
        spent: list[Row] = [
            (
                "time",
                f"{long_time(spread['mean'])}, from {long_time(spread['p10'])} to {long_time(spread['p90'])} in eight "
                f"of ten runs; {long_time(run['ideal_s'])} without failures{expected}",
            ),
            ("failures", f"{run['failures']:.4g}; a checkpoint every {run['checkpoint_steps']:,} steps"),
            (
                "lost",
                f"{long_time(run['lost_s'])} of steps, {long_time(run['restart_s'])} in restarts, "
                f"{long_time(run['checkpoints_s'])} in checkpoints, {long_time(run['waiting_s'])} waiting for chips",
            ),
            ("goodput", f"{run['goodput']:.1%}"),
        ]
        out.print(table("run", [("", "left"), ("", "left")], spent))
    if result["alternatives"]:
        out.print()
        others: list[Row] = [(a["plan_text"], f"+{a['slower_by']:.2%}", a["lost_by"]) for a in result["alternatives"]]
        out.print(table("next best", [("plan", "left"), ("step", "right"), ("loses by", "left")], others))


def runs_of(places: Sequence[int]) -> str:
    """Chips of ranks 0, 1, ... as text, runs of neighbours put together."""
    runs: list[list[int]] = []
    for chip in places:
        if runs and chip == runs[-1][1] + 1:
            runs[-1][1] = chip
        else:
            runs.append([chip, chip])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
