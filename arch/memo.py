"""Answers that take long to find, found once: in memory, and in files that processes share.

There is one rule of what may be found again: a key is a hash of the question (what kind, of what description, for what
work) and of all the code of this package, so that nothing stale is ever found. A file is written whole or not at all;
one that cannot be read counts as absent and is written again. Any number of processes may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

import siliconloom
from siliconloom.arch.errors import LoomError
from siliconloom.arch.files import sweep_parts, write_file

KEPT_ANSWERS = 4096
"""Most answers to keep in memory."""
KEPT_BYTES = 256 * 2**20
"""Most bytes of files to keep; the oldest go first."""
HELD_OBJECTS = 64
"""Most objects to hold in memory, which may be large; the one that was asked for longest ago goes first."""
QUICK = 0.005
"""Seconds: what is found as soon as that is in no file, which takes as long to read."""

BEGAN = siliconloom.BEGAN
"""When this process began to read the package's code; this module may come much later."""
SETTLED = 2
"""Seconds within which a file that changes again may have the time that it had before, and code may be read."""

_CHECK = 32
"""Bytes at the beginning of a file: the hash of its key and of the others, an archive of arrays."""
Answer = Mapping[str, Any]
"""Numbers, texts and arrays by name."""
Held = TypeVar("Held")


class Answers(Struct):
    """Where the answers of a memo came from."""

    found: int = 0
    remembered: int = 0
    read: int = 0


class Memo:
    """Answers by `key_of` their questions.

    Parameters
    ----------
    folder
        Where answers are kept between processes: `default_folder` if not given, ``None`` for nowhere.
    """

    def __init__(self, folder: Path | str | None = "") -> None:
        self.folder = default_folder() if folder == "" else None if folder is None else Path(folder)
        self.answers = Answers()
        self._known: dict[str, Answer] = {}
        self._held: dict[Hashable, Any] = {}
        self._trimmed = False

    def recall(self, key: str, find: Callable[[], Answer], *, quick: float = 0.0, large: bool = False) -> Answer:
        """The answer that is known, or what ``find`` returns; what takes under ``quick`` seconds is in no file.

        A ``large`` one is in a file only, and not in memory.
        """
        found = self._known.get(key)
        if found is not None:
            self.answers.remembered += 1
            return found
        found = self._read(key)
        if found is not None:
            self.answers.read += 1
        else:
            began = time.perf_counter()
            found = find()
            self.answers.found += 1
            if time.perf_counter() - began >= quick:
                self._write(key, found)
        if large:
            return found
        if len(self._known) >= KEPT_ANSWERS:
            self._known.pop(next(iter(self._known)))
        self._known[key] = found
        return found

    def known(self, key: str) -> Answer | None:
        """What was kept under ``key``, in memory or in a file; ``None`` where nothing was."""
        found = self._known.get(key)
        return self._read(key) if found is None else found

    def keep(self, key: str, answer: Answer) -> None:
        """Keep an answer that has grown in place of the one that was known."""
        self._known[key] = answer
        self._write(key, answer)

    def hold(self, question: Hashable, find: Callable[[], Held]) -> Held:
        """What ``find`` returned to the same question before: the object itself, which nobody may change.

        It is in memory alone, so that it need not be arrays, and a question needs no code in it.
        """
        if question in self._held:
            self.answers.remembered += 1
            found: Held = self._held.pop(question)
        else:
            found = find()
            self.answers.found += 1
        if len(self._held) >= HELD_OBJECTS:
            self._held.pop(next(iter(self._held)))
        self._held[question] = found
        return found

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.memo"

    def _read(self, key: str) -> Answer | None:
        if self.folder is None:
            return None
        path = self._path(key)
        if not path.is_file():  # a pipe would be waited for
            return None
        try:
            content = path.read_bytes()
            if _check(key, content[_CHECK:]) != content[:_CHECK]:
                raise ValueError("damaged, or another answer's")
            with np.load(io.BytesIO(content[_CHECK:]), allow_pickle=False) as stored:
                values = {name: stored[name] for name in stored.files}
            return {name: value if value.ndim else value.item() for name, value in values.items()}
        except FileNotFoundError:
            return None
        except Exception:  # a file of another version raises one of a dozen kinds
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _write(self, key: str, answer: Answer) -> None:
        """Write beside the final name and rename; a disk that is full or read-only only costs the next process time."""
        if self.folder is None or not is_settled():
            return
        path, packed = self._path(key), io.BytesIO()
        np.savez_compressed(packed, **answer)
        with contextlib.suppress(OSError, LoomError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._trim()
            write_file(path, _check(key, packed.getvalue()) + packed.getvalue())

    def _trim(self) -> None:
        """Once per process, let the oldest files go when there are too many bytes; parts that were left behind, too."""
        assert self.folder is not None
        if self._trimmed:
            return
        self._trimmed = True
        found = []
        for folder in self.folder.glob("*/"):
            sweep_parts(folder)
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= KEPT_BYTES:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def _check(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).digest()


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/siliconloom/costs``, by default, and where that is no whole path, under ``~/.cache``."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "siliconloom" / "costs"


class Shared:
    """The memo of this process, made when it is first asked."""

    memo: Memo | None = None
    compiled: Memo | None = None
    """Where what compilers made is kept, if elsewhere: its keys hold every text that was compiled."""


def shared_memo() -> Memo:
    """That of this process."""
    if Shared.memo is None:
        Shared.memo = Memo()
    return Shared.memo


def compiled_memo() -> Memo:
    """That of what compilers made."""
    return Shared.compiled or shared_memo()


def key_of(kind: str, *question: str | bytes) -> str:
    """SHA-256 over everything that an answer depends on: what is asked, of what, for what work, and the code."""
    digest = hashlib.sha256(f"{kind} {code_digest()}".encode())
    for part in question:
        content = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(content)} ".encode() + content)
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """What answers are filed under: `source_digest`, or what nobody else has.

    Where a file has changed since this process began, or just before, nobody knows which of its texts is run.
    """
    digest, settled = read_sources()
    return digest if settled else secrets.token_hex(hashlib.sha256().digest_size)


