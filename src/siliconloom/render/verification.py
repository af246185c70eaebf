"""What a verification found, as a table: one for every kind of machine, read from its record alone."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from siliconloom.arch.verified import (
    ArrayCase,
    Case,
    LinkCase,
    LinkWork,
    PimCase,
    Totals,
    Verified,
    VerifiedArray,
    VerifiedLink,
)
from siliconloom.render.tables import bold, print_changes, table

Cell = str | None
DIFFER = "DIFFER"


def _count(name: str) -> Callable[[Case], Cell]:
    """Cells of a number that not every case has."""

    def cell(case: Case) -> Cell:
        value = getattr(case, name)
        return None if value is None else f"{value:,}"

    return cell


def _of_pim(name: str) -> Callable[[Case], Cell]:
    return lambda case: f"{getattr(case.pim, name):,}" if isinstance(case, PimCase) else None


def _of_link(name: str) -> Callable[[Case], Cell]:
    return lambda case: f"{getattr(case.link, name):,}" if isinstance(case, LinkCase) else None


def _difference(case: Case) -> Cell:
    return None if case.difference is None else f"{case.difference:+,}" if case.difference else "0"


def _times(case: Case) -> Cell:
    return None if case.cycles_equal is None else f"{case.times_compared:,}" if case.cycles_equal else DIFFER


COLUMNS: tuple[tuple[str, str, Callable[[Case], Cell]], ...] = (
    ("case", "left", lambda case: case.name),
    ("operands", "left", lambda case: case.array.operands.value if isinstance(case, ArrayCase) else None),
    ("folds", "right", _count("folds")),
    ("GEMVs", "right", _of_pim("gemvs")),
    ("transfers", "right", _of_pim("transfers")),
    ("words", "right", _count("words")),
    ("executed", "right", _count("instructions")),
    ("commands", "right", _count("commands")),
    ("messages", "right", _count("messages")),
    ("faults", "right", _of_link("faults")),
    ("retries", "right", _of_link("retries")),
    ("stalls", "left", lambda case: "random" if case.stalled else None),
    ("RTL", "right", lambda case: f"{case.rtl_cycles:,}"),
    ("model", "right", _count("model_cycles")),
    ("difference", "right", _difference),
    ("times", "right", _times),
    ("bytes", "right", lambda case: f"{case.bytes_compared:,}" if case.values_equal else DIFFER),
)
"""Heading, side and cell of every column; one in which no case has anything is left out."""


def verification_table(record: Verified, out: Console) -> None:
    """Print a record: what was verified, a row for each case, what differs, and the sums."""
    asked = record.asked
    shape = [_shape(record)] if _shape(record) else []
    parts = [*shape, asked.simulator, f"seed {asked.seed}", f"{record.time.total_s:.1f} s"]
    out.print(f"{bold(asked.machine)}: {', '.join(parts)}")
    print_changes(asked.overrides, out)
    cells = f", as a netlist of the cells of {asked.liberty}" if asked.liberty else ""
    out.print(f"  verified: {record.verified}{cells}", soft_wrap=True)
    if record.behavioural:
        out.print(f"  behavioural: {record.behavioural}", soft_wrap=True)
    if isinstance(record, VerifiedLink):
        ring = record.ring
        out.print(f"  MLP block: {ring.tokens} tokens, {ring.hidden} columns, {ring.inner} hidden units, int8")
    out.print()
    rows = [[cell(case) for _, _, cell in COLUMNS] for case in record.cases]
    used = [n for n in range(len(COLUMNS)) if any(row[n] is not None for row in rows)]
    out.print(
        table(
            "Cycles and values: RTL, simulator, golden model",
            [COLUMNS[n][:2] for n in used],
            [tuple(row[n] or "-" for n in used) for row in rows],
        )
    )
    out.print("times, bytes: so many were compared and are equal, unless they DIFFER", style="dim")
    for case in record.cases:
        if isinstance(case, LinkCase) and case.link.sequential_cycles is not None:
            out.print(f"  {case.name}: {_block(case, case.link)}")
        for line in case.differences():
            name = "" if line.startswith(" ") else f"{case.name}: "
            out.print(f"  {name}{line}", soft_wrap=True, style="red")
    out.print()
    for note in record.notes:
        out.print(f"note: {note}", style="yellow", soft_wrap=True)
    if record.passed:
        out.print(f"passed: {_sums(record.totals)}", style="green", soft_wrap=True)
    else:
        failed = "; ".join(case.name for case in record.cases if not case.passed)
        totals = record.totals
        out.print(f"FAILED: {totals.cases - totals.passed} of {totals.cases} cases: {failed}", style="bold red")


def _shape(record: Verified) -> str:
    if isinstance(record, VerifiedArray):
        array = record.array
        return f"{array.rows} x {array.cols} {array.dataflow.replace('_', ' ')}"
    return f"{record.ring.chips} chips" if isinstance(record, VerifiedLink) else ""


def _block(case: LinkCase, link: LinkWork) -> str:
    late = f"collective after the last store instead of chunk by chunk: {link.sequential_cycles:,}"
    return f"{case.model_cycles:,} cycles, tiles {link.tile_cycles:,}; {late}"


def _sums(totals: Totals) -> str:
    """All that was compared, in a line."""
    counts = {
        "folds": totals.folds,
        "instructions": totals.instructions,
        "DRAM commands": totals.commands,
        "messages": totals.messages,
    }
    work = "".join(f", {count:,} {name}" for name, count in counts.items() if count is not None)
    timed = "" if totals.timed == totals.cases else f" in {totals.timed} cases without stalls"
    return (
        f"every value equal ({totals.cases} cases{work}, {totals.bytes_compared:,} bytes); {totals.times_compared:,} "
        f"times compared{timed}, 0 cycles of difference in each"
    )
