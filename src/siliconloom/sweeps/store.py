"""Results of sweeps in one SQLite file: a row a point, keyed by a hash of the question that it asks.

A row is written whole as soon as its point is finished, so that whatever ends a sweep, no finished point is lost. Any
number of sweeps may follow one another in a file, and share their points; one at a time writes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from siliconloom.arch.errors import LoomError, one_line, shortened
from siliconloom.arch.files import check_writable, lock
from siliconloom.sweeps.axes import Indices
from siliconloom.sweeps.question import PointAnswer

FORMAT = "siliconloom.sweep-store/1"
"""Version of the tables below; a file of another one is refused."""
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE points (
    key TEXT PRIMARY KEY,   -- SHA-256 of what is asked: files, overrides, options, code
    sets TEXT NOT NULL,     -- JSON: every key that the point sets, and its value
    state TEXT NOT NULL,    -- done, failed, or again: failed for no reason of its own, and asked again
    metrics TEXT NOT NULL,  -- JSON: figures in base units
    bound TEXT,             -- what sets the lower bound
    why TEXT                -- one line, of a failed point
);
CREATE TABLE sweeps (
    number INTEGER PRIMARY KEY,
    digest TEXT UNIQUE NOT NULL,  -- SHA-256 of description and code
    name TEXT NOT NULL,
    description TEXT NOT NULL,    -- JSON, as the file says it
    code TEXT NOT NULL,
    updated REAL NOT NULL,        -- Unix time
    complete INTEGER NOT NULL,
    seconds REAL NOT NULL,        -- all runs together
    evaluated INTEGER NOT NULL
);
CREATE TABLE members (
    sweep INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,  -- in the order in which points are asked
    point TEXT NOT NULL,       -- key of the point
    place TEXT NOT NULL,       -- JSON: of each swept key which of its values
    PRIMARY KEY (sweep, ordinal)
);
"""
BUSY_S = 30.0
MOST_FIGURE = 1e100
"""Figures beyond this, or nearer to zero than one over it, are none."""


class StoredSweep(Struct, frozen=True):
    """A sweep that a file knows."""

    number: int
    name: str
    description: str
    complete: bool
    seconds: float
    evaluated: int


class StoredPoint(Struct, frozen=True):
    """A member of a sweep: its place among the keys' values, its answer if it has one, and what of it is damaged.

    Parameters
    ----------
    sets
        All that the point set, as JSON.
    """

    key: str
    place: Indices
    answer: PointAnswer | None
    damage: str | None = None
    sets: str = ""


class Damaged(Exception):
    """A row that is not as it was written; the text says what is wrong."""


def read_answer(metrics: object, bound: object, why: object, state: object) -> PointAnswer:
    """What a row of points says; raises `Damaged` where it cannot have been written so."""
    found = _data(metrics, "its figures")
    if not isinstance(found, dict):
        raise Damaged("its figures are no JSON object")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Damaged(f"its {_told(name)} is no number: {_told(value)}")
        if not abs(value) <= MOST_FIGURE or 0 < abs(value) < 1 / MOST_FIGURE:
            raise Damaged(f"its {_told(name)} is out of range: {_told(value)}")
        if value < 0 and name != "gap":
            raise Damaged(f"its {_told(name)} is negative: {_told(value)}")
    for name, text in (("bound", bound), ("why", why)):
        if not isinstance(text, str | None):
            raise Damaged(f"its {name} is no text: {_told(text)}")
    if state not in ("done", "failed", "again"):
        raise Damaged(f"its state is none of done, failed and again: {_told(state)}")
    if (state == "done") != (why is None):
        raise Damaged(f"its state is {state}, and it has {'no' if why is None else 'a'} reason of a failure")
    if state == "done" and not found:
        raise Damaged("it has no figures")
    numbers = {str(name): float(value) for name, value in found.items()}
    return PointAnswer(numbers, bound, why, state == "again")  # type: ignore[arg-type]


def _data(text: object, what: str) -> Any:
    try:
        return json.loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        raise Damaged(f"{what} are no JSON") from None


def check_sets(text: object, asked: Iterable[tuple[str, str]]) -> None:
    """Compare what a row says that its point set with what the point sets; raises `Damaged` where they differ."""
    if _data(text, "its values") != dict(asked):
        raise Damaged("its values are not those that it was evaluated with")


def _read_place(text: object) -> Indices:
    found = _data(text, "its values")
    if not isinstance(found, list) or not all(type(level) is int and level >= 0 for level in found):
        raise Damaged("its values are no list of numbers")
    return tuple(found)


