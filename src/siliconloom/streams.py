"""Standard input, output and error as a command finds them: closed, full, a pipe that nobody reads, not Unicode."""

from __future__ import annotations

import contextlib
import io
import os
import sys

BROKEN_PIPE = 141
"""Exit status when the reader of standard output has gone: what a shell shows for a program that SIGPIPE ended."""


class Closed(io.TextIOBase):
    """Stands for a standard output that was closed, and remembers whether anything was meant for it."""

    def __init__(self) -> None:
        self.used = False

    def write(self, text: str) -> int:
        """Lose the text, and remember."""
        self.used = self.used or bool(text)
        return len(text)


def prepare() -> None:
    """Make the streams take whatever a command prints, and keep closed ones from becoming the files that it opens."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    if sys.stdout is None:
        sys.stdout = Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def finish() -> str | None:
    """Send what is still on its way; returns why standard output did not take all of it.

    Raises
    ------
    BrokenPipeError
        When its reader has gone, which is no failure.
    """
    if isinstance(sys.stdout, Closed):
        return "it is closed, and what was meant for it is lost; name a file with --json" if sys.stdout.used else None
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop()
        raise
    except (OSError, ValueError) as error:
        _drop()
        return getattr(error, "strerror", None) or str(error)
    return None


def _drop() -> None:
    """Let what is left go nowhere, or Python complains of it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
