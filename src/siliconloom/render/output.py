"""Where a command's results go: files, each whole or not at all, and standard output."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.arch.files import check_writable as check_file
from siliconloom.arch.files import write_file
from siliconloom.arch.inputs import files_read, forget_files_read

STANDARD_OUTPUT = "-"


def check_writable(path: str | Path) -> None:
    """Refuse an output path before any work is done for it; ``-`` is standard output."""
    if str(path) != STANDARD_OUTPUT:
        check_file(path)


def check_outputs(outputs: dict[str, str | Path | None], inputs: Iterable[object] = ()) -> None:
    """Refuse what a command is told to write before any work is done for it; with this a command begins.

    Parameters
    ----------
    outputs
        Path of each option that names one, ``None`` where it is not given; at most one may be ``-``, and no two may
        be the same file.
    inputs
        Paths or library names that the command reads, none of which may be written over, or be where standard output
        goes.

    Raises
    ------
    LoomError
        With the option, or both.
    """
    forget_files_read()
    known: dict[tuple[int, int] | str, str] = {}
    printed = _standard_output()
    named = STANDARD_OUTPUT in map(str, outputs.values())
    for option, path in outputs.items():
        if path is None:
            continue
        check_writable(path)
        place = STANDARD_OUTPUT if str(path) == STANDARD_OUTPUT else _place(path)
        if place is not None and place == printed:  # /dev/stdout, or the file that it was redirected to
            if not named and stat.S_ISREG(os.stat(path).st_mode):  # the tables go there
                alone = "" if " " in option else f"; {option} - writes only this to it"  # not a file of several
                raise LoomError(f"{option} {path}: standard output goes there, too{alone}")
            place = STANDARD_OUTPUT
        if place is not None and place in known:
            both = f"{known[place]} and {option}"
            where = "standard output" if place == STANDARD_OUTPUT else path
            raise LoomError(f"{both} both name {where}; give each a file of its own")
        if place is not None:
            known[place] = option
    for given in inputs:
        place = _place(str(given)) if isinstance(given, str | Path) else None
        if place in known and place is not None:
            raise LoomError(f"{known[place]} {given}: is an input of this command and would be overwritten")
        if place is not None and place == printed:
            raise LoomError(f"{given}: is an input of this command, and standard output goes there, too")


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 in one step, so that no reader ever sees half of it; ``-`` is standard output."""
    if str(path) == STANDARD_OUTPUT:
        if _standard_output() in {_place(each) for each in files_read()} - {None}:
            raise LoomError("standard output: goes to a file that is an input of this command")
        sys.stdout.flush()
        binary = getattr(sys.stdout, "buffer", None)  # data is UTF-8 whatever the terminal speaks
        if binary is None:
            sys.stdout.write(text)
            return
        try:
            binary.write(text.encode("utf-8", "backslashreplace"))
            binary.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise LoomError(f"standard output: cannot be written: {error.strerror or error}") from None
        return
    refuse_inputs([path])
    write_file(path, text.encode("utf-8", "backslashreplace"))


def refuse_inputs(paths: Iterable[str | Path]) -> None:
    """Refuse to write over what this command has read; raises `LoomError`."""
    read = {_place(each) for each in files_read()} - {None}
    for path in paths:
        if _place(path) in read:
            raise LoomError(f"{path}: is an input of this command and would be overwritten")


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` in one step; ``-`` is standard output."""
    if str(path) == STANDARD_OUTPUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    refuse_inputs([path])
    write_file(path, content)


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Write ``data`` as indented JSON."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def _standard_output() -> tuple[int, int] | None:
    """What tells the file or pipe that standard output is; ``None`` for a terminal or null."""
    try:
        status = os.fstat(1)
    except OSError:
        return None
    return None if stat.S_ISCHR(status.st_mode) else (status.st_dev, status.st_ino)


def _place(path: str | Path) -> tuple[int, int] | str | None:
    """What tells files apart: the inode of one that is there, the path of one to be; ``None`` for a terminal or null.

    Character devices take what several write to them.
    """
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    except ValueError:  # no file is called that; whoever opens it says so
        return str(path)
    return None if stat.S_ISCHR(status.st_mode) else (status.st_dev, status.st_ino)
