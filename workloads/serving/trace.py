"""Traces of requests: CSV and JSONL files, those of the library, and requests that are all alike (``512x128``).

Columns are found by their names, of which several are known for each, so that files of Azure (2023, 2024), Mooncake,
BurstGPT and LLMServingSim are read as they are published.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.inputs import cell_column, read_table
from siliconloom.arch.requests import Segment, ServedRequests
from siliconloom.workloads.serving.names import LIBRARY, SUFFIXES, trace_names

LONGEST_S = 3.2e9
"""Seconds that a trace may have: a century."""
MOST_TOKENS = 2**24
"""Most tokens of a prompt or an answer."""
HASHED = 512
"""Tokens of a block whose hash a trace has (Mooncake)."""

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class RequestTrace(ServedRequests, frozen=True):
    """Requests as a file, or a name, has them.

    Parameters
    ----------
    endless
        Whether it is one request, to be repeated.
    timed
        Whether it says when requests come.
    """

    name: str = "requests"
    endless: bool = False
    timed: bool = True

    def __len__(self) -> int:
        return len(self.prompt)

    def part(self, first: int, end: int) -> RequestTrace:
        """Requests from ``first`` to before ``end``, whose times begin with the first of them."""
        arrival = self.arrival_s[first:end]
        return replace(
            self,
            arrival_s=arrival - (arrival[0] if len(arrival) else 0.0),
            prompt=self.prompt[first:end],
            output=self.output[first:end],
            segments=self.segments[first:end],
            answer=self.answer[first:end],
            session=self.session[first:end],
            priority=self.priority[first:end],
            adapter=self.adapter[first:end],
            client=self.client[first:end],
            model=self.model[first:end],
        )

    def repeated(self, count: int) -> RequestTrace:
        """So many requests like the only one, all at once."""
        assert self.endless
        prompt, output = int(self.prompt[0]), int(self.output[0])
        return replace(
            self,
            arrival_s=np.zeros(count),
            prompt=np.full(count, prompt, np.int64),
            output=np.full(count, output, np.int64),
            endless=False,
        )


_ALIKE = re.compile(r"(\d{1,8})x(\d{1,8})")


def load_trace(name: str) -> RequestTrace:
    """A trace by file or library name; ``512x128`` are prompts of 512 tokens with 128 in each answer.

    Raises
    ------
    LoomError
        With file, line and column, for what is no such trace, is not sorted by time, or has no tokens.
    """
    if (alike := _ALIKE.fullmatch(name)) is not None and not os.path.exists(name):
        prompt, output = int(alike[1]), int(alike[2])
        if not (1 <= prompt <= MOST_TOKENS and 1 <= output <= MOST_TOKENS):
            raise LoomError(f"{name}: prompts and answers have 1 to {MOST_TOKENS:,} tokens")
        one = np.ones(1, np.int64)
        return RequestTrace(np.zeros(1), one * prompt, one * output, name=name, endless=True, timed=False)
    path = _find(name)
    rows = _jsonl_rows(path) if str(path).removesuffix(".gz").endswith(".jsonl") else _csv_rows(path)
    return _read(path.name.partition(".")[0], rows)


def trace_of(columns: Mapping[str, Sequence[Any]], name: str = "trace") -> RequestTrace:
    """A trace called ``name`` from columns under the names that files have, with a value for each request.

    Raises
    ------
    LoomError
        With row and column, for what is no such trace, is not sorted by time, or has no tokens.
    """
    rows = {column: list(values) for column, values in columns.items()}
    counts = {column: len(values) for column, values in rows.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{column} {count:,}" for column, count in counts.items())
        raise LoomError(f"{name}: columns must have a value for each request; they have: {told}")
    return _read(name, _Rows(name, rows, lambda row, column: f"{name}: request {row + 1}"))


def _find(name: str) -> Path:
    if os.path.exists(name):
        if not name.endswith(SUFFIXES):
            raise LoomError(f"{name}: a trace of requests is a file of {', '.join(SUFFIXES)}")
        return Path(name)
    for suffix in SUFFIXES:
        if name in trace_names() and (LIBRARY / f"{name}{suffix}").exists():
            return LIBRARY / f"{name}{suffix}"
    if name.endswith(SUFFIXES) or "/" in name:
        raise LoomError(f"{name}: no such file")
    near = nearest_name(name, trace_names())
    hint = f"did you mean '{near}'?" if near else "known: " + ", ".join(trace_names())
    raise LoomError(
        f"{name}: no such file and no trace of that name in the library; {hint}; 512x128 are requests alike"
    )


class _Column(Struct, frozen=True):
    """A column: the names that it has in files, and what each does to a number."""

    names: tuple[str, ...]
    scale: float = 1.0


ARRIVALS = (
    _Column(("arrival_s", "arrival_time", "arrival", "arrived_at")),
    _Column(("arrival_time_ns", "arrival_ns"), 1e-9),
    _Column(("arrival_ms", "timestamp_ms"), 1e-3),
)
"""Columns of arrival times, and seconds of one of their units; `timestamp` is of several, see `_times`."""
STAMPS = ("timestamp", "TIMESTAMP", "Timestamp")
PROMPTS = ("prompt_tokens", "ContextTokens", "input_length", "input_toks", "input_tokens", "Request tokens")
OUTPUTS = ("output_tokens", "GeneratedTokens", "output_length", "output_toks", "Response tokens")
OTHERS = ("prefix", "prefix_tokens", "session", "priority", "adapter", "client", "model", "hash_ids")
KNOWN = (*(n for c in ARRIVALS for n in c.names), *STAMPS, *PROMPTS, *OUTPUTS, *OTHERS)


class _Rows(Struct):
    """Rows of a file: values by column, and where a value stands, for errors."""

    source: str
    columns: dict[str, list[Any]]
    place: Callable[[int, str], str]

    def error(self, row: int, column: str, text: str) -> LoomError:
        return LoomError(f"{self.place(row, column)}: {column}: {text}")


def _csv_rows(path: Path) -> _Rows:
    text = read_table(path).splitlines()
    reader = csv.reader(text)
    try:
        header = [cell.strip() for cell in next((row for row in reader if row), [])]
        if not header:
            raise LoomError(f"{path}: is empty; a trace has a line of column names first")
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise LoomError(f"{path}:1: the column {twice} stands twice")
        lines, cells = list[int](), list[list[str]]()
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise LoomError(f"{path}:{reader.line_num}: {len(row)} cells in a table of {len(header)} columns")
            lines.append(reader.line_num)
            cells.append(row)
    except csv.Error as error:
        raise LoomError(f"{path}:{reader.line_num}: {error}") from None
    columns = dict(zip(header, map(list, zip(*cells, strict=True)), strict=False)) if cells else {n: [] for n in header}

    def place(row: int, name: str) -> str:
        line = lines[row]
        return f"{path}:{line}:{cell_column(text[line - 1], header.index(name))}"

    return _Rows(str(path), columns, place)


def _jsonl_rows(path: Path) -> _Rows:
    found, lines = list[dict[str, Any]](), list[int]()
    for number, line in enumerate(read_table(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LoomError(f"{path}:{number}: is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise LoomError(f"{path}:{number}: must be an object of a request's values")
        found.append(row)
        lines.append(number)
    if not found:
        raise LoomError(f"{path}: is empty; a trace has a request on each line")
    names = list(dict.fromkeys(name for row in found for name in row if name in KNOWN))
    columns = {name: [row.get(name) for row in found] for name in names} if names else {name: [] for name in found[0]}
    return _Rows(str(path), columns, lambda row, name: f"{path}:{lines[row]}")


def _read(name: str, rows: _Rows) -> RequestTrace:
    prompt, output = (_tokens(rows, names) for names in (PROMPTS, OUTPUTS))
    if not len(prompt):
        raise LoomError(f"{rows.source}: has no requests")
    arrival = _arrivals(rows, len(prompt))
    session = _numbered(rows, "session")
    if "prefix" in rows.columns and "hash_ids" in rows.columns:
        raise LoomError(f"{rows.source}: give prefix or hash_ids: both say what prompts begin with")
    if "prefix" in rows.columns or "prefix_tokens" in rows.columns:
        segments = _prefixes(rows, prompt)
    elif "hash_ids" in rows.columns:
        segments = _hashed(rows, prompt)
    else:
        segments = ()
    adapter, model = _numbered(rows, "adapter"), _numbered(rows, "model")
    for at in np.flatnonzero(model < 0):
        raise rows.error(int(at), "model", "every request names one (got nothing)")
    segments = _conversations(session, prompt, output, segments)
    answer = np.where(session < 0, -1, 2 * (CONVERSATION + np.arange(len(session))) + 1)
    segments, answer = _by_weights(segments, answer, adapter, model)
    return RequestTrace(
        np.zeros(len(prompt)) if arrival is None else arrival - arrival[0],
        prompt,
        output,
        segments,
        answer,
        session,
        _whole(rows, "priority", -(2**31), 2**31) if "priority" in rows.columns else np.zeros(0, np.int64),
        adapter,
        _numbered(rows, "client"),
        model,
        name=name,
        timed=arrival is not None,
    )


def _by_weights(
    segments: tuple[tuple[Segment, ...], ...], answer: Int, adapter: Int, model: Int
) -> tuple[tuple[tuple[Segment, ...], ...], Int]:
    """Numbers of segments that are others under another adapter or model, whose keys and values are others, too."""
    weights = [each.tolist() for each in (adapter, model) if len(each) and (each != each[0]).any()]
    if not segments or not weights:
        return segments, answer
    numbers: dict[tuple[int, ...], int] = {}

    def number(segment: int, at: int) -> int:
        return numbers.setdefault((segment, *(each[at] for each in weights)), len(numbers))

    found = tuple(tuple((number(s, at), length) for s, length in each) for at, each in enumerate(segments))
    said = [number(each, at) if each >= 0 else -1 for at, each in enumerate(answer.tolist())]
    return found, np.array(said, np.int64)


def _only(rows: _Rows, names: Sequence[str]) -> str | None:
    found = [name for name in names if name in rows.columns]
    if len(found) > 1:
        raise LoomError(f"{rows.source}: has {' and '.join(found)}, which say the same")
    return found[0] if found else None


def _tokens(rows: _Rows, names: Sequence[str]) -> Int:
    column = _only(rows, names)
    if column is None:
        known = ", ".join(rows.columns) or "none"
        raise LoomError(
            f"{rows.source}: has no column {names[0]} (or {', '.join(names[1:])}); its columns are: {known}"
        )
    return _whole(rows, column, 1, MOST_TOKENS)


def _number(rows: _Rows, at: int, column: str) -> float:
    value = rows.columns[column][at]
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        found = float(value)
    except (ValueError, OverflowError):
        raise rows.error(at, column, f"must be a number (got {_shown(value)})") from None
    if not np.isfinite(found):
        raise rows.error(at, column, f"must be a number (got {_shown(value)})")
    return found


def _shown(value: object) -> str:
    text = "nothing" if value is None or value == "" else repr(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else f"{text[:57]}..."


def _whole(rows: _Rows, column: str, low: int, high: int) -> Int:
    try:  # most files are sound: all at once, and one by one only to say where they are not
        found = np.array(rows.columns[column], np.float64)
        if any(isinstance(value, bool) for value in rows.columns[column]):
            raise ValueError
        if not (np.isfinite(found).all() and (found == np.rint(found)).all()):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        found = np.array([_number(rows, at, column) for at in range(len(rows.columns[column]))])
        for at in np.flatnonzero(found != np.rint(found)):
            raise rows.error(int(at), column, f"must be a whole number (got {found[at]:g})") from None
    for at in np.flatnonzero((found < low) | (found > high)):
        raise rows.error(int(at), column, f"must be from {low:,} to {high:,} (got {found[at]:,.0f})")
    return found.astype(np.int64)


def _arrivals(rows: _Rows, count: int) -> Float | None:
    """Seconds at which requests come, as the file counts them; ``None`` where it does not say."""
    column = _only(rows, [name for each in ARRIVALS for name in each.names] + list(STAMPS))
    if column is None:
        return None
    values = rows.columns[column]
    if column in STAMPS:
        times = _times(rows, column)
    else:
        scale = next(each.scale for each in ARRIVALS if column in each.names)
        times = np.array([_number(rows, at, column) for at in range(count)]) * scale
    if (far := float(times.max() - times[0])) > LONGEST_S:
        raise rows.error(int(times.argmax()), column, f"is {far:.3g} s after the first request, more than a century")
    for at in np.flatnonzero(np.diff(times) < 0):
        later = int(at) + 1
        before = f"{_shown(values[later])} is before the request above it, {_shown(values[later - 1])}"
        raise rows.error(later, column, f"requests must stand in the order in which they come: {before}")
    return times


_DATE = re.compile(r"\s*\d{4}-\d")


def _times(rows: _Rows, column: str) -> Float:
    """Timestamps: dates with times (Azure), whole milliseconds (Mooncake), or seconds (BurstGPT)."""
    values = rows.columns[column]
    first = values[0]
    if isinstance(first, str) and _DATE.match(first):
        found: list[datetime] = []
        for at, value in enumerate(values):
            try:
                found.append(datetime.fromisoformat(str(value).strip()))
                between = found[-1] - found[0]  # with a time zone and without are not compared
            except (ValueError, TypeError):
                raise rows.error(at, column, f"must be a date and a time (got {_shown(value)})") from None
            del between
        return np.array([(each - found[0]).total_seconds() for each in found], np.float64)
    scale = 1e-3 if column == "timestamp" else 1.0
    return np.array([_number(rows, at, column) for at in range(len(values))], np.float64) * scale


def _numbered(rows: _Rows, column: str) -> Int:
    """Numbers of a column's names in the order in which they first stand; -1 where a cell is empty."""
    if column not in rows.columns:
        return np.zeros(0, np.int64)
    seen: dict[str, int] = {}
    values = [None if v is None or str(v).strip() == "" else str(v) for v in rows.columns[column]]
    return np.array([-1 if v is None else seen.setdefault(v, len(seen)) for v in values], np.int64)


