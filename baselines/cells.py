"""CSV text as columns of cells that remember where they were written."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import DescriptionError, Position, nearest_name
from siliconloom.arch.inputs import cell_column, read_table, source_name

Value = TypeVar("Value", int, float)
MAX_HEADER = 4096
"""Most characters of the line that names the columns."""


class Cells(Struct, frozen=True):
    """Columns of a CSV file, as text.

    Parameters
    ----------
    source
        Name that errors show.
    order
        Names of the columns in the order of the file.
    columns
        Cells of each column, stripped, all equally many.
    lines
        One-based line of each row.
    text
        The lines of the file, to find a cell's place again.
    """

    source: str
    order: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    lines: Sequence[int]
    text: Sequence[str]

    def __len__(self) -> int:
        return len(self.lines)

    def position(self, row: int, column: str) -> Position:
        """Line and character at which a cell begins; the beginning of the row when the file lacks the column."""
        line = self.lines[row]
        begins = cell_column(self.text[line - 1], self.order.index(column)) if column in self.order else 1
        return Position(self.source, line, begins)

    def error(
        self, rule: str, row: int, column: str, *, value: object = None, nearest: str | None = None
    ) -> DescriptionError:
        """Make the error that points at a cell (raise it yourself)."""
        return DescriptionError(rule, position=self.position(row, column), path=column, value=value, nearest=nearest)

    def integers(self, column: str, parse: Callable[[str], int], empty: int) -> NDArray[np.int64]:
        """Value of every cell of a column; each distinct text is parsed once.

        ``parse`` raises ``ValueError`` with the rule that a text breaks; an empty cell, or a column that the file
        lacks, is ``empty``.
        """
        found = self._parsed(column, parse, empty)
        return np.full(len(self), empty, np.int64) if found is None else np.fromiter(found, np.int64, len(self))

    def reals(self, column: str, parse: Callable[[str], float], empty: float) -> NDArray[np.float64]:
        """As `integers`, for numbers that need not be whole."""
        found = self._parsed(column, parse, empty)
        return np.full(len(self), empty, np.float64) if found is None else np.fromiter(found, np.float64, len(self))

    def _parsed(self, column: str, parse: Callable[[str], Value], empty: Value) -> Iterable[Value] | None:
        """Values of a column; ``None`` where all of them are ``empty``."""
        cells = self.columns.get(column)
        if cells is None or cells.count("") == len(cells):
            return None
        known: dict[str, Value] = {"": empty}
        broken: dict[str, str] = {}
        for text in set(cells):
            if text:
                try:
                    known[text] = parse(text)
                except ValueError as error:
                    broken[text] = str(error)
        if broken:
            row = next(row for row, text in enumerate(cells) if text in broken)
            raise self.error(broken[cells[row]], row, column, value=cells[row])
        return map(known.__getitem__, cells)


def read_text(path: Path | str) -> tuple[str, str]:
    """Name for errors and text of a CSV file, gzipped when its name ends in ``.gz``; ``-`` is standard input.

    Raises
    ------
    LoomError
        When it cannot be read, or has so many bytes or cells that reading it would take gigabytes of memory.
    """
    return source_name(path), read_table(path)


def parse_cells(source: str, text: str, known: Sequence[str], needed: Sequence[str]) -> Cells:
    """Split CSV text with a header into columns.

    Parameters
    ----------
    source
        Name that errors show.
    text
        The file. Blank lines are passed over; a cell holds no line break.
    known
        Names that the header may have, in any order.
    needed
        Names that it must have.
    """
    lines = text.splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if line and not line.isspace()]
    if not numbers:
        raise DescriptionError("the file is empty; its first line must name the columns", position=_at(source, 1))
    rows = lines if len(numbers) == len(lines) else [lines[number - 1] for number in numbers]
    top = numbers.pop(0)
    if len(rows[0]) > MAX_HEADER:
        raise DescriptionError(f"more than {MAX_HEADER} characters cannot name columns", position=_at(source, top))
    order = tuple(name.strip().strip('"') for name in rows[0].split(","))
    _check_header(Cells(source, order, {}, [top], lines), known, needed)
    if not numbers:
        raise DescriptionError("there are no rows below the header", position=_at(source, top))
    flat = _quoted(rows, len(order)) if '"' in text else _plain(rows, len(order))
    if isinstance(flat, tuple):
        row, found = flat
        rule = f"has {found} cells, the header names {len(order)} columns"
        raise DescriptionError(rule, position=_at(source, numbers[row - 1]))
    if " " in text or "\t" in text:
        flat = list(map(str.strip, flat))
    columns = {name: tuple(flat[index :: len(order)]) for index, name in enumerate(order, len(order))}
    return Cells(source, order, columns, numbers, lines)


def _check_header(header: Cells, known: Sequence[str], needed: Sequence[str]) -> None:
    order, top = header.order, header.lines[0]
    for index, name in enumerate(order):
        if name in order[:index]:
            raise DescriptionError("the column is given twice", position=_at(header.source, top), path=name)
        if name not in known:
            near = nearest_name(name, known)
            raise header.error(f"unknown column; known: {', '.join(known)}", 0, name, nearest=near)
    for name in needed:
        if name not in order:
            raise DescriptionError(f"the column '{name}' is missing", position=_at(header.source, top))


def _plain(rows: Sequence[str], width: int) -> list[str] | tuple[int, int]:
    """Cells of all rows in one list (a list for each row would cost ten times that), or a row of another width."""
    if set(map(str.count, rows, repeat(","))) != {width - 1}:
        return next((row, line.count(",") + 1) for row, line in enumerate(rows) if line.count(",") != width - 1)
    return ",".join(rows).split(",")


def _quoted(rows: Sequence[str], width: int) -> list[str] | tuple[int, int]:
    flat: list[str] = []
    for row, cells in enumerate(csv.reader(rows)):
        if len(cells) != width:
            return row, len(cells)
        flat += cells
    return flat


def _at(source: str, line: int) -> Position:
    return Position(source, line, 1)
