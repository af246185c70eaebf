"""Numba's cache of the event kernel: whether it is there, and that it belongs to the sources that are there."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("kernel.py", "recurrence.py", "picture.py", "state.py", "tables.py", "timing/units.py", "../arch/isa.py")
"""Files whose code or constants are compiled into the kernel."""
STAMP = "kernel.sources"


def is_compiled() -> bool:
    """Tell whether Numba has a cached kernel to load; also true when the JIT is off and nothing will be compiled."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return True
    discard_stale()
    return any(_cache().rglob("kernel.run-*.nbi"))


def source_digest() -> str:
    """SHA-256 of everything that the event kernel's outcome depends on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


@cache
def discard_stale() -> None:
    """Throw cached machine code away when a file that went into it has changed.

    Numba looks only at the file of the function that is called, not at the files of what it calls. Once per process.
    """
    stamp, digest = _cache() / STAMP, source_digest()
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for pattern in ("kernel.*.nb?", "recurrence.*.nb?", "picture.*.nb?"):
            for path in _cache().rglob(pattern):
                path.unlink(missing_ok=True)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)


def _cache() -> Path:
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return Path(folder) if folder else HERE / "__pycache__"
