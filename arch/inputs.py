"""Reading the files of users: bounded in bytes, packed or not, with every failure told in one line."""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from siliconloom.arch.errors import LoomError

STANDARD_INPUT = "-"
TABLE_BYTES = 2**28
"""Most bytes of a CSV file's text, unpacked."""
TABLE_CELLS = 12_000_000
"""Most cells of a CSV file."""
CELL_BYTES = 180
"""That a cell takes while its file is read, the file's text included."""
_read: set[str] = set()


def read_input(path: str | Path, most: int, what: str = "file") -> str:
    """Text of a UTF-8 file, unpacked when its name ends in ``.gz``; ``-`` is standard input.

    Parameters
    ----------
    most
        Bytes that it may have, unpacked; no more are ever read.
    what
        Kind of file that was expected, for errors.

    Raises
    ------
    LoomError
        When it cannot be read, is too long or is not UTF-8 text.
    """
    return decoded(path, read_bytes(path, most, what))


def cell_column(line: str, cell: int) -> int:
    """Character, from one on, at which a cell of a line of CSV text begins, by its place from zero on."""
    start, quoted = 0, False
    for index, character in enumerate(line):
        if cell == 0:
            break
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            cell, start = cell - 1, index + 1
    while line[start : start + 1] == " ":
        start += 1
    return start + 1


def read_bytes(path: str | Path, most: int, what: str = "file") -> bytes:
    """Bytes of a file, read as `read_input` does; raises `LoomError` when it cannot be read or is too long."""
    name = source_name(path)
    try:
        raw = _standard_input(most) if str(path) == STANDARD_INPUT else _file(Path(path), most, what)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise LoomError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > most:
        raise LoomError(f"{name}: over {most >> 20} MiB, more than a {what} may have")
    return raw


def decoded(path: str | Path, raw: bytes) -> str:
    """UTF-8 text of a file's bytes; raises `LoomError` when they are none."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LoomError(f"{source_name(path)}: is not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_table(path: str | Path) -> str:
    """Text of a CSV file, which is refused before its cells would take gigabytes; raises what `read_input` does."""
    from siliconloom.arch.budget import require_memory  # only where there is a table

    text = read_input(path, TABLE_BYTES, "CSV file")
    cells = text.count(",") + text.count("\n")
    if cells > TABLE_CELLS:
        raise LoomError(f"{source_name(path)}: more than {TABLE_CELLS:,} cells")
    require_memory(f"{source_name(path)}: {cells:,} cells", cells * CELL_BYTES, "a shorter table needs less")
    return text


def source_name(path: str | Path) -> str:
    """Name of an input that errors show."""
    return "<standard input>" if str(path) == STANDARD_INPUT else str(path)


def files_read() -> frozenset[str]:
    """Paths of the files that were read since `forget_files_read`: no command writes over one of its inputs."""
    return frozenset(_read)


def forget_files_read() -> None:
    """Begin a command."""
    _read.clear()


def _file(path: Path, most: int, what: str) -> bytes:
    if path.is_dir():
        raise LoomError(f"{path}: is a folder, a {what} was expected")
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        _read.add(str(path))
        return file.read(most + 1)


def _standard_input(most: int) -> bytes:
    if sys.stdin is None:
        raise LoomError("standard input is closed; name a file")
    binary = getattr(sys.stdin, "buffer", None)
    if binary is None:
        return sys.stdin.read(most + 1).encode()
    return cast(BinaryIO, binary).read(most + 1)
