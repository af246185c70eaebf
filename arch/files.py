"""Writing a file: whole or not at all, without harm to what stands at its path.

A regular file is replaced in one step by a new one beside it, which keeps the old one's permissions; a symbolic link
is followed; a device, a pipe or what a file descriptor stands for is opened and written to. The new file is locked
while it is being written, so that the remains of a killed process are told from the work of a living one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from siliconloom.arch.errors import LoomError

try:
    from fcntl import LOCK_EX, LOCK_NB, flock

    CAN_LOCK = True
except ImportError:  # not on this system: remains are left alone
    CAN_LOCK = False

CHUNK = 1 << 22
"""Bytes of another file that are copied at a time."""
SUFFIX = ".loom-part"
"""How the name of a file that is being written ends."""


def check_writable(path: str | Path) -> None:
    """Refuse an output path before any work is done for it; raises `LoomError`."""
    if os.path.basename(path) in ("", "."):  # a Path would forget what follows the name
        raise LoomError(f"{path}: names a folder, a file name was expected")
    path = Path(path)
    try:
        target = _target(path)
        if target.is_dir():
            raise LoomError(f"{path}: is a folder, a file name was expected")
        if not target.parent.is_dir():
            raise LoomError(f"{path}: the folder {target.parent} does not exist")
        through = written_through(path)
        beside = through or os.access(target.parent, os.W_OK)
        if not beside or (target.exists() and not os.access(target, os.W_OK)):
            raise LoomError(f"{path}: cannot be written: permission denied")
    except (OSError, ValueError) as error:
        raise LoomError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def write_file(path: str | Path, content: bytes | Path) -> None:
    """Write ``content``, or what is in that file, so that no reader ever sees half of it; raises `LoomError`."""
    check_writable(path)
    try:
        if written_through(path):
            _write_through(path, content)
            return
        target = _target(Path(path))
        sweep_parts(target.parent)
        with _part(target) as (handle, part):
            _write_all(handle, content)
            os.replace(part, target)
    except OSError as error:
        raise LoomError(f"{path}: cannot be written: {error.strerror or error}") from None


def written_through(path: str | Path) -> bool:
    """Tell whether the path is a device, a pipe or an open file descriptor, which nothing may replace."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    named = Path(os.path.abspath(path))
    open_file = named.parts[1:2] == ("proc",) or named.parts[1:3] == ("dev", "fd") or _is_standard_output(status)
    return open_file or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _is_standard_output(status: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(1), status)
    return False


def _write_through(path: str | Path, content: bytes | Path) -> None:
    if _is_standard_output(os.stat(path)):  # behind what was printed, and not over it
        handle = os.dup(1)
    else:
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        _write_all(handle, content)
    finally:
        os.close(handle)


def _write_all(handle: int, content: bytes | Path) -> None:
    if isinstance(content, Path):  # which may be larger than memory
        with content.open("rb") as source:
            while chunk := source.read(CHUNK):
                _write_all(handle, chunk)
        return
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def _target(path: Path) -> Path:
    """The path with symbolic links followed to where the file is, or will be."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


@contextlib.contextmanager
def _part(target: Path) -> Iterator[tuple[int, Path]]:
    """A new, empty, locked file beside ``target`` with its permissions; removed at the end if it is still there."""
    try:
        old: os.stat_result | None = target.stat()
    except FileNotFoundError:
        old = None
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode)
    while True:
        part = target.with_name(f"{_stem(target)}{secrets.token_hex(6)}{SUFFIX}")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if lock(handle) and os.fstat(handle).st_nlink:
            break
        os.close(handle)  # a sweep came in between, and takes it for remains
    try:
        if old is not None:
            with contextlib.suppress(OSError):
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, mode)
        yield handle, part
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
        os.close(handle)


def _stem(target: Path) -> str:
    """Beginning of the names of the parts of ``target``: cut, since a file's name has at most 255 bytes."""
    return f".{os.fsdecode(os.fsencode(target.name)[:200])}."


def sweep_parts(folder: Path) -> None:
    """Remove what killed processes were writing in a folder; what a living one writes is locked."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(".") and name.endswith(SUFFIX):
                with contextlib.suppress(OSError):
                    _remove_unlocked(folder / name)


def _remove_unlocked(part: Path) -> None:
    handle = os.open(part, os.O_WRONLY)
    try:
        if lock(handle, unknown=False):
            os.unlink(part)
    finally:
        os.close(handle)


def lock(handle: int, *, wait: bool = False, unknown: bool = True) -> bool:
    """Lock an open file for this process; tells whether it now has it, and ``unknown`` where nothing can be locked."""
    if not CAN_LOCK:
        return unknown
    try:
        flock(handle, LOCK_EX | (0 if wait else LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return unknown
    return True


__all__ = ["check_writable", "lock", "sweep_parts", "write_file", "written_through"]
