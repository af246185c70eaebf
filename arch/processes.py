"""Cores of this machine, and processes beside this one that find the same package."""

from __future__ import annotations

import os
import subprocess
import sys


def cores() -> int:
    """Processor cores that this process may use."""
    mine = getattr(os, "sched_getaffinity", None)  # not of every system
    return len(mine(0)) if mine is not None else os.cpu_count() or 1


def start_beside(code: str, *, asked: bool = False) -> subprocess.Popen[str]:
    """A process of Python that runs ``code``, and takes no interrupt of a terminal; its caller ends it.

    Where it is ``asked`` things its standard streams are pipes, line by line.
    """
    paths = [each for each in sys.path if each]  # so that it finds the same package, and nothing of the working folder
    pipe = subprocess.PIPE if asked else None
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )


__all__ = ["cores", "start_beside"]
