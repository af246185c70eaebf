"""Checks that a table of measurements could have been measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from siliconloom.arch.errors import LoomError
from siliconloom.arch.quantity import format_si
from siliconloom.baselines.operations import ATTENTION, COLUMNS, PRODUCTS, Bool, Op, Operations
from siliconloom.baselines.roofline import Roofline, floors
from siliconloom.baselines.tables import Table

TOLERANCE = 1e-3
"""Share by which a row may pass a limit: times are kept to four significant digits."""


def validate(table: Table, roofline: Roofline | Mapping[str, Roofline]) -> None:
    """Refuse a table with a row that cannot be true.

    Parameters
    ----------
    table
        What to check.
    roofline
        Limits of its GPU, or of several by name; the rows of a GPU without any are only checked for themselves.

    Raises
    ------
    LoomError
        With file, line, figure and limit: a time that is not a positive number; a row faster than arithmetic, memory or
        links allow, or in a precision that the GPU lacks; one operation with two times.
    """
    wrong = np.flatnonzero(~(np.isfinite(table.time_us) & (table.time_us > 0)))
    if len(wrong):
        raise LoomError(f"{table.at(wrong[0])}: time_us must be a positive number (got {table.time_us[wrong[0]]})")
    for row, other in conflicts(table)[:1]:
        raise LoomError(
            f"{table.at(row)}: {describe(table, row)} takes {table.time_us[row]:g} us, but {table.time_us[other]:g} us "
            f"in line {table.line[other]}"
        )
    for gpu in sorted(set(table.gpu.tolist())):
        limits = roofline.get(gpu) if isinstance(roofline, Mapping) else roofline
        if limits is not None:
            _check_gpu(table, np.flatnonzero(table.gpu == gpu), limits)


def _check_gpu(table: Table, rows: np.ndarray, limits: Roofline) -> None:
    operations = table.operations.select(rows)
    seconds = table.time_us[rows] / 1e6
    missing = np.flatnonzero(lacking(operations, limits))
    if len(missing):
        row, dtype = rows[missing[0]], operations.dtypes()[missing[0]]
        raise LoomError(f"{table.at(row)}: {describe(table, row)}: {table.gpu[row]} has no {dtype} arithmetic")
    for floor in floors(operations, limits):
        above = np.flatnonzero(floor.seconds > seconds * (1 + TOLERANCE))
        if len(above):
            first = above[0]
            row, rate = rows[first], format_si(floor.work[first] / seconds[first], floor.unit)
            limit = format_si(floor.limit[first], floor.unit)
            what = f"{describe(table, row)} in {table.time_us[row]:g} us"
            raise LoomError(f"{table.at(row)}: {what} is {rate}, above {floor.name} of {limit}")


def lacking(operations: Operations, roofline: Roofline) -> Bool:
    """Mask of the products and attentions in a precision that the GPU does not have."""
    known = np.array([roofline.peak_flops(str(p)) > 0 for p in operations.dtypes()], dtype=bool)
    return ~known & operations.among(*PRODUCTS, *ATTENTION, Op.ATTENTION_BACKWARD)


def possible(operations: Operations, seconds: np.ndarray, roofline: Roofline) -> Bool:
    """Mask of the rows that break no limit."""
    found = ~lacking(operations, roofline)
    for floor in floors(operations, roofline):
        found &= floor.seconds <= seconds * (1 + TOLERANCE)
    return found


def conflicts(table: Table) -> list[tuple[int, int]]:
    """Pairs of rows (later, earlier) with one GPU, software and operation, and different times."""
    columns = [getattr(table.operations, name).astype(np.int64) for name in COLUMNS]
    columns += [table.input_tokens, table.output_tokens]
    columns += [np.unique(text, return_inverse=True)[1] for text in (table.gpu, table.software, table.model)]
    order = np.lexsort((np.arange(len(table)), *columns))
    same = np.ones(max(len(table) - 1, 0), dtype=bool)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    differs = table.time_us[order][1:] != table.time_us[order][:-1]
    pairs = [(int(order[i + 1]), int(order[i])) for i in np.flatnonzero(same & differs)]
    return sorted(pairs)


def describe(table: Table, row: int) -> str:
    """One row in a few words."""
    model = table.model[row]
    tokens = f" {model} input={table.input_tokens[row]} output={table.output_tokens[row]}" if model else ""
    return f"{table.operations.describe(row)}{tokens} on {table.gpu[row]}"


__all__ = ["TOLERANCE", "conflicts", "describe", "lacking", "possible", "validate"]
