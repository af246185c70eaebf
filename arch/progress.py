"""How long work is followed: evaluations say what they are doing, and how far they are, to a watcher."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from numpy.typing import NDArray

Watch = Callable[[NDArray[Any]], None]
"""Takes the table that a kernel is about to fill: times of messages, negative until they are known."""


class Watcher(Protocol):
    """Someone who is told what goes on."""

    def share(self, text: str) -> AbstractContextManager[Callable[[float], None]]:
        """Work whose share that is done, from 0 to 1, is handed to what this yields."""

    def stage(self, text: str) -> AbstractContextManager[Callable[[str], None]]:
        """Work in stages, whose names are handed to what this yields."""


class Nobody:
    """A watcher who does not listen."""

    def share(self, text: str) -> AbstractContextManager[Callable[[float], None]]:
        return nullcontext(lambda _: None)

    def stage(self, text: str) -> AbstractContextManager[Callable[[str], None]]:
        return nullcontext(lambda _: None)


NOBODY = Nobody()
"""The watcher of whoever does not want to hear anything."""
