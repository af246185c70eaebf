"""Results of sweeps in one SQLite file: a row a point, keyed by a hash of the question that it asks.

A row is written whole as soon as its point is finished, so that whatever ends a sweep, no finished point is lost. Any
number of sweeps may follow one another in a file, and share their points; one at a time writes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from siliconloom.arch.errors import LoomError
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


class StoredSweep(Struct, frozen=True):
    """A sweep that a file knows."""

    number: int
    name: str
    description: str
    complete: bool
    seconds: float
    evaluated: int


class StoredPoint(Struct, frozen=True):
    """A member of a sweep: its place among the keys' values, and its answer if it has one."""

    key: str
    place: Indices
    answer: PointAnswer | None


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

    def begin(self, digest: str, name: str, description: str, code: str) -> int:
        """Number of a sweep, which may have begun before; its members are told anew."""
        self._connection.execute("BEGIN")
        self._connection.execute(
            "INSERT INTO sweeps (digest, name, description, code, updated, complete, seconds, evaluated) "
            "VALUES (?, ?, ?, ?, ?, 0, 0, 0) ON CONFLICT (digest) "
            "DO UPDATE SET updated = excluded.updated, complete = 0",
            (digest, name, description, code, time.time()),
        )
        (number,) = self._connection.execute("SELECT number FROM sweeps WHERE digest = ?", (digest,)).fetchone()
        self._connection.execute("DELETE FROM members WHERE sweep = ?", (number,))
        self._connection.execute("COMMIT")
        return int(number)

    def add_members(self, sweep: int, first: int, members: Iterable[tuple[str, Indices]]) -> None:
        """Say which points a sweep asks, from an ordinal on."""
        rows = [(sweep, first + n, key, json.dumps(place)) for n, (key, place) in enumerate(members)]
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO members VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def known(self, keys: Sequence[str]) -> dict[str, PointAnswer]:
        """Answers that the file has, of points that need not be asked again."""
        found = {}
        for first in range(0, len(keys), 500):
            part = keys[first : first + 500]
            marks = ",".join("?" * len(part))
            rows = self._connection.execute(
                f"SELECT key, metrics, bound, why FROM points WHERE state <> 'again' AND key IN ({marks})", part
            )
            for key, metrics, bound, why in rows:
                found[key] = PointAnswer(self._read(metrics, key), bound, why)
        return found

    def put(self, key: str, sets: Iterable[tuple[str, str]], answer: PointAnswer) -> None:
        """Keep an answer; nothing that is done is ever written over."""
        state = "again" if answer.again else "done" if answer.why is None else "failed"
        self._connection.execute(
            "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET state = excluded.state, "
            "metrics = excluded.metrics, bound = excluded.bound, why = excluded.why WHERE points.state = 'again'",
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
        return [StoredSweep(n, name, text, bool(done), spent, count) for n, name, text, done, spent, count in rows]

    def points(self, sweep: int) -> list[StoredPoint]:
        """The members of a sweep in the order in which they were asked."""
        rows = self._connection.execute(
            "SELECT members.point, members.place, points.metrics, points.bound, points.why, points.state FROM members "
            "LEFT JOIN points ON points.key = members.point WHERE members.sweep = ? ORDER BY members.ordinal",
            (sweep,),
        )
        found = []
        for key, place, metrics, bound, why, state in rows:
            known = None if state is None else PointAnswer(self._read(metrics, key), bound, why, state == "again")
            found.append(StoredPoint(key, tuple(self._read(place, key)), known))
        return found

    def _read(self, text: str, key: str) -> Any:
        """Data of a point; raises `LoomError` where somebody has damaged it."""
        try:
            return json.loads(text)
        except (TypeError, ValueError):
            raise LoomError(f"{self.path}: the point {key[:12]} is damaged (its data are no JSON)") from None

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
