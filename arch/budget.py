"""How much memory a command may take: what was asked for with ``--memory``, or half of what is free.

Whoever is about to make a table whose size follows from the input says so here first. What would not fit ends in one
line before anything is allocated, and not in a machine without memory. Libraries that take much by themselves are asked
for likewise where a limit was given. What grows without anybody's saying so (Python's own objects) is watched then, and
ends the command soon after it is over.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Literal

from siliconloom.arch.errors import LoomError
from siliconloom.arch.quantity import BYTES, format_bytes, parse

MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and use of memory of this container, in the two versions of Linux's control groups."""
SHARE = 0.5
"""Of what is free, when nothing was asked for."""
UNKNOWN = 4 << 30
"""Bytes that are taken as free where the system does not say."""
SMALL = 16 << 20
"""Bytes of a table below which no limit is looked at,"""
SMALL_ASKED = 1 << 20
"""nor where one was asked for."""
STATUS = Path("/proc/self/status")
Library = Literal["Numba", "the compiler of kernels", "Yosys"]
LIBRARIES: dict[Library, int] = {
    "Numba": 124 << 20,  # runs kernels that have no library of machine code
    "the compiler of kernels": 100 << 20,
    "Yosys": 150 << 20,  # writes the Verilog, in a process of its own
}
"""Bytes by which a process, or one beside it, was seen to grow with each."""
WATCH_S, GRACE_S = 0.005, 2.0
"""How often what is held is looked at, and how long a command that was over may take to end."""

_asked: int | None = None


class TooLarge(LoomError):
    """What was asked for needs more memory than there may be."""


def set_memory(text: str | None) -> None:
    """Take a quantity such as ``2 GiB`` as the limit from here on; `None`: half of what is free.

    Raises
    ------
    LoomError
        When it is no positive quantity of bytes.
    """
    global _asked  # one limit for a process, as its memory is one
    end_watch()
    if text is None:
        _asked = None
        return
    try:
        found = float(text) if text.strip().isdecimal() else float(parse(text, BYTES, "2 GiB"))
    except Exception as error:
        raise LoomError(f"--memory: {error} (got '{text}')") from None
    if not 0 < found < 2**62:
        raise LoomError(f"--memory: must be bytes, more than none (got '{text}')")
    if found < own_memory():
        raise LoomError(
            f"--memory: the program itself takes {format_bytes(own_memory())}, before any table (got '{text}')"
        )
    _asked = int(found)
    with contextlib.suppress(ValueError, AttributeError):  # not the main thread, or a system without timers
        signal.signal(signal.SIGALRM, _look)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, WATCH_S, WATCH_S)


def end_watch() -> None:
    """Look no more at what the process holds: the command has ended."""
    if _asked is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _look(*_: object) -> None:
    held = own_memory()
    if _asked is not None and held > _asked:
        signal.setitimer(signal.ITIMER_REAL, GRACE_S, WATCH_S)  # it may clean up
        raise TooLarge(
            f"--memory: this command takes more than {format_bytes(_asked)}; it was ended at {format_bytes(held)}"
        )


def require_library(name: Library) -> None:
    """Refuse what needs a library that does not fit a limit that was asked for; raises `TooLarge`."""
    needed = own_memory() + LIBRARIES[name]
    if _asked is not None and needed > _asked:
        raise TooLarge(
            f"--memory: with {name} the program takes about {format_bytes(needed)}, "
            f"more than {format_bytes(_asked)}; ask for more"
        )


def free_memory() -> int:
    """Bytes that this process may still take without others being moved out: the machine's or the container's."""
    free = UNKNOWN
    for line in _text(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit, use in CGROUPS:
        most, used = _text(limit).strip(), _text(use).strip()
        if most.isdigit() and used.isdigit():
            free = min(free, max(int(most) - int(used), 0))
    return free


def memory_limit() -> int:
    """Bytes that one command may take for its tables."""
    return _asked if _asked is not None else int(free_memory() * SHARE)


def limited() -> bool:
    """Whether a limit was asked for."""
    return _asked is not None


def own_memory() -> int:
    """Bytes that this process holds already."""
    for line in _text(STATUS).splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def require_memory(key: str, estimate: float, instead: str) -> None:
    """Refuse a table before it is made: with what the process holds already it must fit the limit.

    Parameters
    ----------
    key
        What of the input makes it large: an option, a key path, a file.
    estimate
        Bytes that the table and what is needed to make it take.
    instead
        What to do about it.

    Raises
    ------
    TooLarge
        With the estimate, the limit, and what to do.
    """
    if estimate <= (SMALL if _asked is None else SMALL_ASKED):
        return
    limit, needed = memory_limit(), estimate + own_memory()
    if needed > limit:
        said = "--memory" if _asked is not None else "half of what is free; --memory SIZE sets another limit"
        raise TooLarge(
            f"{key}: needs about {format_bytes(needed)} of memory, more than {format_bytes(limit)} ({said}); {instead}"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