def source_digest() -> str:
    """SHA-256 of all sources and templates of this package, which hold the version and every constant."""
    return read_sources()[0]


@cache
def read_sources() -> tuple[str, bool]:
    """`source_digest`, and whether these files are what this process runs.

    As long as no file has changed by its size, its place on the disk and its times, what they hold is not read again;
    times of the last `SETTLED` seconds before this process began prove nothing, as two changes may have the same ones.
    """
    paths, stamps, newest = _stamps()
    settled = _settled_before(newest)
    kept = default_folder() / "code" / hashlib.sha256(stamps.encode(errors="surrogateescape")).hexdigest()
    if settled:
        with contextlib.suppress(OSError, ValueError):
            known = kept.read_text()
            if len(known) == len(kept.name) and known.isalnum():
                return known, settled
    digest, folder = hashlib.sha256(), str(_package())
    for path in paths:
        content = Path(path).read_bytes()
        digest.update(f"{path.removeprefix(folder)} {len(content)}\n".encode(errors="surrogateescape") + content)
    if settled:
        with contextlib.suppress(OSError, LoomError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_file(kept, digest.hexdigest().encode())
    return digest.hexdigest(), settled


def _settled_before(newest: int) -> bool:
    """Whether code whose newest file came to be so at a time is what this process runs."""
    return newest <= BEGAN - SETTLED * 10**9


def is_settled() -> bool:
    """Whether the code is what it was when this process began; it is looked at once a second at most."""
    now = time.monotonic()
    if now - _Looked.at >= 1:
        _Looked.at, _Looked.settled = now, _Looked.settled and _settled_before(_stamps()[2])
    return _Looked.settled


class _Looked:
    """When the code was looked at, and what was seen."""

    at = -1.0
    settled = True


def _package() -> Path:
    return Path(siliconloom.__file__).parent


def _stamps() -> tuple[list[str], str, int]:
    """Files of the package; sizes, places and times of all of them as a text; and when the newest one came to be so."""
    paths, stamps, newest = list[str](), list[str](), 0
    for entry in _sources(str(_package())):
        found = entry.stat()
        newest = max(newest, found.st_ctime_ns)
        stamp = found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
        paths.append(entry.path)
        stamps.append(f"{entry.path} {stamp}")
    return paths, "\n".join(stamps), newest


def _sources(folder: str) -> Iterator[os.DirEntry[str]]:
    """Sources and templates of a folder and those in it, in an order of their names."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.name.endswith((".py", ".j2")):
                yield entry
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path)


__all__ = [
    "QUICK",
    "Answers",
    "Memo",
    "Shared",
    "code_digest",
    "compiled_memo",
    "default_folder",
    "key_of",
    "read_sources",
    "shared_memo",
    "source_digest",
]
