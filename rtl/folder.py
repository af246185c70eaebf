"""The folder that a design is written to: exchanged for the earlier one in one step, with the user's files kept.

What siliconloom wrote is told by the sums in the sidecar. Files that it does not list are the user's and move along
into the new folder; a listed file whose sum differs was edited, and the folder is refused. A new folder is made
complete beside the old one, under a lock, and the two change places: whoever looks, or is killed, at any time leaves
one whole folder. What a killed process leaves beside it, the next one removes. A file keeps the permissions of the one
whose place it takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.arch.files import lock

SIDECAR = "siliconloom.json"
SCHEMA = "siliconloom.rtl/1"
SEAL = "sidecar_sha256"
"""The sidecar's last key, the sum of the others."""
STAGED = ".loom-part"
"""File in a folder that is being made: it tells one that never took its place from an old one that lost it."""
REMAINS = re.compile(r"[0-9a-f]{12}\.part")
CURRENT, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux's renameat2(2)."""


def sealed(sidecar: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """``sidecar`` with the SHA-256 of every file beside it and, last, of its own text without that line."""
    whole = {**sidecar, "sha256": {name: _sum(text) for name, text in files.items()}}
    return {**whole, SEAL: _sum(as_text(whole))}


def as_text(sidecar: Mapping[str, Any]) -> str:
    """The sidecar as it is written."""
    return json.dumps(sidecar, indent=2) + "\n"


def check_folder(folder: Path, chip: str) -> None:
    """Refuse a folder that the design of ``chip`` may not take; raises `LoomError`."""
    with _in_one_line(folder):
        _check_place(folder)
        _kept(folder, chip)


def write_folder(folder: Path, files: Mapping[str, str], chip: str) -> None:
    """Write ``files``, text by name with folders, the sidecar among them, in place of an earlier output.

    Raises
    ------
    LoomError
        When the folder holds another chip's design, edited files, or something else, or cannot be written.
    """
    with _in_one_line(folder):
        _check_place(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _sweep(folder)
            (folder / STAGED).unlink(missing_ok=True)
            kept = _kept(folder, chip)
            _refuse_collisions(folder, kept, files)
            staging = _remains_name(folder)
            staging.mkdir()
            try:
                _fill(staging, files, folder, kept)
                if folder.exists():
                    staging.chmod(stat.S_IMODE(folder.stat().st_mode))
                    _exchange(staging, folder)
                else:
                    staging.rename(folder)
                (folder / STAGED).unlink()
            finally:
                _remove(staging, folder)


def _check_place(folder: Path) -> None:
    where = Path(os.path.abspath(folder))
    if folder.is_symlink():
        raise LoomError(f"{folder}: is a symbolic link; name the folder itself")
    if folder.exists() and not folder.is_dir():
        raise LoomError(f"{folder}: is a file, a folder was expected")
    with contextlib.suppress(FileNotFoundError):
        here = Path.cwd()
        if folder.exists() and any(folder.samefile(each) for each in (here, *here.parents)):
            raise LoomError(f"{folder}: the current folder, or one above it, cannot be replaced; name another")
    if os.path.ismount(folder):
        raise LoomError(f"{folder}: a file system is mounted there; name a folder in it")
    above = next((each for each in where.parents if each.exists()), where)
    if not above.is_dir():
        raise LoomError(f"{folder}: {above} is not a folder")
    trial = above / _remains_name(folder).name
    trial.mkdir()  # tells more than the permissions do
    with contextlib.suppress(FileNotFoundError):  # another writer took it for remains
        trial.rmdir()


def _kept(folder: Path, chip: str) -> list[str]:
    """Paths of the user's files and folders in an earlier output of ``chip``, which move along."""
    if not folder.exists() or not any(folder.iterdir()):
        return []
    sidecar = _sidecar(folder)
    if sidecar is None:
        raise LoomError(f"{folder}: holds files that siliconloom did not write; name an empty or a new folder")
    seal = sidecar.pop(SEAL, None)
    if seal is None:
        raise LoomError(f"{folder}: an earlier siliconloom wrote it and did not seal its files; move the folder away")
    sums, kept = sidecar["sha256"], []
    if sidecar.get("chip") != chip and seal == _sum(as_text(sidecar)):
        raise LoomError(f"{folder}: holds the Verilog of {sidecar.get('chip')}, not {chip}; name another folder")
    edited = [] if seal == _sum(as_text(sidecar)) else [SIDECAR]
    for name in _entries(folder):
        if name in sums:
            if not _is_written(folder / name, sums[name]):
                edited.append(name)
        elif name not in (SIDECAR, STAGED) and not any(each.startswith(f"{name}/") for each in sums):
            kept.append(name)
    if edited:
        named = ", ".join(edited[:3]) + (f" and {len(edited) - 3} more" if len(edited) > 3 else "")
        raise LoomError(
            f"{folder}: edited since siliconloom wrote them: {named}; move them away or name another folder"
        )
    return kept


def _entries(folder: Path) -> Iterator[str]:
    """Paths of everything in a folder, below it, folders before what they hold; links are not followed."""
    for place, folders, files in os.walk(folder, onerror=_fail):
        for name in sorted(folders) + sorted(files):
            yield (Path(place) / name).relative_to(folder).as_posix()


def _fail(error: OSError) -> None:
    raise error


def _refuse_collisions(folder: Path, kept: list[str], files: Mapping[str, str]) -> None:
    folders = {each.as_posix() for name in files for each in Path(name).parents}
    for name in kept:
        mine = folder / name
        plain = mine.is_dir() and not mine.is_symlink()
        if (name in files and not _is_written(mine, _sum(files[name]))) or (name in folders and not plain):
            raise LoomError(f"{folder}: {name} is not siliconloom's, which would write it; move it away")


def _fill(staging: Path, files: Mapping[str, str], folder: Path, kept: list[str]) -> None:
    """Write the new files, and place the user's: by links, so that the old folder stays whole until the exchange."""
    (staging / STAGED).touch()
    for name in kept:
        old, new = folder / name, staging / name
        if old.is_dir() and not old.is_symlink():
            new.mkdir(parents=True, exist_ok=True)
            shutil.copymode(old, new)
        else:
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(old, new, follow_symlinks=False)
            except OSError:  # a file system without links, or somebody else's file
                shutil.copy2(old, new, follow_symlinks=False)
    for name in sorted(files, key=lambda name: name == SIDECAR):
        path = staging / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name], encoding="utf-8")
            _keep_mode(folder / name, path)
    for inner in {parent for name in files for parent in Path(name).parents} - {Path()}:
        _keep_mode(folder / inner, staging / inner)