def _told(value: object) -> str:
    return shortened(one_line(str(value)), 40)


class Store:
    """The results in a file, or in memory.

    Parameters
    ----------
    path
        The file, which is made if it is not there; ``None`` for memory.
    write
        Whether sweeps are to be written: one process at a time may.

    Raises
    ------
    LoomError
        For a file that is none of these, is of another version, cannot be written, or is being written.
    """

    def __init__(self, path: str | Path | None, *, write: bool = True) -> None:
        self.path = None if path is None else Path(path)
        self._lock: int | None = None
        self.damaged: dict[str, str] = {}
        if self.path is not None and self.path.exists() and not self.path.is_file():
            what = "a folder" if self.path.is_dir() else "a pipe or a device"
            raise LoomError(f"{self.path}: is no file of results: it names {what}")
        if self.path is not None and (write or not self.path.exists()):
            if not write:
                raise LoomError(f"{self.path}: no such file of results")
            check_writable(self.path)
            self._take_lock(self.path)
        try:
            self._connection = self._connected(write)
            self._connection.text_factory = lambda text: text.decode(errors="replace")  # of damaged rows
            self._check(write)
            if write:  # once it is known to be ours
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
            self._file = (0, 0) if self.path is None else self._place()
        except sqlite3.Error as error:
            self._release()
            raise self._error(error) from None
        except LoomError:
            self._release()
            raise

    def _take_lock(self, path: Path) -> None:
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise LoomError(f"{path}: cannot be written: {error.strerror}") from None
        if not lock(self._lock):
            os.close(self._lock)
            self._lock = None
            raise LoomError(
                f"{path}: another sweep is writing to this file; wait for it, or name another with --results"
            )

    def _connected(self, write: bool) -> sqlite3.Connection:
        if self.path is None:
            return sqlite3.connect(":memory:", isolation_level=None)
        if write:
            return sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=ro", timeout=BUSY_S, isolation_level=None, uri=True
        )

    def _check(self, write: bool) -> None:
        names = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not names and write:
            self._connection.executescript(f"BEGIN; {TABLES} INSERT INTO meta VALUES ('format', '{FORMAT}'); COMMIT;")
            return
        found = None
        if "meta" in names:
            found = self._connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if found is None:
            raise LoomError(f"{self.path}: is no file of a sweep's results")
        if found[0] != FORMAT:
            raise LoomError(f"{self.path}: results of another version ({found[0]}); this one reads {FORMAT}")

    def _error(self, error: sqlite3.Error) -> LoomError:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            return LoomError(f"{self.path}: is no file of a sweep's results ({text})")
        return LoomError(f"{self.path}: {text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
        if isinstance(error, sqlite3.Error):
            raise self._error(error) from None

    def close(self) -> None:
        """Close the file; another process may write it then."""
        with suppress(sqlite3.Error):
            self._connection.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:  # after SQLite's own locks, which closing any handle would let go
            os.close(self._lock)
            self._lock = None

    def begin(self, digest: str, name: str, description: str, code: str, files: Mapping[str, str] | None = None) -> int:
        """Number of a sweep, which may have begun before; its members are told anew.

        Parameters
        ----------
        files
            SHA-256 of the user's files that it depends on, by path.
        """
        self._connection.execute("BEGIN")
        self._connection.execute(
            "INSERT INTO sweeps (digest, name, description, code, updated, complete, seconds, evaluated) "
            "VALUES (?, ?, ?, ?, ?, 0, 0, 0) ON CONFLICT (digest) "
            "DO UPDATE SET updated = excluded.updated, complete = 0, name = excluded.name, "
            "description = excluded.description, "
            f"seconds = iif(typeof(seconds) = 'real' AND seconds BETWEEN 0 AND {MOST_FIGURE}, seconds, 0), "
            "evaluated = iif(typeof(evaluated) = 'integer' AND evaluated >= 0, evaluated, 0)",
            (digest, name, description, code, time.time()),
        )
        (number,) = self._connection.execute("SELECT number FROM sweeps WHERE digest = ?", (digest,)).fetchone()
        self._connection.execute("DELETE FROM members WHERE sweep = ?", (number,))
        known = json.dumps({str(Path(path).absolute()): told for path, told in (files or {}).items()})
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"files of sweep {number}", known))
        self._connection.execute("COMMIT")
        return int(number)

    def add_members(self, sweep: int, first: int, members: Iterable[tuple[str, Indices]]) -> None:
        """Say which points a sweep asks, from an ordinal on."""
        rows = [(sweep, first + n, key, json.dumps(place)) for n, (key, place) in enumerate(members)]
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO members VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def known(
        self, keys: Sequence[str], asked: Mapping[str, Iterable[tuple[str, str]]] | None = None
    ) -> dict[str, PointAnswer]:
        """Answers that the file has, of points that need not be asked again; damaged ones are, and are in `damaged`."""
        found = {}
        for first in range(0, len(keys), 500):
            part = keys[first : first + 500]
            marks = ",".join("?" * len(part))
            rows = self._connection.execute(
                f"SELECT key, sets, metrics, bound, why, state FROM points WHERE key IN ({marks})", part
            ).fetchall()
            for key, sets, *row in rows:
                try:
                    answer = read_answer(*row)
                    if asked is not None:
                        check_sets(sets, asked[key])
                except Damaged as error:
                    self.damaged[key] = str(error)
                    self.ask_again(key)
                    continue
                if not answer.again:
                    found[key] = answer
        return found

    def ask_again(self, key: str) -> None:
        """Have the next answer of a point take the place of the one that is there."""
        self._connection.execute("UPDATE points SET state = 'again' WHERE key = ?", (key,))

    def put(self, key: str, sets: Iterable[tuple[str, str]], answer: PointAnswer) -> None:
        """Keep an answer; nothing that is done is ever written over."""
        state = "again" if answer.again else "done" if answer.why is None else "failed"
        self._connection.execute(
            "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET state = excluded.state, "
            "sets = excluded.sets, metrics = excluded.metrics, bound = excluded.bound, "
            "why = excluded.why WHERE points.state = 'again'",
            (key, json.dumps(dict(sets)), state, json.dumps(answer.metrics), answer.bound, answer.why),
        )

    def end(self, sweep: int, seconds: float, evaluated: int, *, complete: bool) -> None:
        """Add what a run took, and say whether it was the last one."""
        self._connection.execute(
            "UPDATE sweeps SET updated = ?, complete = ?, seconds = seconds + ?, evaluated = evaluated + ? "
            "WHERE number = ?",
            (time.time(), complete, seconds, evaluated, sweep),
        )

    def sweeps(self) -> list[StoredSweep]:
        """Every sweep of the file, the last one that ran first."""
        rows = self._connection.execute(
            "SELECT number, name, description, complete, seconds, evaluated FROM sweeps "
            "ORDER BY updated DESC, number DESC"
        )
        found = []
        for n, name, text, done, spent, count in rows:
            told = isinstance(name, str) and isinstance(text, str)
            counted = isinstance(spent, float) and 0 <= spent <= MOST_FIGURE and isinstance(count, int) and count >= 0
            if not told or not counted:
                raise LoomError(f"{self.path}: the sweep {_told(name)} is damaged; the same loom sweep writes it anew")
            found.append(StoredSweep(n, name, text, bool(done), spent, count))
        return found

    def points(self, sweep: int) -> list[StoredPoint]:
        """The members of a sweep in the order in which they were asked."""
        rows = self._connection.execute(
            "SELECT members.point, members.place, points.metrics, points.bound, points.why, points.state, "
            "points.sets FROM members "
            "LEFT JOIN points ON points.key = members.point WHERE members.sweep = ? ORDER BY members.ordinal",
            (sweep,),
        )
        found = []
        for key, text, *row, sets in rows:
            place: Indices = ()
            try:
                place = _read_place(text)
                known = None if row[-1] is None else read_answer(*row)
                found.append(StoredPoint(str(key), place, known, sets=str(sets)))
            except Damaged as error:
                found.append(StoredPoint(str(key), place, None, str(error)))
        return found

    def files(self, sweep: int) -> dict[str, str]:
        """SHA-256 of the files that a sweep depends on, by path; of those that are known."""
        row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (f"files of sweep {sweep}",)).fetchone()
        try:
            found = json.loads(row[0]) if row is not None else {}
        except (TypeError, ValueError, RecursionError):
            return {}
        return {str(path): str(told) for path, told in found.items()} if isinstance(found, dict) else {}

    def lost(self) -> bool:
        """Whether the file is not there any more, or is another one."""
        try:
            return self.path is not None and self._place() != self._file
        except OSError:
            return True

    def _place(self) -> tuple[int, int]:
        """Where the file is on the disk."""
        assert self.path is not None
        found = os.stat(self.path)
        return found.st_dev, found.st_ino

    def count(self) -> int:
        """How many points the file has, of all sweeps."""
        return int(self._connection.execute("SELECT count(*) FROM points").fetchone()[0])


__all__ = ["FORMAT", "Store", "StoredPoint", "StoredSweep"]