def _prefixes(rows: _Rows, prompt: Int) -> tuple[tuple[Segment, ...], ...]:
    """Prefixes by name, each of so many tokens of the prompt."""
    for here, other in (("prefix", "prefix_tokens"), ("prefix_tokens", "prefix")):
        if other not in rows.columns:
            raise LoomError(f"{rows.source}: has {here} without {other}: a prefix has a name and a number of tokens")
    names = _numbered(rows, "prefix")
    found: list[tuple[Segment, ...]] = []
    lengths: dict[int, int] = {}
    for at, name in enumerate(names.tolist()):
        if name < 0:
            found.append(())
            continue
        tokens = _number(rows, at, "prefix_tokens")
        if tokens != int(tokens) or not 1 <= tokens <= prompt[at]:
            rule = f"must be from 1 to the {prompt[at]:,} tokens of the prompt (got {tokens:g})"
            raise rows.error(at, "prefix_tokens", rule)
        if lengths.setdefault(name, int(tokens)) != tokens:
            rule = (
                f"the prefix {_shown(rows.columns['prefix'][at])} has {lengths[name]:,} tokens above (got {tokens:g})"
            )
            raise rows.error(at, "prefix_tokens", rule)
        found.append(((name, int(tokens)),))
    return tuple(found)


def _hashed(rows: _Rows, prompt: Int) -> tuple[tuple[Segment, ...], ...]:
    """Blocks of 512 tokens by hash, of which the last may be shorter."""
    found = []
    for at, value in enumerate(rows.columns["hash_ids"]):
        if isinstance(value, str):
            value = value.strip("[] ").replace(",", " ").split()
        try:
            ids = [int(each) if isinstance(each, str) else each for each in value]
            if not all(type(each) is int for each in ids):
                raise ValueError
        except (TypeError, ValueError):
            raise rows.error(at, "hash_ids", f"must be a list of whole numbers (got {_shown(value)})") from None
        left, path = int(prompt[at]), []
        for each in ids:
            if left <= 0:
                break
            path.append((each, min(HASHED, left)))
            left -= HASHED
        found.append(tuple(path))
    return tuple(found)


CONVERSATION = 2**40
"""Numbers of segments from here on are of conversations."""


def _conversations(
    session: Int, prompt: Int, output: Int, segments: tuple[tuple[Segment, ...], ...]
) -> tuple[tuple[Segment, ...], ...]:
    """Segments of turns: a turn's prompt begins with all that was said before it in its conversation.

    Where a prompt is shorter than what was said (a window that slides), it shares nothing.
    """
    if not len(session):
        return segments
    said: dict[int, list[Segment]] = {}
    found = []
    for at, name in enumerate(session.tolist()):
        own = segments[at] if segments else ()
        if name < 0:
            found.append(own)
            continue
        before = said.get(name, list(own))
        told = sum(tokens for _, tokens in before)
        if told > prompt[at]:
            before, told = list(own), sum(tokens for _, tokens in own)
        number = CONVERSATION + at
        if prompt[at] > told:
            before = [*before, (number * 2, int(prompt[at]) - told)]
        found.append(tuple(before))
        said[name] = [*before, (number * 2 + 1, int(output[at]))]
    return tuple(found)


__all__ = ["RequestTrace", "load_trace", "trace_names", "trace_of"]
