"""Standard input, output and error as a command finds them: closed, full, a pipe that nobody reads, not Unicode."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

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


class Stream(io.TextIOBase):
    """Stands before a stream of the process, which is closed when somebody closes it and not when nobody needs this."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self.stream = stream

    def __del__(self) -> None:
        """Leave the stream open."""

    @property
    def closed(self) -> bool:
        return self.stream.closed

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    @property
    def buffer(self) -> Any:
        """Where bytes go."""
        return self.stream.buffer

    def write(self, text: str) -> int:
        """Write text."""
        with self.guard():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Send what is on its way."""
        with self.guard():
            self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def guard(self) -> AbstractContextManager[None]:
        """What becomes of errors."""
        raise NotImplementedError


class Output(Stream):
    """A standard output whose errors name it."""

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


class MessageColumns(Stream):
    """A standard error that may be full or unread: no command fails because nobody hears its messages."""

    def guard(self) -> AbstractContextManager[None]:
        return contextlib.suppress(OSError, ValueError)


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
    if type(sys.stdout) is io.TextIOWrapper:  # not a test's or a notebook's own kind of stream
        sys.stdout = Output(sys.stdout)
    if type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = MessageColumns(sys.stderr)


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
