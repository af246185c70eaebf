"""Values of a whole model as a table, one row to an operator, read from the record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from siliconloom.render.tables import bold, print_changes, table

SHOWN = 8
"""Next tokens that are printed, of as many sequences."""


def run_table(record: Mapping[str, Any], changes: Mapping[str, str], out: Console) -> None:
    """Print what every operator has made beside float64, and what the run comes to."""
    tokens = len(record["tokens"][0])
    out.print(
        f"{bold(record['workload'])} ({record['phase']}, batch {record['batch']}, {tokens} tokens) on "
        f"{bold(record['chip'])}: weights {record['weights']}"
    )
    print_changes(changes, out)
    for note in record["notes"]:
        out.print(f"note: {note}", style="yellow")
    columns = (
        ("operator", "left"),
        ("times", "right"),
        ("RMS error", "right"),
        ("last", "right"),
        ("largest", "right"),
        ("cut off", "right"),
        ("values", "right"),
        ("differ", "right"),
    )
    operators: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["operators"]:
        operators.setdefault(row["name"], []).append(row)
    rows = [_row(name, found) for name, found in operators.items()]
    out.print(table("values beside float64, of every operator's executions", columns, rows))
    out.print(summary(record))


def _row(name: str, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first, last = found[0], found[-1]
    joined = [first["task"], *first["fused"]]
    block = first["task"].rpartition(".")[0] + "."
    label = " +".join([joined[0], *(each.removeprefix(block) for each in joined[1:])])
    differing = sum(row["differing"] for row in found)
    return (
        label,
        f"x{len(found)}",
        _percent(first["relative_rms"]),
        _percent(last["relative_rms"]) if len(found) > 1 else "",
        "" if first["largest"] is None else f"{max(row['largest'] for row in found):.3g}",
        "" if first["largest"] is None else f"{max(row['saturated'] for row in found):.2%}",
        f"{sum(row['values'] for row in found):,}",
        f"{differing:,}",
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def summary(record: Mapping[str, Any]) -> str:
    """One line: what differs, which tokens come next, what it took."""
    compared = sum(row["values"] for row in record["operators"])
    parts = [f"{record['differing']:,} of {compared:,} values differ from the exact reading"]
    if record["next_tokens"]:
        own, real = record["next_tokens"], record["float64_next_tokens"]
        agree = sum(a == b for a, b in zip(own, real, strict=True))
        text = ", ".join(str(token) for token in own[:SHOWN]) + (", ..." if len(own) > SHOWN else "")
        parts.append(f"next token {text}; float64 agrees on {agree} of {len(own)}")
    if record["rtl"]:
        rtl = record["rtl"]
        verdict = "differs from the models" if rtl["errors"] else "as simulated, every byte and cycle"
        parts.append(f"RTL {rtl['rtl_cycles']:,} cycles, {verdict}")
    parts.append(f"golden model {record['seconds']['golden']:.1f} s")
    return "; ".join(parts)


__all__ = ["run_table", "summary"]
