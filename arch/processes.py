"""Cores of this machine, and processes beside this one that find the same package."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from siliconloom.arch.budget import limited


def cores() -> int:
    """Processor cores that this process may use."""
    mine = getattr(os, "sched_getaffinity", None)  # not of every system
    return len(mine(0)) if mine is not None else os.cpu_count() or 1


def start_beside(code: str, *, asked: bool = False, quiet: bool = False) -> subprocess.Popen[str]:
    """A process of Python that runs ``code``, and takes no interrupt of a terminal; its caller ends it.

    Where it is ``asked`` things its standard streams are pipes, line by line; a ``quiet`` one has none, and may outlive
    its caller.
    """
    paths = [each for each in sys.path if each]  # so that it finds the same package, and nothing of the working folder
    stream = subprocess.PIPE if asked else subprocess.DEVNULL if quiet else None
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=stream,
        stdout=stream,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )


@contextlib.contextmanager
def helped(code: str, given: Any = None) -> Iterator[bool]:
    """A process beside this one runs ``code``, whose work has ended with the block, for what it finds to be read then.

    There is none with one core, or where memory is limited, and the block is told so: whoever needs what it would have
    found finds it alone, as does whoever needs what it failed to find. It begins with `given_to_helper`, which is what
    was ``given``.
    """
    if cores() < 2 or limited():
        yield False
        return
    process = start_beside(code, asked=True)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(base64.b64encode(pickle.dumps(given)).decode() + "\n")
            process.stdin.flush()
        yield True
        process.wait()
    finally:
        process.kill()
        process.communicate()


def given_to_helper() -> Any:
    """What `helped` was given, in the process that helps, which from now on ends with the one that it helps."""
    given = pickle.loads(base64.b64decode(_line()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    yield_to_others(0)
    return given


def yield_to_others(more: int) -> None:
    """Take ``more`` steps of niceness, and the session likewise: Linux may weigh sessions before their processes."""
    with contextlib.suppress(OSError):
        if (niceness := os.nice(more)) > 0:
            Path("/proc/self/autogroup").write_text(str(niceness))


def _line() -> bytes:
    """The first line of the standard input, and no byte of what follows."""
    found = b""
    while not found.endswith(b"\n"):
        if not (read := os.read(0, 1 << 16)):
            os._exit(1)  # who was to give it has ended
        found += read
    return found


def _end_with_input() -> None:
    os.read(0, 1)  # nobody writes anything more: it ends with who holds the other end
    os._exit(1)


__all__ = ["cores", "given_to_helper", "helped", "start_beside", "yield_to_others"]
