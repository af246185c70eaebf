"""Writing results: whole files or none."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from siliconloom.arch.errors import LoomError


def check_writable(path: str | Path) -> None:
    """Refuse an output path before any work is done for it; ``-`` is standard output."""
    if str(path) == "-":
        return
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise LoomError(f"{path}: is a folder, a file name was expected")
    if not folder.is_dir():
        raise LoomError(f"{path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise LoomError(f"{path}: cannot be written: permission denied")


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to a file in one step, so that no reader ever sees half of it; ``-`` is standard output."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    check_writable(path)
    path = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        raise LoomError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Write ``data`` as indented JSON."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")