def _keep_mode(old: Path, new: Path) -> None:
    """Give a new file or folder the permissions of the one whose place it takes; without one it has the umask's."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = old.lstat()
        if not stat.S_ISLNK(status.st_mode):
            new.chmod(stat.S_IMODE(status.st_mode))


def _exchange(staging: Path, folder: Path) -> None:
    """Let two folders change places; where the system cannot do that at once, one is away for a moment."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None and not rename(CURRENT, os.fsencode(staging), CURRENT, os.fsencode(folder), EXCHANGE):
        return
    aside = _remains_name(folder)
    folder.rename(aside)  # killed here, the next run finds it and puts it back
    staging.rename(folder)
    aside.rename(staging)


def _remove(remains: Path, folder: Path) -> None:
    """Remove what is beside ``folder``: a new one that was not finished, or an old one without what is the user's."""
    if not remains.exists():
        return
    staged, sidecar = (remains / STAGED).exists(), _sidecar(remains) or {"sha256": {}}
    last = (SIDECAR, STAGED)  # what tells the one from the other goes last: this may be killed, too
    for name in sorted(_entries(remains), key=lambda name: (name not in last, name), reverse=True):
        old, new = remains / name, folder / name
        if old.is_dir() and not old.is_symlink():
            old.rmdir()
        elif staged or name == SIDECAR or name in sidecar["sha256"] or _is_kept(old, new):
            old.unlink()
        else:  # it came while the new folder was made
            new.parent.mkdir(parents=True, exist_ok=True)
            os.replace(old, new)
    remains.rmdir()


def _is_kept(old: Path, new: Path) -> bool:
    return os.path.lexists(new) and old.lstat().st_mtime_ns <= new.lstat().st_mtime_ns


def _sweep(folder: Path) -> None:
    """Remove the remains of killed processes; whoever holds the lock knows that nobody works on them."""
    stem = _stem(folder)
    found = [folder.parent / name for name in os.listdir(folder.parent) if name.startswith(stem)]
    found = [each for each in found if REMAINS.fullmatch(each.name.removeprefix(stem)) and each.is_dir()]
    for remains in found:
        if not folder.exists() and not (remains / STAGED).exists() and _sidecar(remains) is not None:
            remains.rename(folder)
    for remains in found:
        with contextlib.suppress(OSError):
            _remove(remains, folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Be the only one to write ``folder``: others wait. The lock's file goes when nobody is left."""
    path = folder.with_name(f"{_stem(folder)}lock")
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        lock(handle, wait=True)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)  # the one before has removed it
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


@contextlib.contextmanager
def _in_one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, shutil.Error, ValueError) as error:
        raise LoomError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _remains_name(folder: Path) -> Path:
    return folder.with_name(f"{_stem(folder)}{secrets.token_hex(6)}.part")


def _stem(folder: Path) -> str:
    return f".{os.fsdecode(os.fsencode(folder.name)[:200])}."


def _sidecar(folder: Path) -> dict[str, Any] | None:
    """The sidecar of a folder that this tool wrote; ``None`` for any other."""
    try:
        found = json.loads((folder / SIDECAR).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(found, dict) and str(found.get("schema", "")).startswith("siliconloom.rtl/")
    return found if ours and isinstance(found.get("sha256"), dict) else None


def _is_written(path: Path, digest: object) -> bool:
    """Tell whether a regular file has the content of that sum."""
    if path.is_symlink() or not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


__all__ = ["SCHEMA", "SIDECAR", "check_folder", "write_folder"]
