"""A bar for work that one kernel does: a thread looks at the table that the kernel fills."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.progress import Watch
from siliconloom.render.tables import progress_bar

EVERY_S = 0.25


@contextmanager
def watched(show: bool, text: str) -> Iterator[Watch]:
    """A bar on standard error for work that has gone on for two seconds; its share is that of the table handed in.

    Before there is a table the bar says only that something is being done.
    """
    tables: list[NDArray[Any]] = []
    ended = threading.Event()
    with progress_bar(show, text) as advance:

        def look() -> None:
            while not ended.wait(EVERY_S):
                table = tables[-1] if tables else np.zeros(0)
                advance(np.count_nonzero(table >= 0) / max(len(table), 1))

        thread = threading.Thread(target=look, daemon=True)
        if show:
            thread.start()
        try:
            yield tables.append
        finally:
            ended.set()
            if show:
                thread.join()


__all__ = ["watched"]
