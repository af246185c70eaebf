"""Numba's cache of the kernels: whether it is there, and that it belongs to the sources that are there."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("kernel.py", "recurrence.py", "picture.py", "state.py", "tables.py", "timing/units.py", "../arch/isa.py")
"""Files whose code or constants are compiled into the event kernel."""
DRAM_SOURCES = ("dram_kernel.py", "dram_picture.py", "dram_repeat.py", "dram_state.py")
"""Files whose code or constants are compiled into the DRAM replay."""
CHANGE_SOURCES = ("changes.py", "network.py", "disturbed.py", "streams.py")
"""Files whose code is compiled into messages and streams that change their speed."""
CACHES = (
    ("kernel.sources", SOURCES, ("kernel.*.nb?", "recurrence.*.nb?", "picture.*.nb?")),
    ("dram.sources", DRAM_SOURCES, ("dram_*.nb?",)),
    ("change.sources", CHANGE_SOURCES, ("disturbed.*.nb?", "streams.*.nb?")),
)
"""Stamps, the sources they stand for, and the cached machine code made of those."""


def is_compiled(function: str = "kernel.run", beside: Path = HERE) -> bool:
    """Tell whether Numba has a cached kernel to load; also true when the JIT is off and nothing will be compiled.

    Parameters
    ----------
    function, beside
        Module and function of the kernel, and the folder that the module is in.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return True
    discard_stale()
    return any(_cache(beside).rglob(f"{function}-*.nbi"))


def source_digest(sources: tuple[str, ...] = SOURCES) -> str:
    """SHA-256 of files beside this one: of everything that the event kernel's outcome depends on, or of others."""
    digest = hashlib.sha256()
    for name in sources:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


@cache
def discard_stale() -> None:
    """Throw cached machine code away when a file that went into it has changed.

    Numba looks only at the file of the function that is called, not at the files of what it calls. Once per process.
    """
    for name, sources, patterns in CACHES:
        stamp, digest = _cache() / name, source_digest(sources)
        with contextlib.suppress(OSError):
            if stamp.is_file() and stamp.read_text() == digest:
                continue
            for pattern in patterns:
                for path in _cache().rglob(pattern):
                    path.unlink(missing_ok=True)
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(digest)


def _cache(beside: Path = HERE) -> Path:
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return Path(folder) if folder else beside / "__pycache__"
