"""Folders to work in, which nobody misses: removed at the end, or by the next command when that end was a kill.

A folder is known by its name and by the file in it that its process keeps locked: a lock ends with its process, so what
nobody has locked is a killed one's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from siliconloom.arch.files import CAN_LOCK, lock

NAMES = re.compile(r"loom-(?:verify|synth|warmup)-[a-z0-9_]{8}")
LOCK = ".loom-lock"
GRACE_S = 3600.0
"""Age at which a folder without the file is remains, too: its process was killed before it made one."""


@contextlib.contextmanager
def working_folder(command: Literal["verify", "synth", "warmup"]) -> Iterator[Path]:
    """A new folder for the time of the block; those that killed processes left are removed first."""
    sweep_folders(Path(tempfile.gettempdir()))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"loom-{command}-"))
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if lock(handle) and os.fstat(handle).st_nlink:
            break
        os.close(handle)  # a sweep came in between, and takes it for remains
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def sweep_folders(place: Path) -> None:
    """Remove the folders of this user's killed processes; those of living ones are locked."""
    if not CAN_LOCK:
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            if NAMES.fullmatch(name):
                with contextlib.suppress(OSError):
                    _remove_unlocked(place / name)


def _remove_unlocked(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        if time.time() - status.st_mtime > GRACE_S:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        if lock(handle, unknown=False):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


__all__ = ["sweep_folders", "working_folder"]
